"""Step verdicts in the trainer: on the right tokens, from the right verifier, with errors that name names."""

import pytest

from grpo_plus import GRPOPlusTrainer
from grpo_plus.advantages import RewardTable, compute_advantages
from grpo_verifiers import Step, Verdict, get_verifier, verifier
from tests.device import FLOAT32

SOLUTIONS = ["1+1=2\n2+1=3", "1+1=3\n3+1=4", "2+2=4\nso\n4+4=9", "hm"]
SCORES = [[1.0, 1.0], [0.0, 1.0], [1.0, None, 0.0], [None]]


@pytest.fixture
def solved(say):
    """Four completions of a prompt, the last of them cut off."""
    say(lambda _, row: SOLUTIONS[row % 4] + ("<|im_end|>" if row % 4 != 3 else ""))


@pytest.fixture(scope="module", autouse=True)
def halves():
    @verifier("halves", isolation="inline")
    def halves(completion: str, completion_text: str) -> Verdict:
        del completion
        middle = len(completion_text) // 2
        return Verdict(0.5, steps=(Step(0, middle, 1.0), Step(middle, len(completion_text), float(middle % 3))))

    yield halves
    from grpo_verifiers.verifying import REGISTRY

    REGISTRY.unregister("halves")


def config(*verifiers, **keywords):
    return {
        "advantage": "process",
        "verifiers": list(verifiers),
        "max_completion_length": 24,
        "max_steps": 1,
    } | keywords


@pytest.mark.slow
@pytest.mark.parametrize("credit", ["step", "return"])
def test_a_step_weighs_on_its_own_tokens(build, capture, solved, credit):
    """By hand: the tiny model's tokens are characters, and a step holds the line end behind it."""
    settings = config("math", {"name": "math_steps", "weight": 0}, advantage_kwargs={"credit": credit})
    trainer = build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **settings)
    kept = capture(trainer)
    trainer.train()
    rows, lengths = [], []
    for row in range(4):
        text = SOLUTIONS[row] + ("<|im_end|>" if row < 3 else "")
        ends = [at + 1 for at, character in enumerate(SOLUTIONS[row]) if character == "\n"]
        lengths.append(len(SOLUTIONS[row]) + (row < 3))
        rows.append(list(zip(SCORES[row], [0, *ends], [*ends, lengths[-1]], strict=True)))
        assert len(text) >= lengths[-1]
    table = RewardTable.of([0.0] * 4, steps=rows, lengths=lengths)
    expected = compute_advantages("process", table, credit=credit)
    found = kept[0]["advantages"]
    assert found.shape == (8, max(lengths))
    assert found[:4].tolist() == [pytest.approx(row, abs=1e-5) for row in expected.tolist()]
    assert found[4:].tolist() == found[:4].tolist()
    log = trainer.state.log_history[0]
    assert log["steps/per_completion"] == 2.0
    assert log["steps/scored_fraction"] == pytest.approx(6 / 8)
    assert log["steps/score_mean"] == pytest.approx(4 / 6)
    firsts = [expected[row, 0].item() for row in range(4)]
    assert log["advantages/step_1"] == pytest.approx(sum(firsts) / 4, abs=1e-5)
    assert log["rewards/math_steps/mean"] == pytest.approx(1 / 3)  # the worst step of each of three


@pytest.mark.slow
@pytest.mark.parametrize(("aggregate", "reward"), [("mean", 2 / 3), ("last", 2 / 3), ("product", 1 / 3), (None, 1 / 3)])
def test_the_reward_column_is_made_from_the_steps(build, solved, aggregate, reward):
    """Scores (1, 1), (0, 1), (1, none, 0): the fourth completion has none and does not count."""
    keywords = {} if aggregate is None else {"aggregate": aggregate}
    settings = config("math", {"name": "math_steps", "weight": 0}, advantage_kwargs=keywords)
    trainer = build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **settings)
    trainer.train()
    assert trainer.state.log_history[0]["rewards/math_steps/mean"] == pytest.approx(reward)


@pytest.mark.slow
def test_the_column_of_a_verifier_of_the_users_too_and_only_of_the_one_named(build, solved):
    chosen = {"steps_from": "halves", "aggregate": "min"}
    settings = config("halves", "math_steps", advantage_kwargs=chosen)
    trainer = build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **settings)
    trainer.train()
    log = trainer.state.log_history[0]
    ends = [len(text) + len("<|im_end|>") for text in SOLUTIONS[:3]] + [len(SOLUTIONS[3])]
    worst = [min(1.0, float(end // 2 % 3)) for end in ends]
    assert log["rewards/halves/mean"] == pytest.approx(sum(worst) / 4)
    assert log["rewards/math_steps/mean"] == pytest.approx(1 / 3)


@pytest.mark.slow
def test_a_verifier_of_the_users_gives_steps(build, capture, solved):
    trainer = build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **config("math", {"name": "halves", "weight": 0}))
    kept = capture(trainer)
    trainer.train()
    assert kept[0]["advantages"].abs().max() > 0.5


@pytest.mark.parametrize(
    ("verifiers", "keywords", "said"),
    [
        (["math", "exact"], {}, "no verifier gives any .math, exact.*math_steps"),
        (
            ["math_steps", {"name": "math_steps", "label": "again"}],
            {},
            "several verifiers give steps: math_steps, again",
        ),
        (["math", "math_steps"], {"steps_from": "math"}, "'math' gives no step scores: math_steps does"),
        (["math", "math_steps"], {"steps_from": "maths"}, "math_steps"),
        (
            ["math", {"name": "math_steps", "kwargs": {"aggregate": "last"}}],
            {"aggregate": "mean"},
            "aggregate is 'mean' and the verifier 'math_steps' has its own .'last'.*keep one",
        ),
        (["math", "math_steps"], {"aggregate": "sum"}, "aggregate.*'sum'"),
    ],
)
def test_sources_that_are_wrong_are_known_before_training(build, verifiers, keywords, said):
    with pytest.raises(ValueError, match=said):
        build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **config(*verifiers, advantage_kwargs=keywords))


@pytest.mark.slow
def test_sources_that_only_running_tells(build, solved):
    @verifier("plain_check", isolation="inline")
    def plain_check(completion: str) -> float:
        return float(len(completion))

    entries = ["plain_check"]
    build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **config(*entries)).train()  # one batch proves nothing
    with pytest.raises(ValueError, match="no verifier gave any: plain_check"):
        build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **config(*entries, max_steps=10)).train()
    with pytest.raises(ValueError, match="several verifiers give steps: halves, math_steps"):
        build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **config("halves", "math_steps")).train()
    named = config("halves", "math_steps", advantage_kwargs={"steps_from": "halves"})
    build(GRPOPlusTrainer, trainer={"reward_funcs": None}, **named).train()
    from grpo_verifiers.verifying import REGISTRY

    REGISTRY.unregister("plain_check")


def test_stopping_the_verifier_is_no_way_out():
    """A completion that the verifier was too late on is one bad step."""
    from grpo_plus.training.hooks import Completions
    from grpo_plus.training.verification import LiveVerifier, Verification
    from grpo_verifiers.verdict import Status

    live = LiveVerifier(get_verifier("math_steps"))
    live.verdicts = [Verdict(0.0, Status.TIMEOUT), Verdict(None, Status.ERROR), Verdict(1.0, steps=(Step(0, 2, 1.0),))]
    ids = [[65, 66, 67], [65], [65, 66]]

    class Characters:
        @staticmethod
        def decode(ids, **_):
            return "".join(map(chr, ids))

    completions = Completions([{}] * 3, [""] * 3, [""] * 3, ids)
    assert Verification([live]).steps(["math_steps"], completions, Characters()) == [[(0, 3, 0.0)], [], [(0, 2, 1.0)]]


def test_what_is_known_of_a_composition():
    from grpo_verifiers import all_of, gated

    assert gated("math", "math_steps").gives_steps is True
    assert all_of("math", "exact").gives_steps is False
    assert all_of("math", "halves").gives_steps is None


def test_the_quickstart_needs_one_line_changed():
    from pathlib import Path

    import yaml

    from grpo_plus import GRPOPlusConfig
    from grpo_plus.recipe.advantage import step_problems
    from grpo_plus.training.verification import Verification

    written = yaml.safe_load(Path(__file__).parents[2].joinpath("examples/quickstart.yaml").read_text())
    config = GRPOPlusConfig("out", advantage="process", verifiers=written["verifiers"], **FLOAT32, report_to="none")
    givers = Verification.of(config.recipe).step_givers
    assert givers == {"math": False, "math_steps": True}
    assert step_problems(config.recipe, scorer=False) == []
