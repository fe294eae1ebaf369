"use strict";
// the panel: everything a drawing knows of a node, an edge, a group or the whole, as text, never as markup
var circuitPanel = (function () {
  const paint = circuitPaint;

  function element(tag, cls, text) {
    const made = document.createElement(tag);
    if (cls) made.className = cls;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function section(panel, title) {
    const made = element("section");
    made.append(element("h3", "", title));
    panel.append(made);
    return made;
  }

  function table(parent, rows) {
    const made = element("table");
    for (const row of rows) {
      const line = element("tr");
      row.forEach((cell, at) => {
        const held = element(at ? "td" : "th");
        if (cell instanceof Node) held.append(cell);
        else held.textContent = cell;
        line.append(held);
      });
      made.append(line);
    }
    parent.append(made);
  }

  function code(parent, title, text, isOpen) {
    const made = element("details");
    made.open = Boolean(isOpen);
    made.append(element("summary", "", title), element("pre", "", text));
    parent.append(made);
  }

  // a button that goes to another node
  function link(text, id, go) {
    const made = element("button", "link", text);
    made.addEventListener("click", () => go(id));
    return made;
  }

  function links(ids, index, go) {
    const made = element("span", "links");
    for (const id of ids) {
      const node = index.nodes.get(id);
      made.append(link((node.kind === "call" ? "" : node.title + " ") + node.name, id, go));
    }
    if (!ids.length) made.textContent = "none";
    return made;
  }

  // a port's line: what goes through it, its type below, for both side by side would break names
  function stacked(first, ...rest) {
    const made = element("div", "stacked");
    made.append(first, ...rest.filter(Boolean).map((text) => (text instanceof Node ? text : element("span", "soft", text))));
    return made;
  }

  // a node's docstring: sentences, then lines such as `State: none`, whose own lines go on further in
  function docs(panel, text) {
    const made = element("div", "doc");
    const rows = [];
    for (const part of text.split(/\n\s*\n/)) {
      const lines = part.split("\n");
      if (!lines.every((line) => /^([A-Z]\w*:\s|\s)/.test(line))) {
        made.append(element("p", "", lines.join(" ")));
        continue;
      }
      for (const line of lines) {
        const named = line.match(/^([A-Z]\w*):\s+(.*)$/);
        if (named) rows.push([named[1], named[2]]);
        else rows[rows.length - 1][1] += (/^\s+- /.test(line) ? "\n" : " ") + line.trim();
      }
    }
    if (rows.length) table(made, rows.map(([name, said]) => [name, name === "Ports" ? said.replace(/ - /g, "\n").replace(/^- /gm, "") : said]));
    panel.append(made);
  }

  function head(panel, kind, title, status) {
    panel.append(element("p", "kind", kind + (status && status !== "same" ? ", " + status : "")));
    panel.append(element("h2", "", title));
  }

  function overlayRows(index, pick) {
    const rows = [];
    for (const overlay of index.drawing.overlays) {
      const ready = paint.readied(overlay, index);
      const value = pick(ready);
      if (value !== undefined) rows.push([overlay.name, paint.readable(value, overlay.unit) + "\n" + overlay.about]);
    }
    return rows;
  }

  function showNode(panel, index, node, go) {
    const drawing = index.drawing;
    const isCall = node.kind === "call";
    head(panel, isCall ? "node" : node.title, isCall ? node.title : node.name, node.status);
    if (isCall) panel.append(element("p", "value", node.name));
    const path = [];
    for (let id = node.group; id; id = index.groups.get(id).parent) path.unshift(index.groups.get(id).title);
    if (path.length) panel.append(element("p", "path", path.join(" / ")));
    if (node.changes.length) table(section(panel, "Changed"), node.changes.map(([what, a, b]) => [what, a + "  \u2192  " + b]));
    const doc = drawing.docs.find((pair) => pair[0] === node.title);
    if (isCall && doc) docs(panel, doc[1]);
    if (node.attributes.length) table(section(panel, "Attributes"), node.attributes);
    const held = overlayRows(index, (ready) => ready.nodes.get(node.id));
    if (held.length) table(section(panel, "Measured and planned"), held);
    if (node.takes.length) {
      const rows = node.takes.map(function (port, at) {
        const from = drawing.edges.filter((edge) => edge.target === node.id && edge.target_port === at);
        const state = node.writes.includes(port.name) ? ", written" : node.reads.includes(port.name) ? ", read" : "";
        const producers = element("span", "links");
        for (const edge of from) producers.append(link(port.value, edge.source, go));
        return [port.name || "value", stacked(producers, port.type + state)];
      });
      table(section(panel, "Takes"), rows);
    }
    if (node.weights.length) {
      const rows = node.weights.map((one) => [one.port, [one.name, one.type, one.source && "from " + one.source].filter(Boolean).join("\n")]);
      table(section(panel, "Weights"), rows);
    }
    if (node.makes.length) {
      const rows = node.makes.map(function (port, at) {
        const to = drawing.edges.filter((edge) => edge.source === node.id && edge.source_port === at);
        return [port.value, stacked(port.type, links(to.map((edge) => edge.target), index, go))];
      });
      table(section(panel, "Makes, and who takes it"), rows);
    }
    if (isCall) {
      const effects = [...node.writes.map((port) => ["writes", port]), ...node.reads.map((port) => ["reads", port])];
      table(section(panel, "State"), effects.length ? effects : [["effects", "none"]]);
    }
    showNote(panel, index, node.note, isCall ? node.title : "");
    const source = drawing.sources.find((pair) => pair[0] === node.title);
    if (isCall && source && source[1]) code(section(panel, "Meaning"), "reference of " + node.title, source[1]);
  }

  function showNote(panel, index, note, nodeType) {
    if (!note) return;
    const rows = [];
    if (note.launch) rows.push(["launch", note.launch]);
    if (note.lowering) rows.push(["lowered by", note.lowering]);
    if (note.numerics) rows.push(["numerics", note.numerics]);
    for (const [name, value, unit] of [["flops", note.flops, ""], ["bytes read", note.bytes_read, "bytes"], ["bytes written", note.bytes_written, "bytes"]]) {
      if (value !== null) rows.push([name, paint.readable(value, unit)]);
    }
    const made = section(panel, "Plan");
    table(made, rows);
    if (note.kernel) code(made, "source of the lowering", note.kernel);
    if (note.kernels.length) {
      const sources = new Map(index.drawing.kernels);
      const shown = section(panel, note.kernels.length > 1 ? "Kernels that run it" : "Kernel that runs it");
      for (const name of note.kernels) code(shown, circuitLayout.shortened(name), sources.get(name) || "no source");
    }
    if (note.unfired.length) table(section(panel, nodeType ? "Rules for " + nodeType + " that did not fire" : "Rules that did not fire"), note.unfired);
  }

  function showEdge(panel, index, one, go) {
    const edge = one.edge;
    head(panel, "edge, " + paint.MEANINGS[edge.kind], edge.value, edge.status);
    panel.append(element("p", "value", edge.type));
    const all = index.drawing.edges.filter((other) => other.source === edge.source && other.source_port === edge.source_port);
    const made = section(panel, "Follow");
    table(made, [
      ["made by", links([edge.source], index, go)],
      ["taken by", links(all.map((other) => other.target), index, go)],
    ]);
    const held = overlayRows(index, (ready) => ready.edges.get(edge.value));
    if (held.length) table(section(panel, "Measured and planned"), held);
  }

  function showGroup(panel, index, group, isCollapsed, go, toggle) {
    const inner = index.inner.get(group.id);
    const inside = new Set(inner);
    head(panel, group.kind, group.title);
    const button = element("button", "wide", isCollapsed ? "Expand" : "Collapse");
    button.addEventListener("click", () => toggle(group.id));
    panel.append(button);
    const notes = inner.map((id) => index.nodes.get(id).note).filter(Boolean);
    const sum = (name) => notes.reduce((total, note) => total + (note[name] || 0), 0);
    const rows = [["nodes", String(inner.length)]];
    if (notes.length) rows.push(["bytes read", paint.readable(sum("bytes_read"), "bytes")], ["bytes written", paint.readable(sum("bytes_written"), "bytes")], ["flops", paint.readable(sum("flops"), "")]);
    table(section(panel, group.kind === "launch" ? "One launch, its calls apart" : "Holds"), rows);
    showNote(panel, index, group.note, "");
    const held = overlayRows(index, (ready) => ready.groups.get(group.id));
    if (held.length) table(section(panel, "Measured and planned"), held);
    const edges = index.drawing.edges;
    const into = edges.filter((edge) => inside.has(edge.target) && !inside.has(edge.source));
    const out = edges.filter((edge) => inside.has(edge.source) && !inside.has(edge.target));
    const listed = (list) => Array.from(new Map(list.map((edge) => [edge.value, edge])).values());
    if (into.length) table(section(panel, "Takes"), listed(into).map((edge) => [stacked(link(edge.value, edge.source, go), edge.type)]));
    if (out.length) table(section(panel, "Makes"), listed(out).map((edge) => [stacked(link(edge.value, edge.source, go), edge.type)]));
    table(section(panel, "Nodes"), inner.slice(0, 200).map((id) => [link(index.nodes.get(id).name, id, go), index.nodes.get(id).title]));
  }

  function showAll(panel, index, go) {
    const drawing = index.drawing;
    head(panel, "circuit", drawing.name);
    if (drawing.about) panel.append(element("p", "value", drawing.about));
    const calls = drawing.nodes.filter((node) => node.kind === "call");
    const rows = [["nodes", String(calls.length)], ["edges", String(drawing.edges.length)], ["groups", String(drawing.groups.length)]];
    for (const status of ["added", "removed", "changed"]) {
      const count = drawing.nodes.filter((node) => node.status === status).length;
      if (count) rows.push([status, String(count)]);
    }
    table(section(panel, "Holds"), rows);
    const changed = drawing.nodes.filter((node) => node.status !== "same");
    if (changed.length) {
      const rows = changed.slice(0, 200).map((node) => [link(node.name, node.id, go), node.status + (node.changes.length ? ": " + node.changes.map((change) => change[0]).join(", ") : "")]);
      table(section(panel, "Changes"), rows);
    }
    for (const overlay of drawing.overlays) {
      table(section(panel, overlay.name), [["about", overlay.about], ...overlay.details]);
    }
    if (drawing.unfired.length) table(section(panel, "Rules that did not fire"), drawing.unfired);
    table(section(panel, "Keys"), [
      ["/", "search"],
      ["arrows", "follow edges; left and right along the row"],
      ["Enter", "show in this panel"],
      ["Space", "collapse or expand"],
      ["f  +  \u2212", "fit, zoom in, zoom out"],
      ["c  e", "collapse all, expand all"],
      ["d", "light or dark"],
      ["Esc", "back to the whole"],
    ]);
  }

  return { showNode, showEdge, showGroup, showAll, element };
})();
