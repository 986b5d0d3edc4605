"use strict";
// What is wrong with a run, in words: evidence, cause, remedy, figures, and examples side by side.
const WORDS = { severe: "severe", warning: "warning", note: "note" };

const statusWords = (run) => (run.status === "unknown" ? "no status recorded" : run.status);
const badge = (run) => (run.outcome ? `${statusWords(run)}, ${run.outcome}` : statusWords(run));
const badgeDot = (run) => (run.outcome ? "var(--wrong)" : DOTS[run.status] || DOTS.unknown);
const sentence = (text) => (text ? `${text.charAt(0).toUpperCase()}${text.slice(1)}.` : "");

function findingsSection() {
  const box = byId("findings-body");
  for (const run of DATA.runs) {
    if (!run.findings.length) continue;
    const standing = run.findings.filter((one) => one.until === null), over = run.findings.filter((one) => one.until !== null);
    if (DATA.several) box.append(make("h3", { class: "run-title" }, run.name, " ", make("span", { class: "pill", vars: { "--dot": badgeDot(run) } }, badge(run))));
    box.append(...standing.map(findingArticle));
    if (over.length) box.append(make("details", {}, make("summary", {}, over.length === 1 ? "1 finding that is over" : `${over.length} findings that are over`), over.map(findingArticle)));
  }
  byId("findings").hidden = byId("findings-link").hidden = !box.childNodes.length;
}

function findingArticle(one) {
  const steps = one.until === null ? `since step ${one.since.toLocaleString("en")}` : `steps ${one.since.toLocaleString("en")} to ${one.until.toLocaleString("en")}`;
  const values = Object.entries(one.values);
  return make("article", { class: `finding ${WORDS[one.severity] || "warning"}` },
    make("h4", {}, one.name.replaceAll("_", " "), " ", make("span", { class: "tag" }, WORDS[one.severity] || "warning"), make("small", {}, ` ${steps}`)),
    make("p", {}, sentence(one.evidence)),
    one.cause ? make("p", {}, make("b", {}, "Why: "), sentence(one.cause)) : null,
    one.remedy ? make("p", {}, make("b", {}, "Try: "), sentence(one.remedy)) : null,
    values.length ? make("p", { class: "figures" }, values.map(([metric, value], at) => [at ? ", " : "", make("code", {}, metric), ` ${figure(value, "")}`])) : null,
    one.examples.length ? examplesTable(one.examples) : null);
}

function examplesTable(examples) {
  const cell = (text) => make("div", { class: "said" }, text || "–");
  return make("div", { class: "table-scroll", tabindex: "0", role: "region", "aria-label": "Examples" }, make("table", { class: "examples" },
    make("caption", {}, "Completions that the trained reward likes and the judge does not"),
    make("thead", {}, make("tr", {}, ["Prompt", "Completion", "Reward", "Judge", "What the judge says"].map((title) => make("th", { scope: "col" }, title)))),
    make("tbody", {}, examples.map((one) => make("tr", {}, make("td", {}, cell(one.prompt)), make("td", {}, cell(one.completion)), make("td", {}, figure(one.reward ?? null, "")), make("td", {}, figure(one.judge ?? null, "")), make("td", {}, cell(one.reason)))))));
}
