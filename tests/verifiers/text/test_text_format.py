"""Formats, languages and lengths: what others let through does not pass, and the published formulas hold."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import (
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
    think_format_reward,
)

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.text import (
    language,
    length_cosine,
    length_kimi,
    length_overlong,
    repetition,
    tag_count,
    think_format,
)
from grpo_verifiers.text._language import script_of, split_prose
from grpo_verifiers.text._repetition import count_ngrams
from grpo_verifiers.verdict import Status

GOOD = ["<think>why</think>answer", "\n<think>\nwhy\n</think>\n\nanswer\n", "<think>数</think>答", "<think>a</think>🙂"]
BAD = {
    "empty thinking": "<think></think>answer", "blank thinking": "<think> \n\t</think>answer", "closed twice": "<think>why</think>answer</think>more",
    "invisible thinking": "<think>\u200b\u2060\ufeff\u3164\u2800</think>answer", "invisible answer": "<think>why</think>\u200b\u00a0\u3164",
    "empty answer": "<think>why</think>", "closed twice at once": "<think>why</think></think>answer", "opened twice": "<think><think>why</think>answer",
    "a second section": "<think>why</think>a<think>b</think>c", "never closed": "<think>why answer", "never opened": "why</think>answer",
    "wrong order": "</think>why<think>answer", "text before": "Sure! <think>why</think>answer", "other case": "<THINK>why</THINK>answer", "nothing": "",
}  # fmt: skip
ANSWER = "<think>why</think>\n<answer>42</answer>"
BAD_ANSWERS = [
    ANSWER + "junk", ANSWER + "<answer>43</answer>", ANSWER + "</answer>", ANSWER.replace("42", ""), ANSWER.replace("42", "\u200b"),
    ANSWER.replace("\n", "between"), "<answer>42</answer><think>why</think>", "<think>why<answer>42</answer></think>",
    "<think>why</think></answer>42<answer>", "<think>why</think>42",
]  # fmt: skip
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]


def test_one_section_and_an_answer_pass_and_nothing_else():
    for text in GOOD:
        assert think_format(text).score == 1.0
    for text in BAD.values():
        verdict = think_format(text)
        assert (verdict.score, verdict.status, bool(verdict.detail)) == (0.0, Status.WRONG, True)
    for text in BAD_ANSWERS:
        assert think_format(text, answer="answer").score == 0.0
    # The peer takes some of the bad ones; nothing that it refuses may pass here
    peer = lambda text: think_format_reward([[{"content": text}]])[0]  # noqa: E731
    assert {"empty thinking", "closed twice"} <= {name for name, text in BAD.items() if peer(text)}
    for size in range(1, 7):
        for text in map("".join, itertools.product(["<think>", "</think>", "x", " "], repeat=size)):
            assert think_format(text).score <= peer(text.strip()), text
    assert "already" in think_format("<think>why</think>answer", prefilled=True).detail
    for text, options, score in [
        (ANSWER + " \n", {"answer": "answer"}, 1.0), ("why</think>answer", {"prefilled": True}, 1.0), ("</think>answer", {"prefilled": True}, 0.0),
        ("why</think>\n<answer>4</answer>", {"prefilled": True, "answer": "answer"}, 1.0),
        ("<r>12 34</r>x", {"think": "r", "min_think": 4}, 1.0), ("<r>12 34</r>x", {"think": "r", "min_think": 5}, 0.0),
    ]:  # fmt: skip
        assert think_format(text, **options).score == score, text
    for text, options, score in [
        ("<think>a</think><answer>b</answer>", {}, 1.0), ("<think>a</think>b", {}, 0.5), ("", {}, 0.0), ("<answer>b</answer><think>a</think>", {}, 0.5),
        ("<think><think>a</think><answer>b</answer>", {}, 0.75),  # repeating one earns nothing
        ("</answer><answer></think><think>", {}, 0.25), ("a</think><answer>b</answer>", {"prefilled": True}, 1.0),
        ("<a></a><b></b><c></c>", {"tags": ["a", "b", "c"]}, 1.0),
    ]:  # fmt: skip
        assert tag_count(text, **options).score == score, text


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


IN_FULL = {"zh": "答案是四。", "ja": "これは数学です。", "ru": "Ответ: четыре", "ko": "안녕하세요", "ar": "الجواب", "el": "η απάντηση"}  # fmt: skip
OTHERS = "gu he hy ka km kn lo ml my pa si ta te th bn hi"
ENGLISH = ("The answer is four.", "ＡＢＣ", "naïve Ærøskøbing ﬁn")


def test_the_share_of_letters_leaves_out_maths_and_code_and_nothing_hides_there():
    for text, code, score in [
        *((text, code, 1.0) for code, text in IN_FULL.items()),
        *((text, "en", 1.0) for text in ENGLISH),
        *((letter, code, 1.0) for code, letter in zip(OTHERS.split(), "કאԱაកಕກമကਕකதతกবक", strict=True)),
        *(("答案是四。", "en", 0.0), ("abcd四", "en", 0.8), ("abcd四", "Han", 0.2), ("これは数学です。", "zh", 2 / 7)),
    ]:
        assert language(text, language=code).score == pytest.approx(score)
    for section in ["$x^2 + y$", "$$\nabc\n$$", "\\(abc\\)", "\\[ sin x \\]", "`name`", "```python\nprint(value)\n```"]:
        assert language(f"所以 {section} 成立", language="zh").score == 1.0
        assert language(f"所以 {section} so 成立", language="zh").score == pytest.approx(4 / 6)
    for wrap in ["${}$", "```\n{}\n```", "`{}`", "\\[{}\\]", "$$\n{}"]:
        assert language("ok " + wrap.format("因此我们得到答案"), language="en").score < 0.5
    letters, greek = "Let α be 𝑥 and Δ = 3 µm, ℵ₀", "Let αβγδ be"
    assert language(letters, language="en").score == 1.0 > language(greek, language="en").score
    assert language("``` $ \\[ so we see 四四四四", language="zh").score == pytest.approx(4 / 11)
    assert split_prose("costs $5\nand $6")[0] == "costs $5\nand $6"
    for text in ("", "42", "$$ hidden prose $$", "\u200b"):
        verdict = language(text, language="en")
        assert (verdict.score, verdict.status) == (0.0, Status.UNPARSABLE)
    found = [script_of(char) for char in "aЖ中々あカ한ع1ɐ𝑥"]
    assert found == ["Latin", "Cyrillic", "Han", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", None, "Latin", None]


def test_the_prompt_sets_the_script():
    user = lambda content: {"role": "user", "content": content}  # noqa: E731
    chat = [{"role": "system", "content": "You are helpful."}, user("求 f(x)=sin(x)+cos(x) 的最大值")]
    for text, prompt, score in [
        ("最大值是二", chat, 1.0), ("The maximum", chat, 0.0), ("The maximum", "Find the maximum of $f$.", 1.0),
        ("最大値です", "最大値を求めよ", 1.0), ("답", [user([{"type": "text", "text": "답은 무엇입니까"}])], 1.0),
    ]:  # fmt: skip
        assert language(text, prompt).score == score
    for empty in (None, "", "1+1=?", [], [user(None)]):
        assert (language("text", empty).score, language("text", empty).status) == (None, Status.NOT_APPLICABLE)


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters() | st.sampled_from("$`\\[]()\n"), max_size=60), st.sampled_from(["en", "zh", "ja", "prompt"]))  # fmt: skip
def test_any_text_scores_in_bounds_and_splitting_loses_no_letter(text, code):
    assert 0.0 <= language(text, "why", language=code).score <= 1.0
    prose, sections = split_prose(text)
    letters = sorted(char for char in text if char.isalpha())
    assert sorted(char for char in prose + sections if char.isalpha()) == letters


LENGTHS = st.integers(0, 500)


def cosine(length, **options):
    return length_cosine("", [0] * length, **options).score


@settings(max_examples=100, deadline=None)
@given(LENGTHS, LENGTHS, st.integers(1, 200), st.floats(-2, 2), st.floats(-2, 2))
def test_cosine_is_monotone_bounded_and_flat_beyond_its_end(one, other, max_len, shortest, longest):
    short, long = sorted((one, other))
    a, b = (cosine(n, max_len=max_len, shortest=shortest, longest=longest) for n in (short, long))
    assert (a - b) * (shortest - longest) >= 0
    assert min(shortest, longest) <= a <= max(shortest, longest)
    if short >= max_len:
        assert a == b == pytest.approx(longest)


def kimi(lengths, prompts=None, **options):
    prompts = prompts or ["p"] * len(lengths)
    return [v.score for v in length_kimi([""] * len(lengths), prompts, [[0] * n for n in lengths], **options)]


def test_kimi_is_relative_to_the_group_of_what_was_said():
    assert kimi([10, 20, 30]) == [0.5, 0.0, -0.5]
    mixed = kimi([10, 1000, 20, 3000, 30, 2000], ["a", "b"] * 3)
    assert (mixed, kimi([5, 7], ["a", "b"])) == ([0.5, 0.5, 0.0, -0.5, -0.5, 0.0], [0.0, 0.0])
    assert (kimi([7, 7, 7]), kimi([])) == ([0.0, 0.0, 0.0], [])
    ask = lambda text: [{"role": "user", "content": text}]  # noqa: E731
    reordered = [{"content": "a", "role": "user"}]
    assert kimi([1, 3, 9, 5], [ask("a"), reordered, ask("b"), ask("b")]) == [0.5, -0.5, -0.5, 0.5]
    with pytest.raises(ValueError, match=r"completions \(2\), prompts \(1\)"):
        length_kimi(["", ""], ["p"], [[1], [2]])


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


def test_lengths_have_known_values_and_are_not_guessed():
    for check, given_, options in [
        (length_cosine, ["x"], {"max_len": 9}), (length_overlong, ["x"], {"max_len": 9, "cache": 1}), (length_kimi, [["x"], ["p"]], {}),
        (length_kimi, [["x"], ["p"], [None]], {}), (repetition, ["x"], {"unit": "tokens"}),
    ]:  # fmt: skip
        with pytest.raises(VerifierFailedError, match="completion_ids"):
            check(*given_, **options)
    assert [cosine(n, max_len=100) for n in (0, 50, 100)] == pytest.approx([1.0, 0.5, 0.0])
    assert cosine(25, max_len=100, shortest=1, longest=-1) == pytest.approx(2**-0.5)
    assert length_cosine("x" * 10_000, [0] * 10, max_len=100).score == cosine(10, max_len=100)
    lengths = [0, 1, 30, 99, 100, 250]
    bad = [cosine(n, max_len=100, shortest=-1.0, longest=-0.5) for n in lengths]
    gain = [cosine(n, max_len=100, shortest=2.0, longest=1.0) for n in lengths]
    for box, ours in ((r"\boxed{3}", [b + g for b, g in zip(bad, gain, strict=True)]), (r"\boxed{4}", bad)):
        theirs = get_cosine_scaled_reward(max_len=100)
        expected = theirs([[{"content": box}]] * len(lengths), ["$3$"] * len(lengths), [[0] * n for n in lengths])
        assert ours == pytest.approx(expected)
    for cache in (0, 1, 20, 100):
        peer = get_soft_overlong_punishment(100, cache)
        for length in (0, 79, 80, 81, 90, 99, 100, 101, 10_000):
            ours = length_overlong("", [0] * length, max_len=100, cache=cache)
            assert ours.score == pytest.approx(peer([[0] * length])[0]), (cache, length)
            assert length_overlong("", [0] * length, max_len=100, cache=cache, max_penalty=-0.3).score >= -0.3
    kinds = [length_overlong("", [0] * n, max_len=100, cache=20).status for n in (80, 90, 100)]
    assert kinds == [Status.CORRECT, Status.PARTIAL, Status.WRONG]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9))
def test_ngrams_are_counted_as_by_brute_force_and_by_the_peer(ids, n):
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    assert count_ngrams(ids, n) == (len(set(grams)), len(grams))
    peer = get_repetition_penalty_reward(ngram_size=n, max_penalty=-0.7)([ids])[0]
    assert repetition("", ids, n=n, max_penalty=-0.7, unit="tokens").score == pytest.approx(peer)


def test_repetition_is_of_words_or_of_characters_and_more_never_costs_less():
    for text, n, score in [
        ("one two three four", 3, 0.0), ("one two", 3, 0.0), ("", 1, 0.0), ("no no no no", 1, -0.75), ("No, no, NO, no", 2, -4 / 6),
        ("我们今天讨论数学", 2, 0.0), ("好的好的好的好的", 2, -5 / 7), ("ですですです", 2, -3 / 5),
        ("안녕 하세요 안녕 하세요", 2, -1 / 3),  # Korean has spaces
    ]:  # fmt: skip
        assert repetition(text, n=n).score == pytest.approx(score), text
    assert repetition("a b c a b c", n=3, max_penalty=-2).score == pytest.approx(-0.5)
    assert repetition("ไปไปไปไป", n=2).score < -0.5
    rng = random.Random(0)
    text = " ".join(rng.choices("abcdefgh", k=20)) + " "
    scores = [repetition(text * copies).score for copies in range(1, 8)]
    assert scores == sorted(scores, reverse=True)
    assert -1.0 <= scores[-1] < -0.8
