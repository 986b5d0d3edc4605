"""Credit to turns through the trainer: the advantages of a batch are those of a float64 loop over its turns."""

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_plus import GRPOPlusConfig
from grpo_plus.recipe.forms import read_form
from grpo_plus.recipe.rewards import running_advantage
from grpo_plus.training.scoring.turn_spans import NO_STATE, state_number, turn_scores, with_states
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.turns import Turn
from tests.trainer import ranks
from tests.trainer.conftest import BASE
from tests.trainer.ranks import COUNTER, TURNS
from tests.trainer.tools_of_tests import Counting, Other

EPS, SIZE = 1e-4, 4
PROCESS = {"advantage": "process", "verifiers": [TURNS]}
TURN = {"name": "process", "credit": "turn", "outcome_weight": 0.5}
MASKED = {"max_completion_length": 140, "mask_truncated_completions": True}
RUNS = {
    "step": {**PROCESS, "advantage": {"name": "process", "credit": "step", "outcome_weight": 0}},
    "return": {**PROCESS, "advantage": {"name": "process", "credit": "return", "gamma": 0.9}},
    "turn": {**PROCESS, "advantage": {**TURN, "steps_from": "turn_reward"}},
    "turn, discounted": {**PROCESS, "advantage": {**TURN, "gamma": 0.9}},
    "gigpo": {"advantage": "gigpo"},
    "gigpo, no std": {"advantage": {"name": "gigpo", "gamma": 0.5, "omega": 0.3, "scale": "none"}},
    "gigpo of a verifier": {**PROCESS, "advantage": {"name": "gigpo", "steps_from": "turn_reward"}},
    "cut": {**PROCESS, "advantage": {"name": "process", "credit": "turn", "gamma": 0.9}, "max_completion_length": 140},
    "cut, gigpo": {"advantage": "gigpo", "max_completion_length": 140},
    "cut and masked": {**PROCESS, "advantage": {"name": "process", "credit": "return", "gamma": 0.9}, **MASKED},
    "cut and masked, gigpo": {"advantage": "gigpo", **MASKED},
}


def relative(values, *, std=True):
    """Each known value against the others; 0 for the unknown, and where there is nothing to compare."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or max(known) - min(known) <= 1e-6 * max(1.0, *map(abs, known)):
        return [0.0] * len(values)
    mean = math.fsum(known) / len(known)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1)) + EPS if std else 1.0
    return [0.0 if value is None else (value - mean) / spread for value in values]


def relative_by(values, keys, **how):
    found = [0.0] * len(values)
    for key in set(keys):
        places = [place for place, other in enumerate(keys) if other == key]
        for place, value in zip(places, relative([values[place] for place in places], **how), strict=True):
            found[place] = value
    return found


def expected(run, estimator, *, credit="step", gamma=None, outcome_weight=0.0, omega=1.0, scale="std", **_):
    """The advantage of every token, from what the completions did."""
    groups = [row // SIZE for row in range(len(run["told"]))]
    outcomes = [row[-1] for row in run["rewards"]]  # that of the environment
    turns = [
        (row, number, *turn)
        for row, each in enumerate(run["told"])
        for number, turn in enumerate([turn for turn in each["turns"] if any(run["trained"][row][turn[0] : turn[1]])])
    ]
    if estimator == "gigpo":
        gamma, std = 0.95 if gamma is None else gamma, scale == "std"
        returns = []
        for row, number, *_ in turns:
            mine = [turn for turn in turns if turn[0] == row]
            rewards = [turn[4] or 0.0 for turn in mine]
            rewards[-1] += outcomes[row]
            returns.append(math.fsum(gamma ** (k - number) * r for k, r in enumerate(rewards) if k >= number))
        values = [omega * v for v in relative_by(returns, [(groups[t[0]], t[5]) for t in turns], std=std)]
        whole = relative_by(outcomes, groups, std=std)
        later = 0.0
    else:
        keys = [(groups[row], number if credit == "turn" else 0) for row, number, *_ in turns]
        values = relative_by([turn[4] for turn in turns], keys)
        whole = [outcome_weight * value for value in relative_by(outcomes, groups)]
        later = gamma or 0.0 if credit == "turn" else 0.0 if credit == "step" else 1.0 if gamma is None else gamma
    found = []
    for row, trained in enumerate(run["trained"]):
        mine = [(turn, value) for turn, value in zip(turns, values, strict=True) if turn[0] == row]
        line = [0.0] * len(trained)
        for place, (turn, _) in enumerate(mine):
            value = math.fsum(later ** (k - place) * v for k, (_, v) in enumerate(mine) if k >= place)
            for token in range(turn[2], turn[3]):
                line[token] = value + whole[row] if trained[token] else 0.0
        found.append(line)
    return found


@pytest.fixture(scope="module")
def worlds(in_two_worlds):
    return in_two_worlds("turns", RUNS)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("count", [1, 2])
def test_every_token_has_the_credit_of_its_turn_and_tool_tokens_have_none(worlds, name, count):
    run = worlds[count - 1][name]
    assert run["world"] == count
    wanted = expected(run, read_form("advantage", RUNS[name]["advantage"]).get("name"), **run["keywords"])
    seen = 0.0
    for row, (got, line, trained) in enumerate(zip(run["advantages"], wanted, run["trained"], strict=True)):
        width = run["told"][row]["length"]
        assert got[:width] == pytest.approx(line[:width], abs=2e-5), row
        assert not any(value for value, own in zip(got, trained, strict=True) if not own)
        assert len(got) == len(line) >= width
        seen += sum(map(abs, got))
    assert seen > 1.0


def test_two_ranks_tell_states_apart_as_one_does(worlds):
    for name in RUNS:
        one, two = (world[name] for world in worlds)
        assert one["told"] == two["told"]
        for metric in ("advantages/anchored_fraction", "steps/score_mean", "advantages/abs_mean"):
            assert two["log"][metric] == pytest.approx(one["log"][metric], rel=1e-5), (name, metric)
    assert 0 < worlds[0]["gigpo"]["log"]["advantages/anchored_fraction"] <= 1
    # The cases are there: cut in the middle of a turn, results without room, masked rows, and states that are met again.
    whole, cut, masked = (worlds[0][name] for name in ("turn", "cut", "cut and masked"))
    limit = RUNS["cut"]["max_completion_length"]
    lengths = [each["length"] for each in cut["told"]]
    assert max(each["length"] for each in whole["told"]) > limit >= max(lengths)
    ends = [each["turns"][-1][1] for each in cut["told"]]
    fewer = [len(each["turns"]) < len(full["turns"]) for each, full in zip(cut["told"], whole["told"], strict=True)]
    rows = list(zip(ends, lengths, fewer, strict=True))
    assert any(end == length == limit for end, length, _ in rows)
    assert any(end == length < limit and less for end, length, less in rows)
    assert 0 < sum(not any(trained) for trained in masked["trained"]) < len(lengths)
    assert any(len({turn[3] for turn in each["turns"]}) < len(each["turns"]) for each in whole["told"])


@pytest.mark.slow
def test_completions_of_several_rounds_keep_the_states_of_their_turns(tmp_path, tiny_model):
    roulette = {"dead_groups": {"name": "roulette", "after": 2, "keep": 0.5}}
    run = ranks.turns(str(tmp_path), tiny_model, 12, advantage="gigpo", **roulette)
    assert run["log"]["dead_groups/rounds"] == 2
    rows, ordinals, states = run["steps"]
    keys = {state_number(str(at)) for at in range(9)}
    assert set(states) <= keys
    assert len(set(states)) > 2
    for row, ordinal, state in zip(rows, ordinals, states, strict=True):
        assert (ordinal > 0) or state == state_number("0"), row
    assert sum(abs(value) for row in run["advantages"] for value in row) > 1


STATES = st.sampled_from(["a", "b", "", None, "汉", "\ud800"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), STATES, st.sampled_from([None, 0.5])), max_size=6))
def test_a_step_that_is_a_turn_takes_its_state_and_no_other_does(drawn):
    turns, spans, at = [], [], 0
    for length, between, state, reward in drawn:
        turns.append(Turn(0, 0, "", (), state, reward))  # nothing of it can be read
        spans.append((at, at + length))
        at += length + between
    steps = turn_scores(turns, spans)
    assert [step[:2] for step in steps] == spans
    assert [None if math.isnan(step[2]) else step[2] for step in steps] == [each[3] for each in drawn]
    known = [state_number(each[2]) for each in drawn]
    assert [step[3] for step in with_states(steps, turns, spans)] == known
    halves = [(first, last + 1, 1.0) for first, last in spans]
    assert [step[3] for step in with_states(halves, turns, spans)] == [NO_STATE] * len(halves)
    for one, (*_, state, _) in zip(known, drawn, strict=True):
        assert (one == NO_STATE) == (not state)
        alike = [(state or "") == (again[2] or "") for again in drawn]
        assert alike == [one == other for other in known]


GIGPO = {"advantage": "gigpo", "environment": COUNTER}
VALID = {"advantage": "process", "verifiers": [{"name": "tool_valid", "weight": 0}]}
NAMED = r"steps_from: 'Counter' is the environment.*\{name: turn_reward, weight: 0\}"
OTHER = COUNTER.replace("Counter", "Other")
COUNTING = COUNTER.replace("Counter", "Counting")


@pytest.mark.parametrize(("given", "said"), [
    ({"advantage": "gigpo"}, r"'gigpo' needs an environment with state_key: it compares turns"),
    ({"advantage": "gigpo", "tools": ["calculator"]}, r"needs an environment with state_key"),
    ({"advantage": "gigpo", "environment": OTHER}, r"needs an environment with state_key.*credit: turn"),
    ({"advantage": {"name": "mix", "parts": {"gigpo": 1.0, "sign": 1.0}}}, r"needs an environment with state_key"),
    ({**GIGPO, "advantage": {"name": "gigpo", "omega": 0}}, "advantage: zscore"),
    ({**GIGPO, "advantage": {"name": "gigpo", "omega": 0, "scale": "none"}}, "advantage: center"),
    ({**GIGPO, "advantage": {"name": "gigpo", "credit": "turn"}}, "unknown keyword 'credit'"),
    ({**GIGPO, "advantage": {"name": "gigpo", "gamma": 1.5}}, "'gamma' is 1.5"), ({**GIGPO, "num_generations": 1}, "needs num_generations of 2 or more"),
    (PROCESS, "turn_reward needs an environment with get_turn_reward"),
    ({**PROCESS, "environment": COUNTING}, "turn_reward needs an environment with get_turn_reward"),
    ({**PROCESS, "advantage": {"name": "process", "credit": "step", "gamma": 0.9}}, "nothing would be discounted"),
    ({**PROCESS, "advantage": {"name": "process", "credit": "turns"}}, "'credit' is 'turns'"),
])  # fmt: skip
def test_wrong_choices_are_told_before_anything_loads(given, said):
    with pytest.raises(ConfigError, match=said):
        GRPOPlusConfig(**BASE, **given)


@pytest.mark.parametrize(("given", "trainer", "said"), [
    ({**PROCESS, "environment": COUNTER, "advantage": {"name": "process", "steps_from": "Counter"}}, {}, NAMED),
    ({**GIGPO, "advantage": {"name": "gigpo", "steps_from": "Counter"}}, {}, NAMED),
    ({**GIGPO, "advantage": {"name": "gigpo", "steps_from": "turn_reward"}}, {}, "steps_from|no verifier gives any"),
    (GIGPO, {"step_scorer": lambda **_: []}, "step_scorer is set, but the advantage estimator takes the turns"),
    ({**VALID, "environment": OTHER, "advantage": {"name": "process", "outcome_weight": 0.5}}, {}, "no reward has a weight"),
])  # fmt: skip
def test_wrong_choices_that_need_the_trainer_are_told_before_it_loads(build, chats, given, trainer, said):
    with pytest.raises(ConfigError, match=said):
        build(trainer={"reward_funcs": None, "train_dataset": chats, **trainer}, **given)


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "weight"), [(Counting, 1.0), (Other, 0.0), (partial(Counting), 1.0)])
def test_the_reward_of_an_environment_that_the_trainer_was_given_is_an_outcome_too(
    build, chats, tool_tokenizer, factory, weight
):
    given = {"reward_funcs": None, "train_dataset": chats, "environment_factory": factory}
    trainer = build(trainer=given | {"processing_class": tool_tokenizer}, **VALID)
    assert trainer.estimator[1]["outcome_weight"] == weight


def test_gigpo_reads_the_outcome_itself_and_needs_no_verifier():
    recipe = GRPOPlusConfig(**BASE, **GIGPO).recipe
    assert recipe.own_turns
    assert running_advantage(recipe, {}) == (recipe.advantage, [])
    chosen = GIGPO | {"advantage": {"name": "gigpo", "steps_from": "turn_reward"}}
    named = GRPOPlusConfig(**BASE, **chosen, verifiers=[TURNS]).recipe
    assert (named.own_turns, named.step_source) == (False, "turn_reward")
