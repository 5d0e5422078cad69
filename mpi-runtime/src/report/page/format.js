// Numbers as people read them, elements, and what of a run is asked for again and again.

const report = JSON.parse(document.getElementById("data").textContent);
const NONE = "–";

/** An element with attributes and children; strings become text, never markup. */
function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") Object.entries(value).forEach(([event, f]) => element.addEventListener(event, f));
    else if (key === "style") element.style.cssText = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const is = (value) => typeof value === "number" && Number.isFinite(value);
const show = (f) => (value) => (is(value) ? f(value) : NONE);

/** So many digits in all, without an exponent where that can be. */
function digits(value, count = 3) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(count - 1);
  const decimals = Math.max(0, count - 1 - Math.floor(Math.log10(size || 1)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(decimals, 8) });
}
const scaled = (units, base) =>
  show((value) => {
    const size = Math.abs(value);
    for (let i = units.length - 1; i > 0; i--) {
      if (size >= base ** i) return `${digits(value / base ** i)} ${units[i]}`;
    }
    return `${digits(value)} ${units[0]}`.trim();
  });
const bytes = scaled(["B", "kB", "MB", "GB", "TB", "PB"], 1000);
const count = scaled(["", "k", "M", "G", "T"], 1000);
const whole = show((value) => Math.round(value).toLocaleString("en"));
const few = show((value) => digits(value));
const quality = show((value) => value.toFixed(5));
const share = show((value) => `${digits(value * 100)} %`);
const rate = show((value) => `${count(value)}/s`);
const time = show((value) => {
  if (value > 0 && value < 1) return `${digits(value * 1000)} ms`;
  if (value < 60) return `${digits(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
});

/** A figure of a run's summary, `sync.gap_mean`; undefined of one without it. */
function figure(run, path) {
  return path.split(".").reduce((value, name) => (value === null ? undefined : value?.[name]), run.summary);
}
/** The last value that a run has reported. */
function lastOf(run, column) {
  return run.points[column]?.findLast(is);
}
const soFar = (run, name) => figure(run, name) ?? lastOf(run, name);
const status = (run) => figure(run, "status") ?? "unknown";
const method = (run) => figure(run, "sync.method") ?? run.config["sync.method"];
const sent = (run) => {
  const parts = ["dense", "embedding", "control"].map((kind) => figure(run, `wire.${kind}_bytes`));
  return parts.some(is) ? parts.reduce((sum, part) => sum + (part ?? 0), 0) : undefined;
};
const validAuc = (run) => figure(run, "valid.auc") ?? lastOf(run, "valid.auc");

/** Runs keep their colours: eight, then the same with dashes. */
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const LINES = ["solid", "dashed", "dotted", "double"];
report.runs.forEach((run, index) => {
  run.index = index;
  run.visible = true;
  run.variable = `--run-${(index % 8) + 1}`;
  run.dash = DASHES[Math.floor(index / 8) % DASHES.length];
  run.line = LINES[Math.floor(index / 8) % LINES.length];
});
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const swatch = (run) =>
  el("span", {
    class: "swatch",
    "aria-hidden": "true",
    style: `border-top-style: ${run.line}; border-top-color: var(${run.variable})`,
  });
const named = (run) =>
  el("span", { class: "run" }, swatch(run), el("span", { class: "name", title: run.name }, run.name));
const badge = (run) => el("span", { class: `status ${status(run)}` }, status(run));

/** Values with the items that have it, in the order of the items. */
function grouped(items, of) {
  const groups = new Map();
  for (const item of items) {
    const value = of(item);
    groups.set(value, [...(groups.get(value) ?? []), item]);
  }
  return [...groups];
}
