// Curves: what of the runs is drawn, and how it answers to pointer and keys.

/** What the horizontal axis of every chart is. */
const AXES = {
  step: { name: "Steps", label: "steps of one worker", value: whole, tick: count },
  examples: { name: "Examples", label: "examples, all trainers", value: whole, tick: count },
  seconds: { name: "Time", label: "training time", value: time, tick: time },
};
const state = { axis: "step", smooth: 0 };
const charts = [];

/** The points of a run that have this column: x and y without gaps. */
function pointsOf(run, column, axis) {
  const xs = run.points[axis] ?? [],
    ys = run.points[column] ?? [];
  const x = [],
    y = [];
  ys.forEach((value, i) => {
    if (!is(value) || !is(xs[i])) return;
    // A chart has one point in a place.
    if (x.length && xs[i] === x.at(-1)) {
      y[y.length - 1] = value;
      return;
    }
    x.push(xs[i]);
    y.push(value);
  });
  return { x, y };
}

/**
 * The same in at most `WINDOWS` stretches of the run, each the mean of what was reported in it, by how long that took:
 * a rate over a hundredth of a second says nothing.
 */
function windowsOf(run, column, axis) {
  const xs = run.points[axis] ?? [],
    ys = run.points[column] ?? [],
    seconds = run.points.seconds ?? [];
  const stretch = Math.max((seconds.findLast(is) ?? 0) / WINDOWS, STRETCH_MIN_S);
  const x = [],
    y = [];
  let sum = 0,
    weight = 0,
    last = 0;
  ys.forEach((value, i) => {
    const took = (seconds[i] ?? last) - last;
    last = seconds[i] ?? last;
    if (is(value) && took > 0) {
      sum += value * took;
      weight += took;
    }
    // What is left at the end is too short to say anything, unless there is nothing else.
    const full = weight >= stretch || (i === ys.length - 1 && (weight >= stretch / 2 || x.length === 0));
    if (weight > 0 && full && is(xs[i]) && xs[i] !== x.at(-1)) {
      x.push(xs[i]);
      y.push(sum / weight);
      sum = weight = 0;
    }
  });
  return { x, y };
}
const WINDOWS = 60,
  STRETCH_MIN_S = 0.2;

/** An exponential mean that begins without a bias towards its first value. */
function smoothed(y, factor) {
  let mean = 0,
    weight = 0;
  return y.map((value) => {
    mean = factor * mean + (1 - factor) * value;
    weight = factor * weight + (1 - factor);
    return mean / weight;
  });
}

/** A chart of a column of all runs; null where no run has it. */
function chart({ title, unit, column, value = few, windows = false, smooth = false, hint = "" }) {
  if (!report.runs.some((run) => run.points[column]?.some(is))) return null;
  const plot = el("div", { class: "plot", tabindex: "0", role: "group" });
  const tip = el("div", { class: "tip", "aria-live": "polite" });
  const caption = el(
    "figcaption",
    {},
    el("h3", {}, title),
    el("span", { class: "unit" }, unit),
    hint ? el("span", { class: "unit" }, hint) : null,
  );
  const node = el("figure", { class: "card" }, caption, plot);
  const made = { title, unit, column, value, windows, smooth, plot, tip, node, drawn: null, lines: [] };
  plot.addEventListener("keydown", (event) => byKey(made, event));
  plot.addEventListener("blur", () => {
    tip.style.display = "none";
  });
  charts.push(made);
  return node;
}

/** Draws a chart anew: other runs, another axis, another theme or width. */
function draw(made) {
  made.drawn?.destroy();
  made.drawn = null;
  made.tip.style.display = "none";
  const axis = AXES[state.axis];
  const read = made.windows ? windowsOf : pointsOf;
  made.lines = report.runs
    .filter((run) => run.visible)
    .map((run) => ({ run, ...read(run, made.column, state.axis) }))
    .filter((line) => line.x.length > 0);
  const all = made.lines.map((line) => line.run.name).join(", ");
  made.plot.setAttribute(
    "aria-label",
    `${made.title} (${made.unit}) over ${axis.label}; arrow keys read values: ${all}`,
  );
  if (made.lines.length === 0) {
    made.plot.replaceChildren(el("p", { class: "empty" }, "None of the runs shown has reported it."));
    return;
  }
  const soft = color("--soft"),
    grid = { stroke: color("--grid"), width: 1 };
  const font = "12px system-ui, sans-serif";
  const series = [{}],
    tables = [];
  made.lines.forEach((line) => {
    const stroke = color(line.run.variable);
    const few = line.x.length <= 40;
    const base = { stroke, dash: line.run.dash, spanGaps: true, points: { show: few, size: 5, fill: stroke } };
    if (made.smooth && state.smooth > 0 && line.x.length > 2) {
      line.raw = line.y;
      line.y = smoothed(line.y, state.smooth);
      tables.push([line.x, line.raw]);
      series.push({ ...base, width: 1, alpha: 0.25, points: { show: false } });
      base.points = { show: false };
    }
    tables.push([line.x, line.y]);
    line.series = series.length;
    series.push({ ...base, width: 2 });
  });
  const width = Math.max(220, made.plot.clientWidth);
  const options = {
    width,
    height: width < 420 ? 230 : 300,
    series,
    padding: [10, 14, 0, 4],
    scales: { x: { time: false }, y: { range: (_, low, high) => padded(low, high) } },
    focus: { alpha: 0.18 },
    cursor: {
      drag: { x: true, y: false },
      points: { show: false },
      sync: { key: "runs", setSeries: false },
      y: false,
    },
    axes: [
      {
        stroke: soft,
        font,
        grid,
        ticks: grid,
        size: 32,
        labelSize: 18,
        labelFont: font,
        label: axis.label,
        labelGap: 0,
        space: 70,
        values: (_, ticks) => ticks.map(axis.tick),
      },
      {
        stroke: soft,
        font,
        grid,
        ticks: { show: false },
        size: 62,
        gap: 6,
        space: 36,
        values: (_, ticks) => ticksOf(ticks, made.value),
      },
    ],
    hooks: { setCursor: [(u) => readAt(made, u)] },
  };
  made.plot.replaceChildren();
  made.drawn = new uPlot(options, uPlot.join(tables), made.plot);
  made.drawn.over.append(made.tip);
  made.drawn.over.addEventListener("mouseleave", () => {
    made.tip.style.display = "none";
  });
}

/** Ticks with as many decimals as tell them apart. */
function ticksOf(ticks, value) {
  if (value !== quality) return ticks.map(value);
  const step = Math.abs((ticks[1] ?? 1) - (ticks[0] ?? 0)) || 1;
  let decimals = 1;
  while (decimals < 6 && Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals++;
  return ticks.map((tick) => tick.toFixed(decimals));
}

function padded(low, high) {
  if (!is(low) || !is(high)) return [0, 1];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  // What is never negative is drawn from 0 where that is near.
  const from = low >= 0 && low - room < 0.25 * (high - low) ? 0 : low - room;
  return [from, high + room];
}

/** The point of a line that is nearest to x. */
function nearest(line, x) {
  let low = 0,
    high = line.x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (line.x[middle] < x) low = middle;
    else high = middle;
  }
  return Math.abs(line.x[high] - x) < Math.abs(line.x[low] - x) ? high : low;
}

/** Shows the values under the cursor of the chart that is pointed at. */
function readAt(made, u) {
  const { left } = u.cursor;
  if (left < 0 || !(u.over.matches(":hover") || document.activeElement === made.plot)) {
    made.tip.style.display = "none";
    return;
  }
  const x = u.posToVal(left, "x");
  const [from, to] = [u.scales.x.min, u.scales.x.max];
  const rows = made.lines
    .filter((line) => line.x[0] <= x + (to - from) * 0.02 && line.x.at(-1) >= x - (to - from) * 0.02)
    .map((line) => ({ line, y: line.y[nearest(line, x)] }))
    .sort((a, b) => b.y - a.y);
  if (rows.length === 0) {
    made.tip.style.display = "none";
    return;
  }
  const axis = AXES[state.axis];
  const shown = rows
    .slice(0, 12)
    .map(({ line, y }) =>
      el(
        "div",
        { class: "line" },
        swatch(line.run),
        el("span", { class: "name" }, line.run.name),
        el("span", {}, made.value(y)),
      ),
    );
  const more = rows.length > 12 ? el("div", { class: "at" }, `and ${rows.length - 12} more`) : null;
  made.tip.replaceChildren(
    ...[el("div", { class: "at" }, `${axis.value(x)} · ${axis.label}`), ...shown, more].filter(Boolean),
  );
  made.tip.style.display = "block";
  const room = u.over.clientWidth - made.tip.offsetWidth;
  const beside = left + 14 > room ? left - made.tip.offsetWidth - 14 : left + 14;
  made.tip.style.left = `${Math.max(0, Math.min(room, beside))}px`;
  made.tip.style.top = "6px";
}

/** Arrow keys move along the points of a chart. */
function byKey(made, event) {
  const u = made.drawn;
  const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
  if (!u) return;
  if (event.key === "Escape") {
    u.setCursor({ left: -10, top: -10 });
    return;
  }
  if (by === undefined) return;
  event.preventDefault();
  const xs = u.data[0];
  const at = u.cursor.left >= 0 ? u.posToIdx(u.cursor.left) : by > 0 ? -1 : xs.length;
  const to = Math.max(0, Math.min(xs.length - 1, at + by));
  u.setCursor({ left: u.valToPos(xs[to], "x"), top: 10 });
}

/** Fades all lines but those of one run; null: none. */
function emphasize(run) {
  charts.forEach((made) => {
    const line = run && made.lines.find((line) => line.run === run);
    made.drawn?.setSeries(line ? line.series : null, { focus: true }, false);
  });
}

const drawAll = () => charts.forEach(draw);
