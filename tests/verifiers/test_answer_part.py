r"""All verifiers take the same part of a completion for its answer.

A case is a completion with places for a right answer, ``{right}``, and another one, ``{other}``. Each verifier gets both
in the form that it reads, and has to find the right one, or nothing at all.
"""

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_verifiers import get_verifier
from grpo_verifiers.errors import KeywordError
from grpo_verifiers.judge._score import read_score
from grpo_verifiers.math import math
from grpo_verifiers.reading.boxes import answer_tags, tag_sections
from grpo_verifiers.reading.fences import last_block
from grpo_verifiers.reading.thinking import answer_part, answer_spans
from grpo_verifiers.text import choice, exact, json_schema, numeric, regex

FOUND = [
    # no thinking
    "{right}", "\n{right}\n", "\n\n  {right}  ",
    # the tags of model families, in any case and with spaces
    "<think>{other}</think>{right}", "<think>\n{other}\n</think>\n\n{right}", "<THINK>{other}</THINK>{right}", "<Think>{other}</tHINK>{right}",
    "<thinking>{other}</thinking>{right}", "<Thinking>{other}</Thinking>\n{right}", "<thought>{other}</thought>{right}",
    "<thoughts>{other}</thoughts>{right}", "<reasoning>{other}</reasoning>{right}", "<scratchpad>{other}</scratchpad>{right}",
    "<reflection>{other}</reflection>{right}", "<seed:think>{other}</seed:think>{right}", "<think >{other}</think >{right}",
    "◁think▷{other}◁/think▷{right}", "[THINK]{other}[/THINK]{right}", "<|begin_of_thought|>{other}<|end_of_thought|>{right}",
    "<|channel|>analysis<|message|>{other}<|end|><|start|>assistant<|channel|>final<|message|>{right}",
    # opened in the prompt
    "{other}</think>{right}", "{other}\n</think>\n\n{right}", "{other}</THINK>{right}", "{other}</thinking>{right}", "{other}[/THINK]{right}",
    "{other}<|end_of_thought|>{right}", "{other}<|channel|>final<|message|>{right}", "</think>{right}",
    # several sections
    "<think>{other}</think>{other}<think>{other}</think>{right}", "{other}<think>x</think>{right}", "<think>{other}</think></think>{right}",
    "<think><think>{other}</think></think>{right}", "<think>a<think>{other}</think>{right}", "<think>a<think>b</think>{other}</think>{right}",
    "<think>{other}</think><reasoning>{other}</reasoning>{right}", "<thinking><think>{other}</think>{right}", "<think>a</think>{other}</think>{right}",
    "<think></think>{right}", "<think>{other}</thinking>{right}",
    # a later section that is never closed
    "<think>{other}</think>{right}<think>{other}", "{right}<think>{other}", "{right}<THINK>{other}", "{right}\n<think>\n", "{right}[THINK]{other}",
    "<think>{other}</think>{right}<thinking>{other}<think>{other}",
    # tags that are only spoken of
    '<think>I end with "</think>". {other}</think>{right}', "<think>write `</think>`: {other}</think>{right}",
    "I end with '</think>'. {other}\n</think>\n{right}", "<think>\n```python\nprint('a</think>b')\n```\n{other}\n</think>\n{right}",
    "```\nprint('a</think>b')\n```\n{other}\n</think>\n{right}",
    # blocks left open in the thinking
    "<think>\n```python\nx = 1\n</think>\n{right}", "```python\nx = 1\n</think>\n{right}", "<think>```python\n1/0\n```</think>{right}",
    "<think>\n~~~\nx\n</think>\n{right}", "<think>\n```\n{other}\n```\n```\n</think>\n{right}",
    # comments
    "<!-- {other} -->{right}", "{right}<!-- {other} -->", "{right}<!-- {other}", "<think><!-- {other}</think>{right}",
    "<think>{other}</think><!-- {other} -->{right}", "<!-- <think> -->{other}</think>{right}",
]  # fmt: skip
NOT_FOUND = [
    "", " \n", "<think>{right}", "<think>\n{right}\n", "<THINK>{right}", "<thinking>{right}", "<reasoning>a</reasoning><think>{right}", "[THINK]{right}",
    "<|begin_of_thought|>{right}", "◁think▷{right}", "<|channel|>analysis<|message|>{right}", "<think>{right}</think>", "{right}</think>",
    "{right}</thinking>\n", "<think>a<think>{right}", "<think>a</think><think>{right}", "<think>{right}</think></think>", "<!-- {right} -->", "<!-- {right}",
    "<think>\n```\n</think>\n```\n<think>{right}", '<think>{right} "</think>" ', "<|channel|>final<|message|><think>{right}",
    "```\n<think>\n```\n{right}",
]  # fmt: skip
FORMS = {
    "math": ("\\boxed{42}", "\\boxed{41}", lambda text: math(text, "42").score),
    "math of a tag": ("<answer>42</answer>", "<answer>41</answer>", lambda text: math(text, "42").score),
    "math of prose": ("The answer is 42.\n", "The answer is 41.\n", lambda text: math(text, "42").score),
    "numeric": ("\\boxed{42}", "\\boxed{41}", lambda text: numeric(text, 42).score),
    "numeric of a tag": ("<answer>42</answer>", "<answer>41</answer>", lambda text: numeric(text, 42).score),
    "numeric of prose": ("The answer is 42.\n", "The answer is 41.\n", lambda text: numeric(text, 42).score),
    "numeric as a whole": ("42", "41", lambda text: numeric(text, 42).score),
    "exact": ("42", "41", lambda text: exact(text, "42").score),
    "exact in a tag": ("<answer>42</answer>", "<answer>41</answer>", lambda text: exact(text, "42", tag="answer").score),
    "choice": ("Answer: B\n", "Answer: A\n", lambda text: choice(text, "B").score),
    "choice of a box": ("\\boxed{B}", "\\boxed{A}", lambda text: choice(text, "B").score),
    "regex": ("42", "41", lambda text: regex(text, pattern="42").score),
    "json_schema": ("42", "41", lambda text: json_schema(text, schema={"const": 42}).score),
    "json_schema in a block": ("\n```json\n42\n```\n", "\n```json\n41\n```\n", lambda text: json_schema(text, schema={"const": 42}, fences="required").score),
    "code": ("\n```python\nx = 42\n```\n", "\n```python\nx = 41\n```\n", lambda text: last_block(answer_part(text), ("python",)) == "x = 42"),
    "judge": ("Score: 7\n", "Score: 3\n", lambda text: judged(text) == 0.7),
}  # fmt: skip


def judged(text):
    try:
        return read_score(text, 0, 10)
    except ValueError:
        return None


def filled(case, right, other):
    return case.replace("{right}", right).replace("{other}", other)


@pytest.mark.sample(33)
@pytest.mark.parametrize("case", FOUND)
def test_every_verifier_finds_the_answer_and_nothing_else(case):
    for form, (right, other, accepts) in FORMS.items():
        assert accepts(filled(case, right, other)), form
        assert "{other}" not in case or not accepts(filled(case, other, right)), form


@pytest.mark.parametrize("case", NOT_FOUND)
def test_no_verifier_finds_an_answer_where_there_is_none(case):
    for form, (right, other, accepts) in FORMS.items():
        assert not accepts(filled(case, right, other)), form


def test_programs_that_run_are_those_of_the_answer_part():
    right, other = (f"\n```python\ndef f():\n    return {value}\n```\n" for value in (42, 41))
    cases = [(case, 1.0) for case in FOUND] + [(case, 0.0) for case in NOT_FOUND]
    texts = [filled(case, right, other) for case, _ in cases]
    tests = [{"function": "f", "args": [], "expected": 42}]
    verdicts = get_verifier("code", level="none", highest="none").verify_batch(None, texts, tests=[tests] * len(texts))
    wrong = [case for (case, score), verdict in zip(cases, verdicts, strict=True) if verdict.score != score]
    assert wrong == []


@pytest.mark.parametrize("name", ["math", "numeric", "exact"])
def test_a_vote_is_cast_for_the_answer_that_the_verifier_reads(name):
    read, (right, other, _) = get_verifier(name).reader, FORMS[name]
    assert [case for case in FOUND if (read(filled(case, right, other)) or "").strip() != "42"] == []
    assert [case for case in NOT_FOUND if (read(filled(case, right, other)) or "").strip() == "42"] == []


PROGRAM = ({"level": "none", "highest": "none"}, {"tests": [{"code": "assert f() == 42"}]}, "\n```python\ndef f():\n    return 42\n```\n")  # fmt: skip
READERS = {
    "math": ({}, {"answer": "42"}, "\\boxed{42}"), "numeric": ({}, {"answer": "42"}, "\\boxed{42}"), "exact": ({}, {"answer": "42"}, "42"),
    "choice": ({}, {"answer": "B"}, "\\boxed{B}"), "regex": ({"pattern": "42"}, {}, "42"), "json_schema": ({"schema": {"const": 42}}, {}, "42"),
    "code": PROGRAM,
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_every_verifier_of_answers_takes_the_option_think(name):
    options, columns, right = READERS[name]

    def score(think, text):
        return get_verifier(name, think=think, **options).verify(text, completion_text=text, **columns).score

    assert (score("plan", f"<plan>hm</plan>{right}"), score("plan", f"<PLAN>{right}</PLAN>")) == (1, 0)
    assert score("plan", f"<plan>{right}") == score("think", f"<think>{right}") == 0
    if name not in ("exact", "regex", "json_schema"):  # these read all of a text
        assert score(None, f"<think>{right}") == 1
    with pytest.raises(KeywordError, match="think is '<plan>'"):
        get_verifier(name, think="<plan>", **options)


def test_tags_of_ones_own_join_the_known_ones_and_marks_in_json_stay():
    assert get_verifier("math", think="plan").reader("<plan>\\boxed{41}</plan>\\boxed{42}") == "42"
    for text in ("<plan>41</plan>42", "<PLAN>41</PLAN>42", "<think>41</think>42"):
        assert exact(text, "42", think="plan").score == 1
    assert exact("<plan>41</plan>42", "42").score == 0
    for text in ("<think>41</think>", "<!-- a -->"):
        assert exact(text, text, think=None).score == 1
    for value in ("<!-- hi --> there", "say <!-- it", "`<think>`"):
        assert json_schema(json.dumps({"a": value}), schema={"const": {"a": value}}).score == 1, value
    assert [tag.content for tag in tag_sections("<answer>42", "answer")] == ["42"]
    assert [tag.content for tag in tag_sections("<answer>41<ANSWER>42</Answer>43", "answer")] == ["41", "42"]
    assert answer_tags("<answer>so \\boxed{42}</answer><answer> </answer>") == []
    for form in ("math of a tag", "numeric of a tag", "exact in a tag"):
        texts = ["so <answer>42", "<answer>41<answer>42", "<answer>42<answer>41</answer>"]
        assert [bool(FORMS[form][2](text)) for text in texts] == [True, form != "exact in a tag", False]
    assert choice("<answer>B", "B").score == 1


BEFORE = ["", "Sure:\n", "<think>41</think>\n", "41\n</think>\n", "<think>\n```python\nx\n</think>\n", "<!-- x -->\n"]


@pytest.mark.parametrize("program", [
    "print('<think>')", 'print("</think>")', "print('a</think>b')", "s = '<think>x</think>'", "# </think> ends it", "print('<!-- hi -->')",
    "tag = '<!--'", "x = re.sub(r'<think>.*?</think>', '', y)", "a = '[THINK]'", "print('<|channel|>final<|message|>')",
])  # fmt: skip
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("after", ["", "\nDone.", "\nIt prints:\n```\n42\n```\n"])
def test_tags_in_a_program_are_part_of_it(program, before, after):
    text = f"{before}```python\n{program}\nx = 42\n```{after}"
    assert last_block(answer_part(text), ("python",)) == f"{program}\nx = 42"


STATED = [
    ("\\boxed{V}", 1), ("\\fbox{V}", 1), ("\\boxed V", 1), ("\\boxed{\\boxed{V}}", 1), ("<answer>V</answer>", 1), ("<ANSWER>V</ANSWER>", 1),
    ("<answer>\\boxed{V}</answer>", 1), ("#### V", 1), ("so 6 * 7 #### V", 1), ("The answer is V.", 1), ("**Answer:** V", 1), ("The final answer is $V$.", 1),
    ("\\boxed{} is for answers: \\boxed{V}", 1), ("\\boxed{V} so the answer is V", 1), ("\\boxed{V} and \\boxed{V}", 1), ("\\boxed{V} #### V", 1),
    ("\\boxed{V} #### 9", 1), ("\\boxed{V} so the answer is 9.", 1), ("\\boxed{V} and \\boxed{9}", 0), ("\\boxed{9} and \\boxed{V}", 1), ("\\boxed{V} \\boxed{", 0),
    ("\\boxed{9 \\boxed{V}}", 0), ("\\boxed{V} Wait, 9", 1), ("The answer is V. Wait, no, 9.", 1), ("<answer>9</answer> so \\boxed{V}", 1), ("<answer>V</answer> <answer>9</answer>", 0),
    ("% \\boxed{V}", 0), ("\\phantom{\\boxed{V}}", 0), ("The answer is not V", 0), ("it is V", 0), ("", 0), ("#### V\n#### 9", 0), ("The answer is V. The answer is 9.", 0),
]  # fmt: skip


@pytest.mark.parametrize(("form", "score"), STATED)
def test_math_and_numeric_read_the_same_statements(form, score):
    text = form.replace("V", "42")
    assert (math(text, "42").score, numeric(text, 42).score) == (score, score)


PIECES = st.sampled_from(
    ["<think>", "</think>", "<THINK>", "</thinking>", "[THINK]", "[/THINK]", "\n", " ", "x ", "\\boxed{42}", "\\boxed{41}", "Score: 7\n", "```\n", "```python\n",
     "'", '"', "`", "<!--", "-->", "<|channel|>final<|message|>", "<answer>", "</answer>", "<", "é", "İ", "🙂"]
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
@example("İ</think>42")
def test_all_verifiers_agree_on_any_text(text):
    part = answer_part(text)
    assert "".join(text[start:end] for start, end in answer_spans(text, "think")) == part
    # Each verifier on the whole completion says what it says on its answer part, with nothing taken out of that.
    if part.strip():
        assert exact(text, part).score == regex(text, pattern=re.escape(part.strip())).score == 1
    for source in ("auto", "last"):
        whole, alone = numeric(text, 42, source=source), numeric(part, 42, source=source, think=None)
        assert (whole.score, whole.status) == (alone.score, alone.status)
    for letter in "AB":
        assert choice(text, letter) == choice(part, letter, think=None)
    assert json_schema(text, schema={"const": 42}) == json_schema(part, schema={"const": 42}, think=None)
    assert math(text, "42").score in (numeric(text, 42).score, 0)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    thinking=st.lists(PIECES.filter(lambda piece: "`" not in piece), max_size=8).map("".join),
    closing=st.sampled_from(["</think>", "</THINK>", "</thinking>", "[/THINK]", "<|channel|>final<|message|>"]),
    opening=st.sampled_from(["", "<think>", "<THINK>", "[THINK]"]),
)
def test_what_stands_after_the_last_closing_tag_is_the_answer_whatever_was_thought(thinking, closing, opening):
    text = f"{opening}{thinking}\n{closing}\n"
    for form, (right, other, accepts) in FORMS.items():
        assert accepts(text + right), form
        assert not accepts(text + other), form
