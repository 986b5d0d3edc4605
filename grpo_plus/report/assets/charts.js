"use strict";
// One chart a panel, all with the same crosshair; drawn when it comes into view.
const charts = new Map();
let smoothing = 0;
let marked = null;

const colourOf = (panel, line, at) => (panel.kind === "stack" && STATUS[line.role] ? `var(--${STATUS[line.role][1]})` : `var(--s${at % 8})`);
const resolved = (colour) => css(colour.slice(4, -1));
const faded = (colour, share) => {
  const n = parseInt(colour.slice(1), 16);
  return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${share})`;
};

function smoothed(values) {
  if (!smoothing) return values;
  let held = null, weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    held = (held ?? 0) * smoothing + value * (1 - smoothing);
    weight = weight * smoothing + (1 - smoothing);
    return held / weight;  // without the pull towards 0 at the start
  });
}

function aligned(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, at) => [step, at]));
  const column = (line, values) => {
    const out = new Array(steps.length).fill(null);
    line.steps.forEach((step, at) => { out[place.get(step)] = values[at]; });
    return out;
  };
  return { steps, column };
}

// Gives uPlot's data and series, and what the legend shows for each line.
function layout(panel) {
  const { steps, column } = aligned(panel.lines);
  const data = [steps], series = [{}], bands = [], legend = [];
  const few = steps.length < 40;
  const add = (values, options) => { data.push(values); series.push({ spanGaps: true, points: { show: false }, ...options }); return data.length - 1; };
  if (panel.kind === "stack") {
    let below = new Array(steps.length).fill(0);
    const tops = panel.lines.map((line, at) => {
      const values = column(line, line.values);
      below = below.map((sum, i) => sum + (values[i] ?? 0));
      return { line, values, top: below, colour: colourOf(panel, line, at) };
    });
    for (const part of [...tops].reverse()) {
      const colour = resolved(part.colour);
      add(part.top, { stroke: colour, width: 0.5, fill: colour });  // the ones below are drawn over it
    }
    tops.forEach((part) => legend.push({ label: part.line.label, colour: part.colour, values: part.values, key: "area" }));
  } else if (panel.kind === "fan") {
    const colour = css("--s0");
    const rows = panel.lines.map((line) => column(line, line.values));
    [[0, 6, 0.1], [1, 5, 0.16], [2, 4, 0.26]].forEach(([low, high, share]) => {
      const top = add(rows[high], { stroke: "transparent", width: 0 });
      const bottom = add(rows[low], { stroke: "transparent", width: 0 });
      bands.push({ series: [top, bottom], fill: faded(colour, share) });
    });
    add(rows[3], { stroke: colour, width: 2 });
    [[3, "line"], [2, "area"], [4, "area"], [1, "area"], [5, "area"]].forEach(([at, key]) => legend.push({ label: panel.lines[at].label, colour: "var(--s0)", values: rows[at], key }));
  } else {
    let colours = 0;
    const known = new Map();
    panel.lines.forEach((line) => {
      const base = line.label.replace(/, evaluation$/, "");
      const at = line.role === "eval" && known.has(base) ? known.get(base) : colours++;
      known.set(base, at);
      const name = `var(--s${at % 8})`, colour = resolved(name);
      if (!line.steps.length) return;
      if (line.low) {
        const top = add(column(line, smoothed(line.high)), { stroke: "transparent", width: 0 });
        const bottom = add(column(line, smoothed(line.low)), { stroke: "transparent", width: 0 });
        bands.push({ series: [top, bottom], fill: faded(colour, 0.14) });
      }
      const dots = line.role === "eval";
      const raw = column(line, line.values);
      if (smoothing && !dots) add(raw, { stroke: faded(colour, 0.25), width: 1 });
      add(dots ? raw : column(line, smoothed(line.values)), {
        stroke: colour, width: dots ? 1.25 : 2, dash: dots ? [4, 4] : undefined,
        points: { show: dots || few, size: dots ? 8 : 4, fill: dots ? css("--card") : colour, stroke: colour, width: 2 },
      });
      legend.push({ label: line.label, colour: name, values: raw, key: dots ? "dot" : "line" });
    });
  }
  return { data, series, bands, legend };
}

function rangeOf(panel) {
  return (_, low, high) => {
    if (low === null || high === null) return [0, 1];
    if (panel.kind === "stack") return [0, panel.unit === "share" ? 1 : high * 1.05 || 1];
    let pad = (high - low) * 0.08 || Math.abs(high) * 0.1 || (panel.unit === "share" ? 0.05 : 0.5);
    if (panel.unit === "share") pad = Math.max(pad, high * 0.12);
    if (panel.unit === "share") return [low >= 0 ? 0 : low - pad, high > 0.55 && high <= 1.0001 ? 1 : high + pad || 0.1];
    return [low >= 0 && low < (high - low) * 0.6 ? 0 : low - pad, high + pad];
  };
}

function draw(panel, holder) {
  const old = charts.get(panel);
  if (old) old.plot.destroy();
  const { data, series, bands, legend } = layout(panel);
  const box = holder.querySelector(".plot");
  box.replaceChildren();
  const list = holder.querySelector(".legend");
  list.replaceChildren();
  const cells = legend.map((entry) => {
    const value = make("b");
    list.append(make("li", { vars: { "--c": entry.colour } }, make("span", { class: `key ${entry.key}` }), entry.label, value));
    return value;
  });
  const show = (at) => legend.forEach((entry, i) => {
    let place = at ?? entry.values.length - 1;
    while (place > 0 && (entry.values[place] ?? null) === null) place -= 1;
    cells[i].textContent = figure(entry.values[place], panel.unit);
  });
  const axis = { stroke: css("--faint"), font: `11px ${css("--sans")}`, grid: { stroke: css("--rule"), width: 1 }, ticks: { show: false } };
  const plot = new uPlot({
    width: Math.max(120, box.clientWidth), height: box.clientHeight, series, bands,
    padding: [8, 10, 0, 0],
    legend: { show: false },
    scales: { x: { time: false }, y: { range: rangeOf(panel) } },
    cursor: { sync: { key: "step", setSeries: false }, drag: { x: true, y: false }, points: { show: false } },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5, 1e6], values: (_, ticks) => ticks.map((tick) => tick.toLocaleString("en")) },
      { ...axis, size: 46, gap: 3, space: 34, values: (_, ticks) => ticks.map((tick) => (panel.unit === "share" ? `${+(100 * tick).toFixed(1)}%` : +tick.toPrecision(6) === 0 ? "0" : Math.abs(tick) >= 1e4 || Math.abs(tick) < 1e-3 ? tick.toExponential(0).replace("e+", "e") : String(+tick.toPrecision(4)).replace("-", "−"))) },
    ],
    hooks: {
      setCursor: [(u) => show(u.cursor.idx)],
      draw: [(u) => {
        if (marked === null || marked < u.scales.x.min || marked > u.scales.x.max) return;
        const x = u.valToPos(marked, "x", true), { ctx, bbox } = u;
        ctx.save(); ctx.strokeStyle = css("--muted"); ctx.lineWidth = devicePixelRatio; ctx.setLineDash([2, 4].map((n) => n * devicePixelRatio));
        ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke(); ctx.restore();
      }],
    },
  }, data, box);
  let pressed = 0;
  plot.over.addEventListener("mousedown", (event) => { pressed = event.clientX; });
  plot.over.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - pressed) > 3 || plot.cursor.idx === null || plot.cursor.idx === undefined) return;
    document.dispatchEvent(new CustomEvent("pick-step", { detail: data[0][plot.cursor.idx] }));
  });
  show(null);
  charts.set(panel, { plot, holder });
}

function described(panel) {
  const parts = panel.lines.filter((line) => line.steps.length).map((line) => {
    const last = line.values.length - 1;
    return `${line.label}: from ${figure(line.values[0], panel.unit)} at step ${line.steps[0]} to ${figure(line.values[last], panel.unit)} at step ${line.steps[last]}`;
  });
  return `${panel.title}. ${parts.join("; ")}.`;
}

const drawn = new IntersectionObserver((seen) => {
  for (const entry of seen) if (entry.isIntersecting) { drawn.unobserve(entry.target); draw(entry.target.panel, entry.target); }
}, { rootMargin: "600px" });

function panelFigure(panel) {
  const holder = make("figure", { class: `panel${panel.wide ? " wide" : ""}` },
    make("figcaption", {}, make("h3", {}, panel.title), make("p", { class: "note" }, panel.note)),
    make("div", { class: "plot", role: "img", "aria-label": described(panel) }), make("ul", { class: "legend" }));
  holder.panel = panel;
  drawn.observe(holder);
  return holder;
}

const redraw = () => { for (const [panel, { holder }] of [...charts]) draw(panel, holder); };
function markStep(step) {
  marked = step;
  for (const { plot } of charts.values()) plot.redraw(false, false);
}

let resizing = null;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(() => {
    for (const { plot, holder } of charts.values()) {
      const box = holder.querySelector(".plot");
      plot.setSize({ width: Math.max(120, box.clientWidth), height: box.clientHeight });
    }
  });
});
