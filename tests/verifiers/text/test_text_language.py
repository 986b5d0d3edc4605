"""Language by script: maths and code left out, and no place to hide in them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.text import language
from grpo_verifiers.text._scripts import script_of, split_prose
from grpo_verifiers.verdict import Status

IN_FULL = {
    "zh": "答案是四。",
    "ja": "これは数学です。",
    "ru": "Ответ: четыре",
    "ko": "안녕하세요",
    "ar": "الجواب",
    "el": "η απάντηση",
}
ENGLISH = ("The answer is four.", "ＡＢＣ", "naïve Ærøskøbing ﬁn")


@pytest.mark.parametrize(
    ("text", "code", "score"),
    [
        *((text, code, 1.0) for code, text in IN_FULL.items()),
        *((text, "en", 1.0) for text in ENGLISH),
        *(("答案是四。", "en", 0.0), ("abcd四", "en", 0.8), ("abcd四", "Han", 0.2), ("これは数学です。", "zh", 2 / 7)),
    ],
)
def test_the_share_of_letters(text, code, score):
    assert language(text, language=code).score == pytest.approx(score)


@pytest.mark.parametrize(
    "section", ["$x^2 + y$", "$$\nabc\n$$", "\\(abc\\)", "\\[ sin x \\]", "`name`", "```python\nprint(value)\n```"]
)
def test_maths_and_code_do_not_count(section):
    assert language(f"所以 {section} 成立", language="zh").score == 1.0
    assert language(f"所以 {section} so 成立", language="zh").score == pytest.approx(4 / 6)


def test_symbols_are_no_language():
    assert language("Let α be 𝑥 and Δ = 3 µm, ℵ₀", language="en").score == 1.0
    assert language("Let αβγδ be", language="en").score < 1.0


@pytest.mark.parametrize("wrap", ["${}$", "```\n{}\n```", "`{}`", "\\[{}\\]", "$$\n{}"])
def test_another_script_does_not_hide_in_maths_or_code(wrap):
    assert language("ok " + wrap.format("因此我们得到答案"), language="en").score < 0.5


def test_openers_without_an_end_hide_nothing():
    assert language("``` $ \\[ so we see 四四四四", language="zh").score == pytest.approx(4 / 11)
    assert split_prose("costs $5\nand $6")[0] == "costs $5\nand $6"


def test_nothing_to_judge_is_not_a_way_out():
    for text in ("", "42", "$$ hidden prose $$", "\u200b"):
        verdict = language(text, language="en")
        assert (verdict.score, verdict.status) == (0.0, Status.UNPARSABLE)


def test_the_prompt_sets_the_script():
    chat = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "求 f(x)=sin(x)+cos(x) 的最大值"},
    ]
    assert language("最大值是二", chat).score == 1.0
    assert language("The maximum", chat).score == 0.0
    assert language("The maximum", "Find the maximum of $f$.").score == 1.0
    assert language("最大値です", "最大値を求めよ").score == 1.0
    assert language("답", [{"role": "user", "content": [{"type": "text", "text": "답은 무엇입니까"}]}]).score == 1.0
    for empty in (None, "", "1+1=?", [], [{"role": "user", "content": None}]):
        assert language("text", empty).status == Status.NOT_APPLICABLE
        assert language("text", empty).score is None


@settings(max_examples=150, deadline=None)
@given(
    st.text(st.characters() | st.sampled_from("$`\\[]()\n"), max_size=60), st.sampled_from(["en", "zh", "ja", "prompt"])
)
def test_any_text_scores_in_bounds_and_splitting_loses_no_letter(text, code):
    verdict = language(text, "why", language=code)
    assert 0.0 <= verdict.score <= 1.0
    prose, sections = split_prose(text)
    letters = sorted(char for char in text if char.isalpha())
    assert sorted(char for char in prose + sections if char.isalpha()) == letters


def test_scripts_of_letters():
    found = [script_of(char) for char in "aЖ中々あカ한ع1ɐ𝑥"]
    assert found == ["Latin", "Cyrillic", "Han", "Han", "Hiragana", "Katakana", "Hangul", "Arabic", None, "Latin", None]
