// Elements, numbers as text, and the tooltip.
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
}

// Three significant digits, also where they are zeros: 23.0.
function exact(value) {
  const rounded = Number(value.toPrecision(3));
  return rounded && rounded < 100 ? rounded.toFixed(rounded < 10 ? 2 : 1) : number(rounded);
}

function scaled(value, units, text = number) {
  let index = 0;
  while (Math.abs(value) >= 999.5 && index < units.length - 1) [value, index] = [value / 1000, index + 1];
  return `${text(value)} ${units[index]}`.trim();
}

const bytes = (value) => (value || value === 0 ? scaled(value, ["B", "kB", "MB", "GB"]) : "");
const count = (value) => (value ? scaled(value, ["", "k", "M", "G", "T"]) : "");
const percent = (value) => {
  if (value === null || value === undefined) return "";
  return value > 0 && value < 1e-4 ? "< 0.01 %" : `${number(100 * value, value < 0.0995 ? 2 : 3)} %`;
};
const decibel = (value) => (value === null || value === undefined ? "exact" : `${value.toFixed(1)} dB`);
const clock = (value) => (value || value === 0 ? scaled(value * 1e9, ["ns", "µs", "ms", "s"], exact) : "");
const compact = (text, most = 30) =>
  text.length <= most ? text : `${text.slice(0, Math.ceil(most / 2) - 1)}…${text.slice(text.length - Math.floor(most / 2))}`;

function tip(element, text) {
  const show = (event) => {
    const box = document.getElementById("tip");
    box.textContent = typeof text === "function" ? text(event) : text;
    const [width, height] = [box.offsetWidth, box.offsetHeight];
    box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 4))}px`;
    box.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 8 : event.clientY + 18}px`;
  };
  element.addEventListener("pointermove", show);
  element.addEventListener("pointerleave", () => (document.getElementById("tip").textContent = ""));
  return element;
}
