"""Formats: what other people's checks let through does not pass here."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import think_format_reward

from grpo_verifiers.text import tag_count, think_format
from grpo_verifiers.verdict import Status

GOOD = ["<think>why</think>answer", "\n<think>\nwhy\n</think>\n\nanswer\n", "<think>数</think>答", "<think>a</think>🙂"]
BAD = {
    "empty thinking": "<think></think>answer",
    "blank thinking": "<think> \n\t</think>answer",
    "invisible thinking": "<think>\u200b\u2060\ufeff\u3164\u2800</think>answer",
    "empty answer": "<think>why</think>",
    "invisible answer": "<think>why</think>\u200b\u00a0\u3164",
    "closed twice": "<think>why</think>answer</think>more",
    "closed twice at once": "<think>why</think></think>answer",
    "opened twice": "<think><think>why</think>answer",
    "a second section": "<think>why</think>a<think>b</think>c",
    "never closed": "<think>why answer",
    "never opened": "why</think>answer",
    "wrong order": "</think>why<think>answer",
    "text before": "Sure! <think>why</think>answer",
    "other case": "<THINK>why</THINK>answer",
    "nothing": "",
}


@pytest.mark.parametrize("text", GOOD)
def test_one_section_and_an_answer_pass(text):
    assert think_format(text).score == 1.0


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_everything_else_does_not_and_says_why(text):
    verdict = think_format(text)
    assert (verdict.score, verdict.status) == (0.0, Status.WRONG)
    assert verdict.detail


def test_stricter_than_the_peer_never_looser():
    """The peer takes some of the bad ones; nothing that it refuses may pass here."""
    peer = lambda text: think_format_reward([[{"content": text}]])[0]  # noqa: E731
    taken = [name for name, text in BAD.items() if peer(text)]
    assert {"empty thinking", "closed twice"} <= set(taken)
    pieces = ["<think>", "</think>", "x", " "]
    for size in range(1, 7):
        for parts in itertools.product(pieces, repeat=size):
            text = "".join(parts)
            assert think_format(text).score <= peer(text.strip()), text


ANSWER = "<think>why</think>\n<answer>42</answer>"


@pytest.mark.parametrize(
    "text",
    [
        *(ANSWER + "junk", ANSWER + "<answer>43</answer>", ANSWER + "</answer>", ANSWER.replace("42", "")),
        *(ANSWER.replace("42", "\u200b"), ANSWER.replace("\n", "between"), "<answer>42</answer><think>why</think>"),
        *("<think>why<answer>42</answer></think>", "<think>why</think></answer>42<answer>", "<think>why</think>42"),
    ],
)
def test_an_answer_tag_takes_no_junk_around_it(text):
    assert think_format(ANSWER + " \n", answer="answer").score == 1.0
    assert think_format(text, answer="answer").score == 0.0


def test_a_prefilled_opening_tag_must_not_be_repeated():
    assert think_format("why</think>answer", prefilled=True).score == 1.0
    assert "already" in think_format("<think>why</think>answer", prefilled=True).detail
    assert think_format("</think>answer", prefilled=True).score == 0.0
    assert think_format("why</think>\n<answer>4</answer>", prefilled=True, answer="answer").score == 1.0


def test_thinking_of_a_minimal_size_and_other_names():
    assert think_format("<r>12 34</r>x", think="r", min_think=4).score == 1.0
    assert think_format("<r>12 34</r>x", think="r", min_think=5).score == 0.0


TAGS = ["<think>", "</think>", "<answer>", "</answer>"]


def test_tags_count_once_each_and_in_order():
    assert tag_count("<think>a</think><answer>b</answer>").score == 1.0
    assert tag_count("<think>a</think>b").score == 0.5
    assert tag_count("").score == 0.0
    assert tag_count("<think><think>a</think><answer>b</answer>").score == 0.75  # repeating one earns nothing
    assert tag_count("<answer>b</answer><think>a</think>").score == 0.5
    assert tag_count("".join(reversed(TAGS))).score == 0.25
    assert tag_count("a</think><answer>b</answer>", prefilled=True).score == 1.0
    assert tag_count("<a></a><b></b><c></c>", tags=["a", "b", "c"]).score == 1.0


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*TAGS, "x"]), max_size=9))
def test_the_ordered_share_is_the_best_of_all_selections(parts):
    text = "".join(parts)
    once = [tag for tag in TAGS if text.count(tag) == 1]
    chosen = [each for size in range(len(once) + 1) for each in itertools.combinations(once, size)]
    best = max(len(each) for each in chosen if sorted(each, key=text.find) == list(each))
    assert tag_count(text).score == best / 4
    assert tag_count(text + text).score == 0.0 or not set(TAGS) & set(parts)
