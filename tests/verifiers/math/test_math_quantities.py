r"""Words beside a number: they change its value, name a unit or what is counted, or make the answer unreadable."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.math import math
from grpo_verifiers.math.words.numerals import number_in_words
from grpo_verifiers.math.words.units import TABLE, ratio, unit_readings
from tests.cases.rows import sections

# For the gold 5: a model that writes this has answered 5, or something else or nothing that can be known.
RIGHT, WRONG = ("|".join(rows).split("|") for rows in sections("maths_phrases.txt").values())


def score(gold, answer):
    verdict = math(answer if "\\boxed" in answer else "\\boxed{" + answer + "}", gold)
    return verdict.score if hasattr(verdict, "score") else None


def in_text(phrase):
    """The phrase as LaTeX writers put it: words inside a text command."""
    words = phrase.split()
    at = next((place for place, word in enumerate(words) if word[0].isdigit() or word[0] == "\\"), None)
    if at is None:
        return f"\\text{{{phrase}}}"
    before, after = " ".join(words[:at]), " ".join(words[at + 1 :])
    return (f"\\text{{{before} }}" if before else "") + words[at] + (f"\\text{{ {after}}}" if after else "")


@pytest.mark.sample(67)
@pytest.mark.parametrize("phrase", RIGHT)
def test_words_that_leave_a_value_as_it_is_are_accepted(phrase):
    assert score("5", phrase) == 1
    if "^" not in phrase:
        assert score("5", in_text(phrase)) == 1


@pytest.mark.parametrize("phrase", WRONG)
def test_words_that_change_a_value_are_never_dropped(phrase):
    assert score("5", phrase) == score("5", in_text(phrase)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("phrase", [each for each in WRONG if "answer" not in each])
def test_nor_are_they_dropped_after_the_answer_is(phrase):
    for text in (f"So the answer is {phrase}.", f"<answer>{phrase}</answer>", f"The answer is ${in_text(phrase)}$."):
        assert score("5", text) in {0, None}, text
        assert score("5", "\\boxed{" + text + "}") == 0, text


DONE_TO_THE_ANSWER = """
half the answer is 5|Half of the answer is 5.|Twice the answer is 5.|The answer squared is 5|The answer minus one is 5
The answer plus 1 is 5|10 minus the answer is 5|the square of the answer is 5|the negative of our answer is 5
The answer divided by 2 is 5.|The reciprocal of the final answer is 5.|the digit sum of the answer is 5|The answer / 2 = 5
more than the answer is 5|The answer times 3 is 5|20 percent of the answer is 5
"""


NAMES_A_VALUE = [r"\text{Area} = 5", r"\text{Total number of ways}=5", r"\text{Let } x = 5", r"\text{Cost} = \$5"]
NAMES_ANOTHER = [r"\text{twice } x = 5", r"\text{half of x} = 5", r"\text{Half} = 5", r"\text{minus } x = 5"]


def test_labels_name_a_value_and_what_is_done_to_the_answer_states_none():
    for text in [text for text in DONE_TO_THE_ANSWER.replace("\n", "|").split("|") if text]:
        assert score("5", "\\boxed{" + text + "}") == math("So. " + text, "5").score == 0
    for answer, right in [(each, 1) for each in NAMES_A_VALUE] + [
        (each, 0) for each in (*NAMES_ANOTHER, "the square of x is 5")
    ]:
        assert score("5", answer) == right


CHANGED = {
    "-5": ["negative 5", "minus 5", "negative five", "minus five", r"\text{negative }5", r"\text{minus } 5", "-5 apples"], "25": ["twenty-five", "twenty five"], "0.05": ["5 hundredths", "five hundredths", "5%", "5 percent", "five percent"], "0.5": ["5 tenths", "five tenths", "one half", "a half", "half"],
    r"\frac{5}{3}": ["5 thirds", "five thirds", r"5 \text{ thirds}", "one and two thirds", "1 and two thirds"], "5000000": ["5 million", "five million", r"5\text{ million}", "5 million people", "5,000,000"], "500000": ["5 lakh", "5 lakhs", "0.5 million", "five hundred thousand", "five lakh"],
    "60": ["5 dozen", "5 dozen eggs", "sixty"], r"3\frac12": ["three and a half", "3 and a half", "three and one half", "3.5"], r"-\frac{1}{2}": ["negative one half", "minus one half", "minus a half"], r"\$5\text{ million}": [r"\$5,000,000", "5 million dollars", r"\$5 \text{ million}"],
}  # fmt: skip


def test_words_give_the_value_they_say_and_operations_are_carried_out_alone():
    assert [(gold, each) for gold, answers in CHANGED.items() for each in answers if score(gold, each) != 1] == []
    for gold, answer in [("25", "5 squared"), ("120", "5 factorial"), ("125", "five cubed")]:
        assert (score(gold, answer), math(f"\\boxed{{{answer}}}", gold, evaluated=False).score) == (0, 1)


SAME_UNITS = [
    ["m/s^2", r"m s^{-2}", r"\frac{m}{s^2}", "meters per second squared", "metres per second per second", "m/s/s", r"m\cdot s^{-2}", "N/kg"], ["km/h", "kmh", "kph", "km/hr", "kilometers per hour", r"\frac{km}{h}", r"km\cdot h^{-1}"],
    ["cm^2", "square centimeters", "sq cm", "sq. cm", "square centimetre", "cm^{2}", "centimeters squared"], *(["N", "newtons", "kg m/s^2", r"kg\cdot m/s^2", "J/m"], ["J", "N m", "N·m", "W s", "joules", "kg m^2/s^2"]), *(["L", "liters", "litre", "dm^3", "1 L".removeprefix("1 ")], ["mph", "miles per hour", "mi/h", "miles/hour"]),
    *(["ft^3", "cubic feet", "cu ft", "cu. ft.", "feet cubed"], ["dollars", "USD", "dollar", r"$"]), ["C", "degrees Celsius", "celsius", "deg C"],
]  # fmt: skip


def test_units_compare_by_value_in_all_spellings_and_are_told_apart():
    for names in SAME_UNITS:
        first = unit_readings(names[0])
        for name in names[1:]:
            assert ratio(first, unit_readings(name)) == 1 or "C" in names, name
    everything = [names[0] for names in SAME_UNITS[:-1]] + [
        *("m", "s", "kg", "euros", "K", "degrees", "rad", "apples", "m/s", "s/m"),
    ]
    for index, left in enumerate(everything):
        for right in everything[index + 1 :]:
            assert ratio(unit_readings(left), unit_readings(right)) != 1, (left, right)
    unread = [name for name in TABLE if name != "in" and unit_readings(name) is None]
    assert unread == []


_CARDINALS = st.integers(0, 999_999)
_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(value, joiner="-", with_and=" "):
    """A number in words, by division: an independent way to write what ``number_in_words`` reads."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        rest = value % 10
        return _TENS[value // 10 - 2] + (joiner + _ONES[rest] if rest else "")
    size, name = (100, "hundred") if value < 1000 else (1000, "thousand")
    rest = value % size
    tail = (with_and if rest < 100 else " ") + in_words(rest, joiner, with_and) if rest else ""
    return f"{in_words(value // size, joiner, with_and)} {name}{tail}"


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(_CARDINALS, st.sampled_from(["-", " "]), st.sampled_from([" ", " and "]))
def test_numbers_in_words_are_read_as_they_are_written(value, joiner, with_and):
    assert number_in_words(in_words(value, joiner, with_and)) == ("n", Fraction(value), None)
    assert number_in_words("minus " + in_words(value, joiner, with_and)) == ("-", ("n", Fraction(value), None))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([*_ONES, *_TENS, "hundred", "thousand", "and", "half", "point", "third"]),
        min_size=2,
        max_size=5,
    )
)
def test_words_in_an_impossible_order_are_no_number(words):
    node = number_in_words(" ".join(words))
    if node is not None and node[0] == "n" and node[2] is None:
        value = int(node[1])
        written = {in_words(value, " ", joined).replace("-", " ") for joined in (" ", " and ")}
        if "hundred" in words[1:3] and value < 10_000:  # fifteen hundred
            rest = value % 100
            written |= {
                in_words(value // 100, " ") + " hundred" + (joined + in_words(rest, " ") if rest else "")
                for joined in (" ", " and ")
            }
        text = " ".join(words)  # eleven hundred thousand
        assert text in written or "dozen" in words or "hundred thousand" in text, (words, value)
