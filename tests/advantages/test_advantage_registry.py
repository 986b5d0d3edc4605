import dataclasses
import importlib
import pickle
import textwrap

import pytest
import torch

from grpo_plus.advantages import EstimatorOutputError, RewardTable, advantage_metrics, compute_advantages
from grpo_plus.advantages.checking import keyword_problems, parameters_of, parts_of
from grpo_plus.advantages.estimator import Estimator, EstimatorFailedError, EstimatorKeywordError, NotAnEstimatorError
from grpo_plus.advantages.registry import advantages, get_advantage, register_advantage
from grpo_plus.recipe.forms import absolute_parts
from grpo_verifiers.errors import DuplicateNameError, PluginError

BUILTINS = [
    *("batch_whiten", "best_of_n", "center", "gae", "gdpo", "gigpo", "gpg", "maxrl", "mix"),
    *("opo", "passk", "process", "raw", "reinforce_pp", "rloo", "sign", "zscore"),
]


@pytest.fixture
def register():
    before = {entry.name for entry in advantages.entries()}
    yield register_advantage
    for entry in advantages.entries():
        if entry.name not in before:
            advantages.unregister(entry.name)


def doubled(table, *, factor=2.0):
    """Twice the reward."""
    return table.totals() * factor


def test_the_built_ins():
    assert [entry.name for entry in advantages.entries() if entry.way == "built-in"] == sorted(BUILTINS)
    for name in BUILTINS:
        estimator = get_advantage(name)
        assert estimator.name == name
        assert estimator.formula
        assert pickle.loads(pickle.dumps(estimator)) == estimator
    assert [n for n in BUILTINS if not get_advantage(n).group_relative] == ["gae", "mix", "raw", "reinforce_pp"]
    assert [n for n in BUILTINS if get_advantage(n).per != "completion"] == [
        "gae",
        "gigpo",
        "mix",
        "process",
        "reinforce_pp",
    ]


def test_registered_functions_stay_functions(register):
    made = register("test_doubled")(doubled)
    assert made is doubled
    assert pickle.loads(pickle.dumps(made)) is doubled
    assert compute_advantages("test_doubled", RewardTable.of([1, 0]), factor=3).tolist() == [3, 0]
    assert get_advantage("test_doubled").formula == "Twice the reward"
    assert compute_advantages(doubled, RewardTable.of([1, 1])).tolist() == [0, 0]


def test_a_taken_name_raises_and_shows_both_sides(register, tmp_path):
    with pytest.raises(
        DuplicateNameError, match=r"zscore.*built in as grpo_plus\.advantages\.zscore.*test_advantage_registry\.py"
    ):
        register("zscore")(doubled)
    register("test_twice")(doubled)
    (tmp_path / "other.py").write_text(
        "from grpo_plus.advantages import register_advantage\n"
        "@register_advantage('test_twice')\ndef other(table):\n    return table.totals()\n"
    )
    with pytest.raises(PluginError, match=r"test_twice.*test_advantage_registry\.py.*other\.py"):
        get_advantage(f"{tmp_path}/other.py:other")
    assert get_advantage("zscore").fn.__module__ == "grpo_plus.advantages.zscore"
    assert get_advantage("test_twice").fn is doubled


def test_a_file_by_reference_and_a_reference_to_a_built_in_function_which_keeps_what_it_is(tmp_path, register):
    (tmp_path / "mine.py").write_text(
        textwrap.dedent('''
        import torch
        from grpo_plus.advantages import register_advantage

        def plain(table, *, shift: float = 0.0):
            """R + shift."""
            return table.totals() + shift

        @register_advantage("test_tokens", per="token", group_relative=False)
        def tokens(table):
            return torch.ones(len(table.rewards), table.width)

        NUMBER = 3
        class Thing: pass
        ''')
    )
    table = RewardTable.of([1, 0], lengths=[1, 2])
    assert compute_advantages(get_advantage(f"{tmp_path}/mine.py:plain"), table, shift=1).tolist() == [2, 1]
    assert get_advantage(f"{tmp_path}/mine.py:tokens") is get_advantage("test_tokens")
    assert compute_advantages("test_tokens", table).tolist() == [[1, 0], [1, 1]]
    assert keyword_problems(get_advantage(f"{tmp_path}/mine.py:plain"), {"shfit": 1}) == [
        f"advantage estimator '{tmp_path}/mine.py:plain': unknown keyword 'shfit'. Did you mean 'shift'? There is: shift."
    ]
    for name, kind in (("Thing", "<class .*>"), ("NUMBER", "3")):
        with pytest.raises(
            NotAnEstimatorError, match=f"estimator '{tmp_path}/mine.py:{name}' is {kind}, expected a function"
        ):
            get_advantage(f"{tmp_path}/mine.py:{name}")
    kwargs = {"parts": {"./mine.py:plain": 2.0, "raw": 1.0}, "./mine.py:plain": {"shift": 1.0}}
    assert absolute_parts({"band": 1.0}, tmp_path) == {"band": 1.0}
    assert absolute_parts({"parts": 3}, tmp_path) == {"parts": 3}
    anchored = absolute_parts(kwargs, tmp_path)
    assert [leaf.name for leaf, _ in parts_of(get_advantage("mix"), anchored)] == [f"{tmp_path}/mine.py:plain", "raw"]
    assert compute_advantages("mix", table, **anchored).tolist() == [5, 2]
    assert get_advantage("grpo_plus.advantages.process:process").per == "step"
    assert not get_advantage("grpo_plus.advantages.raw:raw").group_relative


def test_an_entry_point_of_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "grpo_plus_test_pack.py").write_text("def halved(table):\n    return table.totals() / 2\n")
    info = tmp_path / "grpo_plus_test_pack-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grpo-plus-test-pack\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[grpo_plus.advantages]\ntest_halved = grpo_plus_test_pack:halved\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    assert compute_advantages("test_halved", RewardTable.of([1, 0])).tolist() == [0.5, 0]
    (entry,) = [entry for entry in advantages.entries() if entry.name == "test_halved"]
    assert entry.way == "entry point"
    assert "grpo-plus-test-pack 1.0" in entry.source
    with pytest.raises(DuplicateNameError, match="grpo-plus-test-pack"):
        register_advantage("test_halved")(doubled)
    advantages.unregister("test_halved")


def test_misuse_of_the_decorator_is_explained():
    with pytest.raises(TypeError, match="takes the name first"):
        register_advantage(doubled)
    for per in ("tokens", "parts"):
        with pytest.raises(ValueError, match=f"per is '{per}'"):
            register_advantage("test_x", per=per)
    with pytest.raises(NotAnEstimatorError, match="whose first parameter is the RewardTable"):
        register_advantage("test_x")(lambda *, band: None)
    with pytest.raises(NotAnEstimatorError, match="class"):
        register_advantage("test_x")(Estimator)
    assert "test_x" not in advantages


BAD_KEYWORDS = [
    ("sign", {"band": -0.1}, ["'band' is -0.1, expected a finite number of at least 0"]),
    ("sign", {"bnad": 1}, ["Did you mean 'band'"]),
    ("center", {"eps": 1}, ["unknown keyword 'eps'"]),
    ("zscore", {"eps": -1, "ddof": 2, "scale": "all"}, ["'ddof' is 2, expected one of 0, 1", "'scale'", "'eps' is -1"]),
    ("zscore", {"eps": float("inf")}, ["'eps' is inf"]),
    ("passk", {"k": 0}, ["'k' is 0, expected a finite number of at least 1"]),
    ("passk", {"k": 2.5}, ["'k'"]),
    ("zscore", {"ddof": "0"}, ["'ddof' is '0', expected one of 0, 1."]),
    ("passk", {"eps": 1e-4, "ddof": 1}, ["'eps'", "'ddof'"]),
    ("process", {"credit": "all", "outcome_weight": float("inf"), "steps_from": 3}, ["'credit'", "is 3", "is inf"]),
    ("process", {"gamma": 1.5, "credit": "return"}, ["'gamma' is 1.5, expected a number of at least 0 and at most 1"]),
    ("process", {"gamma": 0.9}, ["'gamma' is 0.9, but with credit 'step' a token carries its own step only"]),
    ("mix", {"parts": {"process": 1.0}, "process": {"gamma": 0.9}}, ["part of it: advantage estimator 'process': key"]),
    ("mix", {}, ["'parts' is required"]),
    ("mix", {"parts": {}}, ["'parts' is empty"]),
    ("mix", {"parts": {"sign": 0, "zscore": 0.0}}, ["all parts (sign, zscore) are 0"]),
    ("mix", {"parts": {"sign": 10**400}}, ["'parts' is"]),
    ("mix", {"parts": ["sign"]}, ["'parts' is ['sign']"]),
    ("mix", {"parts": {"mix": 1, "sgn": 1, "raw": float("inf")}, "rwa": {}},
     ["Did you mean 'raw'", "is a mix itself", "Did you mean 'sign'", "weight of part 'raw' is inf"]),
    ("mix", {"parts": {"sign": 1, "process": 1}, "sign": {"band": -1}, "process": {"credit": "no"}}, ["'band' is -1", "'credit' is 'no'"]),
    ("mix", {"parts": {"sign": 1}, "sign": 0.5}, ["keywords are 0.5, expected a mapping"]),
    ("gae", {"lam": 1.5, "gamma": -0.1}, ["'lam' is 1.5, expected", "'gamma' is -0.1"]),
    ("gae", {"length_alpha": 0.0, "whiten": "yes"}, ["'length_alpha' is 0.0", "'whiten'"]),
    ("gae", {"lam": 0.95, "length_alpha": 0.05}, ["keep one of the two"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "keywords", "texts"), BAD_KEYWORDS)
def test_every_problem_is_found_before_and_at_the_call(name, keywords, texts):
    problems = keyword_problems(get_advantage(name), keywords)
    assert len(problems) == len(texts)
    for text in texts:
        assert any(text in problem for problem in problems), (text, problems)
    with pytest.raises(EstimatorKeywordError) as caught:
        compute_advantages(name, RewardTable.of([1, 0]), **keywords)
    assert str(caught.value).split("\n") == problems
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_the_keywords_of_process_include_those_of_spreading():
    found = {name: parameter.default for name, parameter in parameters_of(get_advantage("process")).items()}
    own = {"eps": 1e-4, "ddof": 1, "steps_from": None, "aggregate": None}
    assert found == own | {"credit": "step", "gamma": None, "outcome_weight": None}
    for fine in ({"gamma": 1.0}, {"steps_from": "prm", "credit": "return", "outcome_weight": 1}):
        assert keyword_problems(get_advantage("process"), fine) == []


def test_annotations_for_type_checkers_only_do_not_switch_checks_off():
    def mine(table, *, band: float = 0.0):
        return table.totals()

    mine.__annotations__ |= {"table": "OnlyForTypeCheckers", "return": "OnlyForTypeCheckers"}
    with pytest.raises(EstimatorKeywordError, match="'band' is 'wide'"):
        compute_advantages(mine, RewardTable.of([1, 0]), band="wide")


@pytest.mark.parametrize(("value", "message"), [
    (lambda t: t.rewards, r"shape \(2, 1\).*expected.*shape \(2,\)"),
    (lambda t: t.totals().long(), "returned torch.int64"),
    (lambda t: t.totals().tolist(), "returned list"),
    (lambda t: t.totals().sum(), r"of shape \(\) on cpu, expected.*shape \(2,\)"),
    (lambda t: t.totals().masked_fill(t.totals() == 1, float("nan")), r"nan at \[0\]"),
    (lambda t: t.totals() / 0, r"inf at \[0\]"),
])  # fmt: skip
def test_what_an_estimator_returns_is_checked_by_name(value, message):
    with pytest.raises(EstimatorOutputError, match=message) as caught:
        compute_advantages(Estimator("mine", value), RewardTable.of([1, 0.5]))
    assert "'mine'" in str(caught.value)


@pytest.mark.parametrize(("raised", "said"), [
    (ZeroDivisionError("division by zero"), "raised ZeroDivisionError: division by zero"),
    (AssertionError(), "raised AssertionError "),
    (SystemExit(0), "raised SystemExit: 0"),
    (type("Hostile", (ValueError,), {"__str__": lambda _: 1 / 0})(), "raised Hostile: "),
])  # fmt: skip
@pytest.mark.parametrize("per", ["completion", "token", "step"])
def test_an_estimator_that_raises_is_named_and_its_exception_is_the_cause(raised, said, per):
    def fails(_table):
        raise raised

    table = RewardTable.of([1, 0], steps=[[(1.0, 0, 1)], [(0.0, 0, 1)]])
    with pytest.raises(EstimatorFailedError, match=said) as caught:
        compute_advantages(Estimator("mine", fails, per=per), table)
    assert "'mine'" in str(caught.value)
    assert "test_advantage_registry.py" in str(caught.value)
    assert caught.value.__cause__ is raised


def test_a_part_of_a_mix_that_raises_is_the_one_that_is_named_and_ctrl_c_stays_ctrl_c(register):
    @register("test_fails_in_a_mix")
    def fails(_table):
        return 1 / 0

    with pytest.raises(EstimatorFailedError, match="'test_fails_in_a_mix' raised ZeroDivisionError") as caught:
        compute_advantages("mix", RewardTable.of([1, 0]), parts={"center": 1.0, "test_fails_in_a_mix": 1.0})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def interrupted(_table):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute_advantages(interrupted, RewardTable.of([1, 0]))


def test_the_zero_rules_hold_for_any_group_relative_function():
    naive = Estimator("naive", lambda t: (t.totals() - t.totals().nanmean()) / 0.0 + 5)
    table = RewardTable.of([0.7, 0.7, 1, None], groups=[0, 0, 1, 1])
    assert compute_advantages(naive, table).tolist() == [0, 0, 0, 0]
    free = Estimator("free", lambda t: torch.full((4,), 5.0), group_relative=False)
    assert compute_advantages(free, table).tolist() == [5, 5, 5, 0]


def test_a_step_estimator_of_a_user_sees_trainable_steps_is_spread_and_never_discounted_twice():
    seen = []

    def plus_one(table):
        seen.append(len(table.steps))
        return table.steps.scores + 1

    estimator = Estimator("plus_one", plus_one, per="step")
    held = [[(1.0, 0, 1), (0.0, 1, 2), (None, 2, 3), (5.0, 9, 12)], [(1.0, 0, 2)]]
    table = RewardTable.of([1, 0], lengths=[4, 2], groups=[0, 1], steps=held)
    assert compute_advantages(estimator, table).tolist() == [[2, 1, 0, 0], [0, 0, 0, 0]]
    assert seen == [4]
    assert compute_advantages(estimator, table, credit="return").tolist() == [[3, 1, 0, 0], [0, 0, 0, 0]]
    assert compute_advantages(estimator, table, credit="return", gamma=0.5).tolist() == [[2.5, 1, 0, 0], [0, 0, 0, 0]]

    def doubled(table, *, gamma: float = 2.0):
        return gamma * table.steps.scores

    estimator = Estimator("doubled", doubled, per="step", group_relative=False)
    table = RewardTable.of([1], lengths=[2], steps=[[(1.0, 0, 1), (1.0, 1, 2)]])
    assert compute_advantages(estimator, table, gamma=0.5).tolist() == [[0.5, 0.5]]
    assert compute_advantages(estimator, table, credit="return", gamma=0.5).tolist() == [[1.0, 0.5]]


def test_metrics_count_zeros_and_dead_groups():
    table = RewardTable.of([1, 0, 1, 1, 0.5, 0.5, None, 1], groups=[0, 0, 1, 1, 2, 2, 3, 3])
    estimator = get_advantage("center")
    found = advantage_metrics(estimator, table, compute_advantages(estimator, table))
    assert (found["advantages/zero_fraction"], found["advantages/dead_group_fraction"]) == (0.75, 0.75)
    assert found["frac_reward_zero_std"] == 0.5  # the last group has one reward, hence no deviation at all
    assert found["advantages/abs_mean"] == 0.125
    assert found["advantages/std"] == pytest.approx(torch.tensor([0.5, -0.5, 0, 0, 0, 0, 0, 0]).std().item())
    assert not any(name.startswith("steps/") for name in found)
    table, estimator = RewardTable.of([1, 0, 0, 1], groups=[0, 0, 0, 1]), get_advantage("best_of_n")
    found = advantage_metrics(estimator, table, compute_advantages(estimator, table))
    assert found["advantages/dead_group_fraction"] == 0.5  # one advantage that is not zero makes a group alive
    assert found["advantages/zero_fraction"] == 0.75


def test_metrics_of_steps_and_of_their_states():
    held = [[(1.0, 0, 2), (0.0, 2, 3)], [(1.0, 1, 2), (None, 2, 3)]]
    table = RewardTable.of([1, 0], lengths=[4, 3], steps=held)
    estimator = get_advantage("process")
    values = compute_advantages(estimator, table, ddof=0, eps=0)
    found = advantage_metrics(estimator, table, values)
    assert (found["advantages/zero_fraction"], found["steps/per_completion"]) == (pytest.approx(3 / 7), 2)
    assert (found["steps/scored_fraction"], found["steps/score_mean"]) == (0.75, pytest.approx(2 / 3))
    with pytest.raises(ValueError, match="shape"):
        advantage_metrics(estimator, table, values[:1])
    held = [[(1.0, 0, 1), (0.0, 1, 2), (0.5, 2, 3)], [(1.0, 0, 1), (0.0, 1, 2), (0.5, 2, 3)]]
    for states, share in (([5, -1, 6, 5, -1, 7], 2 / 6), ([5, 5, 5, -1, -1, 7], 3 / 6), ([0, 1, 2, 3, 4, 5], 0.0)):
        table = RewardTable.of([1, 0], lengths=[3, 3], steps=held)
        steps = dataclasses.replace(table.steps, states=torch.tensor(states))
        table = dataclasses.replace(table, steps=steps)
        found = advantage_metrics(get_advantage("process"), table, torch.ones(2, 3))
        assert found["advantages/anchored_fraction"] == pytest.approx(share)
