"use strict";
// Pick a step and a prompt; see what was sampled, how it was judged, and what it was trained with.
const opened = new Map();  // "run:block" -> the groups in it

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

function openBlock(run, block) {
  const key = `${run}:${block}`;
  if (!opened.has(key)) {
    opened.set(key, Promise.all(DATA.runs[run].groups.blocks[block].split(" ").map(inflate)).then((parts) => parts.flat()));
    if (opened.size > 600) opened.delete(opened.keys().next().value);
  }
  return opened.get(key);
}

const view = { run: 0, mode: "train", verifier: "", status: "", query: "", order: "sampled", colour: "advantage", hits: null, at: 0, turn: 0 };
const parts = {};

function indexOf() {
  return DATA.runs[view.run].groups.index.filter((entry) => entry.mode === view.mode);
}

function matches(entry) {
  if (view.status) {
    const counts = view.verifier ? [entry.statuses[view.verifier] || {}] : Object.values(entry.statuses);
    if (!counts.some((each) => each[view.status])) return false;
  } else if (view.verifier && !entry.statuses[view.verifier]) return false;
  return true;
}

const found = () => (view.hits ? view.hits : indexOf().filter(matches));
const stepsOf = (entries) => [...new Set(entries.map((entry) => entry.step))];

async function search() {
  const turn = ++view.turn;
  const query = view.query.trim().toLowerCase();
  const candidates = indexOf().filter(matches);
  const before = found()[view.at];
  if (!query) view.hits = null;
  else {
    const hits = [];
    for (let at = 0; at < candidates.length; at += 1) {
      const entry = candidates[at];
      const group = (await openBlock(view.run, entry.block))[entry.at];
      if (turn !== view.turn) return;  // something newer was asked for
      group.haystack ??= [group.prompt, ...group.completions.map((one) => `${one.pieces.join("")}\n${(one.turns || []).flatMap((turn) => [turn.text, ...(turn.calls || []).flatMap((call) => [call.name, call.arguments, call.result])]).join("\n")}\n${one.verdicts.map((verdict) => verdict.reason).join("\n")}`)].join("\n").toLowerCase();
      if (group.haystack.includes(query)) hits.push(entry);
      if (at % 64 === 63) { parts.count.textContent = `Searching, ${at + 1} of ${candidates.length} groups`; await new Promise((next) => setTimeout(next)); }
    }
    if (turn !== view.turn) return;
    view.hits = hits;
  }
  const now = found();
  const same = before ? now.findIndex((entry) => entry.step === before.step && entry.group === before.group) : -1;
  view.at = same >= 0 ? same : Math.max(0, now.length - 1);
  show();
}

function choose(at) {
  view.at = Math.min(Math.max(0, at), Math.max(0, found().length - 1));
  show();
}

function nearest(step) {
  const entries = found();
  let best = 0;
  entries.forEach((entry, at) => { if (Math.abs(entry.step - step) < Math.abs(entries[best].step - step)) best = at; });
  choose(best);
}

const option = (value, label) => make("option", { value }, label);
function field(id, label, control, grow = false) {
  control.id ||= id;
  return make("div", { class: `field${grow ? " grow" : ""}` }, make("label", { for: control.id }, label), control);
}

function fillStatuses() {
  const entries = indexOf(), verifiers = new Set(), statuses = new Map();
  for (const entry of entries) for (const [verifier, counts] of Object.entries(entry.statuses)) {
    verifiers.add(verifier);
    for (const [status, count] of Object.entries(counts)) if (!view.verifier || view.verifier === verifier) statuses.set(status, (statuses.get(status) || 0) + count);
  }
  parts.verifier.replaceChildren(option("", "any verifier"), ...[...verifiers].sort().map((name) => option(name, name)));
  parts.verifier.value = verifiers.has(view.verifier) ? view.verifier : (view.verifier = "");
  parts.status.replaceChildren(option("", "any status"), ...Object.keys(STATUS).filter((name) => statuses.has(name)).map((name) => option(name, `${statusName(name)} (${statuses.get(name).toLocaleString("en")})`)));
  parts.status.value = statuses.has(view.status) ? view.status : (view.status = "");
  parts.verifierField.hidden = verifiers.size === 0;
  parts.statusField.hidden = verifiers.size === 0;
}

function buildInspector() {
  const body = byId("inspector-body");
  parts.count = byId("inspector-count");
  const any = DATA.runs.findIndex((run) => run.groups.index.length);
  if (any < 0) {
    body.append(make("p", { class: "empty" }, "No groups were recorded. Runs of grpo_plus keep some when advantage, objective or verifiers are set, or with report: true."));
    return;
  }
  view.run = any;
  const changed = () => { view.hits = null; fillStatuses(); search(); };
  parts.run = make("select", { on: { change: () => { view.run = +parts.run.value; pickMode(); changed(); } } }, DATA.runs.map((run, at) => option(at, run.name)));
  parts.mode = make("select", { on: { change: () => { view.mode = parts.mode.value; changed(); } } });
  parts.verifier = make("select", { on: { change: () => { view.verifier = parts.verifier.value; changed(); } } });
  parts.status = make("select", { on: { change: () => { view.status = parts.status.value; view.hits = null; search(); } } });
  parts.query = make("input", { type: "search", placeholder: "in prompts, completions, reasons", autocomplete: "off", spellcheck: "false", on: { input: () => { view.query = parts.query.value; clearTimeout(parts.wait); parts.wait = setTimeout(search, 180); } } });
  parts.order = make("select", { on: { change: () => { view.order = parts.order.value; show(); } } }, option("sampled", "as sampled"), option("reward", "best reward first"), option("advantage", "largest advantage first"));
  parts.colour = make("select", { on: { change: () => { view.colour = parts.colour.value; show(); } } }, option("advantage", "their advantage"), option("value", "the critic's value"));
  parts.slider = make("input", { type: "range", min: 0, max: 0, step: 1, value: 0, id: "step", on: { input: () => { const entries = found(); choose(entries.findIndex((entry) => entry.step === stepsOf(entries)[+parts.slider.value])); } } });
  parts.output = make("output", { for: "step" });
  parts.previous = make("button", { type: "button", class: "button", "aria-label": "Previous group", on: { click: () => choose(view.at - 1) } }, "←");
  parts.next = make("button", { type: "button", class: "button", "aria-label": "Next group", on: { click: () => choose(view.at + 1) } }, "→");
  parts.prompts = make("div", { class: "prompts", role: "group", "aria-label": "Prompts of this step" });
  parts.group = make("div", { class: "group-holder" });
  parts.modeField = field("mode", "Phase", parts.mode);
  parts.verifierField = field("verifier", "Verifier", parts.verifier);
  parts.statusField = field("status", "Has a completion that is", parts.status);
  parts.colourField = field("colour", "Tokens coloured by", parts.colour);
  body.append(
    make("div", { class: "controls" },
      DATA.several ? field("run", "Run", parts.run) : null, parts.modeField, parts.verifierField, parts.statusField,
      field("query", "Search", parts.query), field("order", "Order", parts.order), parts.colourField,
      make("div", { class: "field grow" }, make("label", { for: "step" }, "Step"), make("div", { class: "stepper" }, parts.previous, parts.slider, parts.output, parts.next)),
      make("div", { class: "field grow" }, make("span", { class: "label" }, "Prompt"), parts.prompts)),
    parts.group);
  pickMode();
  fillStatuses();
  choose(Infinity);
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const box = byId("inspector").getBoundingClientRect();
      if (box.top < innerHeight && box.bottom > 0) { choose(view.at + (event.key === "ArrowLeft" ? -1 : 1)); event.preventDefault(); }
    }
  });
  document.addEventListener("pick-step", (event) => { nearest(event.detail); byId("inspector").scrollIntoView(); });
}

function pickMode() {
  const modes = [...new Set(DATA.runs[view.run].groups.index.map((entry) => entry.mode))].sort().reverse();
  parts.mode.replaceChildren(...modes.map((mode) => option(mode, mode === "eval" ? "evaluation" : "training")));
  if (!modes.includes(view.mode)) view.mode = modes[0] || "train";
  parts.mode.value = view.mode;
  parts.modeField.hidden = modes.length < 2;
  parts.colourField.hidden = !indexOf().some((entry) => entry.valued);
}

async function show() {
  const entries = found(), entry = entries[view.at];
  const all = DATA.runs[view.run].groups;
  const left = all.recorded > all.index.length ? ` · ${all.index.length.toLocaleString("en")} of ${all.recorded.toLocaleString("en")} recorded groups are on this page` : "";
  parts.count.textContent = `${entries.length.toLocaleString("en")} ${entries.length === 1 ? "group" : "groups"}${view.query || view.status || view.verifier ? " match" : " sampled"}${left}`;
  parts.previous.disabled = view.at <= 0;
  parts.next.disabled = view.at >= entries.length - 1;
  if (!entry) {
    parts.prompts.replaceChildren();
    parts.output.textContent = "–";
    parts.slider.disabled = true;
    parts.group.replaceChildren(make("p", { class: "empty" }, "No group matches. Clear the search, or choose another status."));
    markStep(null);
    return;
  }
  const steps = stepsOf(entries), here = steps.indexOf(entry.step);
  parts.slider.disabled = steps.length < 2;
  parts.slider.max = steps.length - 1;
  parts.slider.value = here;
  parts.slider.setAttribute("aria-valuetext", `step ${entry.step}`);
  parts.output.textContent = `step ${entry.step.toLocaleString("en")}`;
  const tabs = entries.map((each, at) => [each, at]).filter(([each]) => each.step === entry.step);
  parts.prompts.replaceChildren(...tabs.map(([each, at]) => make("button", { type: "button", class: "prompt-tab", "aria-pressed": String(at === view.at), on: { click: () => choose(at) } },
    make("span", { class: "t", dir: "auto" }, each.prompt || "(empty prompt)"),
    make("span", { class: "m" }, `mean ${figure(each.mean)} · ${each.count} completions${each.live ? "" : " · dead"}`))));
  slideTo(parts.prompts, parts.prompts.querySelector('[aria-pressed="true"]'));
  markStep(entry.step);
  const turn = view.turn;
  const group = (await openBlock(view.run, entry.block))[entry.at];
  if (found()[view.at] !== entry || turn !== view.turn) return;
  parts.group.replaceChildren(picture(group));
}

/** Scroll the row sideways until the child can be seen; the page stays where it is. */
function slideTo(row, child) {
  if (!child) return;
  const seen = row.getBoundingClientRect(), wanted = child.getBoundingClientRect();
  if (wanted.left < seen.left) row.scrollLeft += wanted.left - seen.left;
  else if (wanted.right > seen.right) row.scrollLeft += wanted.right - seen.right;
}

function picture(group) {
  const order = group.completions.map((_, at) => at);
  const low = (value) => value ?? -Infinity;
  if (view.order === "reward") order.sort((a, b) => low(group.completions[b].total) - low(group.completions[a].total));
  if (view.order === "advantage") order.sort((a, b) => low(group.completions[b].advantage) - low(group.completions[a].advantage));
  return make("div", { class: "group" }, aside(group, order), make("div", { class: "completions" }, order.map((at) => card(group, at))));
}

function aside(group, order) {
  const [least, most] = group.spread || [0, 0], width = most - least || 1;
  const place = (value) => (most === least ? 50 : (100 * (value - least)) / width);
  const centre = place(group.mean ?? 0);
  const rows = order.map((at) => {
    const one = group.completions[at];
    const track = make("span", { class: "track" });
    if (one.total !== null) {
      const from = Math.min(centre, place(one.total)), to = Math.max(centre, place(one.total));
      const kind = to - from < 0.01 ? "level" : one.total > group.mean ? "up" : "down";
      track.append(make("i", { class: kind, vars: { left: `${from}%`, width: `${to - from}%` } }));
    }
    track.append(make("em", { vars: { left: `${centre}%` } }));
    const go = () => {
      const target = byId(`completion-${at}`);
      target.scrollIntoView({ block: "nearest" });
      target.classList.add("flash");
      setTimeout(() => target.classList.remove("flash"), 1200);
    };
    return make("li", {}, make("button", { type: "button", class: "bar", "aria-label": `Completion ${at + 1}: reward ${figure(one.total)}, advantage ${signed(one.advantage)}`, on: { click: go } },
      make("span", { class: "n" }, String(at + 1)), track, make("span", { class: "r" }, figure(one.total)), make("span", { class: "a" }, signed(one.advantage))));
  });
  const dead = group.scale === 0;
  const byValue = coloursValues(group);
  return make("div", { class: "aside" },
    make("h3", {}, "Prompt"), make("div", { class: "prompt-text", dir: "auto", tabindex: "0" }, ...marked_(group.prompt)),
    Object.entries(group.columns || {}).map(([name, text]) => [make("h3", {}, `Column ${name}`), make("div", { class: "prompt-text", dir: "auto", tabindex: "0" }, ...marked_(text))]),
    make("div", { class: "bars-head" }, make("h3", {}, "Around the mean"), make("span", {}, "reward"), make("span", {}, "advantage")),
    make("ul", { class: "bars" }, rows),
    group.spread && least !== most ? make("div", { class: "scale" }, make("span", {}, figure(least)), make("span", {}, `mean ${figure(group.mean)}`), make("span", {}, figure(most))) : null,
    dead ? make("p", { class: "note small" }, "Every advantage is 0: this group taught nothing.") : byValue ? null :
      make("div", { class: "shades", "aria-hidden": "true" }, make("span", {}, signed(-group.scale)), ["m4", "m3", "m2", "m1"].map((name) => make("i", { class: name })), make("span", {}, "0"), ["p1", "p2", "p3", "p4"].map((name) => make("i", { class: name })), make("span", {}, signed(group.scale))),
    byValue ? make("div", { class: "shades", "aria-hidden": "true" }, make("span", {}, figure(group.range[0])), ["v1", "v2", "v3", "v4", "v5"].map((name) => make("i", { class: name })), make("span", {}, figure(group.range[1]))) : null,
    group.range ? make("p", { class: "note small" }, "Value: what the critic expected before the token that the rest would earn. Dashed: the reward of the completion.") : null,
    playBox(group));
}

const trainedTokens = (one) => (one.untrained || []).reduce((left, [first, last]) => left - (last - first), one.tokens ?? one.pieces.length);

/** The playground of a group, made when it is opened first. */
function playBox(group) {
  if (!group.completions.some((one) => one.total !== null)) return null;
  const { name, keywords } = DATA.runs[view.run].parts?.advantage || {};
  const box = make("details", { class: "play-box", on: { toggle: () => {
    if (!box.open || box.querySelector(".play")) return;
    box.append(playground({ rewards: group.completions.map((one) => one.total), lengths: group.completions.map(trainedTokens), estimator: name, keywords }));
  } } }, make("summary", {}, "Playground: other rewards, another estimator"));
  return box;
}

const shade = (level) => (level > 0 ? `p${level}` : level < 0 ? `m${-level}` : "");
const coloursValues = (group) => view.colour === "value" && group.range;
const height = (value, [low, high]) => (value === null ? "" : `v${high > low ? 1 + Math.round((4 * (value - low)) / (high - low)) : 3}`);

function draws(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// The critic's values over the tokens, and a slider that reads them one by one.
function valueLine(group, at, tokens) {
  const one = group.completions[at], { values } = one;
  const known = values?.map((value, place) => [value, place]).filter(([value]) => value !== null) || [];
  if (!known.length) return null;
  const ends = [...group.range, ...(one.total === null ? [] : [one.total])];
  const low = Math.min(...ends), wide = Math.max(...ends) - low || 1;
  const y = (value) => (95 - (90 * (value - low)) / wide).toFixed(2);
  let path = "";
  values.forEach((value, place) => {
    if (value === null) return;
    const joined = place && values[place - 1] !== null && place !== one.left_off?.[0];
    path += joined ? `L${place + 0.5} ${y(value)}` : `M${place} ${y(value)}L${place + 0.5} ${y(value)}`;
  });
  const svg = draws("svg", { viewBox: `0 0 ${values.length} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
  if (one.total !== null) svg.append(draws("path", { class: "reward-line", d: `M0 ${y(one.total)}H${values.length}` }));
  svg.append(draws("path", { class: "value-line", d: path }));
  const said = make("output", {}, `value from ${figure(known[0][0])} to ${figure(known[known.length - 1][0])}`);
  const read = () => {
    if (tokens.fill) { tokens.fill(); tokens.fill = null; }
    const place = +slider.value - 1, spans = tokens.querySelectorAll(".k"), span = spans[place];
    said.textContent = span?.info ? said_(span.info) : "";
    slider.setAttribute("aria-valuetext", said.textContent);
    tokens.querySelector(".here")?.classList.remove("here");
    if (!span) return;
    span.classList.add("here");
    const box = tokens.getBoundingClientRect(), token = span.getBoundingClientRect();
    if (token.top < box.top || token.bottom > box.bottom) tokens.scrollTop += token.top - box.top - box.height / 2;
  };
  const slider = make("input", { type: "range", min: 1, max: values.length, step: 1, value: values.length, "aria-label": `Value over the tokens of completion ${at + 1}`, "aria-valuetext": said.textContent, on: { input: read } });
  return make("div", { class: "values" }, svg, slider, said);
}

// What was said and called, turn by turn; calls are folded and opened by click or key.
function turnList(one) {
  if (!one.turns?.length) return null;
  return make("ol", { class: "turns", "aria-label": "Turns" }, one.turns.map((turn, place) => make("li", {},
    make("div", { class: "turn-head" }, make("b", {}, `Turn ${place + 1} · model`),
      turn.score === null || turn.score === undefined ? null : make("span", {}, `score ${figure(turn.score)}`),
      turn.reward === null || turn.reward === undefined ? null : make("span", {}, `reward ${figure(turn.reward)}`),
      turn.state === null || turn.state === undefined ? null : make("span", { dir: "auto" }, `state ${turn.state}`),
      make("span", { class: `adv ${shade(turn.shade)}` }, `A ${signed(turn.advantage)}`)),
    turn.text ? make("div", { class: "said", dir: "auto" }, ...marked_(turn.text)) : null,
    (turn.calls || []).map((call) => make("details", { class: "call" },
      make("summary", {}, make("code", { dir: "auto" }, call.name), make("span", { class: call.status === "ok" ? "" : "failed" }, statusName(call.status || "ok")), make("span", {}, figure(call.seconds, "seconds"))),
      make("div", { class: "label" }, "arguments"), make("pre", { dir: "auto", tabindex: "0" }, ...marked_(call.arguments || "")),
      make("div", { class: "label" }, "tool's result"), make("pre", { dir: "auto", tabindex: "0" }, ...marked_(call.result || "")))),
    turn.left_out ? make("div", { class: "label" }, `${turn.left_out.toLocaleString("en")} more calls are left out`) : null)));
}

function card(group, at) {
  const one = group.completions[at];
  const judged = new Set(one.verdicts.map((verdict) => verdict.verifier));  // the others are functions, which say nothing but a number
  const rewards = group.names.length > 1 ? group.names.map((name, k) => [name, figure(one.rewards[k])]).filter(([name]) => !judged.has(name)).map((pair) => pair.join(" ")).join(" · ") : "";
  const tokens = make("div", { class: "tokens", dir: "auto", tabindex: "0", "aria-label": `Completion ${at + 1}` });
  const unfold = make("button", { type: "button", class: "link", hidden: true, on: { click: () => { unfold.textContent = tokens.classList.toggle("tall") ? "Fold" : "Unfold"; } } }, "Unfold");
  tokens.fill = () => { fillTokens(tokens, one, coloursValues(group)); unfold.hidden = tokens.scrollHeight <= tokens.clientHeight + 2; };
  seen.observe(tokens);
  return make("article", { class: "completion", id: `completion-${at}` },
    make("header", {}, make("h4", {}, `#${at + 1}`), make("span", { class: "reward" }, "reward ", make("b", {}, figure(one.total))),
      make("span", { class: `adv ${shade(one.shade)}`, title: `Advantage it ${group.mode === "eval" ? "would have been" : "was"} trained with (mean over its tokens)` }, `A ${signed(one.advantage)}`)),
    make("ul", { class: "verdicts" },
      one.verdicts.map((verdict) => {
        const k = group.names.indexOf(verdict.verifier);
        return make("li", {}, make("span", { class: "status", "data-icon": (STATUS[verdict.status] || ["·"])[0], vars: { "--c": statusColour(verdict.status) } }, statusName(verdict.status)),
          make("span", {}, verdict.verifier, k >= 0 ? make("b", {}, ` ${figure(one.rewards[k])}`) : null), verdict.reason ? make("span", { dir: "auto" }, ...marked_(verdict.reason)) : null);
      }), rewards ? make("li", {}, rewards) : null),
    turnList(one),
    tokens,
    valueLine(group, at, tokens),
    make("div", { class: "small" }, one.tokens === null || one.tokens === undefined ? null : make("span", {}, `${one.tokens.toLocaleString("en")} tokens`), one.truncated ? make("span", {}, "cut off at the limit") : null,
      unfold));
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting && entry.target.fill) { const fill = entry.target.fill; entry.target.fill = null; seen.unobserve(entry.target); fill(); }
}, { rootMargin: "400px" });

// Text with what was searched for marked; an array of nodes and strings.
function marked_(text) {
  const query = view.query.trim().toLowerCase();
  if (!query) return [text];
  const out = [], low = text.toLowerCase();
  if (low.length !== text.length) return [text];  // some letters change length in lower case
  let from = 0;
  for (let at = low.indexOf(query); at >= 0 && out.length < 2000; at = low.indexOf(query, from)) {
    out.push(text.slice(from, at), make("mark", {}, text.slice(at, at + query.length)));
    from = at + query.length;
  }
  out.push(text.slice(from));
  return out;
}

function fillTokens(holder, one, range) {
  const starts = new Map((one.steps || []).map((step, at) => [step[0], [at + 1, step[2]]]));
  const untrained = new Uint8Array(one.pieces.length);
  for (const [first, last] of one.untrained || []) untrained.fill(1, first, last);
  const fragment = document.createDocumentFragment();
  const query = view.query.trim().toLowerCase();
  const text = query ? one.pieces.join("").toLowerCase() : "";
  const hits = [];
  for (let at = query ? text.indexOf(query) : -1; at >= 0 && hits.length < 500; at = text.indexOf(query, at + 1)) hits.push([at, at + query.length]);
  let at = 0, offset = 0;
  for (const [count, level, advantage] of one.shades) {
    for (let k = 0; k < count; k += 1, at += 1) {
      if (one.left_off && at === one.left_off[0]) fragment.append(make("span", { class: "gap" }, `${one.left_off[1].toLocaleString("en")} tokens are left off here`));
      const step = starts.get(at);
      if (step) {
        const [place, score] = step;
        const good = score === null ? ["–", "na"] : score >= 1 ? ["✓", "correct"] : score <= 0 ? ["✕", "wrong"] : [figure(score), "partial"];
        fragment.append(make("span", { class: "step", vars: { "--c": `var(--${good[1]})` }, title: `Step ${place}, score ${figure(score)}` }, `${place} ${good[0]}`));
      }
      const piece = one.pieces[at] ?? "", end = offset + piece.length;
      const value = one.values?.[at] ?? null;
      const span = make("span", { class: `k ${range ? height(value, range) : shade(level)}${untrained[at] ? " untrained" : ""}` }, hits.some(([a, b]) => a < end && b > offset) ? make("mark", {}, piece) : piece);
      span.info = [at, piece, advantage, untrained[at], value];
      fragment.append(span);
      offset = end;
    }
  }
  if (!one.pieces.length || !offset) fragment.append(make("em", { class: "small" }, "(empty)"));
  holder.replaceChildren(fragment);
}

// One bubble for all.
const said_ = ([at, piece, advantage, idle, value]) => `token ${at + 1} ${piece.length < 60 ? JSON.stringify(piece) : ""} · ${idle ? "not trained on" : `advantage ${signed(advantage)}`}${value === null ? "" : ` · value ${figure(value)}`}`;
const tip = byId("tip");
function point(target, event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = target.getBoundingClientRect(), size = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX - size.width / 2, innerWidth - size.width - 6))}px`;
  tip.style.top = `${box.top > size.height + 10 ? Math.max(6, event.clientY - size.height - 14) : event.clientY + 18}px`;
}
document.addEventListener("mouseover", (event) => {
  const token = event.target.closest?.(".k");
  if (!token?.info) { tip.hidden = true; return; }
  point(token, event, said_(token.info));
});
