"use strict";
// the page: which drawing is shown, what is collapsed and selected, and what keys and clicks do
(function () {
  const views = circuitViews;
  const elk = new ELK(layoutWorker());
  const get = (id) => document.getElementById(id);
  const [stage, world, panel, said] = [get("stage"), get("world"), get("panel"), get("said")];
  const state = { view: 0, index: null, collapsed: new Set(), scene: null, selected: null, overlay: 0, theme: "light", turn: 0 };
  const viewport = circuitViewport.attach(stage, get("canvas"), clicked);
  const MAX_FOUND = 40;
  const MANY = 150; // boxes, above which texts rest while the drawing moves

  // the library lays out beside the page, so that the page stays alive; inside it where workers are not allowed
  function layoutWorker() {
    try {
      // the library answers messages once it is asked for its own worker, which it cannot hand out inside of one
      const text = get("library").textContent + ";try { new self.ELK() } catch (error) {}";
      const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      const worker = new Worker(address);
      return { workerFactory: () => worker };
    } catch (error) {
      return {};
    }
  }

  function setTheme(theme) {
    state.theme = theme;
    document.documentElement.dataset.theme = theme;
    get("shapes").textContent = circuitPaint.styleSheet(theme);
    if (state.scene) draw();
  }

  function overlay() {
    return state.index.drawing.overlays[state.overlay] || null;
  }

  function openView(number) {
    state.view = number;
    state.index = circuitLayout.indexed(views[number].drawing);
    state.selected = null;
    state.collapsed = new Set();
    if (views[number].folded) state.index.drawing.groups.forEach((group) => group.parent || state.collapsed.add(group.id));
    get("name").textContent = state.index.drawing.name;
    get("name").title = state.index.drawing.about;
    fillOverlays();
    return layOut().then(() => viewport.fit(state.scene, false));
  }

  function fillOverlays() {
    const select = get("overlay");
    select.replaceChildren();
    const all = state.index.drawing.overlays;
    all.forEach((one, at) => select.append(new Option(one.name, String(at))));
    select.append(new Option("no overlay", "-1"));
    state.overlay = all.length ? Math.min(Math.max(state.overlay, 0), all.length - 1) : -1;
    select.value = String(state.overlay);
    select.hidden = !all.length;
  }

  // lay out what is expanded now; `anchor` is a group whose corner stays where it is
  function layOut(anchor) {
    const turn = ++state.turn;
    const old = anchor && boxOf(anchor);
    const timer = setTimeout(() => (get("busy").hidden = false), 120);
    const index = state.index;
    return circuitLayout.layOut(elk, index, new Set(state.collapsed)).then(function (scene) {
      clearTimeout(timer);
      if (turn !== state.turn) return;
      get("busy").hidden = true;
      state.scene = scene;
      if (old) {
        const box = boxOf(anchor);
        viewport.pan((old.x - box.x) * viewport.view.scale, (old.y - box.y) * viewport.view.scale);
      }
      draw();
    });
  }

  function draw() {
    get("canvas").classList.toggle("many", state.scene.boxes.length > MANY);
    get("canvas").setAttribute("width", state.scene.width);
    get("canvas").setAttribute("height", state.scene.height);
    world.innerHTML = circuitPaint.paint(state.scene, state.index, { theme: state.theme, overlay: overlay() });
    showLegend();
    mark();
    showPanel();
    document.body.dataset.drawn = String(state.turn);
  }

  function boxOf(id) {
    return state.scene.boxes.find((box) => box.id === id);
  }

  // mark the selection, its edges and what hangs on them
  function mark() {
    for (const held of world.querySelectorAll(".selected,.near")) held.classList.remove("selected", "near");
    world.classList.toggle("focused", Boolean(state.selected));
    if (!state.selected) return;
    const isEdge = state.selected.startsWith("e");
    const edge = isEdge ? state.index.edges.get(state.selected) : null;
    const shape = isEdge ? null : get("shape-" + state.selected);
    if (shape) shape.classList.add("selected");
    const inside = new Set(state.index.inner.get(state.selected) || [state.selected]);
    for (const one of state.scene.edges) {
      const members = one.members.map((id) => state.index.edges.get(id));
      const touches = members.some((held) =>
        isEdge
          ? held.source === edge.source && held.source_port === edge.source_port
          : inside.has(held.source) !== inside.has(held.target),
      );
      if (!touches) continue;
      const line = world.querySelector('[data-edge="' + one.id + '"]');
      line.classList.add("near");
      for (const end of members.flatMap((held) => [held.source, held.target])) {
        const shown = get("shape-" + circuitLayout.standIn(state.index, end, state.collapsed));
        if (shown) shown.classList.add("near");
      }
    }
  }

  function showPanel() {
    panel.replaceChildren();
    const [index, id] = [state.index, state.selected];
    if (!id) circuitPanel.showAll(panel, index, goTo);
    else if (index.nodes.has(id)) circuitPanel.showNode(panel, index, index.nodes.get(id), goTo);
    else if (index.groups.has(id)) circuitPanel.showGroup(panel, index, index.groups.get(id), state.collapsed.has(id), goTo, toggle);
    else circuitPanel.showEdge(panel, index, { edge: index.edges.get(id) }, goTo);
    panel.scrollTop = 0;
  }

  function select(id) {
    state.selected = id;
    mark();
    showPanel();
    if (!id) return;
    const node = state.index.nodes.get(id) || state.index.groups.get(id);
    said.textContent = node ? node.title + " " + (node.name || "") : "edge " + state.index.edges.get(id).value;
  }

  function clicked(target) {
    const toggled = target.closest("[data-toggle]");
    const shape = target.closest("[data-id]");
    const edge = target.closest("[data-edge]");
    if (toggled) toggle(toggled.dataset.toggle);
    else if (shape) select(shape.dataset.id);
    else if (edge) select(edge.dataset.edge);
    else if (target.closest("#canvas") || target === stage) select(null);
  }

  function toggle(group) {
    if (!state.collapsed.delete(group)) state.collapsed.add(group);
    state.selected = group;
    return layOut(group);
  }

  // go to a node or a group, opening what it stands in
  function goTo(id) {
    let opened = false;
    const isNode = state.index.nodes.has(id);
    for (let group = isNode ? state.index.nodes.get(id).group : state.index.groups.get(id).parent; group; group = state.index.groups.get(group).parent) {
      opened = state.collapsed.delete(group) || opened;
    }
    return (opened ? layOut() : Promise.resolve()).then(function () {
      select(id);
      viewport.center(boxOf(id));
    });
  }

  function collapseAll(isCollapsed) {
    state.collapsed = new Set(isCollapsed ? state.index.drawing.groups.map((group) => group.id) : []);
    state.selected = null;
    return layOut().then(() => viewport.fit(state.scene, false));
  }

  // arrows: down to a reader, up to a producer, sideways to the next box of the same row
  function step(key) {
    const here = state.selected && boxOf(state.selected);
    if (!here) {
      const first = state.scene.boxes.reduce((best, box) => (!best || box.y < best.y ? box : best), null);
      return first && settle(first.id);
    }
    if (key === "ArrowDown" || key === "ArrowUp") {
      const [from, to] = key === "ArrowDown" ? ["source", "target"] : ["target", "source"];
      const shown = (id) => circuitLayout.standIn(state.index, id, state.collapsed);
      const inside = new Set(state.index.inner.get(here.id) || [here.id]);
      const ends = state.index.drawing.edges
        .filter((edge) => inside.has(edge[from]) && !inside.has(edge[to]) && edge.kind !== "feedback")
        .map((edge) => boxOf(shown(edge[to])));
      if (ends.length) settle(nearest(ends, here).id);
      return;
    }
    const side = key === "ArrowRight" ? 1 : -1;
    const middle = here.y + here.height / 2;
    const row = state.scene.boxes.filter(
      (box) => box.id !== here.id && (box.x - here.x) * side > 0 && (box.node || box.isCollapsed) && Math.abs(box.y + box.height / 2 - middle) < 60,
    );
    if (row.length) settle(nearest(row, here).id);
  }

  function nearest(boxes, here) {
    const far = (box) => Math.hypot(box.x + box.width / 2 - here.x - here.width / 2, box.y - here.y);
    return boxes.reduce((best, box) => (far(box) < far(best) ? box : best));
  }

  function settle(id) {
    select(id);
    viewport.reveal(boxOf(id));
  }

  function showLegend() {
    const legend = get("legend");
    legend.replaceChildren();
    const kinds = new Set(state.index.drawing.edges.map((edge) => edge.kind));
    for (const kind of circuitPaint.KINDS.filter((one) => kinds.has(one))) {
      const line = circuitPanel.element("span", "entry");
      const inner = kind === "state" ? '<path class="inner" d="M2 6H34"/>' : "";
      line.innerHTML = '<svg width="38" height="12"><g class="edge ' + kind + '"><path class="line" d="M2 6H34"/>' + inner + "</g></svg>";
      line.append(circuitPaint.MEANINGS[kind]);
      legend.append(line);
    }
    for (const [status, sign] of [["added", "+"], ["removed", "\u2212"], ["changed", "~"]]) {
      if (!state.index.drawing.nodes.some((node) => node.status === status)) continue;
      const entry = circuitPanel.element("span", "entry");
      entry.append(circuitPanel.element("span", "sign-of", sign), status);
      legend.append(entry);
    }
    const one = overlay();
    if (!one) return;
    const ready = circuitPaint.readied(one, state.index);
    const theme = circuitPaint.THEMES[state.theme];
    const scale = circuitPanel.element("span", "entry scale");
    const ramp = circuitPanel.element("span", "ramp");
    ramp.style.background = "linear-gradient(90deg," + theme.low + "," + circuitPaint.mixed(theme.low, theme.high, 0.85) + ")";
    const text = (value) => circuitPaint.readable(value, one.unit);
    scale.append(text(ready.scale.low), ramp, text(ready.scale.high) + (one.scale === "log" ? " (log)" : "") + "  " + one.name);
    scale.title = one.about;
    legend.append(scale);
  }

  function search() {
    const words = get("search").value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const list = get("found");
    list.replaceChildren();
    const found = [];
    for (const node of words.length ? state.index.drawing.nodes : []) {
      const text = [node.title, node.name, ...node.makes.map((port) => port.value), ...node.weights.map((one) => one.name)];
      const joined = text.join(" ").toLowerCase();
      if (words.every((word) => joined.includes(word))) found.push([{ id: node.id, name: node.name, kind: node.title }, node.name.toLowerCase() === words.join(" ") ? 0 : 1]);
    }
    for (const group of words.length ? state.index.drawing.groups : []) {
      const joined = (group.kind + " " + group.title).toLowerCase();
      if (words.every((word) => joined.includes(word))) found.push([{ id: group.id, name: group.title, kind: group.kind }, group.title.toLowerCase() === words.join(" ") ? 0 : 1]);
    }
    found.sort((a, b) => a[1] - b[1]);
    for (const [held] of found.slice(0, MAX_FOUND)) {
      const line = circuitPanel.element("li", "", held.name);
      line.setAttribute("role", "option");
      line.append(circuitPanel.element("small", "", held.kind));
      line.dataset.node = held.id;
      line.addEventListener("pointerdown", (event) => (event.preventDefault(), take(held.id)));
      list.append(line);
    }
    if (words.length && !found.length) list.append(circuitPanel.element("li", "none", "nothing of that name"));
    list.hidden = !words.length;
    if (found.length) list.firstChild.setAttribute("aria-selected", "true");
  }

  function take(id) {
    get("found").hidden = true;
    stage.focus();
    return goTo(id);
  }

  get("search").addEventListener("input", search);
  get("search").addEventListener("blur", () => (get("found").hidden = true));
  get("search").addEventListener("keydown", function (event) {
    const items = Array.from(get("found").querySelectorAll("[data-node]"));
    const at = items.findIndex((item) => item.getAttribute("aria-selected"));
    if (event.key === "Escape") {
      get("search").value = "";
      search();
      stage.focus();
    } else if (event.key === "Enter" && items.length) {
      take(items[Math.max(at, 0)].dataset.node);
    } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && items.length) {
      event.preventDefault();
      const next = (at + (event.key === "ArrowDown" ? 1 : items.length - 1)) % items.length;
      items.forEach((item) => item.removeAttribute("aria-selected"));
      items[next].setAttribute("aria-selected", "true");
      items[next].scrollIntoView({ block: "nearest" });
    }
  });

  const middle = (factor) => viewport.zoomAt(factor, stage.clientWidth / 2, stage.clientHeight / 2);
  const actions = {
    f: () => viewport.fit(state.scene, true),
    "+": () => middle(1.25),
    "=": () => middle(1.25),
    "-": () => middle(0.8),
    c: () => collapseAll(true),
    e: () => collapseAll(false),
    d: () => setTheme(state.theme === "light" ? "dark" : "light"),
    "/": () => get("search").focus(),
    Escape: () => select(null),
  };
  document.addEventListener("keydown", function (event) {
    const isTyping = ["INPUT", "SELECT"].includes(event.target.tagName);
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (actions[event.key]) {
      event.preventDefault();
      actions[event.key]();
    } else if (document.activeElement === stage && event.key.startsWith("Arrow")) {
      event.preventDefault();
      step(event.key);
    } else if (document.activeElement === stage && event.key === " ") {
      event.preventDefault();
      if (state.index.groups.has(state.selected)) toggle(state.selected);
      else if (state.selected && state.index.nodes.has(state.selected)) {
        const group = state.index.nodes.get(state.selected).group;
        if (group) toggle(group);
      }
    } else if (document.activeElement === stage && event.key === "Enter") {
      panel.focus();
    }
  });
  stage.addEventListener("dblclick", function (event) {
    const shape = event.target.closest(".group");
    if (shape && !event.target.closest("[data-toggle]")) toggle(shape.dataset.id);
  });
  for (const [id, key] of [["fit", "f"], ["in", "+"], ["out", "-"], ["collapse", "c"], ["expand", "e"], ["theme", "d"]]) {
    get(id).addEventListener("click", () => actions[key]());
  }
  get("overlay").addEventListener("change", function (event) {
    state.overlay = Number(event.target.value);
    draw();
  });
  views.forEach((view, at) => get("view").append(new Option(view.title, String(at))));
  get("view").hidden = views.length < 2;
  get("view").addEventListener("change", (event) => openView(Number(event.target.value)));
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  openView(0);
})();
