"use strict";
// what is drawn, and how large: a drawing and the set of collapsed groups become a graph that ELK lays out.
// runs in a page and outside one, so that pictures and pages are the same drawing
var circuitLayout = (function () {
  // advance widths of DejaVu Sans in thousandths of an em, from the space on: the widest of the fonts in use
  const WIDTHS = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, 636, 636, 636, 636,
    636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, 1000, 684, 686, 698, 770, 632, 575, 775,
    752, 295, 295, 656, 557, 863, 748, 787, 603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390,
    337, 390, 838, 500, 500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612,
    635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838
  ];
  const ELLIPSIS = "\u2026";
  const SIZES = { title: 13, name: 12, type: 11, weight: 11 };
  const LINE_HEIGHT = 16;
  const MAX_TEXT = 40; // characters of one line
  const MAX_WEIGHTS = 4;
  const SIGNS = { same: "", added: "+ ", removed: "\u2212 ", changed: "~ " };

  function textWidth(text, size) {
    let width = 0;
    for (const char of text) {
      const code = char.codePointAt(0);
      width += code >= 32 && code < 127 ? WIDTHS[code - 32] : code < 0x1100 ? 700 : 1050;
    }
    return (width * size) / 1000;
  }

  // titles are set bold
  function lineWidth(line) {
    return textWidth(line.text, SIZES[line.role]) * (line.role === "title" ? 1.13 : 1);
  }

  // a drum's lid takes room
  function lidOf(node) {
    return node.kind === "state" || node.kind === "next_state" ? 9 : 0;
  }

  // names are told apart at both ends: keep both
  function shortened(text) {
    const chars = Array.from(text);
    if (chars.length <= MAX_TEXT) return text;
    const tail = Math.floor(MAX_TEXT / 2) - 1;
    return chars.slice(0, MAX_TEXT - tail - 1).join("") + ELLIPSIS + chars.slice(-tail).join("");
  }

  // the lines of a node's box, each a list of pieces in one size
  function nodeLines(node) {
    const sign = SIGNS[node.status];
    if (node.kind !== "call") {
      const type = (node.makes[0] || node.takes[0]).type;
      return [
        { role: "title", text: sign + shortened(node.name) },
        { role: "type", text: shortened(type) },
      ];
    }
    const lines = [{ role: "title", text: sign + shortened(node.title) }];
    for (const port of node.makes) {
      lines.push({ role: "name", text: shortened(port.value) });
      lines.push({ role: "type", text: shortened(port.type) });
    }
    for (const weight of node.weights.slice(0, MAX_WEIGHTS)) {
      lines.push({ role: "weight", text: shortened(weight.name) });
    }
    if (node.weights.length > MAX_WEIGHTS) {
      lines.push({ role: "weight", text: node.weights.length - MAX_WEIGHTS + " more weights" });
    }
    return lines;
  }

  // `lid` is room at the top
  function boxOf(lines, hasValues, lid) {
    let width = 84;
    lines.forEach(function (line, index) {
      const room = index === 0 && hasValues ? 74 : 0; // beside the title stands an overlay's number
      const mark = line.role === "weight" ? 14 : 0; // a square before it
      width = Math.max(width, lineWidth(line) + 26 + room + mark);
    });
    return { width: Math.ceil(width), height: 15 + LINE_HEIGHT * lines.length + lid };
  }

  // index a drawing once: nodes, groups and edges by id, children, and readers of each result
  function indexed(drawing) {
    const index = { drawing: drawing, nodes: new Map(), groups: new Map(), edges: new Map(), inner: new Map() };
    for (const group of drawing.groups) index.groups.set(group.id, group);
    for (const node of drawing.nodes) index.nodes.set(node.id, node);
    for (const edge of drawing.edges) index.edges.set(edge.id, edge);
    for (const group of drawing.groups) index.inner.set(group.id, []);
    for (const node of drawing.nodes) {
      for (let id = node.group; id; id = index.groups.get(id).parent) index.inner.get(id).push(node.id);
    }
    return index;
  }

  // the outermost collapsed group around a node, or the node itself
  function standIn(index, id, collapsed) {
    let shown = id;
    for (let group = index.nodes.get(id).group; group; group = index.groups.get(group).parent) {
      if (collapsed.has(group)) shown = group;
    }
    return shown;
  }

  function port(box, id, side) {
    if (!box.ports.some((held) => held.id === id)) {
      box.ports.push({ id: id, width: 5, height: 5, layoutOptions: { "elk.port.side": side } });
    }
    return id;
  }

  const SPACING = {
    "elk.spacing.nodeNode": "26",
    "elk.spacing.edgeNode": "16",
    "elk.spacing.edgeEdge": "10",
    "elk.spacing.portPort": "10",
    "elk.layered.spacing.nodeNodeBetweenLayers": "34",
    "elk.layered.spacing.edgeNodeBetweenLayers": "16",
    "elk.layered.spacing.edgeEdgeBetweenLayers": "10",
  };

  // the finest placement takes 15 s for 500 nodes, this one 3
  const MANY = 150;
  const FAST = { "elk.layered.nodePlacement.strategy": "BRANDES_KOEPF", "elk.layered.thoroughness": "3" };

  // the graph that ELK takes; shapes and edges come back in the coordinates of the whole
  function elkGraph(index, collapsed) {
    const drawing = index.drawing;
    const hasValues = drawing.overlays.length > 0;
    const boxes = new Map();
    const root = {
      id: "root",
      layoutOptions: Object.assign(
        {
          "elk.algorithm": "layered",
          "elk.direction": "DOWN",
          "elk.hierarchyHandling": "INCLUDE_CHILDREN",
          "elk.edgeRouting": "ORTHOGONAL",
          "elk.json.edgeCoords": "ROOT",
          "elk.json.shapeCoords": "ROOT",
          "elk.padding": "[top=24,left=24,bottom=24,right=24]",
          "elk.randomSeed": "1",
          "elk.layered.nodePlacement.strategy": "NETWORK_SIMPLEX",
          "elk.layered.considerModelOrder.strategy": "PREFER_EDGES",
          "elk.separateConnectedComponents": "false",
        },
        SPACING,
      ),
      children: [],
      edges: [],
    };
    const homes = new Map([[null, root.children]]);
    for (const group of drawing.groups) {
      if (isHidden(index, group.parent, collapsed)) continue;
      const titleWidth = textWidth(shortened(group.title), 13) * 1.13;
      const isCollapsed = collapsed.has(group.id);
      const box = { id: group.id, ports: [], layoutOptions: { "elk.portConstraints": "FIXED_SIDE" } };
      if (isCollapsed) {
        box.width = Math.ceil(Math.max(120, titleWidth + 62 + (hasValues ? 74 : 0)));
        box.height = 48;
      } else {
        box.children = [];
        box.layoutOptions = Object.assign({ "elk.padding": "[top=40,left=18,bottom=18,right=18]" }, SPACING);
        box.layoutOptions["elk.nodeSize.constraints"] = "MINIMUM_SIZE";
        box.layoutOptions["elk.nodeSize.minimum"] = "(" + Math.ceil(titleWidth + (group.kind === "block" ? 60 : 110) + (hasValues ? 74 : 0)) + ",60)";
        homes.set(group.id, box.children);
      }
      boxes.set(group.id, box);
      homes.get(group.parent).push(box);
    }
    for (const node of drawing.nodes) {
      if (isHidden(index, node.group, collapsed)) continue;
      const box = Object.assign({ id: node.id, ports: [] }, boxOf(nodeLines(node), hasValues, lidOf(node)));
      box.layoutOptions = { "elk.portConstraints": "FIXED_SIDE" };
      boxes.set(node.id, box);
      homes.get(node.group).push(box);
    }
    const drawn = new Map();
    for (const edge of drawing.edges) {
      const source = standIn(index, edge.source, collapsed);
      const target = standIn(index, edge.target, collapsed);
      if (source === target) continue;
      const value = edge.source + ":" + edge.source_port;
      const out = source === edge.source ? value : source + ":" + value;
      const into = target === edge.target ? edge.target + ":" + edge.target_port : target + ":" + value;
      const key = out + ">" + into + ">" + edge.kind + ">" + edge.status;
      if (drawn.has(key)) {
        drawn.get(key).members.push(edge.id);
        continue;
      }
      drawn.set(key, { id: edge.id, members: [edge.id] });
      const from = port(boxes.get(source), "o" + out, "SOUTH");
      const to = port(boxes.get(target), "i" + into, "NORTH");
      // what feeds the next run goes back up: laid out downwards and turned round again, it puts no layer upside down
      const isBack = edge.target_port < 0;
      root.edges.push({ id: edge.id, sources: [isBack ? to : from], targets: [isBack ? from : to] });
    }
    if (boxes.size > MANY) Object.assign(root.layoutOptions, FAST);
    return { graph: root, members: new Map(Array.from(drawn.values(), (one) => [one.id, one.members])) };
  }

  function isHidden(index, group, collapsed) {
    for (let id = group; id; id = index.groups.get(id).parent) if (collapsed.has(id)) return true;
    return false;
  }

  // lay out and return the scene: boxes and edges with places, outermost first
  function layOut(elk, index, collapsed) {
    const made = elkGraph(index, collapsed);
    return elk.layout(made.graph).then(function (placed) {
      const scene = { width: placed.width, height: placed.height, boxes: [], edges: [] };
      (function walk(children, depth) {
        for (const box of children || []) {
          const group = index.groups.get(box.id);
          scene.boxes.push({
            id: box.id,
            x: box.x,
            y: box.y,
            width: box.width,
            height: box.height,
            depth: depth,
            group: group || null,
            node: group ? null : index.nodes.get(box.id),
            isCollapsed: Boolean(group) && collapsed.has(box.id),
            ports: box.ports || [],
          });
          walk(box.children, depth + 1);
        }
      })(placed.children, 0);
      for (const edge of placed.edges || []) {
        const points = [];
        for (const section of edge.sections || []) {
          points.push(section.startPoint, ...(section.bendPoints || []), section.endPoint);
        }
        if (index.edges.get(edge.id).target_port < 0) points.reverse();
        scene.edges.push({ id: edge.id, edge: index.edges.get(edge.id), members: made.members.get(edge.id), points: points });
      }
      return scene;
    });
  }

  return { indexed, layOut, lidOf, nodeLines, shortened, standIn, textWidth, SIZES, LINE_HEIGHT };
})();
