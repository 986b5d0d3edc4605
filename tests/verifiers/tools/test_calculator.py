"""The built-in tools: an exact calculator that refuses at once what it cannot give, and a search with the scores of its formula."""

import contextlib
import math
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers import get_tool
from grpo_verifiers.errors import KeywordError
from grpo_verifiers.tools import search
from grpo_verifiers.tools.calculator import MAX_LENGTH, calculator, evaluate
from grpo_verifiers.tools.search import search_documents
from tests.waiting import no_hang

EXACT = """
1+2*3 -> 7 | (1+2)*3 -> 9 | 0.1 + 0.2 -> 0.3 | -2**2 -> -4 | 2**3**2 -> 512 | 2^-1 -> 0.5 | --3 -> 3 | 7 // -2 -> -4
10 % 3 -> 1 | 7 % (-3) -> -2 | 12 × 3 ÷ 4 − 1 -> 8 | .5 + 2. -> 2.5 | gcd(100,200) -> 100 | max(1, (2000), 3) -> 2000
lcm(4, 6) -> 12 | sqrt(16/9) * 3 -> 4 | factorial(5) -> 120 | round(2.5) + round(-2.5) -> 0 | (-1)**(10**200+1) -> -1
round(1234.567, -2) + round(1.25, 1) -> 1201.3 | floor(-1.5) + ceil(-1.5) + abs(-1) -> -2 | 1e3 -> 1000 | 2 + 3 = -> 5
1/3 -> 1/3 (about 0.333333333333) | -1/8 -> -0.125
12345678901234567890 * 98765432109876543210 -> 1219326311370217952237463801111263526900
"""
REFUSED = """
too large: 9**9**9 | 2**8193 | (1/2)**99999999999 | factorial(99999) | 1e99999999999 | 10**2000 * 10**2000
301 digits: 10**300
division by zero: 1/0 | 5 % 0 | 0**-1
no exact value: sqrt(2)
negative: sqrt(-4)
integers, not 2.5: factorial(2.5)
integers, not 0.3: 2**0.3
for percent: 7 % -3 | 50% | 200*15% | (5%)*3
a comma: 12,34 | 1,234
not expected after: 1 2
invalid syntax: 3 +
number was expected: 1or 2 | not 1 | 1 if 2 else 3
nothing to calculate with: 5! | 1 < 2 | 1 == 1 | √9 | 3 # 4 | 1;2 | ١+١ | 1 @ 2
never closed: (1 | gcd(4
unmatched: 1)
in parentheses: gcd
does not take 2: sqrt(1, 4)
Did you mean 'sqrt': sqr(4)
"""


REFUSALS = [
    *((words, case) for words, _, cases in (line.partition(": ") for line in REFUSED.strip().splitlines()) for case in cases.split(" | ")),
    ("Write \\* between", "2(3)"), ("empty", ""), ("nothing to calculate", "__import__('os')"),
    ("unknown function", "__import__(1)"), ("nested", "(" * 300 + "1" + ")" * 300), ("nested", "-" * 1999 + "1"), ("characters", "1" * (MAX_LENGTH + 1)),
]  # fmt: skip


def test_answers_are_exact_or_refused_with_words():
    for case in [case for line in EXACT.strip().splitlines() for case in line.split(" | ")]:
        expression, _, answer = case.rpartition(" -> ")
        assert calculator(expression) == answer, case
    for words, expression in REFUSALS:
        with pytest.raises(ValueError, match=words):
            calculator(expression)
    assert calculator("2/3", digits=4) == "2/3 (about 0.6667)"
    assert calculator("(2/3)**200", digits=3).startswith("about 6.0")


signs = st.sampled_from(["+", "-", "*", "/", "//", "%"])
trees = st.recursive(
    st.integers(0, 99).map(str),
    lambda tree: st.tuples(tree, signs, tree).map(lambda t: f"({' '.join(t)})") | tree.map(lambda text: f"(-{text})"),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(trees)
def test_values_are_those_of_pythons_fractions(expression):
    try:
        expected = Fraction(eval(re.sub(r"(\d+)", r"Fraction(\1)", expression), {"Fraction": Fraction}))
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="division by zero"):
            evaluate(expression)
    else:
        assert evaluate(expression) == expected


@settings(max_examples=400, deadline=None)
@given(st.text(st.sampled_from("0123456789+-*/%^!().,=<>√ egcdmaxsqrt"), max_size=40) | st.text(max_size=20))
def test_any_text_is_answered_or_refused_with_words(text):
    try:
        said = calculator(text)
    except ValueError as error:
        said = str(error)
    assert 0 < len(said) < 310


@pytest.mark.parametrize("expression", [
    "(1/3)" + "**-1**1" * 20, "*".join(["(1/7)"] * 350), "+".join(["1/997"] * 300), "(10**2400/(10**2399+1))" + "%(1/(10**2300+3))" * 5,
])  # fmt: skip
def test_the_dearest_expressions_end(expression):
    with no_hang(), contextlib.suppress(ValueError):
        calculator(expression)


TEXTS = {"b.md": "apple pear apple", "a.txt": "pear plum", "sub/c.txt": "plum plum fig grape", "d.csv": "apple apple apple"}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    search._index.cache_clear()
    home = tmp_path / "docs"
    for name, text in TEXTS.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def names(said):
    return [line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("[")]


def test_scores_are_those_of_the_formula_and_what_is_nowhere_is_said(folder):
    texts = {name: TEXTS[name].split() for name in ("a.txt", "b.md", "sub/c.txt")}
    mean = sum(map(len, texts.values())) / 3

    def score(words, term):
        having = sum(term in each for each in texts.values())
        count, norm = words.count(term), 1.5 * (0.25 + 0.75 * len(words) / mean)
        return math.log(1 + (3 - having + 0.5) / (having + 0.5)) * count / (count + norm)

    found = search._index(str(folder), 150)
    assert [name for name, _ in found.passages] == list(texts)
    for term in ("apple", "pear", "plum", "fig"):
        expected = [score(words, term) for words in texts.values()]
        assert found.scorer.get_scores([term]).tolist() == pytest.approx(expected, abs=1e-6)
    assert names(search_documents("Plum!", folder=str(folder))) == ["sub/c.txt", "a.txt"]
    assert search_documents("PEAR", 1, folder=str(folder)) == "[1] a.txt\npear plum"
    for query in ("cherry ??", ""):
        assert search_documents(query, folder=str(folder)) == "No passage shares a word with the query."
    with pytest.raises(ValueError, match="top_k is 0"):
        search_documents("pear", 0, folder=str(folder))


def test_files_and_lines_are_documents_in_order_and_an_empty_folder_says_so(tmp_path):
    for name in ("z.txt", "m.txt", "k.txt"):
        (tmp_path / name).write_text("same words here")
    assert names(search_documents("words", folder=str(tmp_path))) == ["k.txt", "m.txt", "z.txt"]
    (tmp_path / "long.md").write_text(" ".join(f"w{at}" for at in range(45)))
    assert search_documents("w44", folder=str(tmp_path), words=20) == "[1] long.md\nw40 w41 w42 w43 w44"
    lines, bad, empty = (tmp_path / name for name in ("lines", "bad", "empty"))
    for folder in (lines, bad, empty):
        folder.mkdir()
    rows = '{"title": "Figs", "text": "a fig tree"}\n\n"a plum tree"\n{"contents": "an oak"}\n'
    (lines / "rows.jsonl").write_text(rows)
    assert search_documents("fig", folder=str(lines)) == "[1] rows.jsonl:1 Figs\na fig tree"
    assert names(search_documents("plum oak", folder=str(lines))) == ["rows.jsonl:4", "rows.jsonl:3"]
    (bad / "bad.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"bad.jsonl:1 has no text"):
        search_documents("fig", folder=str(bad))
    with pytest.raises(ValueError, match="holds no text"):
        search_documents("a", folder=str(empty))


def test_the_folder_is_absolute_checked_and_no_link_leads_outside(folder, tmp_path, monkeypatch):
    (tmp_path / "secret.txt").write_text("password apple")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert "password" not in search_documents("apple password", folder=str(folder))
    part = get_tool("search_documents", folder="docs", base=tmp_path)
    assert part.kwargs == {"folder": str(folder.resolve())}
    assert list(part.methods[0].schema["function"]["parameters"]["properties"]) == ["query", "top_k"]
    with pytest.raises(KeywordError, match="expected a folder that exists"):
        get_tool("search_documents", folder="nowhere", base=tmp_path)
    monkeypatch.setattr("grpo_verifiers.tools.registry.installed", lambda package: package != "bm25s")
    with pytest.raises(KeywordError, match=r"pip install 'grpo-plus\[search\]'"):
        get_tool("search_documents", folder="docs", base=tmp_path)
