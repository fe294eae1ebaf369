"use strict";
// a scene becomes SVG text: shapes tell kinds apart by form and line, colours only repeat it
var circuitPaint = (function () {
  const layout = circuitLayout;
  const FONT = "'DejaVu Sans', Verdana, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif";
  // low and high are the two ends of every overlay's scale: one hue, told apart by lightness
  const THEMES = {
    light: {
      paper: "#ffffff", ink: "#1c2430", soft: "#5a6675", box: "#ffffff", line: "#7b8896", call: "#52606f",
      group: ["#f4f6f9", "#eaeef4", "#e1e7ef"], groupLine: "#aab5c2", launch: "#7a4b00", draft: "#33475b",
      data: "#4a5665", state: "#0067a3", feedback: "#c24e00", host: "#6a3d8f", weight: "#8a6d1d",
      low: "#eef4fb", high: "#123f75", added: "#157347", removed: "#b3261e", changed: "#8a5a00", focus: "#0b66ff",
    },
    dark: {
      paper: "#12161c", ink: "#e8edf3", soft: "#9fadbc", box: "#1d242d", line: "#6b7987", call: "#8b99a8",
      group: ["#171d25", "#1b222b", "#202833"], groupLine: "#475462", launch: "#f0b35a", draft: "#9fb6cd",
      data: "#a9b6c4", state: "#5db7f0", feedback: "#ff9554", host: "#c59be8", weight: "#d9bb62",
      low: "#22303f", high: "#b9dcff", added: "#5fd08f", removed: "#ff8a80", changed: "#ffcc66", focus: "#6fa8ff",
    },
  };
  const BAR_WIDTH = 64; // of the number in an open frame's corner
  const KINDS = ["data", "state", "feedback", "host", "weight"];
  const MEANINGS = {
    data: "data",
    state: "state, threaded",
    feedback: "fed back to the next draft",
    host: "seen by the host",
    weight: "weight",
  };

  function escaped(text) {
    return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
  }

  function number(value) {
    return String(Math.round(value * 10) / 10);
  }

  function mixed(from, to, share) {
    const parts = [1, 3, 5].map(function (at) {
      const a = parseInt(from.slice(at, at + 2), 16);
      const b = parseInt(to.slice(at, at + 2), 16);
      return Math.round(a + (b - a) * share).toString(16).padStart(2, "0");
    });
    return "#" + parts.join("");
  }

  // numbers as people read them: 1.23 k, 4.5 M; a missing one is infinite, for JSON has no word for it
  function readable(value, unit) {
    if (value === null) return "\u221e";
    const space = unit ? "\u00a0" + unit : "";
    const size = Math.abs(value);
    if (unit === "share" || unit === "accepted") return (100 * value).toFixed(size < 0.1 ? 1 : 0) + "\u00a0%";
    if (size === 0 && unit === "us") return "0\u00a0\u00b5s";
    if (size === 0) return "0" + (unit === "bytes" ? "\u00a0B" : space);
    if (unit === "bytes") {
      const steps = [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"]];
      for (const [step, name] of steps) if (size >= step) return trimmed(value / step) + "\u00a0" + name;
      return value + "\u00a0B";
    }
    if (unit === "us") return size < 1000 ? trimmed(value) + "\u00a0\u00b5s" : trimmed(value / 1000) + "\u00a0ms";
    if (size < 0.001) return value.toExponential(1) + space;
    if (size >= 1e12) return trimmed(value / 1e12) + "\u00a0T" + unit;
    if (size >= 1e9) return trimmed(value / 1e9) + "\u00a0G" + unit;
    if (size >= 1e6) return trimmed(value / 1e6) + "\u00a0M" + unit;
    if (size >= 1e4) return trimmed(value / 1e3) + "\u00a0k" + unit;
    return trimmed(value) + space;
  }

  function trimmed(value) {
    return Number(value.toPrecision(3)).toLocaleString("en-US", { maximumFractionDigits: 6 });
  }

  // where a value lies on an overlay's scale, 0 to 1
  function scaleOf(overlay) {
    const all = [...overlay.nodes, ...overlay.edges, ...overlay.groups].map((pair) => pair[1]);
    const finite = all.filter((value) => value !== null);
    const high = Math.max(...finite, 0);
    if (overlay.scale === "linear") {
      return { low: 0, high: high, at: (value) => (value === null ? 1 : high > 0 ? value / high : 0) };
    }
    const positive = finite.filter((value) => value > 0);
    const low = positive.length ? Math.min(...positive) : 0;
    const span = Math.log(high / low) || 1;
    // the least that is not zero still shows
    const at = (value) => (value === null ? 1 : value > 0 ? (low === high ? 1 : 0.1 + (0.9 * Math.log(value / low)) / span) : 0);
    return { low: low, high: high, at: at };
  }

  function isInside(index, group, outer) {
    for (let id = group; id; id = index.groups.get(id).parent) if (id === outer) return true;
    return false;
  }

  // an overlay made ready: numbers by node, value name and group, sums for groups where they mean something
  function readied(overlay, index) {
    if (!overlay) return null;
    const nodes = new Map(overlay.nodes);
    const groups = new Map(overlay.groups);
    if (overlay.is_sum) {
      // a launch's own number counts beside those of what stands in it
      const own = new Map(groups);
      for (const [id, inner] of index.inner) {
        const held = inner.filter((node) => nodes.has(node)).map((node) => nodes.get(node));
        for (const [other, value] of own) if (isInside(index, other, id)) held.push(value);
        if (held.length) groups.set(id, held.reduce((sum, value) => sum + value, 0));
      }
    }
    const scale = scaleOf(overlay);
    return { overlay: overlay, nodes: nodes, groups: groups, edges: new Map(overlay.edges), scale: scale };
  }

  function styleSheet(theme) {
    const t = THEMES[theme];
    const lines = [
      "text{font-family:" + FONT + ";fill:" + t.ink + ";text-rendering:geometricPrecision}",
      ".t-title{font-size:13px;font-weight:600}.t-name{font-size:12px}.t-type,.t-weight{font-size:11px;fill:" + t.soft + "}",
      ".box{fill:" + t.box + ";stroke:" + t.call + ";stroke-width:1.2}",
      ".sourcebox{stroke:" + t.host + ";stroke-width:1.4}.statebox{stroke:" + t.state + ";stroke-width:1.6}",
      ".weightbox,.mark{stroke:" + t.weight + "}.mark{fill:" + t.weight + "}",
      ".g0{fill:" + t.group[0] + "}.g1{fill:" + t.group[1] + "}.g2{fill:" + t.group[2] + "}",
      ".frame{stroke:" + t.groupLine + ";stroke-width:1.2}",
      ".frame.launch{stroke:" + t.launch + ";stroke-width:2.2}.frame.draft{stroke:" + t.draft + ";stroke-width:1.6;stroke-dasharray:9 5}",
      ".g-title{font-size:13px;font-weight:600}.g-kind{font-size:11px;fill:" + t.soft + "}",
      ".toggle{fill:" + t.paper + ";stroke:" + t.soft + "}.sign{stroke:" + t.ink + ";stroke-width:1.6}",
      ".edge path{fill:none}.edge .hit{stroke:none;stroke-width:11;pointer-events:stroke}.port{fill:" + t.call + "}",
      ".line{stroke-width:1.4}.inner{stroke-width:1.8;stroke:" + t.paper + "}.state .line{stroke-width:4.4}",
      ".feedback .line{stroke-dasharray:8 5;stroke-width:1.8}.host .line{stroke-dasharray:1.5 4.5;stroke-linecap:round;stroke-width:2}",
      ".weight .line{stroke-width:1}",
      ".s-added .line{stroke-width:3}.s-removed .line{stroke-dasharray:4 4}.s-removed{opacity:.75}",
      ".bar{fill:" + t.high + "}.barback{fill:" + t.groupLine + ";fill-opacity:.35}.v-text{font-size:11px}",
      ".on-dark text,text.on-dark{fill:" + (theme === "light" ? "#ffffff" : "#0b1016") + "}",
      ".halo text{paint-order:stroke;stroke:" + t.group[0] + ";stroke-width:3px;stroke-opacity:.85}.titles{cursor:pointer}",
      ".caption{font-size:14px;font-weight:600}.note{font-size:11px;fill:" + t.soft + "}",
    ];
    for (const kind of KINDS) lines.push("." + kind + " .line{stroke:" + t[kind] + "}.head-" + kind + "{fill:" + t[kind] + ";stroke:" + t[kind] + "}");
    for (const status of ["added", "removed", "changed"]) {
      lines.push(".s-" + status + " .box,.s-" + status + " .badge{stroke:" + t[status] + ";stroke-width:2.4}");
      lines.push(".edge.s-" + status + " .line{stroke:" + t[status] + "}.badge-" + status + "{fill:" + t[status] + "}");
    }
    lines.push(".s-removed .box{stroke-dasharray:5 4}.s-changed .box{stroke-dasharray:10 3 2 3}");
    return lines.join("\n");
  }

  function markers() {
    const head = (kind, shape) =>
      '<marker id="head-' + kind + '" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="9" markerHeight="9" ' +
      'markerUnits="userSpaceOnUse" orient="auto">' + shape + "</marker>";
    const filled = (kind) => head(kind, '<path class="head-' + kind + '" d="M0 1L10 5L0 9z"/>');
    const open = head("feedback", '<path class="head-feedback" style="fill:none" stroke-width="1.8" d="M1 1L9 5L1 9"/>');
    const round = head("host", '<circle class="head-host" cx="5.5" cy="5" r="3.4"/>');
    return "<defs>" + filled("data") + filled("state") + filled("weight") + open + round + "</defs>";
  }

  // orthogonal points with rounded corners
  function pathOf(points) {
    let path = "M" + number(points[0].x) + " " + number(points[0].y);
    for (let i = 1; i < points.length - 1; i++) {
      const [before, here, after] = [points[i - 1], points[i], points[i + 1]];
      const inLength = Math.hypot(here.x - before.x, here.y - before.y) || 1;
      const outLength = Math.hypot(after.x - here.x, after.y - here.y) || 1;
      const radius = Math.min(6, inLength / 2, outLength / 2);
      const a = { x: here.x + ((before.x - here.x) * radius) / inLength, y: here.y + ((before.y - here.y) * radius) / inLength };
      const b = { x: here.x + ((after.x - here.x) * radius) / outLength, y: here.y + ((after.y - here.y) * radius) / outLength };
      path += "L" + number(a.x) + " " + number(a.y) + "Q" + number(here.x) + " " + number(here.y) + " " + number(b.x) + " " + number(b.y);
    }
    const end = points[points.length - 1];
    return path + "L" + number(end.x) + " " + number(end.y);
  }

  function edgeSvg(one, ready, theme) {
    const edge = one.edge;
    const path = pathOf(one.points);
    let style = "";
    let held = "";
    if (ready && ready.edges.has(edge.value)) {
      const share = ready.scale.at(ready.edges.get(edge.value));
      const t = THEMES[theme];
      style = ' style="stroke-width:' + number(1.6 + 6 * share) + ";stroke:" + mixed(mixed(t.low, t.high, 0.35), t.high, share) + '"';
      held = ", " + ready.overlay.name + " " + readable(ready.edges.get(edge.value), ready.overlay.unit);
    }
    const inner = edge.kind === "state" && !style ? '<path class="inner" d="' + path + '"/>' : "";
    return (
      '<g class="edge ' + edge.kind + " s-" + edge.status + '" data-edge="' + edge.id + '"><title>' +
      escaped(edge.value + ": " + edge.type + ", " + MEANINGS[edge.kind] + held) + "</title>" +
      '<path class="hit" d="' + path + '"/><path class="line" d="' + path + '" marker-end="url(#head-' + edge.kind + ')"' + style + "/>" +
      inner + "</g>"
    );
  }

  function shapeOf(box, cls, style) {
    const { x, y, width: w, height: h } = box;
    const at = 'class="box ' + cls + '"' + style;
    const kind = box.node.kind;
    if (kind === "input" || kind === "output") {
      return "<rect " + at + rect(x, y, w, h, h / 2) + "/>" ;
    }
    if (kind === "state" || kind === "next_state") {
      // a drum: what outlives the run
      const r = 5;
      return (
        "<path " + at + ' d="M' + x + " " + (y + r) + "A" + w / 2 + " " + r + " 0 0 1 " + (x + w) + " " + (y + r) + "V" + (y + h - r) +
        "A" + w / 2 + " " + r + " 0 0 1 " + x + " " + (y + h - r) + 'Z"/><path class="box ' + cls + '" style="fill:none" d="M' + x + " " + (y + r) +
        "A" + w / 2 + " " + r + " 0 0 0 " + (x + w) + " " + (y + r) + '"/>'
      );
    }
    return "<rect " + at + rect(x, y, w, h, 5) + "/>";
  }

  function rect(x, y, w, h, r) {
    return ' x="' + number(x) + '" y="' + number(y) + '" width="' + number(w) + '" height="' + number(h) + '" rx="' + number(r) + '"';
  }

  function valueSvg(box, value, ready, right) {
    const share = Math.max(0, Math.min(1, ready.scale.at(value)));
    const width = box.width - 20;
    const y = box.y + box.height - 7;
    const text = readable(value, ready.overlay.unit);
    return (
      '<text class="v-text" text-anchor="end" x="' + number(right) + '" y="' + number(box.y + 18) + '">' + escaped(text) + "</text>" +
      '<rect class="barback"' + rect(box.x + 10, y, width, 3.5, 1.5) + "/>" +
      '<rect class="bar"' + rect(box.x + 10, y, Math.max(1, width * share), 3.5, 1.5) + "/>"
    );
  }

  function nodeSvg(box, ready, theme) {
    const node = box.node;
    const cls = { call: "callbox", input: "sourcebox", output: "sourcebox", weight: "weightbox", state: "statebox", next_state: "statebox" }[node.kind];
    const value = ready && ready.nodes.has(node.id) ? ready.nodes.get(node.id) : undefined;
    let style = "";
    let dark = "";
    if (value !== undefined) {
      const share = Math.max(0, Math.min(1, ready.scale.at(value)));
      // the last quarter of the scale is left to the bar, so that text keeps its contrast
      style = ' style="fill:' + mixed(THEMES[theme].low, THEMES[theme].high, 0.85 * share) + '"';
      dark = share > 0.5 ? " on-dark" : "";
    }
    let text = "";
    const isCall = node.kind === "call";
    layout.nodeLines(node).forEach(function (line, at) {
      const y = box.y + 19 + layout.lidOf(node) + at * layout.LINE_HEIGHT;
      let x = box.x + 12;
      let anchor = "";
      if (!isCall) {
        x = box.x + box.width / 2;
        anchor = ' text-anchor="middle"';
      }
      if (line.role === "weight") {
        text += '<rect class="mark"' + rect(x, y - 8, 7, 7, 1) + "/>";
        x += 13;
      }
      text += '<text class="t-' + line.role + '"' + anchor + ' x="' + number(x) + '" y="' + number(y) + '">' + escaped(line.text) + "</text>";
    });
    const shown = value === undefined ? "" : valueSvg(box, value, ready, box.x + box.width - 10);
    const label = (isCall ? node.title + " " : node.title + " ") + node.name;
    return (
      '<g class="node ' + node.kind + " s-" + node.status + dark + '" id="shape-' + node.id + '" data-id="' + node.id + '"><title>' +
      escaped(label) + "</title>" + shapeOf(box, cls, style) + text + shown + "</g>"
    );
  }

  function groupSvg(box, index, ready, theme) {
    const group = box.group;
    const value = ready && ready.groups.has(group.id) ? ready.groups.get(group.id) : undefined;
    let style = "";
    let dark = "";
    const isOwn = value !== undefined && ready.overlay.groups.some((pair) => pair[0] === group.id);
    if (value !== undefined && (isOwn || box.isCollapsed)) {
      const share = Math.max(0, Math.min(1, ready.scale.at(value)));
      style = ' style="fill:' + mixed(THEMES[theme].low, THEMES[theme].high, box.isCollapsed ? 0.85 * share : 0.3 * share) + '"';
      dark = box.isCollapsed && share > 0.5 ? " on-dark" : "";
    }
    const tone = " g" + Math.min(2, box.depth);
    let svg = '<rect class="frame ' + group.kind + tone + '"' + style + rect(box.x, box.y, box.width, box.height, 8) + "/>";
    if (box.isCollapsed) svg += '<rect class="frame ' + group.kind + '" style="fill:none"' + rect(box.x + 3.5, box.y + 3.5, box.width - 7, box.height - 7, 6) + "/>";
    const [tx, ty] = [box.x + 12, box.y + 11];
    svg += '<g class="switch" data-toggle="' + group.id + '"><rect class="toggle"' + rect(tx, ty, 13, 13, 3) + "/>";
    svg += '<path class="sign" d="M' + (tx + 3.5) + " " + (ty + 6.5) + "h6" + (box.isCollapsed ? "m-3 -3v6" : "") + '"/></g>';
    return grouped(svg, box, dark);
  }

  // the texts of a frame, painted over the edges that cross it
  function groupTitle(box, index, ready) {
    const group = box.group;
    const count = index.inner.get(group.id).length;
    const value = ready && ready.groups.has(group.id) ? ready.groups.get(group.id) : undefined;
    const kind = group.kind === "block" ? "" : group.kind;
    const dark = box.isCollapsed && value !== undefined && ready.scale.at(value) > 0.5 ? " on-dark" : "";
    let svg = "";
    svg += '<text class="g-title" x="' + number(box.x + 32) + '" y="' + number(box.y + 22) + '">' + escaped(layout.shortened(group.title)) + "</text>";
    const words = box.isCollapsed ? (kind ? kind + ", " : "") + count + (count === 1 ? " node" : " nodes") : kind;
    if (box.isCollapsed) {
      svg += '<text class="g-kind" x="' + number(box.x + 32) + '" y="' + number(box.y + 37) + '">' + escaped(words) + "</text>";
    } else if (words) {
      const x = box.x + 42 + layout.textWidth(layout.shortened(group.title), 13) * 1.13;
      svg += '<text class="g-kind" x="' + number(x) + '" y="' + number(box.y + 22) + '">' + escaped(words) + "</text>";
    }
    if (value !== undefined && box.isCollapsed) svg += valueSvg(box, value, ready, box.x + box.width - 10);
    if (value !== undefined && !box.isCollapsed) {
      const text = readable(value, ready.overlay.unit);
      svg += '<text class="v-text" text-anchor="end" x="' + number(box.x + box.width - 12) + '" y="' + number(box.y + 22) + '">' + escaped(text) + "</text>";
      if (ready.overlay.groups.some((pair) => pair[0] === group.id)) {
        const share = Math.max(0, Math.min(1, ready.scale.at(value)));
        const left = box.x + box.width - 12 - BAR_WIDTH;
        svg += '<rect class="barback"' + rect(left, box.y + 27, BAR_WIDTH, 3.5, 1.5) + "/>";
        svg += '<rect class="bar"' + rect(left, box.y + 27, Math.max(1, BAR_WIDTH * share), 3.5, 1.5) + "/>";
      }
    }
    return '<g class="titles' + dark + (box.isCollapsed ? "" : " halo") + '" data-id="' + group.id + '">' + svg + "</g>";
  }

  function grouped(svg, box, dark) {
    const group = box.group;
    const kind = group.kind;
    const role = '<g class="group' + dark + '" id="shape-' + group.id + '" data-id="' + group.id + '"><title>';
    return role + escaped(kind + " " + group.title) + "</title>" + svg + "</g>";
  }

  // the inside of the drawing: frames, then edges, then boxes, so that no line runs over a text
  function paint(scene, index, options) {
    const ready = readied(options.overlay, index);
    const frames = scene.boxes.filter((box) => box.group && !box.isCollapsed);
    const collapsed = scene.boxes.filter((box) => box.isCollapsed);
    const nodes = scene.boxes.filter((box) => box.node);
    return (
      markers() +
      frames.map((box) => groupSvg(box, index, ready, options.theme)).join("") +
      scene.edges.map((one) => edgeSvg(one, ready, options.theme)).join("") +
      frames.map((box) => groupTitle(box, index, ready)).join("") +
      collapsed.map((box) => groupSvg(box, index, ready, options.theme) + groupTitle(box, index, ready)).join("") +
      nodes.map((box) => nodeSvg(box, ready, options.theme)).join("")
    );
  }

  // one line of the legend: x, y of its left end; returns the SVG
  function legendSvg(kinds, ready, width, top) {
    let x = 24;
    let svg = "";
    for (const kind of KINDS.filter((one) => kinds.has(one))) {
      const line = "M" + x + " " + top + "h34";
      svg += '<g class="edge ' + kind + '"><path class="line" d="' + line + '" marker-end="url(#head-' + kind + ')"/>';
      svg += (kind === "state" ? '<path class="inner" d="' + line + '"/>' : "") + "</g>";
      svg += '<text class="note" x="' + (x + 42) + '" y="' + (top + 4) + '">' + MEANINGS[kind] + "</text>";
      x += 66 + layout.textWidth(MEANINGS[kind], 11);
    }
    return { svg: svg, width: x };
  }

  // a whole document, with title and legend: what a picture file holds
  function picture(scene, index, options) {
    const drawing = index.drawing;
    const ready = readied(options.overlay, index);
    const t = THEMES[options.theme];
    const top = 46;
    const legend = legendSvg(new Set(drawing.edges.map((edge) => edge.kind)), ready, 0, scene.height + top + 8);
    let extra = "";
    let height = scene.height + top + 28;
    let room = Math.max(scene.width, legend.width, 80 + layout.textWidth(drawing.name, 16) + layout.textWidth(drawing.about, 11));
    if (ready) {
      const y = height + 4;
      const steps = 24;
      const words = ready.overlay.name + ", " + ready.overlay.about;
      for (let i = 0; i < steps; i++) {
        extra += '<rect style="fill:' + mixed(t.low, t.high, (0.85 * i) / (steps - 1)) + '"' + rect(24 + i * 7, y - 9, 7.2, 11, 0) + "/>";
      }
      const ends = readable(ready.scale.low, ready.overlay.unit) + " to " + readable(ready.scale.high, ready.overlay.unit);
      extra += '<text class="note" x="204" y="' + y + '">' + escaped(ends + (ready.overlay.scale === "log" ? ", log" : "") + ": " + words) + "</text>";
      room = Math.max(room, 230 + layout.textWidth(ends + words, 11) + 40);
      height += 24;
    }
    const [w, h] = [Math.ceil(room), Math.ceil(height)];
    return (
      '<svg xmlns="http://www.w3.org/2000/svg" width="' + w + '" height="' + h + '" viewBox="0 0 ' + w + " " + h + '">' +
      "<title>" + escaped(drawing.name) + "</title><style>" + styleSheet(options.theme).replace(/&/g, "&amp;").replace(/</g, "&lt;") + "</style>" +
      '<rect width="' + w + '" height="' + h + '" fill="' + t.paper + '"/>' +
      '<text class="caption" x="24" y="28">' + escaped(drawing.name) + '</text><text class="note" x="' +
      number(38 + layout.textWidth(drawing.name, 14) * 1.13) + '" y="28">' + escaped(drawing.about) + "</text>" +
      '<g transform="translate(0 ' + (top - 10) + ')">' + paint(scene, index, options) + "</g>" + legend.svg + extra + "</svg>\n"
    );
  }

  return { THEMES, KINDS, MEANINGS, escaped, mixed, paint, pathOf, picture, readable, readied, styleSheet };
})();
