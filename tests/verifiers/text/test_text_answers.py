"""Answers: exact text, letters, numbers, patterns, JSON. Listing candidates never pays."""

import json
import math
import socket
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
    two, tag = "<answer>Paris</answer><answer>Lyon</answer>", {"tag": "answer"}
    for text, gold, options, score in [
        ("<think>Lyon?</think>\nParis ", "Paris", {}, 1.0), ("Paris or Lyon", "Paris", {}, 0.0), ("paris", "Paris", {}, 0.0),
        ("STRASSE", "Straße", {"ignore_case": True}, 1.0), ("a  b", "a b", {}, 0.0), ("a  b\nc", "a b c", {"collapse_whitespace": True}, 1.0),
        ("e\u0301", "\u00e9", {}, 1.0), ("x²", "x2", {}, 0.0), ("7", 7, {}, 1.0), ("NYC", ["New York", "NYC"], {}, 1.0), (two, "Paris", tag, 0.0), (two, "Lyon", tag, 0.0),
        ("so <answer>Paris</answer>.", "Paris", tag, 1.0), ("<answer>Paris</answer> again <answer>Paris</answer>", "Paris", tag, 1.0),
    ]:  # fmt: skip
        assert exact(text, gold, **options).score == score, text
    for text in ("Paris", "<think><answer>Paris</answer></think>"):
        assert exact(text, "Paris", tag="answer").status == Status.UNPARSABLE


DECLARED = [
    "B", "(B)", "B.", "**B**", "B) Paris", "b", "The answer is (B).", "**Answer:** B", "Answer: **B**", "final answer is $\\boxed{\\text{B}}$",
    "The correct option is B", "Option B is correct.", "B is the correct answer", "答案是B", "答案：Ｂ", "The correct answer is option B.",
    "The answer is \uff22", "\ufdfa" * 1000 + "\nThe answer is B", "I think the answer is:\n\n**(B) Paris**", "<answer>B</answer>", "<answer>b) Paris</answer>", "\\boxed{B. Paris}", "Answer: B\nA is wrong because x",
    "The answer is (b).", "(b) is correct", "(b)", "so:\n\n**(b)**", "So the answer must be B because A is not right", "Therefore, the best choice is B", "long reasoning with A and C\n\nB", "<think>The answer is A</think>B",
    "I choose B.", "I would choose option (B).", "I'll go with **B**", "Comparing A and C, I pick the answer B.", "We have chosen B", "The answer is B. If I choose A, x is negative.", "Answer: B. Why would I choose A?", "The answer is \\(B\\).",
]  # fmt: skip
NOT_DECLARED = [
    "A or B", "The answer is A. Wait. The answer is B.", "The answer is A or B", "The answer is A. The answer is B.", "\\boxed{A}\\boxed{B}", "\\boxed{A, B}", "\\boxed{AB}", "A) x B) y C) z",
    "answer is a boy", "Answer: A/B", "Answer: B, A", "Answer: B and A", "Answer: A B C D E", "<answer>A</answer><answer>B</answer>",
    "the answer is not B", "Answer: Banana", "<think>answer is B</think> dunno", "B B A", "Answer: B) or A)", "Answer: (B), (A)", "both A and B",
    "A\nB", "B\nA", "Answer: B, B, A", "the answer is b", "Answer: (b) or (a)", "answer is (a), (b)", "Answer: B. Answer: A", "\\boxed{B}, so the answer is A", "\u0412", "", "Be", "<think>B",
    "If I choose B, then x<0.", "Should I choose B?", "We choose B to be the midpoint.", "I choose A or B.", "I choose B. Then I chose A.", "I would not choose B", "I choose Bologna", "I choose A, B",
]  # fmt: skip


def test_a_declared_letter_is_found_and_several_do_not_pass():
    for text in DECLARED:
        assert (choice(text, "B").score, choice(text, "A").score) == (1.0, 0.0)
    for text in NOT_DECLARED:
        assert choice(text, "B", conflicts="reject").score == 0.0
    for text, gold, score in [
        ("The answer is A. Wait. The answer is B.", "B", 1.0), ("\\boxed{A} The answer is B \\boxed{A}", "A", 1.0), ("Answer: B, A", "A", 0.0),
        ("<answer>A</answer> Hm. The answer is B. A good one.", "B", 1.0),
    ]:  # fmt: skip
        assert choice(text, gold).score == score
    for gold in ("B", "b", "(B)", "B.", "B) Paris", 1, " B "):
        assert choice("B", gold).score == 1.0
    for gold in ("", "F", "Paris", 5, -1, None, True, 1.0, "AB"):
        assert (choice("B", gold).status, choice("B", gold).score) == (Status.ERROR, None)
    assert choice("The answer is J", "J", letters="ABCDEFGHIJ").score == 1.0


@pytest.mark.parametrize("conflicts", ["reject", "last"])
@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([*"ABC \n}().", "answer is ", "Answer: ", "\\boxed{", "<answer>", "</answer>", ", ", " or "]), max_size=12).map("".join))  # fmt: skip
def test_no_text_is_right_for_two_letters(conflicts, text):
    assert sum(choice(text, letter, conflicts=conflicts).score for letter in "ABCDE") <= 1.0


def test_numbers_are_read_and_nothing_else_is_one():
    for text, value in [
        ("42", 42), ("-3.5", -3.5), ("1,234,567.5", 1234567.5), ("$1{,}234", 1234), ("1\\,234", 1234), ("3/4", 0.75), ("-$5", -5), ("50\\%", 50),
        ("**7.**", 7), ("1e-3", 0.001), ("−2", -2), (".5", 0.5), ("1.5e3/3", 500), ("\u20ac 12", 12), ("４２", 42), ("６．０２×10^{23}", 6.02e23), ("6.02\\times10^{23}", 6.02e23), ("-1.5 \\cdot 10^{-3}", -0.0015), ("3 x 10^2", 300),
    ]:  # fmt: skip
        assert float(parse_number(text)) == value
    for text in [
        "", "-", "inf", "nan", "Infinity", "1e99999999999", "1e5000", "9" * 1001, "1/0", "41=42", "4 2", "1,23", "12,3456", "1.2.3", "0x2A",
        "forty", "٤٢", "x²", "1_000", "--1", "1//2", "1e", "42 or 43", "2^5", "1\\,2", "2\\times 5", "x \\times 10^2", "1\\times10^{9999}",
    ]:  # fmt: skip
        assert parse_number(text) is None
    for text in [
        "\\boxed{41}\\boxed{42}", "\\boxed{42}\\boxed{41}", "#### 41\n#### 42", "\\boxed{41}\n#### 42", "\\boxed{41, 42}", "\\boxed{41=42}",
        "\\boxed{\\boxed{41}42}", "<answer>41</answer><answer>42</answer>", "\\boxed{42} or \\boxed{x}",
    ]:  # fmt: skip
        assert [numeric(text, gold, conflicts="reject").score for gold in (41, 42)] == [0.0, 0.0]
    for text in (
        "\\boxed{41}\\boxed{42}", "#### 41\n#### 42", "\\boxed{42}\n#### 41", "<answer>41</answer>\\boxed{42}", "#### 42\nThe answer is 41",
        "The answer is 42. Wait, the answer is 41. The answer is 42, in the box", "#### 42\n#### So",
    ):  # fmt: skip
        assert [numeric(text, gold).score for gold in (41, 42)] == [0.0, 1.0], text


def test_numbers_are_looked_for_where_they_are_stated_and_compared_exactly():
    last = {"source": "last"}
    for text, gold, options, score in [
        ("so 41, then \\boxed{42}", 42, {}, 1.0), ("steps\n#### 42", 42, {}, 1.0), ("#### Solution\nWe get \\boxed{42}", 42, {}, 1.0),
        ("<answer>\\boxed{42}</answer>", 42, {}, 1.0), ("it is 42 apples", 42, last, 1.0), ("from 41 to 42", 41, last, 0.0),
        ("<think>\\boxed{41}</think>\\boxed{42}", 42, {}, 1.0), ("\\boxed{42} \\boxed{42.0}", 42, {}, 1.0),
        ("${a}$ and \\boxed{1{,}234}}", 1234, {}, 1.0), ("#### 7\n" * 5000 + "#### 14/2", "7", {}, 1.0), ("0.3", "0", {"abs_tol": 0.3}, 1.0),
        ("101", 100, {"rel_tol": 0.01}, 1.0), ("101.0000001", 100, {"rel_tol": 0.01}, 0.0),
        ("1e300", 1, {"rel_tol": 0.99}, 0.0),  # a large claim does not widen it
        ("12345679", 12345678, {}, 0.0), ("100000000000000000001", "100000000000000000000", {"rel_tol": 0}, 0.0), ("0.30000000000000004", 0.3, {}, 1.0),
        ("\\boxed{18}", "16 - 3 - 4 = 9, 9 * 2 = 18\n#### 18", {}, 1.0), ("\\boxed{1800}", "so\n#### 1,800", {}, 1.0),
        *((f"\\boxed{{{text}}}", 42, {}, score) for score, texts in ((1.0, ["42 \\text{ cm}", "42\\,\\mathrm{m/s^2}", "42 kg", "42 apples", "$42$ hours"]),
          (0.0, ["42 \\text{ million}", "42 dozen", "42 \\text{ hundredths}", "42 squared", "42x", "42 foo", "42 or 43", "42 \\text{ cm} + 1", "42 cm 5"])) for text in texts),
        ("The answer is 42 cm.", 42, {}, 1.0), ("so 6.02\\times10^{23} of them", "6.02e23", last, 1.0), ("The answer is 42 million.", 42, {}, 0.0),
    ]:  # fmt: skip
        assert numeric(text, gold, **options).score == score, text
    for text in ("it is 42", "<think>\\boxed{42}</think>"):
        assert numeric(text, 42).status == Status.UNPARSABLE
    verdict = numeric("\n".join(f"#### {k}" for k in range(5000)), "4999", conflicts="reject")
    assert (verdict.status, verdict.detail) == (Status.UNPARSABLE, "more than 64 different answers")


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
        '{"n": 1}', '<think>{"n": "x"}</think>\n{"n": 1}\n', 'Here:\n```json\n{"n": 1}\n```\nDone.',
        '```json\n{"n": "bad"}\n```\n```JSON\n{"n": 1}\n```', '```json\n{"n": 1}\n```\n```python\nx\n```',
    ],
    Status.WRONG: ['```json\n{"n": 1}\n```\n```json\n{"n": "bad"}\n```', '{"n": "1"}', "{}", '{"n": 1, "m": 2}'],
    Status.UNPARSABLE: [
        '{"n": "x", "n": 1}', '{"n": NaN}', '{"n": -Infinity}', '{"n": 1e999}', '{"n": 1} trailing', "{'n': 1}", "", "[" * 200_000, '{"n": ' + "9" * 10_000 + "}",
    ],
}  # fmt: skip
FENCED = '```json\n{"n": 1}\n```'
TREE = {"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$ref": "#/$defs/t"}
NAMED = {"$id": "https://e.example/a", "$defs": {"b": {"$id": "b", "type": "null"}}, "$ref": "b"}
SCHEMAS = [
    (FENCED, {"schema": SCHEMA, "fences": "forbidden"}, 0.0), ('{"n": 1}', {"schema": SCHEMA, "fences": "forbidden"}, 1.0),
    ('{"n": 1}', {"schema": SCHEMA, "fences": "required"}, 0.0), (FENCED, {"schema": SCHEMA, "fences": "required"}, 1.0),
    ("[[], [[]]]", {"schema": TREE}, 1.0), ("[[], [1]]", {"schema": TREE}, 0.0), ("null", {"schema": NAMED}, 1.0),
    ("{}", {"schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}, 1.0), ("1", {"schema": {"const": {"$ref": "http://x.example/"}}}, 0.0),
]  # fmt: skip
THINKING, DIGITS = "<think>1</think>", {"pattern": r"\d+"}
REGEX = [
    (f"{THINKING}42\n<think>or 43", DIGITS, 1.0), (f"{THINKING} 42\n", DIGITS, 1.0), ("42 apples", DIGITS, 0.0), ("42 apples", {**DIGITS, "mode": "search"}, 1.0),
    ("<think>a</think>b", {"pattern": r"(?s)<think>.+</think>.+", "think": None}, 1.0),
]  # fmt: skip


def test_json_is_read_strictly_in_fences_and_by_schemas_of_rows():
    for status, text in ((kind, each) for kind, texts in JSON.items() for each in texts):
        verdict = json_schema(text, schema=SCHEMA)
        assert (verdict.score, verdict.status) == (float(status is Status.CORRECT), status)
        assert verdict.detail or verdict.score
    for text, options, score in SCHEMAS:
        assert json_schema(text, **options).score == score, text
    assert json_schema('"x"', json.dumps({"type": "string"}), schema=SCHEMA).score == 1.0
    assert json_schema('"x"', {"type": "string"}).score == 1.0
    for broken in ("{", "3", {"type": "strin"}, {"$ref": "#/$defs/none"}, [], {"a": object()}):
        verdict = json_schema('"x"', broken, schema=SCHEMA)
        assert (verdict.score, verdict.status) == (None, Status.ERROR)
    with pytest.raises(VerifierFailedError, match="no schema"):
        json_schema("1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        with pytest.raises(ValueError, match="nothing is fetched"):
            json_schema("1", schema={"$ref": url})
        assert json_schema("1", {"properties": {"a": {"$ref": url}}}).score is None
        with pytest.raises(TimeoutError):
            server.accept()
    for text, options, score in REGEX:
        assert regex(text, **options).score == score, text
    with pytest.raises(ValueError, match="no regular expression"):
        regex("x", pattern="(")


def test_without_jsonschema_the_extra_is_named(python):
    code = (
        "import sys; sys.modules['jsonschema'] = None\n"
        "from grpo_verifiers.text import json_schema\n"
        "from grpo_verifiers.verifying import REGISTRY\n"
        "print(REGISTRY.get('json_schema').derive(options={'schema': {}}).check())\n"
        "json_schema('1', schema={})\n"
    )
    done = python(code)
    assert "pip install 'grpo-plus[json]'" in done.stdout
    assert "grpo-plus[json]" in done.stderr.splitlines()[-1]
