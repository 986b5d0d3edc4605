"""Whatever a model writes: a verdict in bounds, in linear time, with a detail that can be stored; and options checked."""

import inspect
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grpo_verifiers.text as text_checks
from grpo_verifiers import get_verifier
from grpo_verifiers.verdict import Verdict
from grpo_verifiers.verifying import REGISTRY
from tests.waiting import no_hang

CALLS = {
    "choice": {"answer": "A"}, "exact": {"answer": "x", "tag": "answer", "collapse_whitespace": True}, "language": {"language": "en"},
    "json_schema": {"schema": {"type": "object"}}, "numeric": {"answer": 1}, "numeric last": {"answer": 1, "source": "last"}, "regex": {"pattern": "x+"},
    "repetition": {"n": 4}, "tag_count": {}, "think_format": {"answer": "answer"},
}  # fmt: skip
BOUNDS = {"repetition": (-1.0, 0.0)}
PIECES = [
    "<think>", "</think>", "<answer>", "</answer>", "\\boxed{", "{", "}", "[", "]", "$", "$$", "`", "```\n", "```json\n", "\\[", "\\]", "#### ",
    "Answer: ", "answer is ", "A", "B", ", ", " or ", "1", "1,", ".", "e", "/", "-", "\n", " ", '"', ":", "\\", "\ud800", "\0", "\u200b", "数", "α",
    "🙂", "\u0301", "(", ")", "%", "*", "是", "option ",
]  # fmt: skip


def check(name, text):
    verdict = getattr(text_checks, name.split()[0])(text, **CALLS[name])
    assert isinstance(verdict, Verdict)
    low, high = BOUNDS.get(name, (0.0, 1.0))
    assert low <= verdict.score <= high
    assert len(verdict.detail) <= 400
    json.dumps(verdict.detail, ensure_ascii=False).encode()


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=150, deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=25))
def test_any_text_gets_a_verdict(name, parts):
    check(name, "".join(parts))


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_a_megabyte_of_anything_takes_linear_time(name):
    rng = random.Random(0)
    texts = [piece * (60_000 // len(piece)) for piece in PIECES]
    texts += [
        "Answer" + " " * 200_000, "answer is" * 20_000, "[1," * 60_000, '{"a":' * 40_000, "A, " * 60_000, "1/" * 90_000, "(A)" * 60_000,
        "Answer: " + "A, " * 60_000, "111," * 50_000 + "x", "\\boxed{A}" * 20_000, "#### 1\n" * 10_000, "x " * 500_000,
        *("".join(form % i for i in range(20_000)) for form in ("\\boxed{A. %d}", "<answer>A. %d</answer>")), "".join(rng.choices(PIECES, k=80_000)),
    ]  # fmt: skip
    with no_hang():  # quadratic time would be hours; linear time is a second or two for 60 texts
        for text in texts:
            check(name, text)


BAD_OPTIONS = {
    "choice": [{"letters": "ABA"}, {"letters": "ab"}, {"letters": "A"}, {"think": "<think>"}],
    "exact": [{"tag": "<answer>"}, {"think": ""}],
    "json_schema": [{"schema": {"type": "strin"}}, {"schema": {"$ref": "http://x.example/s"}}, {"schema": {"$ref": "#/nowhere"}}],
    "language": [{"language": "klingon"}],
    "length_cosine": [{"max_len": 0}, {"max_len": 5, "shortest": float("inf")}],
    "length_kimi": [],
    "length_overlong": [{"max_len": 10, "cache": 11}, {"max_len": 10, "cache": -1}, {"max_len": 10, "cache": 1, "max_penalty": 0.5}],
    "numeric": [{"rel_tol": 1}, {"rel_tol": -0.1}, {"abs_tol": float("inf")}],
    "regex": [{"pattern": "(a"}, {"pattern": "a{99999999999999}"}],
    "repetition": [{"n": 0}, {"n": 65}, {"max_penalty": 1.0}],
    "tag_count": [{"tags": []}, {"tags": ["a", "a"]}, {"tags": ["<a>"]}],
    "think_format": [{"think": "<think>"}, {"answer": "think"}, {"min_think": 0}],
}  # fmt: skip
GOOD_OPTIONS = {
    "json_schema": {"schema": {"type": "object"}}, "length_cosine": {"max_len": 100}, "length_overlong": {"max_len": 100, "cache": 20}, "regex": {"pattern": "a"},
}  # fmt: skip


def test_options_are_checked_once_and_named_with_their_value():
    assert set(BAD_OPTIONS) == set(text_checks.__all__)
    for name in BAD_OPTIONS:
        assert get_verifier(name, **GOOD_OPTIONS.get(name, {})).check() == []
    for name, options in (("repetition", {"n": "three"}), ("regex", {})):
        assert len(REGISTRY.get(name).derive(options=options).check()) == 1
    assert len(REGISTRY.get("numeric").derive(options={"rel_tol": 2, "abs_tol": -1, "think": "<t>"}).check()) == 3
    with pytest.raises(ValueError, match="n is 'three'"):
        text_checks.repetition("a", n="three")
    with pytest.raises(ValueError, match="part is 'all'"):
        text_checks.length_kimi([], [], [], part="all")
    for name, options in [(name, bad) for name, all_bad in BAD_OPTIONS.items() for bad in all_bad]:
        problems = REGISTRY.get(name).derive(options=GOOD_OPTIONS.get(name, {}) | options).check()
        assert len(problems) == 1, name
        assert list(options)[-1] in problems[0]
        fn = getattr(text_checks, name)
        given_ = inspect.signature(fn).parameters.values()
        columns = [None for each in given_ if each.default is each.empty and each.kind is not each.KEYWORD_ONLY]
        with pytest.raises(ValueError, match=f"^{name}: "):
            fn(*columns, **options)
