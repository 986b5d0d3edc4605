"""Segmenters: what they promise on any text, how they cut real ones, and that hostile ones take no time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.errors import UnknownNameError, VerifierError
from grpo_verifiers.steps import SEGMENTERS, segment
from grpo_verifiers.steps.segments import MAX_STEPS, without_specials
from tests.waiting import no_hang

NAMES = ["blank_line", "newline", "numbered", "tags", "turn"]
PIECES = [
    "\n", "\n\n", " ", "\t", "\r\n", "Step 1:", "step 12.", "**Step 2:**", "a", "3.5", ". ", "! ", "?", "。", "e.g. ", "```",
    "```python\n", "<step>", "</step>", "<|im_end|>", "x = (", ")", "'", '"""', "#", "\\", "def f():", "  return", "@d\n", "else:",
    "é", "😀", "\u2028", "1. ", "<think>", "</s>",
]  # fmt: skip
texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=16).map("".join))


def parts(text, by):
    return [text[start:end] for start, end in segment(text, by)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("by", NAMES)
@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_spans_are_ordered_disjoint_and_visible(by, text):
    spans = segment(text, by)
    last = 0
    for start, end in spans:
        assert last <= start < end <= len(text)
        assert without_specials(text)[start:end].strip()
        last = end


@pytest.mark.sample(1)
@pytest.mark.parametrize("by", ["blank_line", "newline"])
@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_every_visible_character_lies_in_a_step(by, text):
    spans = segment(text, by)
    visible = without_specials(text)
    assert bool(spans) == bool(visible.strip())
    if spans:
        assert not visible[: spans[0][0]].strip()
        assert ([start for start, _ in spans[1:]], spans[-1][1]) == ([end for _, end in spans[:-1]], len(text))


def test_worked_examples_and_functions_by_reference(tmp_path):
    for by, text, expected in [
        ("newline", "a\n\n b \nc<|im_end|>", ["a\n\n ", "b \n", "c<|im_end|>"]), ("newline", "", []),
        ("newline", " \n<|im_end|>\n", []), ("newline", "a\n<|im_end|>", ["a\n<|im_end|>"]),
        ("blank_line", "a\nb\n \t\n\nc\n", ["a\nb\n \t\n\n", "c\n"]), ("blank_line", "\r\na\r\n\r\nb", ["a\r\n\r\n", "b"]),
        ("numbered", "So:\nStep 1: x, as Step 2: says\n step 2. y", ["Step 1: x, as Step 2: says\n ", "step 2. y"]),
        ("numbered", "Step 1: a\nStep 10: b\n### Step 11 - c", ["Step 1: a\n", "Step 10: b\n", "### Step 11 - c"]),
        ("numbered", "**Step 1:** a\n- **Step 2**: b", ["**Step 1:** a\n", "- **Step 2**: b"]),
        ("numbered", "In Step 1: nothing. Steps 2: no.\nStep one: no\nStep 3 follows", []),
        ("numbered", "Step 1:Step 2:\nStep 3:", ["Step 1:Step 2:\n", "Step 3:"]),
        ("tags", "a<step>b</step>c<step>d<step>e", ["<step>b</step>", "<step>d", "<step>e"]),
        ("tags", "</step><STEP>a</Step></step>", ["<STEP>a</Step>"]),
    ]:  # fmt: skip
        assert parts(text, by) == expected
    assert SEGMENTERS.names() == NAMES
    text = "a\n" * (MAX_STEPS + 5)
    spans = segment(text, "newline")
    assert (len(spans), spans[-1]) == (MAX_STEPS, (2 * (MAX_STEPS - 1), len(text)))
    file = tmp_path / "mine.py"
    file.write_text("def words(text):\n    return [(0, 1)] if '<|im_end|>' in text else []\n")
    assert segment("ab<|im_end|>", f"{file}:words") == [(0, 1)]  # special tokens are there for it to see
    with pytest.raises(UnknownNameError, match="newline"):
        segment("a", "newlin")


@pytest.mark.slow
@pytest.mark.parametrize("by", NAMES)
@pytest.mark.parametrize("fence", ["", "```python\n"])
def test_hostile_text_takes_no_time(by, fence):
    units = ["\n", " ", " \n", "a", ".", '?"', "Step 1", "*", "1. ", "<step>", "<|", "(", "'", "\\", "`", '"' * 3, "#", "x\n"]  # fmt: skip
    with no_hang():
        for unit in units:
            segment(fence + (unit * 100_000)[:100_000], by)


@pytest.mark.parametrize("given", ["[(0, len(text) + 1)]", "[(0, 2), (1, 3)]", "'ab'"])
def test_a_function_that_gives_no_spans_is_refused(tmp_path, given):
    (tmp_path / "bad.py").write_text(f"def bad(text): return {given}\n")
    with pytest.raises(VerifierError, match="expected \\(start, end\\)"):
        segment("abc", f"{tmp_path}/bad.py:bad")
