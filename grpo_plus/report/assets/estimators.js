"use strict";
// The advantage estimators that look at the rewards of one group, by the formulas of grpo_plus.advantages.
// A test compares each with Python, keywords and defaults included. A reward that is null does not apply.
const TOLERANCE = 1e-6;
const scored = (rewards) => rewards.filter((value) => value !== null);
const total = (values) => values.reduce((sum, value) => sum + value, 0);
const meanOf = (values) => (values.length ? total(values) / values.length : 0);
const toleranceOf = (values) => TOLERANCE * Math.max(1, ...values.map(Math.abs));
const contrasts = (values) => values.length > 1 && Math.max(...values) - Math.min(...values) > toleranceOf(values);

function deviation(values, ddof) {
  const mean = meanOf(values);
  return Math.sqrt(total(values.map((value) => (value - mean) ** 2)) / Math.max(1, values.length - ddof));
}

const quotient = (above, below) => (above === 0 ? 0 : above / below);
const centred = (rewards) => { const mean = meanOf(scored(rewards)); return rewards.map((value) => (value === null ? 0 : value - mean)); };

/** Mean of max R over the k-subsets with a completion, less that over those without it. */
function passAt(rewards, k) {
  const members = rewards.map((value, at) => [value, at]).filter(([value]) => value !== null).sort((a, b) => a[0] - b[0]);
  const n = members.length, size = Math.min(k, n - 1), out = rewards.map(() => 0);
  if (size < 1) return out;
  // Probability that the largest of a random subset of `many` of the others stands at each place of the sorted others.
  const topOf = (others, many) => {
    if (many === 0) return -Infinity;
    let expected = 0, below = 1;  // share of subsets that lie within the lowest `at + 1` of the others
    for (let at = others.length - 1; at >= 0; at -= 1) {
      const within = at < many ? 0 : below * (at + 1 - many) / (at + 1);
      expected += others[at] * (below - within);
      below = within;
      if (below === 0) break;
    }
    return expected;
  };
  const withIt = (others, own, many) => {  // mean of max(own, the largest of `many` others)
    if (many === 0) return own;
    return topOf(others.map((value) => Math.max(value, own)), many);
  };
  members.forEach(([value, at], place) => {
    const others = members.filter((_, other) => other !== place).map(([other]) => other);
    out[at] = withIt(others, value, size - 1) - topOf(others, size);
  });
  return out;
}

const EPS = { default: 1e-4, low: 0, step: "any" };
const DDOF = { default: 1, choices: [0, 1] };

// Each: keywords, the rule, what it divides by or compares with (a name and a number), and whether groups matter to it.
const ESTIMATORS = {
  zscore: {
    formula: "(R − μ) / (σ + eps)", keywords: { eps: EPS, ddof: DDOF, scale: { default: "group", choices: ["group", "batch"] } },
    batchIf: ({ scale }) => scale === "batch",  // one group is the batch here, so that only the note differs
    rule: (rewards, { eps, ddof }) => { const std = deviation(scored(rewards), ddof); return centred(rewards).map((value) => quotient(value, std + eps)); },
    by: (rewards, { eps, ddof }) => ["divided by σ + eps", deviation(scored(rewards), ddof) + eps],
  },
  center: { formula: "R − μ", keywords: {}, rule: centred, by: () => ["divided by", 1] },
  sign: {
    formula: "1, 0 or −1: above, within or below band · σ around μ", keywords: { band: { default: 0, low: 0, step: 0.05 } },
    rule: (rewards, { band }) => {
      const values = scored(rewards), edge = band * deviation(values, 0) + toleranceOf(values);
      return centred(rewards).map((value) => (Math.abs(value) <= edge ? 0 : Math.sign(value)));
    },
    by: (rewards, { band }) => ["borderline within ± band · σ", band * deviation(scored(rewards), 0)],
  },
  rloo: {
    formula: "R − mean of the others", keywords: {},
    rule: (rewards) => { const n = scored(rewards).length; return centred(rewards).map((value) => (value * n) / Math.max(1, n - 1)); },
    by: (rewards) => { const n = scored(rewards).length; return ["times G / (G − 1)", n / Math.max(1, n - 1)]; },
  },
  opo: {
    formula: "R − Σ l·R / Σ l", keywords: {}, lengths: true,
    rule: (rewards, _, lengths) => { const base = weighed(rewards, lengths); return rewards.map((value) => (value === null ? 0 : value - base)); },
    by: (rewards, _, lengths) => ["less the mean weighted by length", weighed(rewards, lengths)],
  },
  maxrl: {
    formula: "(R − μ) / μ, 0 when μ ≤ 0", keywords: {},
    rule: (rewards) => { const values = scored(rewards), mean = meanOf(values); return mean > toleranceOf(values) ? centred(rewards).map((value) => value / mean) : rewards.map(() => 0); },
    by: (rewards) => ["divided by μ", meanOf(scored(rewards))],
  },
  passk: {
    formula: "what it adds to the best of k attempts", keywords: { k: { default: 4, low: 1, step: 1, whole: true } },
    rule: (rewards, { k }) => passAt(rewards, k),
    by: (rewards, { k }) => ["attempts compared, at most G − 1", Math.min(k, Math.max(1, scored(rewards).length - 1))],
  },
  best_of_n: {
    formula: "1 for the best, else 0", keywords: {},
    rule: (rewards) => { const values = scored(rewards), bar = Math.max(...values) - toleranceOf(values); return rewards.map((value) => (value !== null && value >= bar ? 1 : 0)); },
    by: (rewards) => ["1 from", Math.max(...scored(rewards))],
  },
  raw: { formula: "R", keywords: {}, alone: true, rule: (rewards) => rewards.map((value) => value ?? 0), by: () => ["divided by", 1] },
  batch_whiten: {
    formula: "(R − μ), whitened over the tokens of the batch", keywords: { eps: EPS, ddof: DDOF }, batch: true, lengths: true,
    rule: (rewards, { eps, ddof }, lengths) => whitened(rewards, centred(rewards), lengths, eps, ddof),
    by: (rewards, { eps, ddof }, lengths) => ["divided by σ of the tokens + eps", deviation(ofTokens(rewards, centred(rewards), lengths), ddof) + eps],
  },
  reinforce_pp: {
    formula: "R, whitened over the tokens of the batch", keywords: { eps: EPS, ddof: DDOF }, batch: true, lengths: true,
    rule: (rewards, { eps, ddof }, lengths) => whitened(rewards, rewards, lengths, eps, ddof),
    by: (rewards, { eps, ddof }, lengths) => ["divided by σ of the tokens + eps", deviation(ofTokens(rewards, rewards, lengths), ddof) + eps],
  },
  gpg: { formula: "α(R − μ), α = completions / those of groups with contrast", keywords: {}, batch: true, rule: centred, by: () => ["times α", 1] },
};

/** The values of scored completions, each as often as it has tokens. */
const ofTokens = (rewards, values, lengths) => values.flatMap((value, at) => (rewards[at] === null ? [] : Array(lengths[at]).fill(value)));

function whitened(rewards, values, lengths, eps, ddof) {
  const tokens = ofTokens(rewards, values, lengths), mean = meanOf(tokens), std = deviation(tokens, ddof);
  return values.map((value, at) => (rewards[at] === null || !contrasts(scored(rewards)) ? 0 : quotient(value - mean, std + eps)));
}

function weighed(rewards, lengths) {
  let sum = 0, weight = 0;
  rewards.forEach((value, at) => { if (value !== null) { sum += lengths[at] * value; weight += lengths[at]; } });
  return weight > 0 ? sum / weight : meanOf(scored(rewards));
}

/** The defaults of an estimator, with those of `given` that it has. */
function keywordsOf(name, given = {}) {
  return Object.fromEntries(Object.entries(ESTIMATORS[name].keywords).map(([key, about]) => [key, typeof given[key] === typeof about.default ? given[key] : about.default]));
}

/** The advantages of one group: 0 for what has no reward, and in a group without contrast unless the estimator looks at no group. */
function advantagesOf(name, rewards, keywords = {}, lengths = rewards.map(() => 1)) {
  const { rule, alone } = ESTIMATORS[name];
  if (!alone && !contrasts(scored(rewards))) return rewards.map(() => 0);
  return rule(rewards, { ...keywordsOf(name), ...keywords }, lengths).map((value, at) => (rewards[at] === null ? 0 : value));
}
