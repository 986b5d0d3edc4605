"""Step verdicts in the trainer: from the right verifier, as all ranks saw it, and on the right tokens."""

from types import SimpleNamespace

import pytest

from grpo_plus.advantages import RewardTable, compute_advantages
from grpo_plus.training.batch.advantages import PATIENCE
from grpo_plus.training.hooks import Completions
from grpo_plus.training.scoring.verifiers import LiveVerifier, Verifiers
from grpo_verifiers import Status, Step, Verdict, all_of, gated, get_verifier, verifier
from grpo_verifiers.verifying import REGISTRY

SOLUTIONS = ["1+1=2\n2+1=3", "1+1=3\n3+1=4", "2+2=4\nso\n4+4=9", "hm"]
SCORES = [[1.0, 1.0], [0.0, 1.0], [1.0, None, 0.0], [None]]


@pytest.fixture
def solved(say):
    say(lambda _, row: SOLUTIONS[row % 4] + ("<|im_end|>" if row % 4 != 3 else ""))


@pytest.fixture(scope="module", autouse=True)
def halves():
    @verifier("halves", isolation="inline")
    def halves(completion: str, completion_text: str) -> Verdict:
        del completion
        middle = len(completion_text) // 2
        return Verdict(0.5, steps=(Step(0, middle, 1.0), Step(middle, len(completion_text), float(middle % 3))))

    yield halves
    REGISTRY.unregister("halves")


@pytest.fixture
def supervised(checked, solved):
    def supervised(*verifiers, max_steps=1, **keywords):
        settings = {"advantage": {"name": "process", **keywords}, "max_completion_length": 24}
        return checked(*verifiers, max_steps=max_steps, **settings)

    return supervised


QUIET = {"name": "math_steps", "weight": 0}
OWN = {"name": "math_steps", "aggregate": "last"}


@pytest.mark.parametrize("credit", ["step", "return"])
def test_a_step_weighs_on_its_own_tokens(supervised, credit):
    """By hand: the tiny model's tokens are characters, and a step holds the line end behind it."""
    trainer = supervised("math", QUIET, credit=credit)
    rows, lengths = [], []
    for row in range(4):
        text = SOLUTIONS[row] + ("<|im_end|>" if row < 3 else "")
        ends = [at + 1 for at, character in enumerate(SOLUTIONS[row]) if character == "\n"]
        lengths.append(len(SOLUTIONS[row]) + (row < 3))
        rows.append(list(zip(SCORES[row], [0, *ends], [*ends, lengths[-1]], strict=True)))
        assert len(text) >= lengths[-1]
    table = RewardTable.of([0.0] * 4, steps=rows, lengths=lengths)
    expected = compute_advantages("process", table, credit=credit)
    found = trainer.generated[0]["advantages"]
    assert found.shape == (8, max(lengths))
    assert found[:4].tolist() == [pytest.approx(row, abs=1e-5) for row in expected.tolist()]
    assert found[4:].tolist() == found[:4].tolist()
    log = trainer.state.log_history[0]
    assert (log["steps/per_completion"], log["steps/scored_fraction"]) == (2.0, pytest.approx(6 / 8))
    assert log["steps/score_mean"] == pytest.approx(4 / 6)
    assert log["rewards/math_steps/mean"] == pytest.approx(1 / 3)  # the worst step of each of three


@pytest.mark.parametrize(("aggregate", "reward"), [("mean", 2 / 3), ("last", 2 / 3), ("product", 1 / 3), (None, 1 / 3)])
def test_the_reward_column_is_made_from_the_steps(supervised, aggregate, reward):
    """Scores (1, 1), (0, 1), (1, none, 0): the fourth completion has none and does not count."""
    trainer = supervised("math", QUIET, **({"aggregate": aggregate} if aggregate else {}))
    assert trainer.state.log_history[0]["rewards/math_steps/mean"] == pytest.approx(reward)


def test_the_column_of_a_verifier_of_the_users_too_and_only_of_the_one_named(supervised):
    trainer = supervised("halves", "math_steps", steps_from="halves", aggregate="min")
    log = trainer.state.log_history[0]
    ends = [len(text) + len("<|im_end|>") for text in SOLUTIONS[:3]] + [len(SOLUTIONS[3])]
    worst = [min(1.0, float(end // 2 % 3)) for end in ends]
    assert log["rewards/halves/mean"] == pytest.approx(sum(worst) / 4)
    assert log["rewards/math_steps/mean"] == pytest.approx(1 / 3)
    assert trainer.generated[0]["advantages"].abs().max() > 0.5


@pytest.mark.parametrize(("verifiers", "keywords", "said"), [
    (["math", "exact"], {}, "no verifier gives any .math, exact.*math_steps"),
    (["math_steps", {"name": "math_steps", "label": "again"}], {}, "give steps, or may: math_steps, again"),
    (["halves", {"name": "halves", "label": "again"}], {}, "give steps, or may: halves, again"),
    (["math", "math_steps"], {"steps_from": "math"}, "'math' gives no step scores: math_steps does"),
    (["math", "math_steps"], {"steps_from": "maths"}, "math_steps"),
    (["math", OWN], {"aggregate": "mean"}, "aggregate is 'mean' and the verifier 'math_steps' has its own .'last'"),
    (["math", "math_steps"], {"aggregate": "sum"}, "aggregate.*'sum'"),
])  # fmt: skip
def test_sources_that_are_wrong_are_known_before_training(build, verifiers, keywords, said):
    with pytest.raises(ValueError, match=said):
        build(trainer={"reward_funcs": None}, verifiers=verifiers, advantage={"name": "process", **keywords})


def test_sources_that_only_running_tells(supervised):
    verifier("plain_check", isolation="inline")(lambda completion: float(len(completion)))
    try:
        supervised("plain_check")  # one batch proves nothing
        with pytest.raises(ValueError, match="'plain_check' gave no step with a score"):
            supervised("plain_check", max_steps=10)
    finally:
        REGISTRY.unregister("plain_check")


def test_stopping_the_verifier_is_no_way_out():
    """A completion that the verifier was too late on is one bad step."""
    live = LiveVerifier(get_verifier("math_steps"))
    live.verdicts = [Verdict(0.0, Status.TIMEOUT), Verdict(None, Status.ERROR), Verdict(1.0, steps=(Step(0, 2, 1.0),))]
    ids = [[65, 66, 67], [65], [65, 66]]

    characters = SimpleNamespace(decode=lambda ids, **_: "".join(map(chr, ids)))
    completions = Completions([{}] * 3, [""] * 3, [""] * 3, ids)
    assert Verifiers([live]).steps("math_steps", completions, characters) == [[(0, 3, 0.0)], [], [(0, 2, 1.0)]]


def test_what_is_known_of_a_composition():
    assert gated("math", "math_steps").gives_steps is True
    assert all_of("math", "exact").gives_steps is False
    assert all_of("math", "halves").gives_steps is None


PLAIN, STEPPED = Verdict(0.5), Verdict(0.5, steps=(Step(0, 1, 1.0),))
NOTHING = [Verdict(None), *(Verdict(score, Status.ERROR) for score in (None, 0.0))]
NOTHING += [Verdict(0.0, Status.TIMEOUT), Verdict(0.0, Status.UNPARSABLE)]
IDLE = [Verdict(1.0, steps=(Step(0, 1, None),)), Verdict(0.5, steps=(Step(0, 0, 1.0), Step(3, 3, 0.5)))]
"""Steps that nothing can be trained with."""


@pytest.fixture
def reads(build):
    verifier("mine", isolation="inline")(lambda completion: float(len(completion)))
    trainer = build(trainer={"reward_funcs": None}, verifiers=["mine"], advantage="process")
    stage = trainer.pipeline.advantages

    def reads(*verdicts, empty=False, training=True):
        trainer.model.train(training)
        scored = [
            [(step.start, step.end, float("nan") if step.score is None else step.score) for step in each.steps]
            for each in verdicts
        ]
        stage._require_steps("mine", scored, verdicts, [[] if empty else [1]] * len(verdicts))
        return stage.state_dict()

    yield reads
    REGISTRY.unregister("mine")


def test_a_verifier_without_a_step_in_so_many_judged_completions_stops_the_run(reads):
    assert reads(*NOTHING) == {}
    assert reads(PLAIN, empty=True) == {}
    assert reads(PLAIN, training=False) == {}
    assert reads(*[PLAIN] * 3, *IDLE) == {"stepless": 5}
    with pytest.raises(ValueError, match=f"'mine' gave no step with a score in {PATIENCE} completions"):
        reads(*[PLAIN] * (PATIENCE - 5))


def test_a_step_now_and_then_or_in_an_evaluation_is_enough(reads):
    assert reads(STEPPED, training=False) == {"stepless": None}
    assert reads(*[PLAIN] * PATIENCE) == {"stepless": None}
