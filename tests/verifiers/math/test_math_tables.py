"""Functions of the verifier for maths, from tokens to verdicts, against the tables in tests/cases; each limit at both sides."""

import inspect
import sys
from pathlib import Path

import pytest

from grpo_verifiers.math.compare import wording
from grpo_verifiers.math.compare.leaf import approximates, decimal_of, exact_value
from grpo_verifiers.math.compare.quantities import compound, quantity, with_symbols
from grpo_verifiers.math.extract import extract
from grpo_verifiers.math.gold import gold_of, gold_text, option_of
from grpo_verifiers.math.grammar.parser import parse
from grpo_verifiers.math.grammar.read import notation, other_reading, phrase, read, set_in_words
from grpo_verifiers.math.grammar.relations import unknown_first
from grpo_verifiers.math.grammar.tokens import ParseError, facing_inward, tokenize
from grpo_verifiers.math.judge import decide
from grpo_verifiers.math.options import Options
from grpo_verifiers.math.remarks import as_chain, without_remarks
from grpo_verifiers.math.values.canon import canon, exact, same
from grpo_verifiers.math.values.numeric import agree
from grpo_verifiers.math.values.sets import region_of
from grpo_verifiers.math.values.work import is_final, is_reduced, remaining_work
from grpo_verifiers.math.words.moments import clock_of_ratio, moment, same_moment
from grpo_verifiers.math.words.nouns import is_counted, is_label, noun_phrase, singular
from grpo_verifiers.math.words.numerals import denominator, is_numeral, number_in_words, ordinal
from grpo_verifiers.math.words.units import ratio, unit_readings
from tests.cases.rows import sections


def spelled(node):
    if isinstance(node, frozenset):
        return f"{{{' '.join(sorted(node))}}}"
    if not isinstance(node, tuple):
        return "-" if node is None or node == "" else str(node)
    if node[:1] == ("n",) and len(node) == 3:
        return f"{node[1]}" if node[2] is None else f"{node[1]}~{node[2]}"
    return node[1] if node[:1] == ("v",) and len(node) == 2 else f"({' '.join(map(spelled, node))})"


def tokens(text):
    return " ".join(f"{'_' * one.spaced}{one.kind[0]}:{one.text}" for one in tokenize(text))


def unit(text, known=""):
    return " or ".join(spelled((one.scale, *(f"{base}^{power}" for base, power in one.powers), *sorted(one.adjectives))) for one in unit_readings(text, known) or ())  # fmt: skip


def region(text):
    found = region_of(read(text))
    parts = [
        f"{'(['[one.low_in]}{spelled(one.low.node)},{spelled(one.high.node)}{')]'[one.high_in]}" for one in found.parts
    ]
    return " ".join([*parts, found.domain, spelled(found.name)])


def found(text):
    here = extract(text.replace("<br>", "\n"), STRICT)
    return spelled((*here.answers, *(f"beside {one}" for one in here.asides), *(["!"] if here.problem else [])))


def of_trees(function):
    """A function of trees as one of texts; a third argument is a number."""
    return lambda *texts: function(*map(parse, texts[:2]), *map(int, texts[2:]))


def verdict(gold, answer):
    try:
        return "+" if decide(answer, gold, Options())[0] else "-"
    except ParseError:
        return "!"


CALLS = {
    "tokens": tokens, "inward": facing_inward, "parse": parse, "read": read,
    "noun_phrase": lambda text, known="": noun_phrase(text.split(), frozenset(known.split())), "singular": singular, "is_label": is_label,
    "is_counted": lambda word, known="": is_counted(word, frozenset(known.split())), "spoken": number_in_words, "ordinal": ordinal,
    "denominator": denominator, "is_numeral": is_numeral, "moment": moment, "unit": unit,
    "same_moment": lambda *texts: same_moment(*map(moment, texts)), "clock": lambda *numbers: clock_of_ratio(*map(int, numbers)),
    "ratio": lambda *texts: ratio(*map(unit_readings, texts)), "undone": of_trees(remaining_work), "is_final": of_trees(is_final),
    "is_reduced": of_trees(is_reduced), "decimal_of": of_trees(decimal_of), "approximates": of_trees(approximates), "exact": of_trees(exact),
    "same": of_trees(lambda left, right: same(canon(left), canon(right))), "region": region, "found": found, "gold_text": gold_text,
    "option_of": option_of, "without_remarks": lambda gold, text: without_remarks(text, read(gold)),
    "restated": lambda gold, text: as_chain(text, read(gold)),
    "quantity": lambda text: quantity(read(text)), "with_symbols": of_trees(with_symbols), "compound": lambda text: compound(read(text)),
    "reason": lambda gold, text: decide(text, gold, Options())[1], "loose": lambda gold, text: decide(text, gold, Options(evaluated=False, reduced=False))[0], "spelled": lambda text: wording.words_of(read(text)),
    "exact_value": of_trees(exact_value), "agree": of_trees(agree),
    "fronted": of_trees(unknown_first), "other_reading": other_reading,
}  # fmt: skip
STRICT = Options(conflicts="reject")
TABLES = sections("maths_functions.txt")
VERDICTS = (Path(__file__).parents[2] / "cases" / "maths_verdicts.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", TABLES)
def test_each_row_of_a_table_is_what_its_function_gives(name):
    for case in TABLES[name]:
        arguments, _, result = case.partition(" => ")
        try:
            given = spelled(CALLS[name](*arguments.split(" | ")))
        except ValueError:
            given = "!"
        assert given == result, case


def test_answers_are_right_wrong_left_open_or_unreadable_as_marked():
    for row in VERDICTS.splitlines():
        gold, _, answers = row.partition(" :: ")
        for answer in answers.split(" ;; "):
            assert verdict(gold, answer[1:]) == answer[0], (gold, answer)


def taken(function, text):
    try:
        return bool(function(text))
    except ValueError:
        return False


def repeated(unit, join="+"):
    return lambda count: join.join(unit.replace("#", str(place)) for place in range(count))


def canon_of(text):
    return canon(parse(text))


LIMITS = [
    (80, notation, lambda n: "1 to " + "2" * (n - 5)), (400, phrase, "5 apples".ljust), (200, set_in_words, "all integers".ljust),
    (200, set_in_words, "x is at least 5".ljust), (4000, tokenize, lambda n: "1" * n), (1200, tokenize, lambda n: "+" * n), (79, parse, lambda n: "1" + "/1" * n), (28, parse, lambda n: "-" * n + "1"),
    (14, parse, lambda n: "(" * n + "1" + ")" * n), (9, parse, lambda n: r"\sqrt{" * n + "1" + "}" * n), (4, parse, lambda n: "|" * n + "x" + "|" * n),
    (300, parse, lambda n: "0." + "1" * (n - 2)), (20_000, read, lambda n: "7" * n), (120, unit_readings, lambda n: "m" + " " * (n - 2) + "s"), (400, option_of, lambda n: "D. " + "x" * (n - 3)),
    (200, lambda text: without_remarks(text, read("5")), lambda n: "5".ljust(n - 5) + " only"), (4, lambda text: noun_phrase(text.split()), lambda n: "red " * (n - 1) + "apples"),
    (300, lambda text: as_chain(text, read("1/2")), lambda n: "1/2".ljust(n - 5) + "(0.5)"), (24, region, repeated("[#,#]", r"\cup")), (80, lambda text: "," in gold_text(text), lambda n: r"\boxed{5}" + ",".ljust(n) + r"\boxed{6}"), (23, region, repeated(r"x\ne #", ",")),
    (64, lambda text: extract(text, STRICT).answers, repeated(r"\boxed{#}", " ")), (150, canon_of, repeated("x_{#}")),
    (30, canon_of, lambda n: f"({repeated('x^{#}')(20)})({repeated('x^{#}')(n)})"), (3000, canon_of, lambda n: f"2^{{{n}}}"), (2000, canon_of, lambda n: f"(2x)^{{{n}}}"),
    (113, lambda text: extract(text, Options()).problem, lambda n: "half of".ljust(7 + n) + r"\boxed{5}"),
    (100, canon_of, lambda n: rf"\sqrt[{n}]{{2}}"), (100, canon_of, lambda n: f"2^{{1/{n}}}"), (64, lambda text: verdict(text, ",".join(reversed(text.split(",")))) == "+", repeated("#", ",")),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(LIMITS)))
def test_a_limit_is_the_last_size_that_is_taken(place):
    limit, function, made = LIMITS[place]
    assert (taken(function, made(limit)), taken(function, made(limit + 1))) == (True, False), made(limit)[:100]


def test_what_stands_side_by_side_is_no_deeper_than_one_of_it():
    for part in [r"\sqrt{2}", "(-1)", "{-x}", "|x|", r"\frac12", r"\sin{x}", "-1", "f(x)", r"\{1\}", "2^{3}", r"\lfloor x\rfloor", "x*-1", r"\log_{2}x", "[1,2]"]:  # fmt: skip
        assert taken(parse, "+".join([part] * 40)), part
        assert not taken(parse, "+".join([part] * 40 + ["(" * 15 + "1" + ")" * 15])), part


def test_a_stack_that_is_nearly_full_makes_a_text_unreadable_and_is_no_error():
    deep, limit = "(" * 14 + "7" + ")" * 14, sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 60)
    try:
        told = gold_of.__wrapped__(deep).problem, verdict("x+7", deep), as_chain("1/2", ("n", 1, None))
    finally:
        sys.setrecursionlimit(limit)
    assert told == ("nested too deeply", "!", None)
