"""Reward functions of TRL as they are, and rubrics of Prime Intellect's verifiers package."""

import asyncio
import inspect
import threading

import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.errors import KeywordError, PluginError, UnknownNameError, VerifierError


def chat(text):
    return [{"role": "assistant", "content": text}]


def trl_style(prompts, completions, completion_ids, answer, **kwargs):
    rows = zip(prompts, completions, completion_ids, answer, kwargs["level"], strict=True)
    return [
        None if level is None else float(completion[0]["content"] == gold and prompt == "p" and ids == [1])
        for prompt, completion, ids, gold, level in rows
    ]


def test_trl_functions_get_what_trl_gives_them_by_name_by_kwargs_or_async():
    made = get_verifier(trl_style)
    assert (made.isolation, made.required_columns) == ("process", {"answer": "answer"})
    scores = made(
        prompts=["p"] * 3, completions=[chat("a"), chat("b"), chat("c")], completion_ids=[[1]] * 3,
        answer=["a", "a", "a"], level=[1, 1, None], trainer_state=object(), log_extra=print, log_metric=print,
    )  # fmt: skip
    assert scores == [1.0, 0.0, None]

    def check(**kwargs):
        return [float(len(c) + len(p)) for c, p in zip(kwargs["completions"], kwargs["prompts"], strict=True)]

    assert get_verifier(check)(["pp", "p"], ["ccc", "c"], [[1], [2]]) == [5.0, 2.0]

    async def later(completions, **kwargs):
        await asyncio.sleep(0)
        return [1.0] * len(completions)

    assert get_verifier(later)(["p"] * 2, ["a", "b"]) == [1.0, 1.0]


def test_functions_that_need_the_trainer_run_beside_it_and_others_in_workers():
    def check(completions, trainer_state, **kwargs):
        return [float(trainer_state.global_step)] * len(completions)

    class State:
        global_step = 7

    made = get_verifier(check)
    assert (made.isolation, made(["p"], ["c"], trainer_state=State())) == ("inline", [7.0])
    with pytest.raises(KeywordError, match="'trainer_state', which exists in the trainer's process only"):
        get_verifier(check, isolation="process")

    def check(completions, log_extra=None, log_metric=None, **kwargs):
        if log_metric:
            log_metric("mine", 3.0)
        return [1.0] * len(completions)

    logged = {}
    assert get_verifier(check).isolation == "process"
    assert get_verifier(check)(["p"], ["c"], log_metric=logged.__setitem__) == [1.0]
    assert "mine" not in logged
    get_verifier(check, isolation="inline")(["p"], ["c"], log_metric=logged.__setitem__)
    assert logged["mine"] == 3.0


@pytest.mark.slow
def test_trls_own_rewards_are_taken_by_reference():
    rewards = pytest.importorskip("trl.rewards")
    completions = [chat("<think>a</think>\\boxed{42}"), chat("\\boxed{41}"), chat("no")]
    columns = {"solution": ["$42$", "$42$", "$42$"]}
    for fn in (rewards.accuracy_reward, rewards.think_format_reward):
        made = get_verifier(f"trl.rewards:{fn.__name__}")
        assert made.__name__ == fn.__name__
        own = fn(completions=completions, prompts=["p"] * 3, **columns)
        assert made(["p"] * 3, completions, [[1]] * 3, **columns) == own


class Rubric:
    """The parts of verifiers.Rubric (0.1) that the adapter touches, under their names."""

    def __init__(self, funcs, weights=None, parser=None):
        self.funcs, self.weights = funcs, weights or [1.0] * len(funcs)
        self.class_objects = {"parser": parser}

    # fmt: off
    def _get_reward_funcs(self): return self.funcs
    def _get_reward_weights(self): return self.weights
    def _is_group_func(self, fn): return bool({"completions", "states", "answers"} & set(inspect.signature(fn).parameters))
    # fmt: on


class Parser:
    def parse_answer(self, completion):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        return text.rpartition("=")[2].strip()


def exact_answer(completion, answer, parser):
    return parser.parse_answer(completion) == answer


async def polite(completion, state, info, task, **kwargs):
    await asyncio.sleep(0)
    assert state["answer"] == kwargs["answer"]
    return info["bonus"] if kwargs["level"] == 2 and task == "default" else 0.0


def never(completion):
    raise AssertionError("a metric without weight is not asked for")


def test_a_rubric_adds_its_weighted_functions_also_for_groups_of_a_prompt():
    made = get_verifier(Rubric([exact_answer, polite, never], [1.0, 0.5, 0.0], Parser()), label="rubric")
    assert made.isolation == "process"
    columns = {"answer": ["4", "4"], "info": ['{"bonus": 1.0}', {"bonus": 0.5}], "level": [2, 2]}
    found = made.verify_batch([chat("q")] * 2, [chat("x = 4"), "x = 5"], **columns)
    assert [(v.score, v.status) for v in found] == [(1.5, Status.CORRECT), (0.25, Status.PARTIAL)]
    assert found[0].detail == "exact_answer=1, polite=1"

    def shortest(completions, answers):
        assert len(set(answers)) == 1
        return [float(len(c) == min(map(len, completions))) for c in completions]

    made = get_verifier(Rubric([shortest, exact_answer], [1.0, 1.0], Parser()))
    found = made.verify_batch(["p", "q", "p", "q"], ["x = 4", "x = 55", "xx = 4", "x = 7"], answer=["4", "5", "4", "5"])
    assert [v.score for v in found] == [2.0, 0.0, 1.0, 1.0]


def longest(completions, answers):
    assert len(set(answers)) == 1
    lengths = [1 / (completion != "bad") * len(completion) for completion in completions]
    return [float(length == max(lengths)) for length in lengths]


@pytest.mark.parametrize("isolation", ["process", "inline"])
def test_a_completion_that_breaks_a_function_for_groups_costs_its_prompt_only(isolation):
    made = get_verifier(Rubric([longest]), isolation=isolation)
    texts = ["aa", "b", "a", "bb", "c", "bad", "d", "dd"]
    found = made.verify_batch(["p", "q", "p", "q", "r", "r", "s", "s"], texts, answer=[*"ababccdd"])
    assert [v.score for v in found] == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    assert [v.status.value == "error" for v in found] == [False] * 4 + [True] * 2 + [False] * 2
    alone = made.verify_batch(["r", "r"], ["c", "bad"], answer=["c", "c"])
    assert {v.status for v in alone} == {Status.ERROR}


def test_a_rubric_fails_as_an_error_stays_with_its_client_and_comes_with_an_environment():
    def broken(completion):
        raise RuntimeError("the endpoint is down")

    found = get_verifier(Rubric([broken])).verify("x")
    assert (found.score, found.status, "the endpoint is down" in found.detail) == (0.0, Status.ERROR, True)
    assert get_verifier(Rubric([broken]), on_error="null").verify("x").score is None
    rubric = Rubric([exact_answer], parser=Parser())
    rubric.class_objects["judge_client"] = threading.Lock()
    made = get_verifier(rubric)
    assert (made.isolation, made.verify("x = 4", answer="4").score) == ("inline", 1.0)

    class Environment:
        rubric = Rubric([exact_answer], parser=Parser())

    assert get_verifier(Environment(), label="env").verify("x = 4", answer="4").score == 1.0


def test_a_real_rubric_is_taken():
    vf = pytest.importorskip("verifiers")
    if not hasattr(vf, "Rubric"):
        pytest.skip("this release of verifiers has no Rubric")
    made = get_verifier(vf.Rubric(funcs=[exact_answer], weights=[2.0], parser=Parser()))
    assert made.verify("x = 4", answer="4").score == 2.0


def test_what_is_no_verifier_is_refused_with_what_is_accepted(tmp_path, monkeypatch):
    model = "class Model:\n    def forward(self): ...\n    def state_dict(self): ...\nthing = Model()"
    for place, (text, said) in enumerate([
        ("thing = 5", "is a builtins.int"), (model, "reward models belong into reward_funcs"), ("thing = lambda: 1", "takes no completion"),
        ("class thing:\n    def __call__(self, completion): return 1.0", "is the class thing: refer to an instance"),
    ]):  # fmt: skip
        (tmp_path / f"odd{place}.py").write_text(text + "\n")
        with pytest.raises(KeywordError, match=said):
            get_verifier(f"./odd{place}.py:thing", base=tmp_path)
    (tmp_path / "plain.py").write_text("def my_own(completion):\n    return 1.0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PluginError, match=r"name what judges, as in \./plain\.py:my_own"):
        get_verifier("./plain.py")
    for name in ("json", "mth", "me/nowhere"):  # an installed module that is no environment is none
        with pytest.raises(UnknownNameError, match="unknown verifier"):
            get_verifier(name)


ENVIRONMENT = """
def exact_answer(completion, answer, **_): return float(completion.endswith(answer))
class Rubric:
    parser, class_objects = None, {{}}
    def _get_reward_funcs(self): return [exact_answer]
    def _get_reward_weights(self): return [2.0]
class Environment:
    rubric = Rubric()
def load_environment({signature}): return {returned}
"""


@pytest.fixture
def prime(tmp_path, monkeypatch):
    """A module as Prime's tools find it: on the path, with ``load_environment``."""

    def prime(signature="", returned="Environment()", name="my_env"):
        (tmp_path / f"{name}.py").write_text(ENVIRONMENT.format(signature=signature, returned=returned))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.chdir(tmp_path)
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
        return name

    return prime


@pytest.mark.parametrize(
    "spelled", ["{name}:load_environment", "./{name}.py", "./{name}.py:load_environment", "{name}", "{dashes}", "me/{dashes}"]
)  # fmt: skip
def test_an_environment_goes_by_every_name_that_primes_tools_take(prime, spelled):
    name = prime(name=f"env_{abs(hash(spelled)) % 10**8}")
    made = get_verifier(spelled.format(name=name, dashes=name.replace("_", "-")), label="env")
    assert (made.verify("so 4", answer="4").score, made.verify("so 5", answer="4").score) == (2.0, 0.0)


@pytest.mark.parametrize(("signature", "returned", "said"), [
    ("split", "Environment()", r"load_environment\(\) failed: TypeError: load_environment\(\) missing 1 required"),
    ("", "3", r"load_environment\(\) returned int, expected an environment with a rubric"),
])  # fmt: skip
def test_an_environment_that_cannot_be_made_says_why(prime, signature, returned, said):
    with pytest.raises(VerifierError, match=said):
        get_verifier(prime(signature, returned, name=f"odd_{abs(hash(said)) % 10**8}"))
