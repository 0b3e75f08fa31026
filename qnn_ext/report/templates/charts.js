// Charts as SVG, drawn for the width there is.
function chart(height, paint) {
  const svg = draw("svg", { class: "chart", height });
  const again = () => {
    const width = svg.clientWidth;
    if (!width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren(...paint(width, height));
  };
  new ResizeObserver(again).observe(svg);
  return svg;
}

function axis(low, high, top, bottom, left, width, text) {
  const steps = niceSteps(low, high, 4);
  const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
  return [
    ...steps.map((value) => draw("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) })),
    ...steps.map((value) => draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, text(value))),
  ];
}

function niceSteps(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
  return found;
}

// Bytes in memory while each kernel runs.
function memoryChart(rows, peak, limit, choose) {
  return chart(240, (width, height) => {
    const [left, top, bottom] = [64, 18, height - 24];
    const most = Math.max(limit, ...rows.map((row) => row.live_bytes)) * 1.05 || 1;
    const step = (width - left) / rows.length;
    const y = (value) => bottom - (value / most) * (bottom - top);
    const steps = rows.map((row, index) => `L${left + index * step} ${y(row.live_bytes)}H${left + (index + 1) * step}`);
    const middle = left + (peak + 0.5) * step;
    const surface = draw("rect", { x: left, y: 0, width: width - left, height, fill: "transparent", style: "cursor:pointer" });
    const at = (event) => rows[Math.max(0, Math.min(rows.length - 1, Math.floor((event.clientX - surface.getBoundingClientRect().left) / step)))];
    tip(surface, (event) => `${at(event).index}: ${at(event).label}\n${at(event).name}\n${bytes(at(event).live_bytes)}`);
    surface.addEventListener("click", (event) => choose(at(event).index));
    return [
      ...axis(0, most, top, bottom, left, width, bytes),
      draw("path", { class: "area", d: `M${left} ${bottom}${steps.join("")}V${bottom}Z` }),
      draw("path", { class: "line", d: `M${left} ${bottom}${steps.join("")}` }),
      draw("line", { class: "limit", x1: left, x2: width, y1: y(limit), y2: y(limit) }),
      draw("circle", { class: "peak", cx: middle, cy: y(rows[peak].live_bytes), r: 4 }),
      draw("text", { x: width, y: height - 6, "text-anchor": "end" }, `kernel ${rows.length - 1}`),
      draw("text", { x: left, y: height - 6 }, "kernel 0"),
      surface,
    ];
  });
}

// SQNR of each layer: of its result when everything is quantized, and of the output when it alone is.
function errorChart(layers) {
  return chart(260, (width, height) => {
    const [left, top, bottom] = [48, 14, height - 24];
    const values = layers.flatMap((layer) => [layer.together, layer.alone]).filter((value) => value !== null);
    if (!values.length) return [];
    const [low, high] = [Math.min(0, ...values), Math.max(...values) * 1.05];
    const step = (width - left) / layers.length;
    const y = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
    const x = (index) => left + (index + 0.5) * step;
    const line = (name, kind) => {
      const points = layers.map((layer, index) => [index, layer[name]]).filter(([, value]) => value !== null);
      return [
        draw("path", { class: `line ${kind}`, d: points.map(([index, value], first) => `${first ? "L" : "M"}${x(index)} ${y(value)}`).join("") }),
        ...points.map(([index, value]) => draw("circle", { class: kind, cx: x(index), cy: y(value), r: Math.min(3, 1 + step / 4) })),
      ];
    };
    const surface = draw("rect", { x: left, y: 0, width: width - left, height, fill: "transparent" });
    const at = (event) => layers[Math.max(0, Math.min(layers.length - 1, Math.floor((event.clientX - surface.getBoundingClientRect().left) / step)))];
    const alone = (layer) => (layer.alone === null ? "" : `\nalone: output ${decibel(layer.alone)}`);
    tip(surface, (event) => `${at(event).name}\nits result: ${decibel(at(event).together)}${alone(at(event))}`);
    return [...axis(low, high, top, bottom, left, width, (value) => `${number(value)} dB`), ...line("alone", "second"), ...line("together", ""), surface];
  });
}

// How often each value occurs, on a logarithmic scale; shaded: what the chosen range clips.
function histogram(site) {
  return chart(96, (width, height) => {
    const bottom = height - 18;
    const [first, last] = site.edges;
    const most = Math.log1p(Math.max(...site.counts, 1));
    const x = (value) => ((Math.max(first, Math.min(last, value)) - first) / (last - first || 1)) * width;
    const step = width / site.counts.length;
    const bars = site.counts.map((found, index) => `M${index * step} ${bottom}v${(-Math.log1p(found) / most) * (bottom - 4)}h${step}V${bottom}Z`);
    return [
      draw("path", { class: "bars", d: bars.join("") }),
      draw("rect", { class: "shade", x: 0, y: 0, width: x(site.low), height: bottom }),
      draw("rect", { class: "shade", x: x(site.high), y: 0, width: Math.max(0, width - x(site.high)), height: bottom }),
      ...[site.low, site.high].map((end) => draw("line", { class: "limit", x1: x(end), x2: x(end), y1: 0, y2: bottom })),
      draw("text", { x: 0, y: height - 4 }, number(first)),
      draw("text", { x: width, y: height - 4, "text-anchor": "end" }, number(last)),
    ];
  });
}
