"""Every estimator against a plain float64 loop written from its formula, on ragged random tables."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus.advantages import Estimator, RewardTable, StepScores
from grpo_plus.advantages.spread import with_trainable_steps
from tests.advantages.on_device import compute_advantages

NAN = math.nan


def tolerance(values):
    return 1e-6 * max(1.0, *(abs(v) for v in values)) if values else 1e-6


def differ(values):
    return bool(values) and max(values) - min(values) > tolerance(values)


def mean(values):
    return math.fsum(values) / len(values)


def std(values, ddof):
    if len(values) <= ddof:
        return 0.0
    return math.sqrt(math.fsum((v - mean(values)) ** 2 for v in values) / (len(values) - ddof))


def totals(rewards, weights):
    out = []
    for row in rewards:
        there = [w * r for w, r in zip(weights, row, strict=True) if not math.isnan(r)]
        out.append(math.fsum(there) if there else None)
    return out


def members(values, groups, i):
    return [v for v, g in zip(values, groups, strict=True) if g == groups[i] and v is not None]


def whitened(values, eps, ddof, tokens=None):
    known = [v for v in values if v is not None]
    if not differ(known):
        return [0.0] * len(values)
    if tokens is not None and any(n for v, n in zip(values, tokens, strict=True) if v is not None):
        values = [v if n else None for v, n in zip(values, tokens, strict=True)]
        known = [v for v, n in zip(values, tokens, strict=True) if v is not None for _ in range(n)]
        if not differ(known):
            return [0.0] * len(values)
    return [0.0 if v is None else (v - mean(known)) / (std(known, ddof) + eps) for v in values]


def zscored(values, groups, eps, ddof):
    out = []
    for i, v in enumerate(values):
        group = members(values, groups, i)
        out.append((v - mean(group)) / (std(group, ddof) + eps) if v is not None and differ(group) else 0.0)
    return out


def reference(name, rewards, weights, groups, lengths, *, eps=1e-4, ddof=1, scale="group", band=0.0, k=4):
    total = totals(rewards, weights)
    if name == "raw":
        return [0.0 if t is None else t for t in total]
    if name == "reinforce_pp":
        there = [v if n else None for v, n in zip(total, lengths, strict=True)]
        rows = whitened(there, eps, ddof, lengths)
        return [
            [v if t < n else 0.0 for t in range(max(lengths, default=0))] for v, n in zip(rows, lengths, strict=True)
        ]
    if name == "gdpo":
        columns = [[None if math.isnan(row[k]) else row[k] for row in rewards] for k in range(len(weights))]
        z = [zscored(column, groups, eps, ddof) for column in columns]
        summed = [
            None if t is None else math.fsum(w * z[k][i] for k, w in enumerate(weights)) for i, t in enumerate(total)
        ]
        live = [
            any(w and c[i] is not None and differ(members(c, groups, i)) for w, c in zip(weights, columns, strict=True))
            for i in range(len(total))
        ]
        return [v if alive else 0.0 for v, alive in zip(whitened(summed, eps, ddof), live, strict=True)]
    contrast = [value is not None and differ(members(total, groups, i)) for i, value in enumerate(total)]

    def one(i, value):
        group = members(total, groups, i)
        away = value - mean(group)
        there = [j for j, v in enumerate(total) if groups[j] == groups[i] and v is not None]
        others = [total[j] for j in there if j != i]
        if name == "zscore":
            return away / (std(group if scale == "group" else [t for t in total if t is not None], ddof) + eps)
        if name == "sign":
            over = abs(away) > band * std(group, 0) + tolerance(group)
            return math.copysign(1.0, away) if over else 0.0
        if name == "rloo":
            return value - mean(others)
        if name == "opo":
            tokens = sum(lengths[j] for j in there)
            return value - math.fsum(lengths[j] * total[j] for j in there) / tokens if tokens else away
        if name == "maxrl":
            return away / mean(group) if mean(group) > tolerance(group) else 0.0
        if name == "passk":
            fits = min(k, len(others))
            beside = [max(value, *rest) if rest else value for rest in itertools.combinations(others, fits - 1)]
            return mean(beside) - mean([max(rest) for rest in itertools.combinations(others, fits)])
        if name == "best_of_n":
            return float(value >= max(group) - tolerance(group))
        return away

    out = [one(i, value) if live else 0.0 for i, (value, live) in enumerate(zip(total, contrast, strict=True))]
    if name == "gpg":
        alpha = sum(t is not None for t in total) / max(1, sum(contrast))
        return [alpha * v for v in out]
    if name == "batch_whiten":
        white = whitened([None if t is None else v for t, v in zip(total, out, strict=True)], eps, ddof, lengths)
        return [v if live else 0.0 for v, live in zip(white, contrast, strict=True)]
    return out


@st.composite
def tables(draw):
    count = draw(st.integers(1, 9))
    kinds = draw(st.integers(1, 3))
    value = st.sampled_from([0.0, 1.0, 0.7, 0.1, 0.3, 0.5, -0.2, 2.0, NAN])
    return {
        "rewards": [[draw(value) for _ in range(kinds)] for _ in range(count)],
        "weights": [draw(st.sampled_from([1.0, 0.5, 0.3, 0.0, -1.0])) for _ in range(kinds)],
        "groups": [draw(st.sampled_from([4, -1, 900])) for _ in range(count)],
        "lengths": [draw(st.integers(0, 7)) for _ in range(count)],
    }


def as_table(drawn, dtype, **more):
    return RewardTable(
        rewards=torch.tensor(drawn["rewards"], dtype=dtype), weights=torch.tensor(drawn["weights"], dtype=dtype),
        groups=torch.tensor(drawn["groups"]), lengths=torch.tensor(drawn["lengths"]), **more,
    )  # fmt: skip


SCALED = ("zscore", "batch_whiten", "reinforce_pp", "gdpo")
PLAIN = ("center", "sign", "rloo", "opo", "maxrl", "best_of_n", "raw", "gpg", "passk")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", SCALED + PLAIN)
@settings(max_examples=60, deadline=None)
@given(drawn=tables(), data=st.data())
def test_matches_the_loop(name, drawn, data):
    keywords = {}
    if name in SCALED:
        keywords = {"eps": data.draw(st.sampled_from([1e-4, 0.0, 0.5])), "ddof": data.draw(st.integers(0, 1))}
    if name == "zscore":
        keywords["scale"] = data.draw(st.sampled_from(["group", "batch"]))
    if name == "sign":
        keywords["band"] = data.draw(st.sampled_from([0.0, 0.25, 1.0, 3.0]))
    if name == "passk":
        keywords["k"] = data.draw(st.integers(1, 9))
    expected = torch.tensor(reference(name, **drawn, **keywords), dtype=torch.float64)
    got = compute_advantages(name, as_table(drawn, torch.float64), **keywords)
    torch.testing.assert_close(got, expected, atol=1e-8, rtol=1e-8)
    total = totals(drawn["rewards"], drawn["weights"])
    for i, value in enumerate(total):
        alike = name not in ("gdpo", "raw", "reinforce_pp") and not differ(members(total, drawn["groups"], i))
        assert (got[i] == 0).all() or not (value is None or alike)


def exact_passk(rewards, k):
    """The definition with exact binomials: of the sorted rewards, C(i, k - 1) subsets have the i-th one as their best."""
    order = sorted(range(len(rewards)), key=rewards.__getitem__)
    ranked, others = [Fraction(rewards[i]) for i in order], len(rewards) - 1
    with_it, without = math.comb(others, k - 1), math.comb(others, k)
    comb = [[math.comb(rank, size) if size >= 0 else 0 for rank in range(others + 1)] for size in (k - 2, k - 1)]
    over_k2 = [value * comb[0][rank - 1] if rank else 0 for rank, value in enumerate(ranked)]
    over_k1 = [value * comb[1][rank - 1] if rank else 0 for rank, value in enumerate(ranked)]
    later_k2, later_k1, below, found = sum(over_k2), sum(over_k1), Fraction(0), [0.0] * len(rewards)
    for rank, place in enumerate(order):
        later_k2, later_k1 = later_k2 - over_k2[rank], later_k1 - over_k1[rank]
        best = (ranked[rank] * comb[1][rank] + later_k2) / with_it
        found[place] = float(best - (below + later_k1) / without)
        below += ranked[rank] * comb[1][rank]
    return found


@pytest.mark.parametrize(("size", "k"), [(1024, 1), (1024, 512), (1024, 1023), (1000, 37), (2, 1)])
@pytest.mark.parametrize("kind", ["uniform", "right or wrong"])
def test_passk_of_large_groups_is_exact(size, k, kind):
    draws = torch.rand(size, generator=torch.Generator().manual_seed(size + k), dtype=torch.float64)
    rewards = draws if kind == "uniform" else (draws > 0.5).double()
    expected = torch.tensor(exact_passk(rewards.tolist(), k), dtype=torch.float64)
    got = compute_advantages("passk", RewardTable.of(rewards), k=k)
    torch.testing.assert_close(got, expected, atol=1e-14, rtol=1e-11)


@pytest.mark.sample(1)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_passk_is_the_gradient_of_the_best_of_k(k):
    """The expectation over every draw of five from a softmax, against the derivative of E[best of k]."""
    rewards, logits, size = [0.0, 0.3, 1.0], torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64), 5
    logits.requires_grad_()
    logp = logits.log_softmax(0)
    best = sum(
        logp[list(draw)].sum().exp() * max(rewards[i] for i in draw) for draw in itertools.product(range(3), repeat=k)
    )
    (wanted,) = torch.autograd.grad(best, logits, retain_graph=True)
    estimate = torch.zeros((), dtype=torch.float64)
    for draw in itertools.product(range(3), repeat=size):
        table = RewardTable.of(torch.tensor([rewards[i] for i in draw], dtype=torch.float64))
        advantages = compute_advantages("passk", table, k=k)
        drawn = logp[list(draw)]
        estimate = estimate + drawn.sum().exp().detach() * (advantages * drawn).sum()
    (got,) = torch.autograd.grad(estimate, logits)
    torch.testing.assert_close(got / size * k, wanted, atol=1e-12, rtol=1e-10)


@st.composite
def step_tables(draw):
    drawn = draw(tables())
    steps, masks, width = [], [], max(drawn["lengths"])
    for row, length in enumerate(drawn["lengths"]):
        cuts = sorted(draw(st.lists(st.integers(0, length + 2), min_size=0, max_size=6)))
        for start, end in zip(cuts[::2], cuts[1::2], strict=False):
            steps.append((row, draw(st.sampled_from([0.0, 1.0, 0.7, 0.1, -1.0, NAN])), start, end))
        masks.append([draw(st.sampled_from([True, True, True, False])) for _ in range(width)])
    return drawn, draw(st.permutations(steps)), masks


def trained_tokens(lengths, masks):
    width = range(max(lengths))
    return [[t < length and mask[t] for t in width] for length, mask in zip(lengths, masks, strict=True)]


def reference_process(drawn, steps, masks, *, credit, outcome_weight, eps, ddof, gamma=None):
    lengths, groups = drawn["lengths"], drawn["groups"]
    trained = trained_tokens(lengths, masks)
    steps = [step for step in steps if any(trained[step[0]][t] for t in range(step[2], min(step[3], lengths[step[0]])))]
    scores = [None if math.isnan(score) else score for _, score, _, _ in steps]
    numbers = [sum(of == row and at < start for of, _, at, _ in steps) for row, _, start, _ in steps]
    compared = [(groups[row], number * (credit == "turn")) for (row, *_), number in zip(steps, numbers, strict=True)]
    z = zscored(scores, compared, eps, ddof)
    own = credit == "step" or (credit == "turn" and gamma is None)
    gamma = 1.0 if gamma is None else gamma
    outcome = zscored(totals(drawn["rewards"], drawn["weights"]), groups, eps, ddof)
    out = []
    for row in range(len(lengths)):
        line = []
        for t in range(max(lengths)):
            mine = [
                (start, value)
                for value, (of, _, start, end) in zip(z, steps, strict=True)
                if of == row and (start <= t < end if own else t < end)
            ]
            mine = [gamma**between * value for between, (_, value) in enumerate(sorted(mine))]
            line.append(math.fsum(mine) + outcome_weight * outcome[row] if trained[row][t] else 0.0)
        out.append(line)
    return torch.tensor(out, dtype=torch.float64).reshape(len(lengths), max(lengths))


def held_steps(drawn, steps, masks):
    scores = StepScores(
        rows=torch.tensor([s[0] for s in steps], dtype=torch.long),
        scores=torch.tensor([s[1] for s in steps], dtype=torch.float64),
        spans=torch.tensor([s[2:] for s in steps], dtype=torch.long).reshape(-1, 2),
    )
    mask = torch.tensor(masks, dtype=torch.bool).reshape(len(masks), -1)
    return as_table(drawn, torch.float64, steps=scores, extras={"trainable": mask})


EPS, WEIGHTS = st.sampled_from([1e-4, 0.0]), st.sampled_from([0.0, 0.5, -1.0])
CREDITS = [
    *({"credit": credit} for credit in ("step", "return", "turn")),
    *({"credit": credit, "gamma": g} for credit in ("return", "turn") for g in (1.0, 0.9, 0.0)),
]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(table=step_tables(), credit=st.sampled_from(CREDITS), outcome_weight=WEIGHTS, eps=EPS, ddof=st.integers(0, 1))
def test_process_matches_the_loop(table, credit, **keywords):
    drawn, steps, masks = table
    keywords |= credit
    expected = reference_process(drawn, steps, masks, **keywords)
    got = compute_advantages("process", held_steps(drawn, steps, masks), **keywords)
    torch.testing.assert_close(got, expected, atol=1e-8, rtol=1e-8)


@settings(max_examples=50, deadline=None)
@given(table=step_tables())
def test_without_a_discount_returns_are_the_running_sums_bit_for_bit(table):
    """The sum from the back over values that stand on the last token of their step, trained tokens only."""
    made = held_steps(*table)
    kept = replace(made, steps=made.steps.select(with_trainable_steps(made)))
    values = compute_advantages(Estimator("scores", _scores, per="step", group_relative=False), made, credit="return")
    steps, trainable = kept.steps, kept.trainable()
    ends = torch.zeros(trainable.shape, dtype=torch.float64)
    ends[steps.rows, steps.spans[:, 1].clamp(max=kept.width) - 1] = steps.scores.nan_to_num(0.0)
    assert torch.equal(values, ends.flip(1).cumsum(1).flip(1).masked_fill(~trainable, 0.0))


def _scores(table):
    return table.steps.scores.nan_to_num(0.0)


@settings(max_examples=30, deadline=None)
@given(drawn=tables(), weights=st.tuples(st.floats(-2, 2), st.floats(-2, 2)).filter(any))
def test_mix_is_the_weighted_sum(drawn, weights):
    parts = dict(zip(("gdpo", "rloo"), weights, strict=True))
    got = compute_advantages("mix", as_table(drawn, torch.float64), parts=parts, gdpo={"ddof": 0})
    one = torch.tensor(reference("gdpo", **drawn, ddof=0), dtype=torch.float64)
    two = torch.tensor(reference("rloo", **drawn), dtype=torch.float64)
    torch.testing.assert_close(got, weights[0] * one + weights[1] * two, atol=1e-8, rtol=1e-8)


def reference_gigpo(drawn, steps, masks, states, *, gamma, omega, scale, eps, ddof):
    lengths, groups = drawn["lengths"], drawn["groups"]
    trained = trained_tokens(lengths, masks)
    outcome = totals(drawn["rewards"], drawn["weights"])
    turns = sorted(
        (row, start, end, score, state)
        for (row, score, start, end), state in zip(steps, states, strict=True)
        if any(trained[row][t] for t in range(start, min(end, lengths[row])))
    )

    def compared(values, keys):
        if scale == "std":
            return zscored(values, keys, eps, ddof)
        found = []
        for i, value in enumerate(values):
            group = members(values, keys, i)
            found.append(value - mean(group) if value is not None and differ(group) else 0.0)
        return found

    several = {g for g in groups if sum(o is not None and h == g for o, h in zip(outcome, groups, strict=True)) > 1}
    returns = []
    for row, start, _, _, state in turns:
        mine = [0.0 if math.isnan(score) else score for of, at, _, score, _ in turns if of == row and at >= start]
        there = outcome[row] is not None and groups[row] in several and state >= 0
        mine[-1] += outcome[row] or 0.0
        returns.append(math.fsum(gamma**k * r for k, r in enumerate(mine)) if there else None)
    step = compared(returns, [(groups[row], state) for row, _, _, _, state in turns])
    whole = compared(outcome, groups)
    out = []
    for row, line in enumerate(trained):
        inside = {
            t: value
            for value, (of, start, end, _, _) in zip(step, turns, strict=True)
            if of == row
            for t in range(start, end)
        }
        out.append([whole[row] + omega * inside.get(t, 0.0) if own else 0.0 for t, own in enumerate(line)])
    return torch.tensor(out, dtype=torch.float64).reshape(len(lengths), max(lengths))


GAMMAS, OMEGAS = st.sampled_from([1.0, 0.95, 0.5, 0.0]), st.sampled_from([1.0, 0.3])
SCALES = st.sampled_from(["std", "none"])


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(table=step_tables(), data=st.data(), gamma=GAMMAS, omega=OMEGAS, scale=SCALES, eps=EPS, ddof=st.integers(0, 1))
def test_gigpo_matches_the_loop(table, data, **keywords):
    drawn, steps, masks = table
    states = [data.draw(st.sampled_from([-7, -1, 0, 1, 2**62])) for _ in steps]
    made = held_steps(drawn, steps, masks)
    made = replace(made, steps=replace(made.steps, states=torch.tensor(states, dtype=torch.long)))
    got = compute_advantages("gigpo", made, **keywords)
    torch.testing.assert_close(got, reference_gigpo(*table, states, **keywords), atol=1e-8, rtol=1e-8)


def test_gigpo_is_the_zscore_where_all_states_differ_compares_nothing_alone_and_asks_for_states():
    steps = [[(1.0, 0, 2, 1), (0.5, 2, 3, 2)], [(0.0, 0, 2, 3), (None, 2, 3, None)], [(0.2, 0, 3, 4)]]
    table = RewardTable.of([1, 0, 0.5], steps=steps)
    for scale, alone in (("std", "zscore"), ("none", "center")):
        got = compute_advantages("gigpo", table, scale=scale)
        assert torch.equal(got, compute_advantages(alone, table)[:, None].expand_as(got))
    steps = [[(0.0, 0, 1, 7), (0.0, 1, 2, 7)]]
    assert not compute_advantages("gigpo", RewardTable.of([1], steps=steps)).any()
    alone = RewardTable.of([1, None], steps=[*steps, [(1.0, 0, 1, 7)]])
    assert not compute_advantages("gigpo", alone).any()
    table = RewardTable.of([1, 0], steps=[[(1.0, 0, 1)], [(0.0, 0, 1)]])
    with pytest.raises(ValueError, match="an environment with state_key"):
        compute_advantages("gigpo", table)
    with pytest.raises(ValueError, match=r"table\.steps is None"):
        compute_advantages("gigpo", RewardTable.of([1, 0]))
