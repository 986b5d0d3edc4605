"use strict";
// Drag rewards, switch the estimator and its keywords, and see the advantages and what they are divided by move.
let playgrounds = 0;

/** The playground of a group: `start` has rewards (null: none), lengths, and optionally an estimator and keywords. */
function playground(start) {
  const own = `play-${(playgrounds += 1)}`;
  const rewards = [...start.rewards], lengths = start.lengths || rewards.map(() => 1);
  const known = start.estimator in ESTIMATORS;
  let name = known ? start.estimator : "zscore", keywords = keywordsOf(name, start.keywords);
  const all = scored(rewards);
  const low = Math.min(0, ...all), high = Math.max(1, ...all), grain = (high - low) / 100;
  const select = make("select", { id: `${own}-name`, on: { change: () => { name = select.value; keywords = keywordsOf(name, name === start.estimator ? start.keywords : {}); fields(); draw(); } } },
    Object.keys(ESTIMATORS).map((each) => make("option", { value: each }, each)));
  select.value = name;
  const options = make("span", { class: "play-keywords" });
  const formula = make("code", { class: "play-formula" }), told = make("p", { class: "play-told", role: "status" });
  const rows = rewards.map((value, at) => {
    const slider = make("input", { type: "range", min: low, max: high, step: grain, value: value ?? low, disabled: value === null, "aria-label": `Reward of completion ${at + 1}`, on: { input: () => { rewards[at] = +slider.value; draw(); } } });
    const reward = make("output", { class: "r" }), bar = make("i"), track = make("span", { class: "track" }, bar, make("em", { vars: { left: "50%" } })), advantage = make("output", { class: "a" });
    return { slider, reward, bar, advantage, element: make("li", {}, make("span", { class: "n" }, String(at + 1)), slider, reward, track, advantage) };
  });

  function fields() {
    options.replaceChildren(...Object.entries(ESTIMATORS[name].keywords).flatMap(([key, about]) => {
      const id = `${own}-${key}`;
      const set = () => {
        const word = typeof about.default === "string", value = word ? control.value : Number(control.value);
        const right = word || (control.value !== "" && Number.isFinite(value) && value >= (about.low ?? -Infinity) && (!about.whole || Number.isInteger(value)));
        control.setAttribute("aria-invalid", String(!right));
        if (right) { keywords[key] = value; draw(); }
      };
      const control = about.choices
        ? make("select", { id, on: { change: set } }, about.choices.map((each) => make("option", { value: each }, String(each))))
        : make("input", { id, type: "number", min: about.low, step: about.step, on: { input: set } });
      control.value = keywords[key];
      return [make("label", { for: id }, key), control];
    }));
  }

  function draw() {
    const about = ESTIMATORS[name], values = advantagesOf(name, rewards, keywords, lengths), plain = scored(rewards);
    const widest = Math.max(1e-12, ...values.map(Math.abs));
    rows.forEach((row, at) => {
      const share = 50 * values[at] / widest;
      row.reward.textContent = rewards[at] === null ? "none" : figure(rewards[at]);
      row.advantage.textContent = signed(values[at]);
      row.advantage.value_ = values[at];
      row.slider.setAttribute("aria-valuetext", `${figure(rewards[at])}, advantage ${signed(values[at])}`);
      row.bar.className = values[at] > 0 ? "up" : values[at] < 0 ? "down" : "level";
      row.bar.style.setProperty("left", `${Math.min(50, 50 + share)}%`);
      row.bar.style.setProperty("width", `${Math.abs(share)}%`);
    });
    formula.textContent = `A = ${about.formula}`;
    const [what, number_] = about.by(rewards, keywords, lengths);
    const notes = [`μ = ${figure(meanOf(plain))}`, `${what} = ${figure(number_)}`];
    if (!contrasts(plain)) notes.push(about.alone ? "all rewards are equal" : "all rewards are equal: every advantage is 0");
    if (about.batch || about.batchIf?.(keywords)) notes.push("in training over the whole batch; here this group is the batch");
    if (about.lengths) notes.push("lengths in tokens as sampled");
    told.textContent = notes.join(" · ");
  }

  const reset = make("button", { type: "button", class: "button", on: { click: () => { start.rewards.forEach((value, at) => { rewards[at] = value; if (value !== null) rows[at].slider.value = value; }); draw(); } } }, "Rewards as they were");
  fields();
  draw();
  return make("div", { class: "play" },
    start.estimator && !known ? make("p", { class: "note small" }, `${start.estimator} is not in this playground, which has the built-in estimators that need no more than the sum of the rewards of one group. Another one is shown.`) : null,
    make("div", { class: "play-head" }, make("label", { for: select.id }, "Estimator"), select, options, reset), formula,
    make("ul", { class: "play-rows" }, rows.map((row) => row.element)), told);
}
