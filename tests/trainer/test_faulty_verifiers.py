"""Verifiers, reward functions and step scorers that break in every way, in real steps: the run goes on, and it does not pay."""

import json
import math
import re

import pytest
import torch

from grpo_plus.advantages import RewardTable, compute_advantages
from grpo_plus.training.batch.advantages import PATIENCE
from grpo_verifiers import Status, Step, Verdict, Verifier, get_verifier, verifier, weighted
from grpo_verifiers.base import Pending
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.verdict import LARGEST
from grpo_verifiers.verifying import REGISTRY
from tests.trainer.faults import FAULTS, SOUND, Bent, Hostile, HostileText, breaking

TEXTS = ["42<|im_end|>", "4x<|im_end|>", "4<|im_end|>", "none<|im_end|>"]
"""The one with an x is the one that the verifiers below break on; the others score 1, 0.5 and 0."""
BROKEN = 1


@pytest.fixture
def add():
    names = []

    def add(name, fn, **settings):
        names.append(name)
        return verifier(name, **{"isolation": "inline", **settings})(fn)

    yield add
    for name in names:
        REGISTRY.unregister(name)


def label_of(kind):
    return re.sub("[^a-z0-9]", "_", kind)


@pytest.fixture(autouse=True)
def _texts(say):
    say(lambda _, row: TEXTS[row % 4])


def is_finite(model):
    return all(bool(parameter.isfinite().all()) for parameter in model.parameters())


@pytest.mark.parametrize("kinds", [list(FAULTS)[at : at + 8] for at in range(0, len(FAULTS), 8)], ids=lambda kinds: kinds[0])  # fmt: skip
def test_a_completion_that_breaks_its_check_scores_0_and_the_run_goes_on(checked, add, kinds):
    labels = [label_of(kind) for kind in kinds]
    for label, kind in zip(labels, kinds, strict=True):
        add(label, breaking(FAULTS[kind]))
    trainer = checked(*labels, advantage="center")
    logs = trainer._logs
    for label in labels:
        assert list(logs["extra"][f"{label}_status"])[:4] == ["correct", "error", "partial", "wrong"], label
        assert list(logs["rewards"][label])[:4] == [1.0, 0.0, 0.5, 0.0], label
        assert 0 < len(logs["extra"][f"{label}_reason"][BROKEN]) <= 2000, label
    expected = [len(labels) * value for value in (0.625, -0.375, 0.125, -0.375)]
    assert trainer.generated[0]["advantages"][:4].tolist() == pytest.approx(expected)
    assert is_finite(trainer.model)


def test_all_faults_together_in_workers_over_several_steps(checked, add):
    labels = [label_of(kind) for kind in FAULTS]
    for label, make in zip(labels, FAULTS.values(), strict=True):
        add(label, breaking(make), isolation="process")
    trainer = checked(*labels, advantage="zscore", max_steps=3)
    log = trainer.state.log_history[0]
    assert {log[f"verifiers/{label}/status/error"] for label in labels} == {0.25}
    assert {log[f"rewards/{label}/mean"] for label in labels} == {0.375}
    assert is_finite(trainer.model)


@pytest.mark.parametrize("kind", SOUND)
def test_numbers_of_every_kind_are_scores(checked, add, kind):
    make, score = SOUND[kind]
    add("sound", breaking(make))
    trainer = checked("sound")
    assert trainer._logs["rewards"]["sound"][BROKEN] == pytest.approx(score)
    assert trainer._logs["extra"]["sound_status"][BROKEN] != "error"
    assert is_finite(trainer.model)


@pytest.mark.parametrize(("policy", "advantages"), [("zero", [0.625, -0.375, 0.125, -0.375]), ("null", [0.5, 0.0, 0.0, -0.5])])  # fmt: skip
def test_the_policy_of_an_entry_holds_in_a_run(checked, add, *, policy, advantages):
    add("faulty", breaking(FAULTS["beyond float32"]))
    trainer = checked({"name": "faulty", "on_error": policy}, advantage="center")
    assert math.isnan(trainer._logs["rewards"]["faulty"][BROKEN]) == (policy == "null")
    assert trainer.generated[0]["advantages"][:4].tolist() == pytest.approx(advantages)
    add("overlapping", breaking(FAULTS["steps that overlap"]))
    with pytest.raises(VerifierFailedError, match=r"'overl.*on_error is 'raise'.*steps overlap: 0 to 3 and 2 to 5"):
        checked({"name": "overlapping", "on_error": "raise"})


@pytest.mark.parametrize("verifiers", [
    *([{"name": "large", "weight": weight}] for weight in (1e10, -1e10)),
    ["large", {"name": "large", "label": "again"}, {"name": "large", "label": "still", "weight": 2}],
])  # fmt: skip
@pytest.mark.parametrize("advantage", [None, "zscore"])
def test_a_sum_of_rewards_that_float32_cannot_hold_is_refused_where_it_is_made(checked, add, verifiers, advantage):
    add("large", breaking(lambda: 3e38))
    trainer = checked(*verifiers, advantage=advantage, max_steps=2)
    assert list(trainer._logs["extra"]["large_status"])[:4] == ["correct", "error", "partial", "wrong"]
    reason = trainer._logs["extra"]["large_reason"][BROKEN]
    assert all(words in reason for words in ("3e+38", "beyond ±"))
    assert is_finite(trainer.model)


@pytest.mark.parametrize("aggregate", ["min", "mean", "last", "product"])
def test_an_aggregate_that_float32_cannot_hold_is_refused(checked, add, aggregate):
    steps = (Step(0, 1, 1e38), Step(1, 2, -3e38))
    add("large", breaking(lambda: Verdict(0.0, steps=steps)))
    trainer = checked("large", advantage={"name": "process", "aggregate": aggregate, "steps_from": "large"})
    expected = {"min": -3e38, "mean": -1e38, "last": -3e38, "product": 0.0}[aggregate]
    assert trainer._logs["rewards"]["large"][BROKEN] == pytest.approx(expected)
    assert (trainer._logs["extra"]["large_status"][BROKEN] == "error") == (aggregate == "product")


def test_a_composition_whose_sum_is_no_score_is_refused(add):
    large = add("large", breaking(lambda: 3e38))
    for one, other in ([LARGEST, LARGEST], [2, 2], [LARGEST, -LARGEST]):
        made = weighted({large: one, get_verifier("exact"): other}, label="sum")
        found = made.verify_batch(None, ["4x", "none"], answer=["4x", "42"])
        assert [(v.score, v.status) for v in found] == [(0.0, Status.ERROR), (0.0, Status.WRONG)]
        assert "the weighted sum is not a valid score" in found[0].detail


class Foreign(Verifier):
    required_columns = optional_columns = property(lambda _: {})

    def __init__(self, do):
        super().__init__("foreign")
        self.do = do

    def start(self, prompts, completions, completion_ids=None, **columns):
        return self.do(completions)

    def check(self):
        return []

    def describe(self):
        return {}


def gives(verdicts, seconds=None):
    return lambda given: Pending(lambda: (verdicts(len(given)), seconds or [0.0] * len(given)))


BATCHES = {
    "raises when started": lambda completions: completions["no"],
    "raises when collected": lambda completions: Pending(lambda: completions["no"]),
    "gives nothing": lambda completions: None,
    "gives too few": gives(lambda count: [Verdict(1.0)] * (count - 1)),
    "gives odd times": gives(lambda count: [Verdict(1.0)] * count, ["soon"]),
}


@pytest.fixture
def foreign():
    """Registers a verifier of that class that starts a batch so."""
    yield lambda do: REGISTRY.register("foreign", Foreign(do))
    REGISTRY.unregister("foreign")


@pytest.mark.parametrize("kind", BATCHES)
def test_a_verifier_class_that_fails_on_a_batch_ends_the_run(checked, foreign, kind):
    foreign(BATCHES[kind])
    with pytest.raises(VerifierFailedError, match="'foreign' failed on a batch; repair it: "):
        checked("foreign", max_steps=5, advantage="center")


def test_a_verifier_class_that_gives_no_verdicts_fails_those_completions_only(checked, foreign):
    odd = [1.0, Bent(score=math.inf), Verdict(0.5), Hostile()]
    foreign(gives(lambda count: (odd * count)[:count]))
    trainer = checked("foreign", advantage="center")
    assert list(trainer._logs["extra"]["foreign_status"])[:4] == ["error", "error", "partial", "error"]


@pytest.mark.parametrize("detail", ["\ud800 half a pair \udfff", "\x00\x1b[2J\x07\r\x9b31m", "long " * 1_000_000, "hostile", "[bold red]x[/nothing]"])  # fmt: skip
def test_details_reach_tables_and_records_clean_and_bounded(checked, add, detail, tmp_path, capsys):
    detail = HostileText("text") if detail == "hostile" else detail
    add("hostile", breaking(lambda: Verdict(0.0, detail=detail)))
    trainer = checked("hostile", max_steps=1, log_completions=True, report=True)
    reason = trainer._logs["extra"]["hostile_reason"][BROKEN]
    assert type(reason) is str
    assert 0 < len(reason) <= 2000
    assert reason.encode()
    assert all(character.isprintable() or character in "\n\t\ufffd" for character in reason)
    trainer._logs["prompt"][0] = "\x1b[2J"  # TRL prints them as they are
    trainer._logs["completion"][0] = "\x1b]52;c;eA==\x07"
    capsys.readouterr()
    trainer.log({})
    shown = capsys.readouterr().out
    assert "]52;c" in shown
    assert not set(shown) & set("\x1b\x07")
    records = list((tmp_path / "out").rglob("groups.jsonl"))
    assert records
    assert all(line.isascii() and len(line) < 100_000 for line in records[0].read_text().splitlines())


def stepping(steps):
    def check(completion: str, completion_text: str) -> Verdict:
        found = steps(completion_text) if callable(steps) else steps
        return Verdict(1.0, steps=tuple(Step(*step) for step in found))

    return check


def whole_or(make):
    """One good step, but where the check breaks."""

    def check(completion: str, completion_text: str) -> object:
        return make() if "x" in completion else Verdict(1.0, steps=(Step(0, len(completion_text), 1.0),))

    return check


def process(*verifiers, **keywords):
    given = {"trainer": {"reward_funcs": None}, "verifiers": list(verifiers), "objective": "dapo"}
    return {**given, "advantage": {"name": "process", **keywords}, "max_steps": 1}


@pytest.mark.parametrize(("make", "named"), [
    *((make, {"steps_from": "faulty"}) for kind, make in FAULTS.items() if "step" in kind),
    *((FAULTS[kind], {}) for kind in ("steps that overlap", "a step of inf", "inf", "an exit")),
])  # fmt: skip
def test_a_step_verifier_that_breaks_on_a_completion_gives_it_one_bad_step(trained, add, *, make, named):
    add("faulty", whole_or(make))
    trainer = trained(**process("faulty", **named))
    log = trainer.state.log_history[0]
    assert (log["steps/per_completion"], log["steps/score_mean"]) == (1.0, pytest.approx(0.75))
    assert trainer.generated[0]["advantages"][BROKEN, 0] < 0 < trainer.generated[0]["advantages"][0, 0]
    assert is_finite(trainer.model)


@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_a_completion_that_breaks_the_call_for_a_batch_does_no_better_than_a_wrong_one(checked, add, isolation):
    def check(completions: list[str]) -> list[float]:
        return [{"42": 1.0, "4": -1.0, "none": 0.0}[completion] for completion in completions]

    add("whole", check, isolation=isolation)
    trainer = checked("whole", advantage="center")
    assert list(trainer._logs["extra"]["whole_status"])[:4] == ["correct", "error", "wrong", "wrong"]
    assert list(trainer._logs["rewards"]["whole"])[:4] == [1.0, 0.0, -1.0, 0.0]
    assert trainer.generated[0]["advantages"][:4].flatten().tolist() == [1.0, 0.0, -1.0, 0.0]
    assert is_finite(trainer.model)


def test_steps_in_any_order_and_beyond_the_end_are_fine_and_what_is_left_out_has_none(trained, add):
    add("ordered", stepping(lambda text: [(0, 1, 0.0), (1, len(text), 1.0)]))
    add("unordered", stepping(lambda text: [(1, 10**6, 1.0), (0, 0, 5.0), (0, 1, 0.0), (10**6, 10**7, 9.0)]))
    found = []
    for name in ("ordered", "unordered"):
        trainer = trained(**process(name, steps_from=name))
        found.append(trainer.generated[0]["advantages"])
    torch.testing.assert_close(*found)
    add("faulty", whole_or(lambda: math.inf))
    log = trained(**process({"name": "faulty", "on_error": "null"}, steps_from="faulty")).state.log_history[0]
    assert (log["steps/per_completion"], log["steps/score_mean"]) == (0.75, 1.0)


@pytest.mark.parametrize("check", [
    breaking(lambda: Verdict(0.0, Status.WRONG, "no such luck")), stepping([(10**6, 10**7, 1.0)]),
])  # fmt: skip
def test_a_verifier_named_for_steps_whose_steps_train_nothing_stops_the_run(trained, add, check):
    add("plain", check)
    settings = process("plain", {"name": "math_steps", "weight": 0}, steps_from="plain")
    trained(**settings | {"max_steps": PATIENCE // 8 - 1})
    with pytest.raises(ValueError, match=r"'plain' gave no step with a score in 32 completions.*such as math_steps"):
        trained(**settings | {"max_steps": PATIENCE // 8})


@pytest.mark.slow
def test_evaluations_are_held_against_nobody(build, add, sums):
    add("plain", breaking(lambda: 0.0))
    settings = process("plain", steps_from="plain")
    settings["trainer"]["eval_dataset"] = sums.select(range(2))
    trainer = build(**settings, per_device_eval_batch_size=8)
    for _ in range(6):
        trainer.evaluate()
    trainer.train()


@pytest.mark.parametrize(("steps", "said"), [
    (lambda: [(0, 2, 1.0), (1, 3, 0.0)], "steps of completion 0 .*steps overlap: 0 to 2 and 1 to 3"),
    (lambda: [(2, 1, 1.0)], "completion 0 .*start=2 and end=1"), (lambda: [(-1, 1, 1.0)], "completion 0 .*start=-1"),
    (lambda: [(0, 1)], "completion 0 .*not enough values"), (lambda: [(0, 1, "1")], "completion 0 "),
    (lambda: [(0.0, 1, 1.0)], "completion 0 .*Step.start must be an integer"), (lambda: None, "completion 0 are None"),
    (Hostile, "completion 0 "),
])  # fmt: skip
def test_a_step_scorer_that_gives_no_steps_is_told_where(trained, steps, said):
    with pytest.raises(ValueError, match=said):
        trained(trainer={"step_scorer": lambda prompts, **_: [steps() for _ in prompts]}, advantage="process")


def returns(name, *scores):
    def function(completions, **_):
        return [scores[row % 4] for row in range(len(completions))]

    function.__name__ = name
    return function


@pytest.mark.sample(0, 5)
@pytest.mark.parametrize("wild", [math.inf, -math.inf, 1e308, -1e39])
@pytest.mark.parametrize("advantage", ["zscore", "raw", "gdpo", "passk"])
def test_an_infinite_score_counts_as_zero_and_the_run_goes_on(trained, caplog, wild, advantage):
    functions = [returns("fine", 1.0, 0.5, 0.0, 0.25), returns("wild", 1.0, wild, 0.25, None)]
    keywords = {"k": 2} if advantage == "passk" else {}
    trainer = trained(trainer={"reward_funcs": functions}, advantage={"name": advantage, **keywords}, max_steps=2)
    rewards = [[1.0, 1.0], [0.5, 0.0], [0.0, 0.25], [0.25, None]]
    table = RewardTable.of(rewards * 2, groups=[0] * 4 + [1] * 4)
    expected = compute_advantages(advantage, table, **keywords)
    assert trainer.generated[0]["advantages"].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    (warned,) = [record.getMessage() for record in caplog.records if "counts as 0" in record.getMessage()]
    assert all(words in warned for words in ("'wild'", "2 times in 8"))


def test_beside_verifiers_too_where_the_hosts_advantages_train(trained):
    given = {"reward_funcs": [returns("wild", math.inf, 0.0, 1.0, 1.0)]}
    trainer = trained(trainer=given, verifiers=["math"], max_steps=1)
    assert trainer.generated[0]["advantages"].abs().max() < 2


@pytest.mark.sample(0, 3)
@pytest.mark.parametrize("size", [1e38, 3e38])
@pytest.mark.parametrize("advantage", ["zscore", "rloo", "process"])
def test_enormous_scores_train_are_logged_recorded_and_reported(trained, tmp_path, size, advantage):
    def scorer(prompts, **_):
        return [[(0, 1, (-1) ** row * size), (1, 2, size)] for row in range(len(prompts))]

    functions = [returns("vast", size, -size, size, size), returns("huge", size, size, -size, size)]
    extra = {"step_scorer": scorer} if advantage == "process" else {}
    trainer = trained(trainer={"reward_funcs": functions, **extra}, advantage=advantage, max_steps=1)
    assert trainer.generated[0]["advantages"].isfinite().all()
    assert trainer.generated[0]["advantages"].abs().max() > 0.5
    logged = trainer.state.log_history[0]
    assert all(math.isfinite(value) for name, value in logged.items() if name.startswith("advantages/"))
    assert (tmp_path / "out" / "report.html").stat().st_size > 1000
    groups = (tmp_path / "out" / "grpo_plus" / "groups.jsonl").read_text().splitlines()
    (group,) = [row for row in map(json.loads, groups) if row["kind"] == "group"][:1]
    assert group["completions"][1]["rewards"] == pytest.approx([-size, size], rel=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("wild", [math.inf, -math.inf, 1e308, 10**400])
def test_an_infinite_step_score_counts_as_zero(trained, caplog, wild):
    def scorer(prompts, **_):
        return [[(0, 1, wild if row % 4 == 1 else 1.0), (1, 2, None)] for row in range(len(prompts))]

    functions = [returns("silent", None, None, None, None)]
    trainer = trained(trainer={"reward_funcs": functions, "step_scorer": scorer}, advantage="process", max_steps=1)
    table = RewardTable.of([0.0] * 4, steps=[[(float(row != 1), 0, 1)] for row in range(4)])
    expected = compute_advantages("process", table)[:, 0].tolist()
    assert trainer.generated[0]["advantages"][:4, 0].tolist() == pytest.approx(expected, abs=1e-6)
    assert sum("the step scorer" in record.getMessage() for record in caplog.records) == 1
