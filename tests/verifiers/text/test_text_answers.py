"""Answers: exact text, letters, numbers, patterns, JSON. Listing candidates never pays."""

import json
import math
import socket
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.text import choice, exact, json_schema, numeric, regex
from grpo_verifiers.text._numeric import parse_number
from grpo_verifiers.verdict import Status


def test_exact_leaves_rows_without_an_answer_out_and_numeric_those_without_a_number():
    for gold in ["", " \n", None, [], [""], ["a", None], {"a": 1}]:
        verdict = exact("", gold)
        assert (verdict.score, verdict.status) == (None, Status.ERROR), gold
    for gold in ["", "forty", None, math.nan, math.inf, True, [4], "1/0"]:
        assert numeric("4", gold).score is None
    assert exact("<think>Lyon?</think>\nParis ", "Paris").score == 1.0
    assert exact("Paris or Lyon", "Paris").score == exact("paris", "Paris").score == 0.0
    assert exact("STRASSE", "Straße", ignore_case=True).score == 1.0
    assert (exact("a  b\nc", "a b c", collapse_whitespace=True).score, exact("a  b", "a b").score) == (1.0, 0.0)
    assert (exact(" x", "x", strip=False).score, exact("e\u0301", "\u00e9").score) == (0.0, 1.0)
    assert exact("e\u0301", "\u00e9", unicode="none").score == exact("x²", "x2").score == 0.0
    assert exact("ＡＢ", "AB", unicode="NFKC").score == exact("7", 7).score == 1.0
    assert exact("NYC", ["New York", "NYC"]).score == 1.0
    assert exact("so <answer>Paris</answer>.", "Paris", tag="answer").score == 1.0
    two = "<answer>Paris</answer><answer>Lyon</answer>"
    assert exact(two, "Paris", tag="answer").score + exact(two, "Lyon", tag="answer").score == 0.0
    assert exact("<answer>Paris</answer> again <answer>Paris</answer>", "Paris", tag="answer").score == 1.0
    assert exact("Paris", "Paris", tag="answer").status == Status.UNPARSABLE
    assert exact("<think><answer>Paris</answer></think>", "Paris", tag="answer").status == Status.UNPARSABLE


DECLARED = [
    "B", "(B)", "B.", "**B**", "B) Paris", "b", "The answer is (B).", "**Answer:** B", "Answer: **B**", "final answer is $\\boxed{\\text{B}}$",
    "The correct option is B", "Option B is correct.", "B is the correct answer", "答案是B", "答案：Ｂ", "The correct answer is option B.",
    "I think the answer is:\n\n**(B) Paris**", "<answer>B</answer>", "<answer>b) Paris</answer>", "\\boxed{B. Paris}", "Answer: B\nA is wrong because x",
    "The answer is (b).", "(b) is correct", "(b)", "so:\n\n**(b)**", "So the answer must be B because A is not right", "Therefore, the best choice is B", "long reasoning with A and C\n\nB", "<think>The answer is A</think>B",
]  # fmt: skip
NOT_DECLARED = [
    "A or B", "The answer is A or B", "The answer is A. The answer is B.", "\\boxed{A}\\boxed{B}", "\\boxed{A, B}", "\\boxed{AB}", "A) x B) y C) z",
    "answer is a boy", "Answer: A/B", "Answer: B, A", "Answer: B and A", "Answer: A B C D E", "<answer>A</answer><answer>B</answer>",
    "the answer is not B", "Answer: Banana", "<think>answer is B</think> dunno", "B B A", "Answer: B) or A)", "Answer: (B), (A)", "both A and B",
    "A\nB", "B\nA", "Answer: B, B, A", "the answer is b", "Answer: (b) or (a)", "answer is (a), (b)", "Answer: B. Answer: A", "\\boxed{B}, so the answer is A", "\u0412", "", "Be", "<think>B",
]  # fmt: skip


def test_a_declared_letter_is_found_and_several_do_not_pass():
    for text in DECLARED:
        assert (choice(text, "B").score, choice(text, "A").score) == (1.0, 0.0)
    for text in NOT_DECLARED:
        assert choice(text, "B").score == 0.0
    text = "The answer is A. Wait. The answer is B."
    assert (choice(text, "B").score, choice(text, "B", conflicts="last").score) == (0.0, 1.0)
    assert choice("Answer: B, A", "A", conflicts="last").score == 0.0
    assert choice("<answer>A</answer> Hm. The answer is B. A good one.", "B", conflicts="last").score == 1.0
    assert choice("\\boxed{A} The answer is B \\boxed{A}", "A", conflicts="last").score == 1.0
    assert choice("The answer is \uff22", "B").score == 1.0
    assert choice("\ufdfa" * 1000 + "\nThe answer is B", "B").score == 1.0
    for gold in ("B", "b", "(B)", "B.", "B) Paris", 1, " B "):
        assert choice("B", gold).score == 1.0
    for gold in ("", "F", "Paris", 5, -1, None, True, 1.0, "AB"):
        assert choice("B", gold).status == Status.ERROR
        assert choice("B", gold).score is None
    assert choice("The answer is J", "J", letters="ABCDEFGHIJ").score == 1.0


@pytest.mark.parametrize("conflicts", ["reject", "last"])
@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(["A", "B", "C", " ", "\n", "answer is ", "Answer: ", "\\boxed{", "}", "<answer>", "</answer>", "(", ")", ".", ", ", " or "]),
        max_size=12,
    )
)  # fmt: skip
def test_no_text_is_right_for_two_letters(conflicts, parts):
    text = "".join(parts)
    assert sum(choice(text, letter, conflicts=conflicts).score for letter in "ABCDE") <= 1.0


def test_numbers_are_read_and_nothing_else_is_one():
    for text, value in [
        *(("42", 42), ("-3.5", -3.5), ("1,234,567.5", 1234567.5), ("$1{,}234", 1234), ("1\\,234", 1234)),
        *(("3/4", 0.75), ("-$5", -5), ("50\\%", 50), ("**7.**", 7), ("1e-3", 0.001), ("−2", -2), (".5", 0.5)),
        *(("1.5e3/3", 500), ("\u20ac 12", 12)),
    ]:
        assert float(parse_number(text)) == value
    for text in [
        *("", "-", "inf", "nan", "Infinity", "1e99999999999", "1e5000", "9" * 1001, "1/0", "41=42", "4 2", "1,23"),
        *("12,3456", "1.2.3", "0x2A", "forty", "٤٢", "x²", "1_000", "--1", "1//2", "1e", "42 or 43", "2^5", "1\\,2"),
    ]:
        assert parse_number(text) is None
    for text in [
        *("\\boxed{41}\\boxed{42}", "\\boxed{42}\\boxed{41}", "#### 41\n#### 42", "\\boxed{41}\n#### 42"),
        *("\\boxed{41, 42}", "\\boxed{41=42}", "\\boxed{\\boxed{41}42}", "<answer>41</answer><answer>42</answer>"),
        "\\boxed{42} or \\boxed{x}",
    ]:
        for gold in (41, 42):
            assert numeric(text, gold).score == 0.0


def test_numbers_are_looked_for_where_they_are_stated_and_compared_exactly():
    assert numeric("so 41, then \\boxed{42}", 42).score == 1.0
    assert numeric("steps\n#### 42", 42).score == 1.0
    assert numeric("#### Solution\nWe get \\boxed{42}", 42).score == 1.0
    assert numeric("<answer>\\boxed{42}</answer>", 42).score == 1.0
    assert numeric("it is 42", 42).status == Status.UNPARSABLE
    assert numeric("it is 42 apples", 42, source="last").score == 1.0
    assert numeric("from 41 to 42", 41, source="last").score == 0.0
    assert numeric("\\boxed{1} 42", 42, source="whole").score == 0.0
    assert numeric("<think>\\boxed{42}</think>", 42).status == Status.UNPARSABLE
    assert numeric("<think>\\boxed{41}</think>\\boxed{42}", 42).score == 1.0
    assert numeric("\\boxed{42} \\boxed{42.0}", 42).score == 1.0
    assert numeric("${a}$ and \\boxed{1{,}234}}", 1234).score == 1.0
    lines = "\n".join(f"#### {k}" for k in range(5000))
    verdict = numeric(lines, "4999")
    assert (verdict.status, "several different answers: '0, 1'" in verdict.detail) == (Status.WRONG, True)
    assert numeric("#### 7\n" * 5000 + "#### 14/2", "7").score == 1.0
    assert numeric("101", 100, rel_tol=0.01).score == 1.0
    assert (numeric("101.0000001", 100, rel_tol=0.01).score, numeric("0.3", "0", abs_tol=0.3).score) == (0.0, 1.0)
    assert numeric("1e300", 1, rel_tol=0.99).score == 0.0  # a large claim does not widen it
    assert numeric("12345679", 12345678).score == 0.0
    assert numeric("100000000000000000001", "100000000000000000000", rel_tol=0).score == 0.0
    assert numeric("0.30000000000000004", 0.3).score == 1.0
    assert numeric("\\boxed{18}", "16 - 3 - 4 = 9, 9 * 2 = 18\n#### 18").score == 1.0
    assert numeric("\\boxed{1800}", "so\n#### 1,800").score == 1.0


@settings(max_examples=100, deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12, places=6))
def test_a_number_is_right_for_itself_however_it_is_written(value):
    short = f"{value:.6e}" if abs(value) < 1000 else str(value)
    for text in (str(value), f"{value:,}", short, f"\\boxed{{{value}}}", f"#### {value}"):
        assert numeric(text, str(value), rel_tol=1e-5).score == 1.0, text
    assert parse_number(f"{value:,}") == Fraction(value)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


JSON = {
    Status.CORRECT: [
        *('{"n": 1}', '<think>{"n": "x"}</think>\n{"n": 1}\n', 'Here:\n```json\n{"n": 1}\n```\nDone.'),
        *('```json\n{"n": "bad"}\n```\n```JSON\n{"n": 1}\n```', '```json\n{"n": 1}\n```\n```python\nx\n```'),
    ],
    Status.WRONG: ['```json\n{"n": 1}\n```\n```json\n{"n": "bad"}\n```', '{"n": "1"}', "{}", '{"n": 1, "m": 2}'],
    Status.UNPARSABLE: [
        *('{"n": "x", "n": 1}', '{"n": NaN}', '{"n": -Infinity}', '{"n": 1e999}', '{"n": 1} trailing', "{'n': 1}"),
        *("", "[" * 200_000, '{"n": ' + "9" * 10_000 + "}"),
    ],
}


def test_json_is_read_strictly_in_fences_and_by_schemas_of_rows():
    for status, text in ((kind, each) for kind, texts in JSON.items() for each in texts):
        verdict = json_schema(text, schema=SCHEMA)
        assert (verdict.score, verdict.status) == (float(status is Status.CORRECT), status)
        assert verdict.detail or verdict.score
    fenced = '```json\n{"n": 1}\n```'
    assert json_schema(fenced, schema=SCHEMA, fences="forbidden").score == 0.0
    assert json_schema('{"n": 1}', schema=SCHEMA, fences="forbidden").score == 1.0
    assert json_schema('{"n": 1}', schema=SCHEMA, fences="required").score == 0.0
    assert json_schema(fenced, schema=SCHEMA, fences="required").score == 1.0
    assert json_schema('"x"', json.dumps({"type": "string"}), schema=SCHEMA).score == 1.0
    assert json_schema('"x"', {"type": "string"}).score == 1.0
    for broken in ("{", "3", {"type": "strin"}, {"$ref": "#/$defs/none"}, [], {"a": object()}):
        verdict = json_schema('"x"', broken, schema=SCHEMA)
        assert (verdict.score, verdict.status) == (None, Status.ERROR)
    with pytest.raises(VerifierFailedError, match="no schema"):
        json_schema("1")
    tree = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}
    assert json_schema("[[], [[]]]", schema=tree).score == 1.0
    assert json_schema("[[], [1]]", schema=tree).score == 0.0
    named = {"$id": "https://e.example/a", "$defs": {"b": {"$id": "b", "type": "null"}}, "$ref": "b"}
    assert json_schema("null", schema=named).score == 1.0
    assert json_schema("{}", schema={"$ref": "https://json-schema.org/draft/2020-12/schema"}).score == 1.0
    assert json_schema("1", schema={"const": {"$ref": "http://x.example/"}}).score == 0.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        with pytest.raises(ValueError, match="nothing is fetched"):
            json_schema("1", schema={"$ref": url})
        assert json_schema("1", {"properties": {"a": {"$ref": url}}}).score is None
        with pytest.raises(TimeoutError):
            server.accept()
    assert regex("<think>1</think>42\n<think>or 43", pattern=r"\d+").score == 1.0
    assert regex("<think>1</think> 42\n", pattern=r"\d+").score == 1.0
    assert regex("42 apples", pattern=r"\d+").score == 0.0
    assert regex("42 apples", pattern=r"\d+", mode="search").score == 1.0
    assert regex("<think>a</think>b", pattern=r"(?s)<think>.+</think>.+", think=None).score == 1.0
    assert regex(" x", pattern="x", strip=False).score == 0.0
    with pytest.raises(ValueError, match="no regular expression"):
        regex("x", pattern="(")


def test_without_jsonschema_the_extra_is_named():
    code = (
        "import sys; sys.modules['jsonschema'] = None\n"
        "from grpo_verifiers.text import json_schema\n"
        "from grpo_verifiers.verifying import REGISTRY\n"
        "print(REGISTRY.get('json_schema').derive(options={'schema': {}}).check())\n"
        "json_schema('1', schema={})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'grpo-plus[json]'" in done.stdout
    assert "grpo-plus[json]" in done.stderr.splitlines()[-1]
