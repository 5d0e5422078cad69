// The sections of the page, each from the figures of all runs; null where no run has any.

/** Headline figures: of the best of several runs, or of the one. */
function tiles() {
  const tile = (what, value, whose) =>
    el(
      "div",
      { class: "card tile" },
      el("div", { class: "what" }, what),
      el("div", { class: "value" }, value),
      whose ? el("div", { class: "whose" }, whose) : null,
    );
  const perExample = (run) =>
    is(sent(run)) && figure(run, "examples") > 0 ? sent(run) / figure(run, "examples") : undefined;
  const figures = [
    ["test AUC", (run) => figure(run, "test.auc"), 1, quality, "best"],
    ["test log loss", (run) => figure(run, "test.logloss"), -1, quality, "lowest"],
    ["validation AUC", (run) => validAuc(run), 1, quality, "best"],
    ["examples per second", (run) => soFar(run, "examples_per_second"), 1, count, "most"],
    ["training time", (run) => soFar(run, "seconds"), -1, time, null],
    ["sync gap, steps", (run) => figure(run, "sync.gap_mean"), -1, few, null],
    ["bytes sent per example", perExample, -1, bytes, "fewest"],
    ["memory of a rank, peak", (run) => figure(run, "memory.rss_bytes_max"), -1, bytes, many ? null : "most"],
  ];
  const made = figures.flatMap(([what, of, sign, text, word]) => {
    const run = best(of, sign);
    if (!run || (many && word === null)) return [];
    return tile(many ? `${word} ${what}` : what, text(of(run)), many ? named(run) : null);
  });
  const how = grouped(report.runs, status)
    .map(([name, runs]) => `${runs.length} ${name}`)
    .join(" · ");
  const first = many
    ? tile("runs", String(report.runs.length), how)
    : tile("method", method(report.runs[0]) ?? NONE, badge(report.runs[0]));
  return el("div", { class: "tiles" }, first, made);
}

function runsTable() {
  const keys = report.differing.filter((it) => !["sync.method", "(ranks)"].includes(it.key));
  const key = (it) => ({ name: it.key, of: (run) => numeric(it.values[run.index]), class: "key", always: true });
  return section(
    many ? "Runs" : "Run",
    many ? "★ marks the best of a column; a click on a heading sorts by it." : "",
    runTable(
      [
        { name: "status", of: status, show: (_, run) => badge(run), text: true },
        { name: "test AUC", of: (run) => figure(run, "test.auc"), show: quality, best: 1 },
        { name: "test log loss", of: (run) => figure(run, "test.logloss"), show: quality, best: -1 },
        { name: "valid AUC", of: validAuc, show: quality, best: 1 },
        ...(keys.length <= 4 ? keys.map(key) : []),
        { name: "method", of: method, text: true },
        {
          name: "ranks × threads",
          of: (run) => (figure(run, "ranks") ? `${figure(run, "ranks")} × ${figure(run, "worker_threads")}` : null),
        },
        { name: "examples/s", of: (run) => soFar(run, "examples_per_second"), show: whole, best: 1 },
        { name: "examples", of: (run) => soFar(run, "examples"), show: whole },
        { name: "time", of: (run) => soFar(run, "seconds"), show: time },
        { name: "sync gap", of: (run) => figure(run, "sync.gap_mean"), show: few },
        { name: "sent", of: sent, show: bytes },
        { name: "memory", of: (run) => figure(run, "memory.rss_bytes_max"), show: bytes },
      ],
      { caption: "Runs and their figures" },
    ),
  );
}

const numeric = (text) => (text !== null && text !== "" && is(Number(text)) ? Number(text) : text);

/** The keys that differ: a row each, a column for each run. */
function differingTable() {
  if (!many) return null;
  if (report.differing.length === 0) {
    return section(
      "What differs",
      "",
      el("div", { class: "card" }, el("p", { class: "empty" }, "No key differs between these runs.")),
    );
  }
  const rows = report.differing.map(({ key, values }) => {
    const usual = grouped(values, (value) => value).reduce((top, next) =>
      next[1].length > top[1].length ? next : top,
    );
    const differs = (value) => usual[1].length > 1 && value !== usual[0];
    return el(
      "tr",
      {},
      el("th", { scope: "row", class: "key" }, key),
      values.map((value) =>
        el(
          "td",
          { class: `key ${usual[1].length === 1 ? "" : differs(value) ? "other" : "same"}`, title: value },
          value ?? NONE,
        ),
      ),
    );
  });
  return section(
    "What differs",
    "Keys whose values are not the same in all runs; all others are. In grey the value that most runs have.",
    el(
      "div",
      { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Keys that differ" },
      el(
        "table",
        {},
        el("caption", { class: "hidden" }, "Keys that differ"),
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
  );
}

function learning() {
  return section(
    "Learning",
    "Drag over a chart to zoom, double-click to see all of it again. Arrow keys read a chart that has the focus.",
    grid(
      chart({ title: "Training log loss", unit: "nats", column: "logloss", value: quality, smooth: true }),
      chart({ title: "Validation AUC", unit: "area under the ROC curve", column: "valid.auc", value: quality }),
      chart({ title: "Validation log loss", unit: "nats", column: "valid.logloss", value: quality }),
      chart({
        title: "Validation calibration",
        unit: "predicted over real clicks",
        column: "valid.calibration",
        value: few,
      }),
      chart({
        title: "Progressive AUC",
        unit: "scored before it is learnt",
        column: "progressive.auc",
        value: quality,
      }),
      chart({
        title: "Progressive log loss",
        unit: "nats, scored before it is learnt",
        column: "progressive.logloss",
        value: quality,
      }),
      report.runs.some((run) => new Set(run.points.lr_dense?.filter(is)).size > 1)
        ? chart({ title: "Learning rate", unit: "dense parameters", column: "lr_dense", value: few })
        : null,
    ),
  );
}

function speed() {
  const wait = (name) => (run) => figure(run, `wait.${name}_seconds`);
  const waits = (run) => ["data", "embedding", "sync"].reduce((sum, name) => sum + (wait(name)(run) ?? 0), 0);
  const seconds = (run) => (run.summary?.wait ? Math.max(figure(run, "seconds") ?? 0, waits(run)) : undefined);
  return section(
    "Speed",
    "",
    grid(
      chart({
        title: "Throughput",
        unit: "examples per second, all trainers",
        column: "examples_per_second",
        value: count,
        windows: true,
      }),
      bars({
        title: "What a worker thread did with its time",
        unit: { share: true, name: "share of the training time" },
        total: seconds,
        show: time,
        parts: [
          { name: "training", of: (run) => (is(seconds(run)) ? seconds(run) - waits(run) : undefined) },
          { name: "waiting for data", of: wait("data") },
          { name: "waiting for rows", of: wait("embedding") },
          { name: "waiting for synchronization", of: wait("sync") },
        ],
        more: [{ name: "all", of: seconds, show: time }],
      }),
    ),
  );
}

function synchronization() {
  const sync = (name) => (run) => figure(run, `sync.${name}`);
  const table = runTable(
    [
      { name: "method", of: method, text: true },
      { name: "rounds", of: sync("rounds"), show: whole },
      { name: "gap, steps", of: sync("gap_mean"), show: few },
      { name: "gap, 99th percentile", of: sync("gap_p99"), show: few },
      { name: "workers stood still", of: sync("seconds_exposed"), show: time },
      { name: "beside the workers", of: sync("seconds_background"), show: time },
      { name: "until the final model", of: sync("seconds_publish"), show: time },
      { name: "disagreement", of: sync("disagreement"), show: few },
      { name: "token staleness, mean", of: sync("token_staleness_mean"), show: few },
      { name: "max", of: sync("token_staleness_max"), show: whole },
      { name: "version lag, mean", of: sync("version_lag_mean"), show: few },
      { name: "gradients dropped", of: sync("dropped"), show: whole },
      { name: "changes of the method", of: (run) => figure(run, "sync.switches")?.length, show: whole },
    ],
    { caption: "Synchronization", rows: report.runs.filter((run) => run.summary?.sync) },
  );
  return section(
    "Synchronization",
    "The gap is how many steps a trainer's workers make between two of its rounds; staleness is " +
      "how many steps a gradient's token was behind, version lag how many updates came between reading and updating.",
    table,
    grid(
      chart({ title: "Sync gap", unit: "steps between rounds", column: "sync_gap", value: few, windows: true }),
      chart({ title: "Disagreement", unit: "distance of replicas, relative", column: "disagreement", value: few }),
      chart({ title: "Token staleness", unit: "steps, mean", column: "token_staleness", value: few, windows: true }),
      chart({ title: "Version lag", unit: "versions, mean", column: "version_lag", value: few, windows: true }),
      histogram("How stale gradients were", "token_staleness", "steps behind"),
      histogram("Versions between reading and updating", "version_lag", "versions"),
    ),
  );
}

/** Shares of gradients by how late they were; what is beyond the last column is in it. */
function histogram(title, name, unit) {
  const bins = (run) => figure(run, `sync.${name}`);
  const rows = report.runs.filter((run) => bins(run)?.length > 0);
  const columns = Math.min(8, Math.max(0, ...rows.map((run) => bins(run).length)));
  const part = (run, i) => {
    const all = bins(run);
    const inside = i === columns - 1 ? all.slice(i) : all.slice(i, i + 1);
    return inside.reduce((a, b) => a + b, 0) / all.reduce((a, b) => a + b, 0);
  };
  const more = rows.some((run) => bins(run).length > columns);
  const table = runTable(
    Array.from({ length: columns }, (_, i) => ({
      name: i === columns - 1 && more ? `${i} and more` : String(i),
      of: (run) => part(run, i),
      plain: true,
      show: share,
      style: (value) => `background: color-mix(in srgb, var(--accent) ${Math.round(value * 45)}%, transparent)`,
    })),
    { caption: title, rows },
  );
  if (!table) return null;
  table.classList.remove("card");
  return el(
    "div",
    { class: "card" },
    el("h3", {}, title, el("span", { class: "unit" }, `share of gradients by ${unit}`)),
    table,
  );
}

function wire() {
  const kind = (name) => (run) => figure(run, `wire.${name}_bytes`);
  const per = (run) =>
    is(sent(run)) && figure(run, "examples") > 0 ? sent(run) / figure(run, "examples") : undefined;
  return section(
    "Bytes on the wire",
    "",
    grid(
      bars({
        title: "Sent by all ranks",
        unit: { name: "bytes, on one scale" },
        total: sent,
        show: bytes,
        parts: [
          { name: "dense parameters", of: kind("dense") },
          { name: "embedding rows", of: kind("embedding") },
          { name: "everything else", of: kind("control") },
        ].filter((part) => report.runs.some((run) => is(part.of(run)))),
        first: [
          { name: "all", of: sent, show: bytes, best: -1 },
          { name: "per example", of: per, show: bytes, best: -1 },
        ],
      }),
      chart({
        title: "Dense parameters on the wire",
        unit: "bytes per second, all ranks",
        column: "sync_bytes_per_second",
        value: bytes,
        windows: true,
      }),
      chart({
        title: "Rounds",
        unit: "per second, all trainers",
        column: "sync_rounds_per_second",
        value: count,
        windows: true,
      }),
    ),
  );
}

function memory() {
  const of = (name) => (run) => figure(run, `memory.${name}`);
  return section(
    "Memory",
    "",
    grid(
      bars({
        title: "Resident memory of the largest rank",
        unit: { name: "peak, on one scale" },
        total: of("rss_bytes_max"),
        show: bytes,
        parts: [{ name: "peak", of: of("rss_bytes_max") }],
        more: [
          { name: "embedding rows, all ranks", of: of("embedding_bytes"), show: bytes },
          { name: "a dense replica", of: of("dense_bytes"), show: bytes },
        ],
      }),
    ),
  );
}

function saved() {
  const of = (name) => (run) => figure(run, name);
  const table = runTable(
    [
      { name: "status", of: status, show: (_, run) => badge(run), text: true },
      { name: "checkpoints", of: of("checkpoint.count"), show: whole },
      { name: "written", of: of("checkpoint.bytes"), show: bytes },
      { name: "training stood still", of: of("checkpoint.seconds_exposed"), show: time },
      { name: "beside training", of: of("checkpoint.seconds_background"), show: time },
      { name: "interval", of: of("checkpoint.interval_s"), show: time },
      { name: "went on from step", of: of("from_step"), show: whole },
      { name: "ranks lost", of: of("recovery.failures"), show: whole },
      { name: "who goes back", of: of("recovery.mode"), text: true },
      { name: "lost samples", of: of("recovery.pls"), show: share },
      { name: "work lost", of: of("recovery.seconds_lost"), show: time },
      { name: "overhead", of: of("recovery.overhead_fraction"), show: share },
    ],
    { caption: "Checkpoints and failures" },
  );
  const said = report.runs.flatMap((run) =>
    [
      ...run.notes,
      ...(figure(run, "recovery.losses") ?? []).map(
        (loss) =>
          `lost rank ${loss.ranks?.join(", ")}, went on at step ${whole(loss.step)} after ${time(loss.seconds)}`,
      ),
      ...(figure(run, "sync.switches") ?? []).map(
        (it) => `${it.method} from step ${whole(it.step)} on${it.reason ? `: ${it.reason}` : ""}`,
      ),
    ].map((note) => el("li", {}, swatch(run), " ", el("b", {}, run.name), ": ", note)),
  );
  return section(
    "Checkpoints, stops and failures",
    "",
    table,
    said.length ? el("ul", { class: "card notes", style: "margin-top: 0.9rem" }, said) : null,
  );
}
