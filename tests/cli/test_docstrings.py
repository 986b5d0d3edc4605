"""Docstrings are read into what a page shows; whatever stands in one, nothing of it raises."""

import runpy
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_plus.cli.plugins import file_text, own_text

WRITER = Path(__file__).parents[2] / "docs" / "parts" / "write.py"
if not WRITER.exists():
    pytest.skip("the sources are not here", allow_module_level=True)
Docs, read_docs = map(runpy.run_path(str(WRITER)).get, ("Docs", "read_docs"))

WHOLE = """The summary, over
    two lines.

    Some prose,
    on two lines.

    === ===
    a   b
    === ===

    Use it when it rains.

    And ``more`` prose.

    Paper: somebody, arXiv:2402.03300, and
    somebody else.

    Assumes rain.

    Degenerate case: no rain.

    Args:
        one: the first,
            on two lines: yes.
        two (int): the second.

        **rest: others.

    Config:
        advantage:
          name: sign
          band: 0.5

        objective: dapo

    >>> 1 + 1
    2

    Returns:
        Nothing that is shown.
    Raises:
        ValueError: never.
    """


def test_a_docstring_falls_into_its_parts_and_files_speak_for_parts_of_their_name(monkeypatch):
    docs = read_docs(WHOLE)
    assert docs.summary == "The summary, over two lines"
    assert docs.prose == (
        "Some prose, on two lines.",
        "=== ===\na   b\n=== ===",
        "Use it when it rains.",
        "And ``more`` prose.",
        "Paper: somebody, arXiv:2402.03300, and somebody else.",
        "Assumes rain.",
        "Degenerate case: no rain.",
    )
    assert docs.has_use
    assert docs.arguments == {"one": "the first, on two lines: yes.", "two": "the second.", "rest": "others."}
    assert docs.config == "advantage:\n  name: sign\n  band: 0.5\n\nobjective: dapo"
    assert docs.example == ">>> 1 + 1\n2"
    for text in [None, "", "   \n  "]:
        assert read_docs(text) == Docs()
    for file, text, counts in [
        ("pack.midrange", "Distance.", True), ("pack._midrange", "Distance.", True), ("pack.parts", "The part ``midrange``.", True),
        ("pack.parts", "Parts of mine, such as midrange.", False),
    ]:  # fmt: skip
        monkeypatch.setitem(sys.modules, file, types.ModuleType(file, text))
        fn = lambda: None  # noqa: E731
        fn.__module__ = file
        assert bool(file_text(fn, "midrange")) is counts


def test_a_class_without_a_docstring_says_nothing():
    @dataclass
    class Bare:
        x: int = 0

    assert own_text(Bare) == ""
    assert not read_docs("Sums.\n\nTake care. Use it when it rains.").has_use


WORDS = st.sampled_from(
    ["Args:", "Config:", "Paper: x", "Use it when", ">>> 1", "  a: b", "", "    - x", "Returns:", "text", "===", "é\t"]
)


@given(st.lists(WORDS | st.text(max_size=20), max_size=20).map("\n".join))
def test_any_text_can_be_read(text):
    docs = read_docs(text)
    assert "\n" not in docs.summary
    assert all(isinstance(each, str) for each in (*docs.prose, *docs.arguments.values()))


@given(st.lists(st.text("abc ,", min_size=1, max_size=20).map(str.strip).filter(bool), min_size=1, max_size=5))
def test_no_word_of_plain_paragraphs_is_lost(paragraphs):
    docs = read_docs("\n\n".join(paragraphs))
    assert " ".join([docs.summary, *docs.prose]).split() == " ".join(paragraphs).split()
