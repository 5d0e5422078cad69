// The page: its sections in their order, what is chosen for all of them, and what redraws charts.

/** Buttons of which one is pressed. */
function segments(label, choices, chosen, choose) {
  const buttons = choices.map(([value, name]) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": String(value === chosen),
        on: {
          click: () => {
            buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(choices[i][0] === value)));
            choose(value);
          },
        },
      },
      name,
    ),
  );
  return el(
    "div",
    { class: "control", role: "group", "aria-label": label },
    el("span", { class: "label", "aria-hidden": "true" }, label),
    el("div", { class: "segments" }, buttons),
  );
}

/** The theme that was chosen, else that of the system. */
const dark = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try {
  theme = localStorage.getItem("umbra-report-theme") ?? "auto";
} catch {
  /* a page without storage */
}
function applyTheme() {
  const chosen = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
  document.documentElement.dataset.theme = chosen;
  drawAll();
  drawStrips();
}

function controls() {
  document.getElementById("controls").append(
    segments(
      "Charts over",
      Object.entries(AXES).map(([key, axis]) => [key, axis.name]),
      state.axis,
      (axis) => {
        state.axis = axis;
        drawAll();
      },
    ),
    segments(
      "Smoothing",
      [
        [0, "Raw"],
        [0.7, "Some"],
        [0.93, "Much"],
      ],
      state.smooth,
      (smooth) => {
        state.smooth = smooth;
        drawAll();
      },
    ),
    segments(
      "Theme",
      [
        ["auto", "Auto"],
        ["light", "Light"],
        ["dark", "Dark"],
      ],
      theme,
      (chosen) => {
        theme = chosen;
        try {
          localStorage.setItem("umbra-report-theme", theme);
        } catch {
          /* chosen for this time only */
        }
        applyTheme();
      },
    ),
  );
}

/** One button a run: shows or hides its curves; a double click shows it alone. */
function chips() {
  const bar = document.getElementById("chips");
  if (!many) {
    bar.remove();
    return;
  }
  const update = () => {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(report.runs[i].visible)));
    all.hidden = report.runs.every((run) => run.visible);
    drawAll();
  };
  const buttons = report.runs.map((run) =>
    el(
      "button",
      {
        type: "button",
        class: "chip",
        title: `${run.path}\nclick: show or hide; double-click: this run alone`,
        on: {
          click: () => {
            run.visible = !run.visible;
            update();
          },
          dblclick: () => {
            report.runs.forEach((other) => {
              other.visible = other === run;
            });
            update();
          },
          mouseenter: () => emphasize(run),
          mouseleave: () => emphasize(null),
          focus: () => emphasize(run),
          blur: () => emphasize(null),
        },
      },
      swatch(run),
      el("span", { class: "name" }, run.name),
    ),
  );
  const all = el(
    "button",
    {
      type: "button",
      class: "chip plain",
      hidden: "",
      on: {
        click: () => {
          report.runs.forEach((run) => {
            run.visible = true;
          });
          update();
        },
      },
    },
    "show all",
  );
  bar.append(...buttons, all);
  buttons.forEach((button) => button.setAttribute("aria-pressed", "true"));
}

const strips = [];

/** What each thread of the traced runs did, stretch by stretch. */
function threads() {
  const traced = report.runs.filter((run) => run.activity);
  return section(
    "Threads",
    "From trace.json: the shade of a stretch is the share of it that the thread was busy.",
    traced.map((run) => {
      const { threads, bin_seconds: bin } = run.activity;
      const length = Math.max(
        ...threads.flatMap((thread) => Object.values(thread.kinds).map((kind) => kind.shares.length)),
      );
      const kinds = [...new Set(threads.flatMap((thread) => Object.keys(thread.kinds)))];
      const rows = threads.map((thread) => {
        const canvas = el("canvas", { class: "strip", "aria-hidden": "true" });
        strips.push({ canvas, thread, kinds, length });
        const said = Object.entries(thread.kinds).map(
          ([name, kind]) => `${name} ${share(kind.seconds / (length * bin))} (${whole(kind.count)})`,
        );
        return el(
          "tr",
          {},
          el("th", { scope: "row" }, `${thread.rank}, ${thread.name}`),
          el("td", { class: "strip-cell" }, canvas),
          el("td", {}, said.join(" · ")),
        );
      });
      return el(
        "div",
        { class: "card", style: "margin-bottom: 0.9rem" },
        el(
          "h3",
          {},
          named(run),
          el("span", { class: "unit" }, `${time(length * bin)} from the first span to the last`),
        ),
        el(
          "ul",
          { class: "legend" },
          kinds.map((kind, i) => el("li", {}, el("i", { style: `background: var(--part-${(i % 4) + 1})` }), kind)),
        ),
        el(
          "div",
          { class: "scroll", tabindex: "0", role: "region", "aria-label": `Threads of ${run.name}` },
          el(
            "table",
            {},
            el(
              "thead",
              {},
              el(
                "tr",
                {},
                ["thread", "over time", "share of the time (how often)"].map((name) =>
                  el("th", { scope: "col", class: "text" }, name),
                ),
              ),
            ),
            el("tbody", {}, rows),
          ),
        ),
      );
    }),
  );
}

function drawStrips() {
  strips.forEach(({ canvas, thread, kinds, length }) => {
    const scale = devicePixelRatio || 1;
    canvas.width = Math.max(1, canvas.clientWidth * scale);
    canvas.height = Math.max(1, canvas.clientHeight * scale);
    const context = canvas.getContext("2d");
    kinds.forEach((name, i) => {
      context.fillStyle = color(`--part-${(i % 4) + 1}`);
      (thread.kinds[name]?.shares ?? []).forEach((busy, bin) => {
        const [from, to] = [
          Math.round((bin * canvas.width) / length),
          Math.round(((bin + 1) * canvas.width) / length),
        ];
        context.globalAlpha = Math.min(1, busy);
        context.fillRect(from, 0, to - from, canvas.height);
      });
    });
  });
}

/** Every key of every run. */
function configurations() {
  const keys = [...new Set(report.runs.flatMap((run) => Object.keys(run.config)))].sort();
  if (keys.length === 0) return null;
  const differs = new Set(report.differing.map((it) => it.key));
  const rows = keys.map((key) =>
    el(
      "tr",
      { "data-key": key },
      el("th", { scope: "row", class: "key" }, key),
      report.runs.map((run) =>
        el("td", { class: `key ${differs.has(key) ? "other" : "same"}` }, run.config[key] ?? NONE),
      ),
    ),
  );
  const filter = el("input", {
    type: "search",
    placeholder: "keys with …",
    "aria-label": "show keys that contain",
    on: {
      input: () => {
        rows.forEach((row) => {
          row.hidden = !row.dataset.key.includes(filter.value.trim());
        });
      },
    },
  });
  return section(
    "Configuration",
    "",
    el(
      "details",
      { class: "card" },
      el("summary", {}, `All ${keys.length} keys as the runs have resolved them`),
      el("div", { class: "filter" }, filter),
      el(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Configuration" },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", { scope: "col" }, "key"),
              report.runs.map((run) => el("th", { scope: "col" }, named(run))),
            ),
          ),
          el("tbody", {}, rows),
        ),
      ),
    ),
  );
}

function main() {
  const { runs } = report;
  const title = many ? `${runs.length} runs` : runs[0].name;
  document.title = `${title} · umbra report`;
  document.getElementById("title").textContent = title;
  const when = new Date(report.written * 1000).toISOString().slice(0, 16).replace("T", " ");
  document.getElementById("subtitle").textContent = `umbra report · ${when} UTC`;
  document.getElementById("footer").append(
    `Written by umbra ${report.program}. `,
    el(
      "details",
      {},
      el("summary", {}, "Run folders"),
      el(
        "ul",
        {},
        runs.map((run) => el("li", { class: "key" }, run.path)),
      ),
    ),
  );
  const sections = [
    runsTable(),
    differingTable(),
    learning(),
    speed(),
    synchronization(),
    wire(),
    memory(),
    saved(),
    threads(),
    configurations(),
  ];
  document.getElementById("main").append(tiles(), ...sections.filter(Boolean));
  controls();
  chips();
  applyTheme();
  dark.addEventListener("change", applyTheme);
  let width = document.body.clientWidth;
  new ResizeObserver(() => {
    // Charts change the height of the page, and are not drawn again for that.
    if (document.body.clientWidth === width) return;
    width = document.body.clientWidth;
    drawAll();
    drawStrips();
  }).observe(document.body);
}
main();
