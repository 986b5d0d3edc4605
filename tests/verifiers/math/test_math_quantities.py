r"""Words beside a number: they change its value, name a unit or what is counted, or make the answer unreadable."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers.math import check_gold, fast
from grpo_verifiers.math.words.numerals import spoken
from grpo_verifiers.math.words.units import TABLE, ratio, unit_readings

# For the gold 5: a model that writes this has answered 5.
FIVE = """
5 apples|5 red apples|5 ways|5 different ways|5 students|5 people|5 children|5 men|5 women|5 boys|5 girls|5 marbles
5 red marbles|5 distinct values|5 real solutions|5 solutions|5 integers|5 positive integers|5 even numbers
5 prime numbers|5 ordered pairs|5 triples|5 triangles|5 points|5 sides|5 edges|5 vertices|5 faces|5 diagonals|5 regions
5 lines|5 digits|5 letters|5 words|5 books|5 pages|5 chapters|5 pencils|5 cookies|5 eggs|5 slices of pizza|5 dogs
5 pieces of candy|5 bags of rice|5 cups of flour|5 liters of water|5 gallons of paint|5 boxes of chocolates|5 pies
5 cats|5 mice|5 sheep|5 fish|5 deer|5 cars|5 trucks|5 wheels|5 coins|5 nickels|5 dimes|5 stamps|5 tickets|5 cards|5 dice
5 games|5 matches|5 rounds|5 laps|5 trips|5 handshakes|5 arrangements|5 combinations|5 permutations|5 subsets|5 elements
5 terms|5 factors|5 divisors|5 roots|5 zeros|5 cm|5 centimeters|5 km|5 miles|5 feet|5 inches|5 meters|5 mm|5 ft|5 kg
5 grams|5 pounds|5 ounces|5 tons|5 seconds|5 minutes|5 hours|5 days|5 weeks|5 months|5 years|5 years old|5 feet tall
5 square units|5 units|5 cubic feet|5 square meters|5 sq. ft|5 cm^2|5 km/h|5 miles per hour|5 mph|5 dollars|5 euros
5 cents|5 dollars per hour|5 degrees|5 radians|5 newtons|5 joules|5 volts|5 ohms|5 watts|5 liters|5 mL|5 gallons|5 cups
5 apples in total|5 apples left|5 students altogether|5 per day|5 apples per day|5 points per game|5 students per class
the answer is 5|The answer is 5 apples|the final answer is 5|there are 5 ways|There are exactly 5 solutions|a total of 5
exactly 5|x is 5|The value is 5|the value of x is 5|we get 5|Therefore 5|Thus, 5|So the answer is 5 cm|It is 5|equals 5
The area is 5 square units|The probability is 5|the remainder is 5|a remainder of 5|the number of ways is 5|it takes 5 days
The distance is 5 km|the length of the side is 5|the total number of students is 5|positive 5|five|Five|five apples
five ways|exactly five|there are five ways|the answer is five|5 is the answer|5 bacteria|5元|5个|5 个|5平方厘米|5人|5公里/小时|5个苹果
5 км|5км|5 см²|5 км/ч|5 яблок|5 рублей|5 Stunden|5 Äpfel|5 Mädchen|5 horas|5 días|5 années|5원|5円|5개|5 명|5 किलोमीटर|5 كيلومتر|5 Äpfel
\\$5|5 bucks|5 hours each|5 houses|5 trees|5 flowers|5 squares|5 cubes|5 rectangles|5 circles|5 paths|5 moves|5 steps|5 more apples|5 fewer students|5 possible values of n|5 games played|5 tickets sold
"""
RIGHT = [phrase for phrase in FIVE.replace("\n", "|").split("|") if phrase]
# For the gold 5: a model that writes this has answered something else, or nothing that can be known.
NOT_FIVE = """
negative 5|minus 5|half of 5|one half of 5|a third of 5|two thirds of 5|twice 5|double 5|triple 5|thrice 5|5 tenths
5 hundredths|5 thousandths|5 millionths|5 ten-thousandths|5 halves|5 thirds|5 fourths|5 quarters|5 fifths|5 sixths
5 sevenths|5 eighths|5 ninths|5 twelfths|5 factorial|5 lakh|5 lakhs|5 crore|5 crores|5 hundred|5 hundreds|5 thousand
5 thousands|5 million|5 millions|5 billion|5 trillion|5 quintillion|5 mils|5 square roots|5 cube roots|5 sixes|5 quarter turns|5 zero digits|5 zillions|5 myriads|5 scores|5 permille|5 dozen|5 dozens|5 dozen eggs|5 score|5 gross|5 tens|5 twos
5 squared|5 cubed|5 to the fourth|5 to the power 2|5 choose 2|5 permute 2|the square of 5|the square root of 5
square root of 5|the cube root of 5|root 5|the reciprocal of 5|reciprocal of 5|the inverse of 5|inverse of 5
the opposite of 5|opposite of 5|the negative of 5|the additive inverse of 5|log of 5|the logarithm of 5|ln of 5
sine of 5|the cosine of 5|the factorial of 5|the absolute value of 5 minus 1|5 modulo 7|5 mod 7|5 less than x
5 more than x|5 less than 10|5 more than 3|5 fewer than 9|less than 5|more than 5|at least 5|at most 5|fewer than 5
greater than 5|smaller than 5|no more than 5|no less than 5|not less than 5|up to 5|under 5|over 5|above 5|below 5
between 5|beyond 5|nearly 5|almost 5|about 5|around 5|approximately 5|roughly 5|not 5|never 5|non 5|anything but 5
all integers except 5|all except 5|everything but 5|all numbers besides 5|all integers other than 5|any number but 5
all real numbers except 5|integers without 5|unless 5|5 or more|5 or less|5 or fewer|5 or so|5 or 6|5 and 6|5 to 6
5 plus|5 plus 1|5 minus 1|5 minus|5 times 2|5 times as many|5 over 2|5 divided by 2|5 repeating|5 recurring
5 degrees below zero|5 below zero|5 meters below sea level|5 under par|5 in the red|5 off|5 too many|5 short|5 fold
5th|the 5th|fifth|one fifth|5 negative|5 negatives|5 imaginary|5 nonzero|5 complex conjugate|5 base 7|5 in base 2
base 5|power of 5|a power of 5|powers of 5|multiples of 5|a multiple of 5|divisors of 5|the number of divisors of 5
the sum of the digits of 5|the number of factors of 5|5 basis points|5 per thousand|5 per hundred|5 parts per million
5 parts per billion|5 percentiles|5 orders of magnitude|5 foo|5 xyz|5 blah|5 wrong|5 maybe|5 perhaps|5 possibly|5?
maybe 5|perhaps 5|possibly 5|probably 5|5 is wrong|5 is not the answer|5 is incorrect|wrong: 5|not equal to 5
is not 5|isn't 5|x is not 5|the answer is not 5|the answer is minus 5|the answer is half of 5|the answer is 5 tenths
the answer is 5 squared|half the answer is 5|twice the answer is 5|the reciprocal of the answer is 5|neither 5
the difference of 5|the product of 5|the sum of 5|minimum of 5|maximum 5|limit 5|one less than 5|one more than 5
ten minus 5|five minus 5|zero 5|fifty 5|double the 5|a dozen 5|5 pi|5 e|5 i|5 x|5 squared apples|5 million dollars
5 hundred apples|5 tenths of an apple|five tenths|five hundred|minus five|negative five|five squared|half of five
twice five|five dozen|fifty|fifteen|five and a half|5 and a half|five halves|five percent of 20|5 percent of 20
5万|5万元|5左右|5以上|5倍多|5的平方|不是5|5或6|5 тысяч|5 дюжин|5 минус|5γ|5Γ|5ℝ|5 fünf|5 carré|5 au carré|5 négatif|5 Hälfte
5% of 20|5 kilo|5 thousand meters|five thousand|fifth place|5 less|5 fewer|5 more|5 additional
"""
WRONG = [phrase for phrase in NOT_FIVE.replace("\n", "|").split("|") if phrase]


def score(gold, answer):
    verdict = fast(answer if "\\boxed" in answer else "\\boxed{" + answer + "}", gold)
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
        assert score("5", "\\boxed{" + text + "}") == fast("So. " + text, "5").score == 0
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
        assert (score(gold, answer), fast(f"\\boxed{{{answer}}}", gold, evaluated=False).score) == (0, 1)


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


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        (r"5\text{ m/s}^2", [r"5\text{ m}\cdot\text{s}^{-2}", r"5\,\mathrm{m\,s^{-2}}", r"5 \frac{\text{m}}{\text{s}^2}", "5 m/s^2",
                             r"5\ \frac{\mathrm{m}}{\mathrm{s}^2}", "5 meters per second squared", "5", r"5\text{ m/s}^{2}",
                             r"5\frac{m}{s^2}", r"5\text{ m}/\text{s}^2"], [r"5\text{ m/s}", r"5\text{ s/m}^2", r"5\frac{\text{s}}{\text{m}^2}"]),
        (r"5 \text{ km}", ["5000 m", "5 km", "5 kilometers", "500000 cm", "5"], ["5 m", "5 miles", "5000 km", "5000", "50 km", "5 kg"]),
        (r"90 \text{ minutes}", ["1.5 hours", "90 min", "5400 s", "90"], ["90 hours", "1.5", "90 seconds"]),
        (r"25^\circ\text{C}", [r"25^\circ\text{C}", "25 degrees Celsius", "25^{\\circ} C", "25"], ["25 K", r"25^\circ\text{F}", "298 K"]),
        (r"\$5", [r"5\text{ dollars}", "500 cents", "\\$5.00", "5 dollars", "5 USD"], ["5 euros", "5 cents", "500", r"\text{\euro}5"]),
        ("12 apples", ["12", "12 apples", "12 red apples", "a dozen apples", "1 dozen apples"], ["12 oranges", "12 apples per day", "12 kg"]),
        (r"5\text{ foo}", [r"5 \text{ foo}", "5"], [r"5\text{ bar}", "5 foos or more", r"6\text{ foo}"]),
        ("24", ["24 cm^2", "24 square units", r"24\text{ in}^2", "24 units^2"], ["24 dozen", "24 lakh"]),
    ],
)  # fmt: skip
def test_quantities_compare_by_value_and_unit(gold, right, wrong):
    assert check_gold(gold) is None
    for answer in right:
        assert score(gold, answer) == 1, answer
    for answer in wrong:
        assert score(gold, answer) == 0, answer


_CARDINALS = st.integers(0, 999_999)
_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


def in_words(value, joiner="-", with_and=" "):
    """A number in words, by division: an independent way to write what ``spoken`` reads."""
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
    assert spoken(in_words(value, joiner, with_and)) == ("n", Fraction(value), None)
    assert spoken("minus " + in_words(value, joiner, with_and)) == ("-", ("n", Fraction(value), None))


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
    node = spoken(" ".join(words))
    if node is not None and node[0] == "n" and node[2] is None:
        value = int(node[1])
        written = {in_words(value, " ", joined).replace("-", " ") for joined in (" ", " and ")}
        if "hundred" in words[1:3] and value < 10_000:  # fifteen hundred
            rest = value % 100
            written |= {
                in_words(value // 100, " ") + " hundred" + (joined + in_words(rest, " ") if rest else "")
                for joined in (" ", " and ")
            }
        assert " ".join(words) in written or "dozen" in words, (words, value)
