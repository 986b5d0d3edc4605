"""Lengths and repetition: bounded, monotone, grouped, equal to the published formulas."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import get_cosine_scaled_reward, get_repetition_penalty_reward, get_soft_overlong_punishment

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.text import length_cosine, length_kimi, length_overlong, repetition
from grpo_verifiers.text._repetition import count_ngrams
from grpo_verifiers.verdict import Status

LENGTHS = st.integers(0, 500)


def cosine(length, **options):
    return length_cosine("", [0] * length, **options).score


def test_cosine_known_values():
    assert [cosine(n, max_len=100) for n in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])
    assert cosine(25, max_len=100, shortest=1, longest=-1) == pytest.approx(2**-0.5)


@settings(max_examples=100, deadline=None)
@given(LENGTHS, LENGTHS, st.integers(1, 200), st.floats(-2, 2), st.floats(-2, 2))
def test_cosine_is_monotone_bounded_and_flat_beyond_its_end(one, other, max_len, shortest, longest):
    short, long = sorted((one, other))
    a, b = (cosine(n, max_len=max_len, shortest=shortest, longest=longest) for n in (short, long))
    assert (a - b) * (shortest - longest) >= 0
    assert min(shortest, longest) <= a <= max(shortest, longest)
    if short >= max_len:
        assert a == b == pytest.approx(longest)


def test_cosine_counts_tokens_not_characters():
    assert length_cosine("x" * 10_000, [0] * 10, max_len=100).score == length_cosine("", [0] * 10, max_len=100).score


def test_two_cosines_and_a_gate_are_the_whole_published_rule():
    lengths = [0, 1, 30, 99, 100, 250]
    bad = [cosine(n, max_len=100, shortest=-1.0, longest=-0.5) for n in lengths]
    gain = [cosine(n, max_len=100, shortest=2.0, longest=1.0) for n in lengths]
    for box, ours in ((r"\boxed{3}", [b + g for b, g in zip(bad, gain, strict=True)]), (r"\boxed{4}", bad)):
        theirs = get_cosine_scaled_reward(max_len=100)
        expected = theirs([[{"content": box}]] * len(lengths), ["$3$"] * len(lengths), [[0] * n for n in lengths])
        assert ours == pytest.approx(expected)


def test_overlong_equals_the_peer_and_never_falls_below_its_floor():
    for cache in (0, 1, 20, 100):
        peer = get_soft_overlong_punishment(100, cache)
        for length in (0, 79, 80, 81, 90, 99, 100, 101, 10_000):
            ours = length_overlong("", [0] * length, max_len=100, cache=cache)
            assert ours.score == pytest.approx(peer([[0] * length])[0]), (cache, length)
            assert length_overlong("", [0] * length, max_len=100, cache=cache, max_penalty=-0.3).score >= -0.3


def test_overlong_says_which_kind_of_outcome_it_is():
    kinds = [length_overlong("", [0] * n, max_len=100, cache=20).status for n in (80, 90, 100)]
    assert kinds == [Status.CORRECT, Status.PARTIAL, Status.WRONG]


def kimi(lengths, prompts=None, **options):
    prompts = prompts or ["p"] * len(lengths)
    return [v.score for v in length_kimi([""] * len(lengths), prompts, [[0] * n for n in lengths], **options)]


def test_kimi_is_relative_to_the_group_not_the_batch():
    assert kimi([10, 20, 30]) == [0.5, 0.0, -0.5]
    mixed = kimi([10, 1000, 20, 3000, 30, 2000], ["a", "b"] * 3)
    assert mixed == [0.5, 0.5, 0.0, -0.5, -0.5, 0.0]
    assert kimi([5, 7], ["a", "b"]) == [0.0, 0.0]
    assert kimi([7, 7, 7]) == [0.0, 0.0, 0.0]
    assert kimi([]) == []


def test_kimi_groups_chats_by_what_they_say():
    ask = lambda text: [{"role": "user", "content": text}]  # noqa: E731
    reordered = [{"content": "a", "role": "user"}]
    assert kimi([1, 3, 9, 5], [ask("a"), reordered, ask("b"), ask("b")]) == [0.5, -0.5, -0.5, 0.5]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), min_size=1, max_size=12))
def test_kimi_parts_add_up_to_the_published_rule(rows):
    prompts, lengths = [p for p, _ in rows], [n for _, n in rows]
    whole, bonus, penalty = (kimi(lengths, prompts, part=part) for part in ("both", "bonus", "penalty"))
    for index, (prompt, length) in enumerate(rows):
        group = [n for p, n in rows if p == prompt]
        spread = max(group) - min(group)
        expected = 0.5 - (length - min(group)) / spread if spread else 0.0
        assert whole[index] == pytest.approx(expected)
        assert bonus[index] + penalty[index] == whole[index]  # right answers: gated bonus plus penalty
        assert penalty[index] == min(0.0, whole[index])  # wrong answers: penalty alone


def test_kimi_names_rows_that_do_not_match():
    with pytest.raises(ValueError, match=r"completions \(2\), prompts \(1\)"):
        length_kimi(["", ""], ["p"], [[1], [2]])


@pytest.mark.parametrize(
    "call",
    [
        lambda: length_cosine("x", max_len=9),
        lambda: length_overlong("x", max_len=9, cache=1),
        lambda: length_kimi(["x"], ["p"]),
        lambda: length_kimi(["x"], ["p"], [None]),
        lambda: repetition("x", unit="tokens"),
    ],
)
def test_without_tokens_the_lengths_refuse_to_guess(call):
    with pytest.raises(VerifierFailedError, match="completion_ids"):
        call()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9))
def test_ngrams_are_counted_as_by_brute_force_and_by_the_peer(ids, n):
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    assert count_ngrams(ids, n) == (len(set(grams)), len(grams))
    peer = get_repetition_penalty_reward(ngram_size=n, max_penalty=-0.7)([ids])[0]
    assert repetition("", ids, n=n, max_penalty=-0.7, unit="tokens").score == pytest.approx(peer)


def test_repetition_of_words():
    assert repetition("one two three four").score == 0.0
    assert repetition("one two", n=3).score == 0.0
    assert repetition("", n=1).score == 0.0
    assert repetition("no no no no", n=1).score == -0.75
    assert repetition("No, no, NO, no", n=2, max_penalty=-1).score == pytest.approx(-4 / 6)
    assert repetition("a b c a b c", n=3, max_penalty=-2).score == pytest.approx(-0.5)


def test_repetition_sees_characters_where_a_script_has_no_spaces():
    assert repetition("我们今天讨论数学", n=2).score == 0.0
    assert repetition("好的好的好的好的", n=2).score == pytest.approx(-5 / 7)
    assert repetition("ですですです", n=2).score == pytest.approx(-3 / 5)
    assert repetition("ไปไปไปไป", n=2).score < -0.5
    assert repetition("안녕 하세요 안녕 하세요", n=2).score == pytest.approx(-1 / 3)  # Korean has spaces


def test_more_copies_never_cost_less():
    rng = random.Random(0)
    text = " ".join(rng.choices("abcdefgh", k=20)) + " "
    scores = [repetition(text * copies).score for copies in range(1, 8)]
    assert scores == sorted(scores, reverse=True)
    assert -1.0 <= scores[-1] < -0.8
