"""Where steps come from, decided from what all ranks saw."""

import pytest

from grpo_plus.training.step_source import PATIENCE, StepSource, steps_seen
from grpo_verifiers import Status, Step, Verdict

PLAIN, STEPPED = Verdict(0.5), Verdict(0.5, steps=(Step(0, 1, 1.0),))
NOTHING = [
    Verdict(None),
    Verdict(None, Status.ERROR),
    Verdict(0.0, Status.ERROR),
    Verdict(0.0, Status.TIMEOUT),
    Verdict(0.0, Status.UNPARSABLE),
]


IDLE = [
    Verdict(1.0, steps=(Step(0, 1, None),)),
    Verdict(0.5, steps=(Step(0, 0, 1.0), Step(3, 3, 0.5))),
    Verdict(0.0, steps=(Step(5, 6, 1.0), Step(10**6, 10**7, 1.0))),
    Verdict(1.0, steps=(Step(0, 1, None), Step(2, 2, 1.0), Step(5, 9, 0.0))),
]
"""Steps of a text of five characters that nothing can be trained with."""


def seen(*verdicts, empty=False):
    return steps_seen(verdicts, [[] if empty else [1]] * len(verdicts), lambda ids: 5 * len(ids))


def test_only_judged_completions_that_are_not_empty_say_something():
    assert seen(*NOTHING).without == 0
    assert seen(PLAIN, *NOTHING, STEPPED, PLAIN).without == 2
    assert seen(PLAIN, empty=True).without == 0
    assert seen(*NOTHING, STEPPED).given
    assert not seen(PLAIN, *NOTHING).given


@pytest.mark.parametrize("idle", IDLE)
@pytest.mark.parametrize("name", ["mine", None])
def test_steps_without_a_score_or_a_character_are_none(idle, name):
    found = seen(idle, *NOTHING)
    assert (found.given, found.without) == (False, 1)
    assert "only steps that have no score or hold no character" in found.example
    source = StepSource(name, {"mine": None})
    for _ in range(PATIENCE - 1):
        assert source.labels([{"mine": found}], training=True) == ["mine"]
    with pytest.raises(ValueError, match=r"gave no step in 32|no verifier gave any"):
        source.labels([{"mine": found}], training=True)


def test_one_scored_character_beside_them_is_enough():
    for idle in IDLE:
        found = seen(idle, Verdict(0.0, steps=(Step(0, 1, None), Step(4, 9, 0.0))))
        assert (found.given, found.without) == (True, 1)


def test_a_verifier_known_to_give_steps_may_score_none_of_them():
    source = StepSource("math_steps", {"math_steps": True})
    for _ in range(2 * PATIENCE):
        assert source.labels([{"math_steps": seen(*IDLE)}], training=True) == ["math_steps"]


def test_a_judged_completion_without_a_score_is_shown():
    assert seen(Verdict(None, Status.WRONG)).example == "the score None (wrong)"


def test_completions_of_all_ranks_count_together():
    source = StepSource("named", {"named": None})
    batch = [{"named": seen(*[PLAIN] * 3)}, {"named": seen(*NOTHING, PLAIN)}, {"named": seen()}]
    for _ in range(PATIENCE // 4 - 1):
        assert source.labels(batch, training=True) == ["named"]
    with pytest.raises(ValueError, match=f"'named' gave no step in {PATIENCE} completions.*the score 0.5 .partial."):
        source.labels(batch, training=True)


def test_a_step_on_any_rank_settles_it():
    source = StepSource("named", {"named": None, "other": True})
    source.labels([{"named": seen(PLAIN)}, {"named": seen(STEPPED)}], training=True)
    for _ in range(2 * PATIENCE):
        assert source.labels([{"named": seen(PLAIN)}] * 2, training=True) == ["named"]


def test_evaluations_show_steps_but_lack_none():
    source = StepSource("named", {"named": None})
    for _ in range(2 * PATIENCE):
        source.labels([{"named": seen(PLAIN)}], training=False)
    source.labels([{"named": seen(STEPPED)}], training=False)
    for _ in range(2 * PATIENCE):
        assert source.labels([{"named": seen(PLAIN)}], training=True) == ["named"]


def test_a_verifier_known_to_give_steps_is_waited_for():
    source = StepSource(None, {"math": False, "math_steps": True})
    for _ in range(2 * PATIENCE):
        assert source.labels([{"math_steps": seen(PLAIN)}], training=True) == ["math_steps"]


def test_without_a_name_the_only_one_that_may_give_steps_is_the_source():
    source = StepSource(None, {"math": False, "mine": None})
    assert source.labels([{"math": seen(PLAIN), "mine": seen(*NOTHING)}], training=True) == ["mine"]
    for _ in range(PATIENCE - 1):
        assert source.labels([{"mine": seen(PLAIN)}], training=True) == ["mine"]
    with pytest.raises(ValueError, match="no verifier gave any: math, mine"):
        source.labels([{"mine": seen(PLAIN)}], training=True)


def test_without_a_name_a_step_now_and_then_is_enough():
    source = StepSource(None, {"mine": None})
    source.labels([{"mine": seen(*[PLAIN] * (PATIENCE - 1))}], training=True)
    source.labels([{"mine": seen(STEPPED)}], training=True)
    for _ in range(PATIENCE):
        assert source.labels([{"mine": seen(PLAIN)}], training=True) == ["mine"]


def test_two_that_may_give_steps_are_told_apart_by_what_they_give():
    source = StepSource(None, {"one": None, "two": None})
    assert source.labels([{"one": seen(PLAIN), "two": seen(*NOTHING)}], training=True) == []
    assert source.labels([{"one": seen(PLAIN), "two": seen(STEPPED)}], training=True) == ["two"]
    with pytest.raises(ValueError, match="several verifiers give steps: one, two"):
        source.labels([{"one": seen(STEPPED), "two": seen(PLAIN)}], training=True)
