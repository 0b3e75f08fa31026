const READABLE = 0.8; // the zoom at which texts can be read
const FAR = 0.3; // below which boxes are drawn without texts

// The graph as a picture: drawn once, moved and zoomed by a transformation, searched by marking boxes.
class GraphView {
  constructor(canvas, details, actions) {
    Object.assign(this, { canvas, details, actions, x: 0, y: 0, zoom: 1, pointers: new Map() });
    this.layer = draw("g");
    this.svg = draw("svg", { role: "img", "aria-label": "graph of the model" }, this.layer);
    this.overview = new Overview((x, y) => this.moveTo(x, y));
    canvas.replaceChildren(this.svg, this.overview.svg);
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  show(graph, load) {
    this.graph = graph;
    this.boxes = new Map();
    this.lines = new Map();
    this.chosen = null;
    const pen = document.createElement("canvas").getContext("2d");
    const width = (text, font) => ((pen.font = font), pen.measureText(text).width);
    const texts = new Map(graph.nodes.map((node) => [node.id, this.texts(node, load)]));
    const sizes = (node) => {
      const [head, ...rest] = texts.get(node.id);
      const widest = Math.max(width(head, "600 13px system-ui"), ...rest.map((text) => width(text, "11px system-ui")));
      return { width: Math.max(90, widest + 24), height: 24 + 15 * rest.length };
    };
    const { places, routes } = layout(graph, sizes);
    this.places = places;
    const drawn = [];
    const labelled = new Set();
    for (const edge of graph.edges) {
      const line = draw("path", { class: `edge ${edge.kind}`, d: smooth(routes.get(edge)) });
      if (!this.lines.has(edge.from)) this.lines.set(edge.from, []);
      if (!this.lines.has(edge.to)) this.lines.set(edge.to, []);
      this.lines.get(edge.from).push(line);
      this.lines.get(edge.to).push(line);
      drawn.push(tip(line, edge.text));
      if (!labelled.has(edge.from) && edge.text) {
        labelled.add(edge.from);
        const from = places.get(edge.from);
        drawn.push(draw("text", { class: "edge-text", x: from.x + 7, y: from.y + from.height / 2 + 14 }, short(edge.text)));
      }
    }
    for (const node of graph.nodes) drawn.push(this.box(node, places.get(node.id), texts.get(node.id), load));
    this.layer.replaceChildren(...drawn);
    this.overview.show(graph.nodes, places, this.extent());
    this.describe(null);
    this.home();
  }

  texts(node, load) {
    const found = [node.label, title(node, 34)];
    const spent = load && node.kernel !== null ? load(node.kernel) : null;
    return spent ? [...found, spent.text] : found;
  }

  box(node, at, texts, load) {
    const spent = load && node.kernel !== null ? load(node.kernel) : null;
    const [left, top] = [at.x - at.width / 2, at.y - at.height / 2];
    const group = draw(
      "g",
      { class: `node ${node.kind}`, tabindex: "0", role: "button", "aria-label": `${node.label} ${node.name}`, "data-id": node.id },
      draw("rect", { class: "box", x: left, y: top, width: at.width, height: at.height, rx: node.kind === "input" || node.kind === "output" ? 14 : 6 }),
      spent ? draw("rect", { class: "load", x: left, y: top + at.height - 4, width: Math.max(1, at.width * spent.share), height: 4, rx: 2 }) : null,
      texts.map((text, line) => draw("text", { class: line ? "name" : "", x: at.x, y: top + 17 + 15 * line, "text-anchor": "middle" }, text)),
    );
    group.addEventListener("click", () => this.moved || this.choose(node.id, false));
    group.addEventListener("keydown", (event) => event.key === "Enter" && this.choose(node.id, false));
    this.boxes.set(node.id, group);
    return group;
  }

  choose(id, center = true) {
    if (this.chosen !== null) {
      this.boxes.get(this.chosen).classList.remove("chosen");
      this.lines.get(this.chosen)?.forEach((line) => line.classList.remove("lit"));
    }
    this.chosen = id;
    this.boxes.get(id).classList.add("chosen");
    this.lines.get(id)?.forEach((line) => line.classList.add("lit"));
    this.describe(this.graph.nodes.find((node) => node.id === id));
    if (center) this.center(id);
  }

  describe(node) {
    if (!node) {
      this.details.replaceChildren(make("p", { class: "soft" }, "Click a box for its attributes, the tensors around it and its kernel. Drag to move; Ctrl and the wheel, or two fingers, to zoom."));
      return;
    }
    const near = (edges, end) =>
      edges.map((edge) => {
        const other = this.graph.nodes.find((one) => one.id === edge[end]);
        return make("li", {}, make("button", { class: "link", onclick: () => this.choose(other.id) }, `${other.label} ${title(other, 40)}`), make("div", { class: "soft" }, edge.text));
      });
    const before = near(this.graph.edges.filter((edge) => edge.to === node.id), "from");
    const after = near(this.graph.edges.filter((edge) => edge.from === node.id), "to");
    this.details.replaceChildren(
      make("h3", { style: "margin-top:0" }, make("span", { class: `dot ${node.kind}` }), node.label),
      make("p", {}, make("code", {}, node.part_of ? `part of ${node.part_of}` : node.name)),
      ...this.actions(node),
      make("dl", {}, node.facts.map(([name, value]) => [make("dt", {}, name), make("dd", {}, value)])),
      ...(before.length ? [make("b", {}, "reads"), make("ul", {}, before)] : []),
      ...(after.length ? [make("b", {}, "read by"), make("ul", {}, after)] : []),
    );
  }

  search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (node) => {
      const about = [node.label, node.name, node.part_of || "", ...(node.sources || []), ...node.facts.flat()].join(" ").toLowerCase();
      return words.every((word) => about.includes(word));
    };
    this.found = words.length ? this.graph.nodes.filter(matches).map((node) => node.id) : [];
    const marked = new Set(this.found);
    this.layer.classList.toggle("searching", words.length > 0);
    for (const [id, box] of this.boxes) box.classList.toggle("found", marked.has(id));
    this.overview.mark(marked);
    return this.found.length;
  }

  // ---- moving ----

  apply() {
    this.layer.setAttribute("transform", `translate(${this.x} ${this.y}) scale(${this.zoom})`);
    this.layer.classList.toggle("far", this.zoom < FAR);
    const [width, height] = this.size();
    this.overview.look(-this.x / this.zoom, -this.y / this.zoom, width / this.zoom, height / this.zoom);
  }

  extent() {
    const box = this.layer.getBBox();
    return box.width ? box : { x: 0, y: 0, width: 1, height: 1 };
  }

  home() {
    const box = this.extent();
    const [width] = this.size();
    this.zoom = Math.max(READABLE, Math.min(1, (width - 32) / box.width));
    const first = this.places.get(this.graph.nodes[0]?.id) || { x: box.x + box.width / 2 };
    const fits = box.width * this.zoom <= width - 16;
    this.x = width / 2 - (fits ? box.x + box.width / 2 : first.x) * this.zoom;
    this.y = 16 - box.y * this.zoom;
    this.apply();
  }

  fit() {
    const box = this.extent();
    const [width, height] = this.size();
    this.zoom = Math.min(2, (width - 24) / box.width, (height - 24) / box.height);
    this.x = width / 2 - (box.x + box.width / 2) * this.zoom;
    this.y = height / 2 - (box.y + box.height / 2) * this.zoom;
    this.apply();
  }

  center(id) {
    const at = this.places.get(id);
    this.zoom = Math.max(this.zoom, READABLE);
    this.moveTo(at.x, at.y);
  }

  moveTo(x, y) {
    const [width, height] = this.size();
    this.x = width / 2 - x * this.zoom;
    this.y = height / 2 - y * this.zoom;
    this.apply();
  }

  size() {
    return [this.canvas.clientWidth || 600, this.canvas.clientHeight || 400];
  }

  zoomAt(x, y, factor) {
    const zoom = Math.min(4, Math.max(0.02, this.zoom * factor));
    this.x = x - ((x - this.x) * zoom) / this.zoom;
    this.y = y - ((y - this.y) * zoom) / this.zoom;
    this.zoom = zoom;
    this.apply();
  }

  zoomBy(factor) {
    const [width, height] = this.size();
    this.zoomAt(width / 2, height / 2, factor);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    this.zoomAt(event.clientX - box.left, event.clientY - box.top, Math.exp(-event.deltaY / 300));
  }

  down(event) {
    this.pointers.set(event.pointerId, event);
    this.moved = false;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const box = this.canvas.getBoundingClientRect();
    const other = [...this.pointers.values()].find((one) => one.pointerId !== event.pointerId);
    if (other) {
      const length = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY) || 1;
      this.zoomAt((event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top, length(event) / length(before));
    } else {
      const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
      if (!this.moved && Math.hypot(dx, dy) < 4) return;
      if (!this.moved) this.canvas.setPointerCapture(event.pointerId);
      this.x += dx;
      this.y += dy;
      this.apply();
    }
    this.moved = true;
    this.pointers.set(event.pointerId, event);
  }

  key(event) {
    const step = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (step) {
      [this.x, this.y] = [this.x + step[0], this.y + step[1]];
      this.apply();
      event.preventDefault();
    } else if (event.key === "+" || event.key === "-") {
      this.zoomBy(event.key === "+" ? 1.25 : 0.8);
    }
  }
}

function short(text) {
  return compact(text.replace("zero point", "zp"), 64);
}

// A curve through the points of a route.
function smooth(points) {
  const [first, ...rest] = points;
  let path = `M${first.x} ${first.y}`;
  rest.forEach((at, index) => {
    const next = rest[index + 1];
    const end = next ? { x: (at.x + next.x) / 2, y: (at.y + next.y) / 2 } : at;
    path += next ? `Q${at.x} ${at.y} ${end.x} ${end.y}` : `L${end.x} ${end.y}`;
  });
  return path;
}
