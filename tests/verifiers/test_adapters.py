"""Reward functions of TRL as they are, and what is no verifier."""

import asyncio

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.errors import KeywordError, UnknownNameError


def chat(text):
    return [{"role": "assistant", "content": text}]


def exact(prompts, completions, completion_ids, answer, **kwargs):  # a built-in has the name too
    rows = zip(prompts, completions, completion_ids, answer, kwargs["level"], strict=True)
    return [
        None if level is None else float(completion[0]["content"] == gold and prompt == "p" and ids == [1])
        for prompt, completion, ids, gold, level in rows
    ]


def test_trl_functions_get_what_trl_gives_them_by_name_by_kwargs_or_async():
    made = get_verifier(exact)
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


def test_what_is_no_verifier_is_refused_with_what_is_accepted(tmp_path):
    model = "class Model:\n    def forward(self): ...\n    def state_dict(self): ...\nthing = Model()"
    for place, (text, said) in enumerate([
        ("thing = 5", "is a builtins.int; expected a check function, a TRL reward function"),
        (model, "reward models belong in reward_funcs"), ("thing = lambda: 1", "takes no completion"),
        ("class thing:\n    def __call__(self, completion): return 1.0", "is the class thing: give an instance"),
    ]):  # fmt: skip
        (tmp_path / f"odd{place}.py").write_text(text + "\n")
        with pytest.raises(KeywordError, match=said):
            get_verifier(f"./odd{place}.py:thing", base=tmp_path)
    for name in ("./odd0.py", "json", "mth"):
        with pytest.raises(UnknownNameError, match=r"unknown verifier .* refer to it as .* \./file\.py:attr"):
            get_verifier(name, base=tmp_path)
