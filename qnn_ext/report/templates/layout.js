// Positions of boxes and arrows. Dagre lays out what is between two boxes through which everything goes; these pieces
// are joined at those boxes, so that the time grows with the number of pieces and not with its square.
const PIECE = 40;

function layout(graph, sizes) {
  const places = new Map();
  const routes = new Map();
  for (const piece of pieces(graph)) {
    const found = place(piece, sizes);
    const joint = piece.nodes[0];
    const before = places.get(joint.id);
    const [dx, dy] = before ? [before.x - found.nodes.get(joint.id).x, before.y - found.nodes.get(joint.id).y] : [0, 0];
    for (const [id, at] of found.nodes) if (!places.has(id)) places.set(id, { ...at, x: at.x + dx, y: at.y + dy });
    for (const [edge, points] of found.routes) routes.set(edge, points.map((at) => ({ x: at.x + dx, y: at.y + dy })));
  }
  return { places, routes };
}

// The graph cut at boxes that alone connect what comes before with what comes after. A piece starts with the box that
// the one before ends with.
function pieces(graph) {
  const nodes = ordered(graph);
  const position = new Map(nodes.map((node, index) => [node.id, index]));
  const reach = nodes.map((_, index) => index); // the last reader of everything up to here but this box
  const entering = nodes.map(() => []);
  const last = nodes.map((_, index) => index);
  for (const edge of graph.edges) {
    const [from, to] = [position.get(edge.from), position.get(edge.to)];
    entering[to].push(edge);
    last[from] = Math.max(last[from], to);
  }
  let furthest = -1;
  nodes.forEach((_, index) => {
    reach[index] = furthest;
    furthest = Math.max(furthest, last[index]);
  });
  const found = [];
  let start = 0;
  for (let end = 1; end < nodes.length; end++) {
    const isCut = reach[end] <= end && end - start >= PIECE;
    if (!isCut && end < nodes.length - 1) continue;
    const inside = nodes.slice(start, end + 1);
    found.push({ nodes: inside, edges: inside.flatMap((node, index) => (index || !start ? entering[start + index] : [])) });
    start = end;
  }
  return found.length ? found : [{ nodes, edges: graph.edges }];
}

// Topological order, as the graph's boxes are numbered, with each output behind what it is the result of, and each
// input before the first that reads it.
function ordered(graph) {
  const key = new Map(graph.nodes.map((node) => [node.id, node.id]));
  for (const node of graph.nodes) {
    if (node.kind === "output") key.set(node.id, Math.max(...graph.edges.filter((edge) => edge.to === node.id).map((edge) => edge.from), -1) + 0.5);
    if (node.kind === "input") key.set(node.id, Math.min(...graph.edges.filter((edge) => edge.from === node.id).map((edge) => edge.to), node.id + 1) - 0.5);
  }
  return [...graph.nodes].sort((one, two) => key.get(one.id) - key.get(two.id) || one.id - two.id);
}

function place(piece, sizes) {
  const inner = new dagre.graphlib.Graph({ multigraph: true });
  inner.setGraph({ rankdir: "TB", nodesep: 28, ranksep: 40, edgesep: 14, ranker: piece.nodes.length > 400 ? "longest-path" : "network-simplex" });
  for (const node of piece.nodes) inner.setNode(node.id, { ...sizes(node) });
  piece.edges.forEach((edge, index) => inner.setEdge(edge.from, edge.to, {}, String(index)));
  try {
    dagre.layout(inner);
  } catch (error) {
    return column(piece, sizes); // deeper than the browser's stack
  }
  const routes = new Map(piece.edges.map((edge, index) => [edge, inner.edge(edge.from, edge.to, String(index)).points]));
  return { nodes: new Map(piece.nodes.map((node) => [node.id, inner.node(node.id)])), routes };
}

function column(piece, sizes) {
  const nodes = new Map();
  let y = 0;
  for (const node of piece.nodes) {
    const size = sizes(node);
    nodes.set(node.id, { ...size, x: 0, y: y + size.height / 2 });
    y += size.height + 40;
  }
  const routes = new Map();
  for (const edge of piece.edges) {
    const [from, to] = [nodes.get(edge.from), nodes.get(edge.to)];
    const [top, bottom] = [from.y + from.height / 2, to.y - to.height / 2];
    const aside = bottom - top > 60 ? from.width / 2 + 20 + (bottom - top) / 40 : 0;
    routes.set(edge, [{ x: 0, y: top }, { x: aside, y: (top + bottom) / 2 }, { x: 0, y: bottom }]);
  }
  return { nodes, routes };
}
