"use strict";
// What was drawn: charts of the kinds of prompts, and a ribbon of pass rates for each sampled prompt.
const ROWS = 24;
const ORDERS = {
  rate: ["pass rate now", (one) => one.visits.at(-1)[1]],
  drawn: ["most drawn", (one) => -one.drawn],
  moved: ["moved most", (one) => -Math.abs(one.visits.at(-1)[1] - one.visits[0][1])],
};

const shadeOf = (rate) => `rgb(var(--${rate < 0.5 ? "minus" : "plus"}) / ${(0.14 + 0.72 * Math.abs(2 * rate - 1)).toFixed(2)})`;
const times = (count) => Number(count).toLocaleString("en", { maximumFractionDigits: 1 });

function ribbon(one, [first, last]) {
  const width = Math.max(1, last - first + 1);
  const place = (step) => (100 * (step - first)) / width;
  const stops = [`transparent 0 ${place(one.visits[0][0])}%`];
  one.visits.forEach(([step, rate], at) => {
    const end = at + 1 < one.visits.length ? place(one.visits[at + 1][0]) : 100;
    const gap = at + 1 < one.visits.length && one.visits.length < 50;
    stops.push(`${shadeOf(rate)} ${place(step)}% ${gap ? `calc(${end}% - 1px)` : `${end}%`}`);
    if (gap) stops.push(`var(--card) calc(${end}% - 1px) ${end}%`);
  });
  const said = `Pass rate from ${figure(one.visits[0][1], "share")} at step ${one.visits[0][0]} to ${figure(one.visits.at(-1)[1], "share")} at step ${one.visits.at(-1)[0]}`;
  const bar = make("div", { class: "ribbon", role: "img", "aria-label": said, vars: { "--r": `linear-gradient(90deg, ${stops.join(", ")})` } });
  bar.addEventListener("mousemove", (event) => {
    const box = bar.getBoundingClientRect();
    const step = Math.min(last, first + Math.floor(((event.clientX - box.left) / box.width) * width));
    const visit = one.visits.findLast(([at]) => at <= step);
    point(bar, event, visit ? `step ${step.toLocaleString("en")}: ${figure(visit[1], "share")}, drawn last at step ${visit[0].toLocaleString("en")}` : `step ${step.toLocaleString("en")}: not drawn yet`);
  });
  return bar;
}

function prompt(one, steps, most) {
  const button = make("button", { type: "button", class: "prompt-line", "aria-expanded": "false" }, one.text);
  button.addEventListener("click", () => button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") !== "true")));
  button.addEventListener("mousemove", (event) => { if (button.scrollWidth > button.clientWidth) point(button, event, one.text.length > 400 ? `${one.text.slice(0, 400)}…` : one.text); });
  return make("li", { class: "ribbon-row" }, button, ribbon(one, steps), make("b", { class: "now" }, figure(one.visits.at(-1)[1], "share")),
    make("span", { class: "draws", vars: { "--w": `${(100 * one.drawn) / most}%` } }, make("i"), times(one.drawn)));
}

function drawnSection() {
  const told = DATA.drawn;
  if (!told) { byId("drawn").remove(); byId("drawn-link").remove(); return; }
  const all = told.kinds.reduce((sum, [, count]) => sum + count, 0);
  byId("drawn-count").textContent = all ? `${all.toLocaleString("en")} prompts: ${told.kinds.map(([label, count]) => `${count.toLocaleString("en")} ${label}`).join(", ")}` : "";
  const body = byId("drawn-body");
  body.append(make("div", { class: "panels" }, told.panels.map(panelFigure)));
  if (!told.prompts.length) return;
  const list = make("ol", { class: "ribbons" });
  const more = make("button", { type: "button", class: "button" });
  const order = make("select", { id: "drawn-order" }, Object.entries(ORDERS).map(([name, [label]]) => make("option", { value: name }, label)));
  const most = Math.max(...told.prompts.map((one) => one.drawn));
  let whole = false;
  function fill() {
    const [, key] = ORDERS[order.value];
    const sorted = [...told.prompts].sort((a, b) => key(a) - key(b) || b.drawn - a.drawn);
    const few = sorted.length <= ROWS;
    const some = whole || few ? sorted : Array.from({ length: ROWS }, (_, at) => sorted[Math.floor((at * sorted.length) / ROWS)]);
    list.replaceChildren(...some.map((one) => prompt(one, told.steps, most)));
    more.hidden = few;
    more.textContent = whole ? `Show ${ROWS}, evenly` : `Show all ${sorted.length}`;
  }
  order.addEventListener("change", fill);
  more.addEventListener("click", () => { whole = !whole; fill(); });
  const shades = [0, 0.2, 0.4, 0.6, 0.8, 1].map((rate) => make("i", { vars: { "--c": shadeOf(rate) } }));
  body.append(make("figure", { class: "panel section-gap ribbon-panel" },
    make("figcaption", {}, make("h3", {}, "Pass rates of sampled prompts"), make("p", { class: "note" },
      `${told.graded ? "Rewards have more than two values: the mean, as a share of the range seen." : "Share of a prompt's completions with the higher reward."} Later drawings count more. A cut is a drawing; empty is not drawn yet.`)),
    make("div", { class: "ribbon-controls" }, make("label", { for: "drawn-order" }, "Order"), order, more,
      make("span", { class: "ramp" }, make("span", {}, "never"), shades, make("span", {}, "always solved"))),
    make("div", { class: "ribbon-head", "aria-hidden": "true" }, make("span", {}, "Prompt"), make("span", { class: "axis" }, make("span", {}, `step ${told.steps[0].toLocaleString("en")}`), make("span", {}, told.steps[1].toLocaleString("en"))), make("span", {}, "now"), make("span", {}, "drawn")),
    list));
  fill();
}
