// All boxes of a graph as bars in a strip beside it, as most networks are far longer than wide: where it is float, what a
// search found, and what of it is in view. A click or a drag moves there.
class Overview {
  constructor(go) {
    this.frame = draw("rect", { class: "frame", "vector-effect": "non-scaling-stroke" });
    this.svg = draw("svg", { class: "overview", preserveAspectRatio: "none", "aria-hidden": "true" });
    const move = (event) => {
      event.stopPropagation(); // the graph is not dragged meanwhile
      if (event.type === "pointermove" && !event.buttons) return;
      const strip = this.svg.getBoundingClientRect();
      go(this.box.x + this.box.width / 2, this.box.y + ((event.clientY - strip.top) / strip.height) * this.box.height);
    };
    for (const name of ["pointerdown", "pointermove"]) this.svg.addEventListener(name, move);
  }

  // places: of the boxes by id; box: the extent of the graph
  show(nodes, places, box) {
    this.box = box;
    this.svg.setAttribute("viewBox", `${box.x} ${box.y} ${box.width} ${box.height}`);
    this.bars = new Map(nodes.map((node) => [node.id, this.bar(node, places.get(node.id))]));
    this.svg.replaceChildren(...this.bars.values(), this.frame);
  }

  bar(node, at) {
    return draw("rect", { class: node.kind, x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height });
  }

  mark(found) {
    this.svg.classList.toggle("searching", found.size > 0);
    for (const [id, bar] of this.bars) bar.classList.toggle("found", found.has(id));
  }

  // What is in view, in the graph's units; nothing is shown while that is all of it.
  look(x, y, width, height) {
    this.svg.style.display = height >= this.box.height && width >= this.box.width ? "none" : "";
    for (const [name, value] of Object.entries({ x, y, width, height })) this.frame.setAttribute(name, value);
  }
}
