// The page: a model and a target of the data are chosen, and every section shows them.
const DATA = JSON.parse(document.getElementById("data").textContent);
const state = { model: 0, variant: 0, graph: "imported", row: null };

const model = () => DATA.models[state.model];
const variant = () => model().variants[state.variant];
const isTimed = (one) => one.layers.some((row) => row.seconds !== null);
const section = (id) => document.getElementById(id);
const KINDS = { integer: "integer", float: "float", moved: "only moves values" };

// A tensor's short name, as text and as an element that shows the full one.
const brief = (name, most) => compact(model().short[name] ?? name, most);
const named = (name, most) => tip(make("span", {}, brief(name, most)), name);
const title = (node, most) => (node.part_of ? `of ${brief(node.part_of, most)}` : brief(node.name, most));

function table(columns, rows, options = {}) {
  let [by, sign] = [null, 1];
  const body = make("tbody");
  const head = columns.map((column) => make("th", { class: column.text ? null : "n", scope: "col" }, make("button", { onclick: () => sort(column) }, column.title)));
  const paint = () => {
    const sorted = by ? [...rows].sort((one, two) => sign * compare(by.value(one), by.value(two))) : rows;
    body.replaceChildren(...sorted.map(line));
  };
  const line = (row) => {
    const cells = columns.map((column) => {
      const shown = (column.show || ((found) => found))(column.value(row), row);
      const cell = make("td", { class: [column.text ? "" : "n", column.wrap ? "wrap" : "", column.share ? "meter" : ""].join(" ").trim() || null });
      if (column.share) {
        const share = Math.max(0, Math.min(1, column.share(row) || 0));
        cell.classList.add(row.kind || "integer");
        cell.append(make("i", { style: `width:${(100 * share).toFixed(2)}%` }), make("span", {}, shown ?? ""));
      } else cell.append(shown ?? "");
      return cell;
    });
    return make("tr", options.id ? { "data-row": options.id(row) } : {}, cells);
  };
  const sort = (column) => {
    sign = by === column ? -sign : column.text ? 1 : -1;
    by = column;
    columns.forEach((one, index) => (one === column ? head[index].setAttribute("aria-sort", sign > 0 ? "ascending" : "descending") : head[index].removeAttribute("aria-sort")));
    paint();
  };
  paint();
  return make("div", { class: "scroll", tabindex: "0" }, make("table", {}, make("thead", {}, make("tr", {}, head)), body));
}

function compare(one, two) {
  const missing = (value) => value === null || value === undefined || value === "";
  if (missing(one) || missing(two)) return missing(one) - missing(two);
  return typeof one === "number" && typeof two === "number" ? one - two : String(one).localeCompare(String(two), "en", { numeric: true });
}

// ---- summary -------------------------------------------------------------------------------------------------------

function figures(one, which) {
  const total = which.totals;
  const worst = one.error ? Math.min(...one.error.outputs.map((output) => output.sqnr ?? Infinity)) : null;
  const top = one.accuracy?.rows[0];
  const gops = which.latency && total.macs ? (2 * total.macs) / which.latency.median / 1e9 : null;
  return [
    ["latency, median", which.latency?.median, clock, -1],
    ["latency, best", which.latency?.best, clock, -1],
    ["GOP/s", gops, number, 1],
    ["of this machine's peak", gops && which.machine?.integer ? (gops * 1e9) / which.machine.integer : null, percent, 1],
    ["MACs in integers", total.integer_share, percent, 1],
    ["multiply-accumulates", total.macs, count, 0],
    ["weights", which.memory.weights, bytes, -1],
    ["feature maps, at most", which.memory.feature_maps, bytes, -1],
    ["kernels", which.layers.length, number, -1],
    ["time in float kernels", isTimed(which) && total.seconds ? total.float_seconds / total.seconds : null, percent, -1],
    ["SQNR of the output", worst, (value) => (value === Infinity ? "exact" : decibel(value)), 1],
    [top ? `${top.name}, ${one.accuracy.columns.at(-1)}` : "accuracy", top?.values.at(-1), top?.share ? percent : number, 1],
  ];
}

function summary() {
  const [one, which] = [model(), variant()];
  const shown = figures(one, which).filter(([, value]) => value !== null && value !== undefined && value !== 0);
  section("cards").replaceChildren(...shown.map(([name, value, text]) => make("div", {}, make("b", {}, text(value)), make("span", {}, name))));
  const about = [`Target ${which.target}`, `${one.threads} thread${one.threads > 1 ? "s" : ""}`, `compiled from ${one.source}`];
  section("about").replaceChildren(
    make("p", { class: "soft" }, about.join(" · ")),
    make("p", { class: "soft" }, `Inputs: ${one.inputs.join("; ")}. Outputs: ${one.outputs.join("; ")}.`),
    ...(which.fallback ? [make("p", { class: "bad" }, `It runs on TVM's virtual machine, kernel by kernel: ${which.fallback}.`)] : []),
  );
}

function comparison() {
  const columns = DATA.models.map((one, index) => figures(one, one.variants[index === state.model ? state.variant : 0]));
  const rows = columns[0].map(([name, , text, better], index) => ({ name, text, better, values: columns.map((column) => column[index][1] ?? null) }));
  const best = (row) => {
    const known = row.values.filter((value) => value !== null);
    return row.better && known.length > 1 && new Set(known).size > 1 ? (row.better > 0 ? Math.max(...known) : Math.min(...known)) : null;
  };
  const shown = rows.filter((row) => row.values.some((value) => value !== null && value !== 0));
  const cell = (row, value) => make("td", { class: "n" }, value === null ? "" : value === best(row) ? make("b", {}, row.text(value)) : row.text(value));
  const head = DATA.models.map((one, index) => make("th", { class: "n" }, make("button", { class: "link", onclick: () => select(index, 0) }, one.name)));
  section("comparison").querySelector(".body").replaceChildren(
    make("div", { class: "scroll" }, make("table", {}, make("thead", {}, make("tr", {}, make("th"), head)), make("tbody", {}, shown.map((row) => make("tr", {}, make("td", {}, row.name), row.values.map((value) => cell(row, value))))))),
  );
}

// ---- graph ---------------------------------------------------------------------------------------------------------

let view = null;

function graph() {
  view ??= new GraphView(section("canvas"), section("details"), actions);
  const which = variant();
  if (!model().graph) state.graph = "compiled";
  section("before").disabled = !model().graph;
  section("before").title = model().graph ? "" : "a compiled file holds kernels only: give the model file to see its operators";
  for (const [id, name] of [["before", "imported"], ["after", "compiled"]]) section(id).setAttribute("aria-pressed", String(state.graph === name));
  const longest = Math.max(...which.layers.map((row) => row.seconds || 0));
  const load = state.graph === "compiled" && isTimed(which) ? (index) => ({ text: clock(which.layers[index].seconds), share: which.layers[index].seconds / longest }) : null;
  view.show(state.graph === "compiled" ? which.graph : model().graph, load);
  search();
}

// What a box links to: the kernel that computes an operator, or the operators that a kernel computes.
function actions(node) {
  if (state.graph === "imported") {
    if (node.kernel === null) return [];
    const row = variant().layers[node.kernel];
    return [make("p", {}, "computed by kernel ", make("button", { class: "link", onclick: () => reveal(node.kernel) }, `${node.kernel}: ${row.label}`), row.seconds === null ? "" : `, ${clock(row.seconds)}`)];
  }
  if (node.kernel === null) return [];
  const row = variant().layers[node.kernel];
  const known = new Map((model().graph?.nodes || []).filter((one) => one.kernel === node.kernel).map((one) => [one.id, one]));
  const inside = [...known.values()].map((one) => make("li", {}, make("button", { class: "link", onclick: () => imported(one.id) }, `${one.label} ${title(one, 40)}`)));
  const names = inside.length ? inside : (node.sources || []).map((name) => make("li", {}, make("code", {}, name)));
  const rates = row.seconds === null ? [] : [clock(row.seconds), row.gops ? `${number(row.gops)} GOP/s` : null, row.of_peak ? `${percent(row.of_peak)} of peak` : null, row.bound ? `${row.bound}-bound` : null].filter(Boolean);
  return [...(rates.length ? [make("p", {}, rates.join(" · "))] : []), ...(names.length ? [make("b", {}, "computes"), make("ul", {}, names)] : [])];
}

function reveal(kernel) {
  if (state.graph !== "compiled") {
    state.graph = "compiled";
    graph();
  }
  const node = variant().graph.nodes.find((one) => one.kernel === kernel);
  if (node) view.choose(node.id);
}

function imported(id) {
  state.graph = "imported";
  graph();
  view.choose(id);
}

let match = -1;

function search() {
  const text = section("search").value;
  const found = view.search(text);
  match = -1;
  section("matches").textContent = text ? `${found} found` : "";
}

function next(step) {
  if (!view.found?.length) return;
  match = (match + step + view.found.length) % view.found.length;
  view.choose(view.found[match]);
  section("matches").textContent = `${match + 1} of ${view.found.length}`;
}

// ---- layers --------------------------------------------------------------------------------------------------------

function layers() {
  const which = variant();
  const timed = isTimed(which);
  const weight = (row) => (timed ? row.seconds : row.macs || row.data_bytes / 16);
  const total = which.layers.reduce((sum, row) => sum + weight(row), 0) || 1;
  const segments = which.layers.map((row) => {
    const segment = make("button", { class: row.kind, style: `width:${((100 * weight(row)) / total).toFixed(3)}%`, "aria-label": `kernel ${row.index}`, onclick: () => choose(row.index) });
    const facts = [`${row.index}: ${row.label}`, row.name, timed ? `${clock(row.seconds)}, ${percent(row.seconds / total)}` : row.macs ? `${count(row.macs)} MAC` : bytes(row.data_bytes)];
    return tip(segment, facts.join("\n"));
  });
  const most = Math.max(...which.layers.map((row) => row.seconds || 0));
  const columns = [
    { title: "#", value: (row) => row.index },
    { title: "kernel", text: true, value: (row) => row.label, show: (found, row) => make("button", { class: "link", onclick: () => choose(row.index, "graph") }, make("span", { class: `dot ${row.kind}` }), found) },
    { title: "layer", text: true, value: (row) => row.name, show: (found) => named(found, 34) },
    ...(timed
      ? [
          { title: "time", value: (row) => row.seconds, show: clock, share: (row) => row.seconds / most },
          { title: "share", value: (row) => row.seconds / total, show: percent },
          { title: "GOP/s", value: (row) => row.gops, show: (found) => number(found) },
          { title: "of peak", value: (row) => row.of_peak, show: percent },
          { title: "bound by", text: true, value: (row) => row.bound },
          { title: "of bound", value: (row) => row.of_bound, show: percent },
        ]
      : []),
    { title: "MAC", value: (row) => row.macs, show: count },
    { title: "bytes", value: (row) => row.bytes, show: bytes },
    ...(timed ? [{ title: "GB/s", value: (row) => row.gbps, show: (found) => number(found) }] : []),
    { title: "implementation", text: true, value: (row) => row.implementation, show: (found, row) => (row.reason ? tip(make("span", {}, `${found} ⓘ`), row.reason) : found) },
  ];
  if (innerWidth < 600 && timed) columns.splice(4, 0, ...columns.splice(2, 1)); // times beside the kernel
  const machine = which.machine;
  const parts = machine ? [machine.integer && `${number(machine.integer / 1e9)} GOP/s on 8-bit integers`, machine.floating && `${number(machine.floating / 1e9)} GFLOP/s on float32`, `${number(machine.bandwidth / 1e9)} GB/s from a buffer of ${bytes(machine.bytes)}, as large as the model`].filter(Boolean) : [];
  const measured = machine ? `Measured here on ${machine.threads} thread${machine.threads > 1 ? "s" : ""}${machine.instruction ? ` (${machine.instruction})` : ""}: ${parts.join(", ")}. A kernel is bound by the one that takes longer for its work; “of bound” is that time as a share of the kernel's: more than 100 % if its data were in a nearer cache.` : "";
  section("layers").querySelector(".body").replaceChildren(
    make("p", { class: "soft" }, timed ? "Width: time of each kernel, in order of execution." : "Width: multiply-accumulates, in order of execution. Give --profile to measure times."),
    make("div", { class: "timeline" }, segments),
    legend(),
    table(columns, which.layers, { id: (row) => row.index }),
    ...(measured ? [make("p", { class: "soft" }, measured)] : []),
    ...floats(which, timed),
  );
}

function legend() {
  return make("div", { class: "legend" }, Object.entries(KINDS).map(([kind, text]) => make("span", {}, make("span", { class: `dot ${kind}` }), text)));
}

function floats(which, timed) {
  const rows = which.layers.filter((row) => row.kind === "float");
  const columns = [
    { title: "kernel", text: true, value: (row) => row.label, show: (found, row) => make("button", { class: "link", onclick: () => choose(row.index, "graph") }, found) },
    { title: "layer", text: true, value: (row) => row.name, show: (found) => named(found, 40) },
    { title: "MAC", value: (row) => row.macs, show: count },
    ...(timed ? [{ title: "time", value: (row) => row.seconds, show: clock }, { title: "faster by, as integers", value: (row) => row.gain, show: clock }] : []),
    { title: "why", text: true, wrap: true, value: (row) => row.why },
  ];
  const notes = model().notes;
  const head = [make("h3", {}, "What is float")];
  if (!rows.length && !notes.length) return [...head, make("p", { class: "soft" }, "Nothing: every kernel computes with integers.")];
  const gain = timed && which.totals.gain ? ` As integers they would be faster by an estimated ${clock(which.totals.gain)}: a product at the median rate of this model's integer products, anything else by three quarters of its float values' share, as 8-bit values take a quarter of the memory.` : "";
  const text = rows.length ? [make("p", { class: "soft" }, `${rows.length} of ${which.layers.length} kernels.${gain}`), table(columns, rows)] : [];
  const list = notes.length ? [make("p", { class: "soft" }, "What the model quantizes, but runs in float:"), make("ul", {}, notes.map((note) => make("li", {}, `${note.operator} `, make("code", {}, note.node), `: ${note.reason}`)))] : [];
  return [...head, ...text, ...list];
}

// Mark a kernel in the table, and show it in the graph.
function choose(index, place = "layers") {
  state.row = index;
  document.querySelectorAll("tr.chosen").forEach((row) => row.classList.remove("chosen"));
  const row = section("layers").querySelector(`tr[data-row="${index}"]`);
  row?.classList.add("chosen");
  reveal(index);
  if (place === "graph") section("graph").scrollIntoView();
  else row?.scrollIntoView({ block: "nearest" });
}

// ---- memory --------------------------------------------------------------------------------------------------------

function memory() {
  const which = variant();
  const body = section("memory").querySelector(".body");
  const known = which.layers.some((row) => row.live_bytes);
  const peak = which.layers[which.peak.kernel];
  const heavy = which.layers.filter((row) => row.weight_bytes).sort((one, two) => two.weight_bytes - one.weight_bytes);
  const most = Math.max(...which.layers.map((row) => row.weight_bytes), 1);
  const weights = [
    { title: "#", value: (row) => row.index },
    { title: "layer", text: true, value: (row) => row.name, show: (found) => named(found, 30) },
    { title: "weights", value: (row) => row.weight_bytes, show: bytes, share: (row) => row.weight_bytes / most },
    { title: "of all", value: (row) => row.weight_bytes / (which.memory.weights || 1), show: percent },
  ];
  const tensors = [
    { title: "#", value: (row) => row.kernel },
    { title: "result of", text: true, value: (row) => row.name, show: (found) => named(found, 34) },
    { title: "bytes", value: (row) => row.bytes, show: bytes },
  ];
  const timeline = known
    ? [make("p", { class: "soft" }, `Bytes of feature maps and scratch buffers in memory while each kernel runs. The peak, ${bytes(peak.live_bytes)}, is at kernel ${peak.index}, ${peak.label}. Dashed: the ${bytes(which.memory.feature_maps)} that the plan reserves.`), memoryChart(which.layers, which.peak.kernel, which.memory.feature_maps, choose)]
    : [make("p", { class: "soft" }, "This file was compiled before memory was recorded: compile the model again to see it over time.")];
  body.replaceChildren(
    ...timeline,
    make("div", { class: "two" },
      make("div", {}, make("h3", {}, `Weights by layer, ${bytes(which.memory.weights)}`), table(weights, heavy)),
      make("div", {}, ...(which.peak.tensors.length ? [make("h3", {}, "Largest tensors at the peak"), table(tensors, which.peak.tensors)] : [])),
    ),
    make("h3", {}, "Targets"),
    table(
      [
        { title: "target", text: true, value: (one) => one.target },
        { title: "runs here", text: true, value: (one) => (one.runs_here ? "yes" : "no") },
        { title: "weights", value: (one) => one.memory.weights, show: bytes },
        { title: "feature maps, at most", value: (one) => one.memory.feature_maps, show: bytes },
        { title: "kernels", value: (one) => one.layers.length },
        { title: "instruction sets", text: true, value: (one) => one.features.join(", ") || "baseline", show: (found) => tip(make("span", {}, compact(found, 48)), found) },
      ],
      model().variants,
    ),
  );
}

// ---- error ---------------------------------------------------------------------------------------------------------

function error() {
  const [found, right] = [model().error, model().accuracy];
  section("error").hidden = !found && !right;
  section("error-link").hidden = section("error").hidden;
  if (section("error").hidden) return;
  const parts = [];
  if (right) {
    const show = (row, value) => (value === null ? "" : row.share ? percent(value) : number(value, 6));
    parts.push(make("h3", {}, `Accuracy on ${right.samples} samples`), table([{ title: "", text: true, value: (row) => row.name }, ...right.columns.map((title, index) => ({ title, value: (row) => row.values[index], show: (value, row) => show(row, value) })).filter((column) => right.rows.some((row) => column.value(row) !== null))], right.rows));
  }
  if (found) parts.push(...errorParts(found));
  section("error").querySelector(".body").replaceChildren(...parts);
}

function errorParts(found) {
  const alone = found.layers.some((layer) => layer.alone !== null);
  const sqnr = (value) => decibel(value);
  const high = (value) => (value === null ? Infinity : value);
  const parts = [
    make("p", { class: "soft" }, `Signal-to-quantization-noise ratio (SQNR) against the float model, on ${found.samples} batches; 6 dB are one bit.${found.settings.length ? ` Settings: ${found.settings.map(([name, value]) => `${name}=${value}`).join(", ")}.` : ""}`),
    table([{ title: "output", text: true, value: (row) => row.name }, { title: "SQNR", value: (row) => high(row.sqnr), show: (_, row) => sqnr(row.sqnr) }, { title: "cosine", value: (row) => row.cosine, show: (value) => value.toFixed(6) }, { title: "largest error", value: (row) => row.largest, show: (value) => number(value) }], found.outputs),
  ];
  if (found.layers.length) {
    parts.push(
      make("h3", {}, "Layers"),
      make("div", { class: "legend" }, make("span", {}, make("span", { class: "dot integer" }), "its result, when everything is quantized"), alone ? make("span", {}, make("span", { class: "dot float" }), "the model's output, when it alone is quantized") : null),
      errorChart(found.layers),
      table([{ title: "layer", text: true, value: (row) => row.name, show: (name) => named(name, 50) }, ...(alone ? [{ title: "operator", text: true, value: (row) => row.operator }, { title: "output, it alone", value: (row) => high(row.alone), show: (_, row) => sqnr(row.alone) }] : []), { title: "result, accumulated", value: (row) => high(row.together), show: (_, row) => sqnr(row.together) }, { title: "cosine", value: (row) => row.cosine, show: (value) => value.toFixed(6) }], found.layers),
    );
  }
  if (found.sites.length) parts.push(make("h3", {}, "Tensors and their ranges"), make("p", { class: "soft" }, "How often each value occurs, on a logarithmic scale. Dashed: the chosen range; shaded: what it clips."), histograms(found.sites));
  return parts;
}

function histograms(sites) {
  const plots = make("div", { class: "plots" });
  const order = make("select", { "aria-label": "order of histograms" }, [["order", "in order of computation"], ["sqnr", "lowest SQNR first"], ["saturated", "most clipped first"]].map(([value, text]) => make("option", { value }, text)));
  const role = make("select", { "aria-label": "which tensors" }, ["all", ...new Set(sites.map((site) => site.role))].map((value) => make("option", { value }, value)));
  let shown = 24;
  const more = make("button", { onclick: () => ((shown += 48), paint()) }, "show more");
  const paint = () => {
    let chosen = sites.filter((site) => role.value === "all" || site.role === role.value);
    if (order.value === "sqnr") chosen = [...chosen].sort((one, two) => (one.sqnr ?? Infinity) - (two.sqnr ?? Infinity));
    if (order.value === "saturated") chosen = [...chosen].sort((one, two) => two.saturated - one.saturated);
    more.hidden = chosen.length <= shown;
    plots.replaceChildren(...chosen.slice(0, shown).map((site) => make("figure", {}, histogram(site), make("figcaption", {}, make("b", {}, named(site.name, 44)), make("br"), `${site.role}, ${site.dtype}: ${number(site.low)} … ${number(site.high)}; ${decibel(site.sqnr)}, clips ${percent(site.saturated)}`))));
  };
  for (const one of [order, role]) one.addEventListener("change", paint);
  paint();
  return make("div", {}, make("div", { class: "tools" }, order, role), plots, make("p", {}, more));
}

// ---- choosing ------------------------------------------------------------------------------------------------------

function select(index, target) {
  [state.model, state.variant, state.row] = [index, target, null];
  const choices = DATA.models.flatMap((one, number) => one.variants.map((which, place) => [number, place, `${DATA.models.length > 1 ? `${one.name}, ` : ""}${which.target}`]));
  section("choice").hidden = choices.length < 2;
  section("choice").replaceChildren(...choices.map(([number, place, text]) => make("option", { value: `${number} ${place}`, selected: number === index && place === target }, text)));
  section("comparison").hidden = DATA.models.length < 2;
  section("comparison-link").hidden = DATA.models.length < 2;
  if (model().graph && state.graph !== "compiled") state.graph = "imported";
  for (const part of [summary, ...(DATA.models.length > 1 ? [comparison] : []), graph, layers, memory, error]) part();
}

section("choice").addEventListener("change", (event) => select(...event.target.value.split(" ").map(Number)));
section("before").addEventListener("click", () => ((state.graph = "imported"), graph()));
section("after").addEventListener("click", () => ((state.graph = "compiled"), graph()));
section("search").addEventListener("input", search);
section("search").addEventListener("keydown", (event) => event.key === "Enter" && next(event.shiftKey ? -1 : 1));
section("in").addEventListener("click", () => view.zoomBy(1.3));
section("out").addEventListener("click", () => view.zoomBy(1 / 1.3));
section("fit").addEventListener("click", () => view.fit());
section("home").addEventListener("click", () => view.home());
select(0, Math.max(0, DATA.models[0].variants.findIndex((one) => one.latency)));
