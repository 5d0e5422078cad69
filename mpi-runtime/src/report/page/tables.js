// What sections are made of: tables with a row for each run, bars, two columns.

const many = report.runs.length > 1;

function section(title, text, ...children) {
  const there = children.flat().filter(Boolean);
  if (there.length === 0) return null;
  const id = title.toLowerCase().replace(/[^a-z]+/g, "-");
  return el(
    "section",
    { "aria-labelledby": id },
    el("header", {}, el("h2", { id }, title), text ? el("p", {}, text) : null),
    there,
  );
}

const ended = (run) => !many || status(run) === "done";

/** The run with the best of a figure, of those that have ended: `sign` 1 for the greatest, -1 for the least. */
function best(of, sign) {
  const there = report.runs.filter((run) => ended(run) && is(of(run)));
  return there.reduce((top, run) => (!top || (of(run) - of(top)) * sign > 0 ? run : top), null);
}

/**
 * A table with a row for each run. A column has a name and a value, and may have: text of it, `best` (1: the greatest
 * is marked, -1: the least), `class`. Columns that no run has are left out; a click on a heading sorts.
 */
function runTable(columns, { caption, rows = report.runs } = {}) {
  const there = columns.filter((column) => column.always || rows.some((run) => known(column.of(run))));
  if (there.length === 0 || rows.length === 0) return null;
  const body = el("tbody");
  const fill = (order) =>
    body.replaceChildren(
      ...order.map((run) =>
        el(
          "tr",
          {
            on: { mouseenter: () => emphasize(run), mouseleave: () => emphasize(null) },
          },
          el("th", { scope: "row" }, named(run)),
          there.map((column) => cell(run, column, rows)),
        ),
      ),
    );
  const heads = [{ name: "run", of: (run) => run.name, text: true }, ...there].map((column) => {
    const head = el("th", { scope: "col", class: column.text ? "text" : null });
    if (rows.length < 2 || column.plain) {
      head.append(column.name);
      return head;
    }
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      fill(sorted(rows, column.of, up));
    };
    head.append(el("button", { type: "button", title: "sort by this", on: { click: sort } }, column.name));
    return head;
  });
  fill(rows);
  return el(
    "div",
    { class: "card scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, heads)), body),
  );
}

const known = (value) => value !== undefined && value !== null && value !== "";

function cell(run, column, rows) {
  const value = column.of(run);
  if (!known(value)) return el("td", { class: column.text ? "none text" : "none" }, NONE);
  const shown = (column.show ?? String)(value, run);
  // A run that has not come to its end is not compared: it has sent less, and taken less time.
  const of = rows.filter(ended).map(column.of).filter(is);
  const top =
    column.best && ended(run) && of.length > 1 && value === (column.best > 0 ? Math.max(...of) : Math.min(...of));
  return el(
    "td",
    {
      class: [column.class, column.text ? "text" : "", top ? "best" : ""].join(" ").trim() || null,
      style: column.style?.(value) ?? "",
      title: top ? "best of these runs" : null,
    },
    shown,
  );
}

function sorted(rows, of, up) {
  const order = (a, b) => {
    const [x, y] = [of(a), of(b)];
    if (!known(x) || !known(y)) return known(x) ? -1 : known(y) ? 1 : 0;
    const by = is(x) && is(y) ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return up ? by : -by;
  };
  return [...rows].sort(order);
}

/** Nodes in two columns, where there is room; one that would stand alone in its row takes all of it. */
function grid(...nodes) {
  const there = nodes.filter(Boolean);
  const wide = (node) => !node || node.classList.contains("wide");
  let before = 0;
  there.forEach((node, i) => {
    if (wide(node)) {
      before = 0;
      return;
    }
    before += 1;
    if (before % 2 === 1 && wide(there[i + 1])) node.classList.add("wide");
  });
  return there.length > 0 ? el("div", { class: "columns" }, there) : null;
}

/** Runs with bars of parts: a part has a name, a value of a run, a colour. `whole` is what 100 % are. */
function bars({ title, unit, parts, total, show: text, first = [], more = [] }) {
  const rows = report.runs.filter((run) => is(total(run)) && total(run) > 0);
  if (rows.length === 0) return null;
  const scale = (run) => (unit.share ? total(run) : Math.max(...rows.map(total)));
  const bar = {
    name: unit.name,
    plain: true,
    class: "bar",
    always: true,
    of: () => " ",
    text: true,
    show: (_, run) =>
      el(
        "div",
        { class: "stack", "aria-hidden": "true" },
        parts.map((part, i) =>
          el("i", {
            title: `${part.name}: ${text(part.of(run))}`,
            style: `width: ${Math.max(0, (100 * (part.of(run) ?? 0)) / scale(run))}%; background: var(--part-${i + 1})`,
          }),
        ),
      ),
  };
  const columns = [bar, ...first, ...parts.map((part) => ({ name: part.name, of: part.of, show: text })), ...more];
  const table = runTable(columns, { caption: title, rows });
  table.classList.remove("card");
  const legend =
    parts.length < 2
      ? null
      : el(
          "ul",
          { class: "legend" },
          parts.map((part, i) => el("li", {}, el("i", { style: `background: var(--part-${i + 1})` }), part.name)),
        );
  return el("div", { class: "card wide" }, el("h3", {}, title), legend, table);
}
