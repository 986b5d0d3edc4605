"use strict";
// The page from the data: head, figures, curves, groups, settings.
const DOTS = { running: "var(--s2)", done: "var(--s0)", interrupted: "var(--unparsable)", failed: "var(--wrong)", unknown: "var(--faint)" };

function head() {
  const [run] = DATA.runs;
  byId("title").textContent = DATA.several ? `${DATA.runs.length} runs compared` : run.name;
  const eyebrow = byId("eyebrow");
  if (DATA.several) {
    byId("lede").append("Each line is a run, or all seeds of a variant with their spread.");
    return;
  }
  const of = run.of && run.of > 0 ? ` of ${run.of.toLocaleString("en")}` : "";
  eyebrow.append(make("span", { class: "pill", vars: { "--dot": badgeDot(run) } }, badge(run)));
  const lede = byId("lede"), said = [];
  const { model, parts: resolved } = run;
  if (model?.name) said.push(["Model ", model.name.split("/").slice(-1)[0], model.parameters ? ` (${amount(model.parameters)} parameters)` : ""]);
  if (resolved?.advantage) said.push(["advantage ", resolved.advantage.name, ""], ["objective ", resolved.objective.name, ""]);
  if (resolved?.verifiers?.length) said.push([resolved.verifiers.length > 1 ? "verifiers " : "verifier ", resolved.verifiers.map((one) => one.label).join(", "), ""]);
  said.push(["step ", run.step.toLocaleString("en"), of]);
  if (run.seconds !== null) said.push(["", duration(run.seconds), run.resumed_from ? ` since it was resumed at step ${run.resumed_from.toLocaleString("en")}` : ""]);
  said.forEach(([before, value, after], at) => lede.append(at ? ", " : "", before, make("b", {}, value), after));
  lede.append(".");
  const gravest = run.findings.find((one) => one.until === null && one.outcome && one.outcome === run.outcome);
  if (gravest) lede.append(" ", make("b", { class: "outcome" }, sentence(run.outcome)), ` ${sentence(gravest.evidence)} ${sentence(gravest.cause)}`);
}

function notices() {
  const box = byId("notices");
  for (const run of DATA.runs) {
    const name = DATA.several ? `${run.name}: ` : "";
    if (run.error) box.append(make("p", { class: "notice" }, `${name}the run ended with ${run.error}`));
    else if (run.status === "interrupted") box.append(make("p", { class: "notice" }, `${name}the run was stopped before its end; what it had written is here.`));
    for (const told of run.damage) box.append(make("p", { class: "notice" }, `${name}${told}.`));
  }
}

function headline() {
  const box = byId("headline");
  if (!DATA.several) {
    if (DATA.tiles.length) box.append(make("dl", { class: "tiles" }, DATA.tiles.map((tile) => make("div", { class: "tile" }, make("dt", {}, tile.title), make("dd", {}, figure(tile.value, tile.unit), make("small", {}, tile.note ? tile.note : tile.start === null ? "mean of the run" : `from ${figure(tile.start, tile.unit)}`))))));
    return;
  }
  const rows = DATA.table;
  const beside = (one) => (one.spread !== null && one.spread !== undefined ? ` ± ${figure(one.spread, one.unit)}` : one.low !== null && one.low !== undefined ? ` (${figure(one.low, one.unit)} to ${figure(one.high, one.unit)})` : "");
  const cell = (one) => make("td", { class: one.best ? "best" : null }, figure(one.mean, one.unit), make("span", { class: "pm" }, beside(one)));
  box.append(make("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Comparison" }, make("table", {},
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Run"), rows.some((row) => row.runs > 1) ? make("th", { scope: "col" }, "seeds") : null, rows[0].cells.map((one) => make("th", { scope: "col" }, one.title)))),
    make("tbody", {}, rows.map((row, at) => make("tr", {}, make("th", { scope: "row" }, make("span", { class: "swatch", vars: { "--c": `var(--s${at % 8})` } }), row.name), rows.some((one) => one.runs > 1) ? make("td", {}, String(row.runs)) : null, row.cells.map(cell)))))));
  if (DATA.verdicts.length) box.append(make("ul", { class: "hint verdict-list" }, DATA.verdicts.map((sentence) => make("li", {}, sentence))));
}

function curves() {
  const box = byId("panels");
  box.append(...DATA.panels.map(panelFigure));
  if (!DATA.panels.length) box.append(make("p", { class: "empty" }, "Nothing was logged yet. Curves need at least one logging step (logging_steps)."));
  const longest = Math.max(0, ...DATA.panels.flatMap((panel) => panel.lines.map((line) => line.steps.length)));
  const slider = byId("smooth");
  const set = (value) => { smoothing = value; slider.value = value; byId("smooth-value").textContent = value ? value.toFixed(2) : "off"; };
  set(longest > 60 ? 0.6 : 0);
  slider.addEventListener("input", () => { set(+slider.value); redraw(); });
  const keys = Object.keys(DATA.metrics);
  if (!keys.length) return;
  const place = make("div", { class: "panels" });
  const select = make("select", { id: "metric", on: { change: () => pick(select.value) } }, make("option", { value: "" }, "choose a metric"), keys.map((key) => make("option", { value: key }, key)));
  function pick(key) {
    place.replaceChildren();
    if (key) place.append(panelFigure({ title: key, note: "As it was logged.", lines: [DATA.metrics[key]], kind: "lines", unit: "", wide: true }));
  }
  byId("explorer").append(make("div", { class: "explore" }, make("label", { for: "metric" }, `Any of ${keys.length} logged metrics`), select), make("div", { class: "section-gap" }, place));
}

const words = (value) => (value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

function part(kind, name, small, formula, settings) {
  const rows = Object.entries(settings || {}).filter(([, value]) => value !== null && value !== "" && !(typeof value === "object" && !Object.keys(value).length));
  return make("div", { class: "part" }, make("p", { class: "note small" }, kind), make("p", { class: "name" }, name, small ? make("small", {}, ` ${small}`) : null), formula ? make("pre", {}, formula) : null,
    rows.length ? make("dl", {}, rows.map(([key, value]) => [make("dt", {}, key), make("dd", {}, words(value))])) : null);
}

function settings() {
  const body = byId("settings-body");
  for (const run of DATA.runs) {
    if (DATA.several) body.append(make("h3", { class: "run-title" }, run.name, " ", make("span", { class: "pill", vars: { "--dot": badgeDot(run) } }, badge(run))));
    const all = run.parts;
    if (!all && !run.versions) { body.append(make("p", { class: "hint" }, "Nothing is known of the parts of this run: only its logs can be read.")); continue; }
    body.append(make("div", { class: "parts" },
      all ? part("Advantage", all.advantage.name, all.advantage.host ? "(TRL's own)" : "", all.advantage.formula, all.advantage.keywords) : null,
      all ? part("Objective", all.objective.name, all.objective.host ? "(TRL's own loss)" : "", all.objective.formula, all.objective.keywords) : null,
      all ? [["Verifier", all.verifiers], ["Verifier, evaluation only", all.eval_verifiers || []]].map(([kind, some]) => some.map((one) => part(kind, one.label, one.weight === null ? "" : `weight ${one.weight}`, "", one.settings))) : null,
      part("Run", run.model?.name ? run.model.name.split("/").slice(-1)[0] : run.name, "", "", {
        parameters: run.model?.parameters ? amount(run.model.parameters) : null, trainable: run.model?.trainable ? amount(run.model.trainable) : null, engine: all?.engine, rollout: all?.rollout,
        device: run.device, processes: run.processes, started: run.started ? new Date(run.started * 1000).toLocaleString() : null, "resumed from": run.resumed_from, folder: run.path, ...run.versions,
      })));
    if (run.config) body.append(make("details", {}, make("summary", {}, `All ${Object.keys(run.config).length} options`), make("div", { class: "config" }, Object.entries(run.config).sort().map(([key, value]) => make("div", {}, make("span", {}, key), make("b", {}, words(value)))))));
  }
}

head();
notices();
findingsSection();
headline();
curves();
buildInspector();
settings();
byId("written").textContent = `Written ${new Date(DATA.written * 1000).toLocaleString()} by grpo_plus ${DATA.version}.`;
byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("grpo-plus-theme", theme); } catch { /* storage may be off */ }
  applyTheme();
  redraw();
});
system.addEventListener("change", () => { applyTheme(); redraw(); });
