r"""Plain values in many notations: gold to (spellings that are the same, spellings that are not)."""

import pytest

from grpo_verifiers import Verdict
from grpo_verifiers.math import check_gold, fast, math

NOTATIONS = {
    # decimal commas and thousands
    "0.125": (["0,125", "0{,}125", r"\frac18", "0.125", "12.5%"], ["125", "0,0125", "1,25", "0.0125", "0, 125"]),
    "0,125": (["0.125", r"\frac{1}{8}", "0,125"], ["125", "0.0125"]),
    "125": (["125"], ["0,125", "0{,}125", "0.125"]),
    "1234.5": (["1.234,5", "1 234,5", "1,234.5", r"1\,234,5", "1234,5", "1{,}234.5", r"1{,}234{,}5"], ["1.2345", "12345", "1.234", "1,234"]),
    "2.5": (["2{,}5", "2,5", "2.5", "2.50"], ["25", "2{,}500", "2,500", "2, 5"]),
    "2500": (["2{,}500", "2,500", "2 500", r"2\,500"], ["2.5", "2{,}5", "2.500"]),
    "1234567": (["1.234.567", "1,234,567", "1 234 567", "1{,}234{,}567"], ["1.234567", "1234.567"]),
    "1234": (["1,234", "1 234", "1{,}234"], ["1.234", "1,23", "1, 234"]),
    "0, 5": (["0, 5", "5, 0", "0 and 5"], ["0.05", "5"]),
    # fractions and mixed numbers
    r"\frac{7}{3}": ([r"{7\over3}", r"7\over 3", r"{7 \over 3}", "7/3", "2 1/3", "2 and 1/3", "two and a third", r"2\frac13",
                      r"2 \text{ and } \frac{1}{3}", r"\text{7/3}", r"{{7}\over{3}}"], [r"{3\over7}", r"{7\atop3}", r"7\over", "2 and 1/4", "2, 1/3"]),
    r"\frac{x+1}{x-1}": ([r"{x+1\over x-1}", r"x+1\over x-1"], [r"x+{1\over x}-1"]),
    "3.5": (["3 1/2", "3 and 1/2", "three and a half", r"3\tfrac12", "7/2", "3 and a half"], ["3 or 1/2", "31/2", "3/2"]),
    r"\frac13": ([r"0.\overline{3}", "0.(3)", r"0.\dot{3}", r"0.\dot3", r"0.3\overline{3}", "0.3(3)", "one third", "a third"],
                 ["0.3", "0.333...", r"0.333\ldots", r"0.\overline{6}", "0.(6)", "thirds"]),
    r"\frac{1}{6}": ([r"0.1\overline{6}", "0.1(6)", r"0.1\dot{6}", "one sixth"], ["0.(16)", "0.16", "sixth"]),
    # scientific notation
    "120000": (["1.2e5", "1.2E5", "1.2 x 10^5", r"1.2 \times 10^5", r"1.2\times10^{5}", "1.2*10^5", "1.2x10^{5}", "1.2 X 10^5", "1.2 × 10^5"],
               ["1.2e4", "1.2 x 10^4", "1.2x", "1.2 x 5", "12e5"]),
    "0.00012": (["1.2e-4", "1.2 x 10^{-4}", "1.2 x 10^-4", r"1.2\cdot 10^{-4}"], ["1.2e4", "1.2 x 10^4"]),
    # number words
    "7": (["seven", "Seven", r"\text{seven}", "seven.", "7", r"\text{7}", r"\mathbf{7}", r"\mathrm{7}", r"\boldsymbol{7}"], ["eight", "seventh", "seventy"]),
    "seven": (["7", "Seven", "7.0"], ["8", "7th", "eight"]),
    "21": (["twenty-one", "twenty one", "Twenty-One"], ["twenty", "twenty-first", "one twenty", "twenty, one"]),
    "42": (["forty-two", "forty two", "fourty-two", "forty two apples"], ["forty", "four two", "forty-three"]),
    "100": (["one hundred", "a hundred", "hundred".replace("hundred", "one hundred")], ["hundredth", "one thousand"]),
    "105": (["one hundred and five", "one hundred five"], ["one hundred", "one hundred or five"]),
    "0": (["zero", "Zero"], ["none", "null", "one", r"\emptyset"]),
    "12": (["a dozen", "one dozen", "twelve"], ["dozens", "twelfth", "half a dozen"]),
    "third": (["3rd", "third", "Third", r"3^{\text{rd}}", "the third"], ["3", "three", "2nd", "a third", "1/3"]),
    "21st": (["twenty-first", "21st", "twenty first"], ["21", "21th", "twenty-second"]),
    # times and dates
    "3:30 PM": (["15:30", "3:30 p.m.", "3:30pm", r"3{:}30 \text{ PM}".replace("{:}", ":"), "3:30", r"3:30\text{ p.m.}", "3:30 in the afternoon"],
                ["3:30 AM", "3:31 PM", "15:31", "4:30 PM", "1530"]),
    "15:30": (["3:30 PM", "3:30 p.m.", "15:30"], ["3:30 AM", "3:30", "5:30", "15.3"]),
    "3:05": (["3:05", "3:05 PM", "3:05 am"], ["3:5", "3:50", "3/5", "0.6"]),
    "noon": (["12:00 PM", "12 noon", "12 PM"], ["12 AM", "midnight", "12:30 PM"]),
    "9 AM": (["9:00 AM", "9 a.m.", "09:00", "9:00", "9 o'clock"], ["9 PM", "21:00", "9", "9:30 AM"]),
    "2024-05-01": (["May 1, 2024", "1 May 2024", "May 1st, 2024", "1st of May 2024", "May 1 2024", "2024-05-01"],
                   ["5/1/2024", "May 2, 2024", "2024-01-05", "1 May 2023", "2018", "2024 - 6"]),
    "May 1, 2024": (["2024-05-01", "1 May 2024", r"\text{May 1, 2024}", "1st May 2024"], ["January 5, 2024", "May 1, 2023", "May 2024"]),
    "5/1/2024": (["5/1/2024"], ["1/5/2024", "May 1, 2024", "5/2024", "10/2/2024"]),
    "March 3": (["3 March", "March 3rd", "3rd of March", "Mar 3", "the 3rd of March"], ["March 4", "May 3", "3"]),
    # ratios
    "3:5": (["3 to 5", r"3 \text{ to } 5", "3/5", r"\frac35"], ["5 to 3", "5:3", "0.6", "from 3 to 5", "3 or 5", "3-5"]),
    "1:2:3": (["1 to 2 to 3", "1:2:3"], ["3:2:1", "1 to 2"]),
    # text commands around what is no text
    "5": ([r"\text{5}", r"\text{x=5}", r"x=\text{5}", r"\textbf{5}", r"\mathrm{5}", r"\text{ 5 }", r"\text{5.0}", r"\mathbf 5"], [r"\text{x=4}", r"\text{-5}", r"\text{5,6}"]),
    "(1,2)": ([r"\text{(1,2)}", r"\text{(1, 2)}", r"\mathbf{(1,2)}"], [r"\text{(2,1)}", r"\text{[1,2]}"]),
    "x=2": ([r"\text{x=2}", r"\text{x = 2}", r"\mathrm{x=2}"], [r"\text{y=2}", r"\text{x=3}"]),
    "2e": ([r"2\mathrm{e}", r"2\mathrm e", r"2\text{e}"], [r"2\mathrm{i}", "2"]),
    "3+2i": ([r"3+2\mathrm{i}", r"3+2\mathrm i", r"3 + 2\text{i}", r"2\mathrm{i}+3"], [r"3-2\mathrm{i}", r"3+2\mathrm{e}"]),
    "e^{x}": ([r"\mathrm{e}^{x}", r"\mathrm e^x", r"{\rm e}^x"], [r"\mathrm{e}^{-x}"]),
    "A": ([r"\text{A}", r"\mathbf{A}", r"\textbf{(A)}", r"\text{(A)}"], [r"\text{B}", r"\text{AB}"]),
    # multiple choice with several letters
    "A and C": (["A, C", "C and A", r"\text{A and C}", r"A \text{ and } C", "C, A", r"\text{A, C}", "(A) and (C)"], ["A", "A and B", "A and B and C", "C"]),
    # bases in words
    "1010_2": (["1010 in base 2", "1010 base two", r"1010_{\text{two}}", "binary 1010", "0b1010", "1010 (base 2)", "1010 in binary", "1010_{2}",
                r"1010 \text{ base } 2", "base 2: 1010"],
               ["1010", "1010 in base 3", "1011 in base 2", "1010_{10}", r"1010_{\text{three}}", "binary 1011", "1010 decimal"]),
    "1F_{16}": (["0x1F", "1F in base 16", "0x1f", "1F in hexadecimal"], ["1E_{16}", "0x1E", "1F"]),
    "52_8": (["52 in base 8", "52 base eight", "52 in octal"], ["52 in base 9", "52", "42"]),
    # no value, no solution
    r"\text{DNE}": (["DNE", "does not exist", r"\text{does not exist}", "undefined", "The limit does not exist", r"\text{undefined}", "Does not exist.", "doesn't exist"],
                    ["0", r"\infty", "no solution", "none", r"\emptyset", "exists", "1"]),
    r"\text{undefined}": (["DNE", "undefined", "does not exist", "not defined"], ["0", "defined", r"\infty"]),
    r"\text{no solution}": (["no solutions", "No solution", r"\emptyset", r"\varnothing", r"\{\}", "none", "no real solutions", "impossible",
                             "there are no solutions", r"\text{There is no solution.}", "no real solution"],
                            ["0", "DNE", "infinitely many solutions", "one solution", "solution", r"\{0\}"]),
    r"\emptyset": (["no solution", r"\varnothing", r"\text{empty set}", "None", r"\{\}", "∅"], ["0", r"\{0\}", r"\{\emptyset\}", "DNE"]),
    r"\text{infinitely many}": (["infinitely many solutions", "infinite"], [r"no solution", "many", "finite"]),
    r"\text{diverges}": (["divergent", "the series diverges", "diverges"], ["converges", r"\infty", "DNE"]),
    r"\text{Yes}": (["yes", "Yes.", r"\text{yes}", "YES"], ["no", "true", "yes and no", "1"]),
    r"\text{True}": (["true", "TRUE", "True."], ["false", "yes", "untrue", "not true"]),
    # the constant of integration
    "x^2+C": (["x^2+c", "c+x^2", "x^2 + C", "C+x^2"], ["x^2", "x^2+K", "x^2-c", "x^2+2c", "x^2+x", "cx^2", "x^2+c+1", "x^2+5"]),
    "y=x^2+C": (["y=x^2+c", "x^2+c", "y = c + x^2"], ["y=x^2", "y=x^2+k"]),
    r"\frac{1}{2}\sin(2x)+C": ([r"\frac{1}{2}\sin(2x)+c", r"\frac{\sin 2x}{2}+c"], [r"\frac{1}{2}\sin(2x)", r"\sin(2x)+c"]),
    # percent
    r"5\%": (["5 percent", "5 per cent", "five percent", "5%", r"5\text{ percent}", "0.05", "5", r"\frac{1}{20}"], ["5 percent of 20", "0.5", "50%", "500%", r"5^\circ", "5 cm"]),
    # letters side by side are products, not units
    "2ab": (["2ba", r"2a\cdot b", "ab+ab"], ["2", r"2\text{ ab}", "2a"]),
    "6abc": (["6cab", "3a(2bc)"], ["6", "6ab"]),
    r"\frac{1}{2}mv^2": ([r"\frac{mv^2}{2}", "0.5mv^2"], ["0.5", r"\frac12", r"\frac{1}{2}m"]),
    # quantities of several units, shares, prices
    r"90\text{ minutes}": (["1 hour 30 minutes", r"1\text{ hour and }30\text{ minutes}", "1.5 hours"], ["1 hour 20 minutes", "30 minutes 1 hour", "1 hour"]),
    r"5\text{ feet }6\text{ inches}": (["66 inches", "5.5 feet"], ["5 feet", "6 inches", "11 feet", "66 feet"]),
    r"\frac{5}{36}": (["5 out of 36", r"5\text{ out of }36"], ["36 out of 5", "5"]),
    r"\$5": (["USD 5", r"\text{USD }5", "5 USD"], ["EUR 5", "5 out of 5"]),
    r"3\times 10^8\text{ m/s}": (["3 x 10^8 m/s", "3e8 m/s", r"3\times 10^8"], ["3e8 m", "3 x 10^7 m/s", "3e8 km/s"]),
    r"2\frac12\text{ hours}": (["2 and a half hours", "two and a half hours", "2 1/2 hours", "150 minutes"], ["2 hours", "half an hour", "2 and a half days"]),
    r"9.8\text{ m/s}^2": ([r"9.8\text{ ms}^{-2}", "9.8 m/s^2"], [r"9.8\text{ ms}^{2}", r"9.8\text{ ms}"]),
    r"\infty": (["infinity", r"\text{infinity}", "Infinity"], ["negative infinity", r"-\infty", "DNE"]),
    r"-\infty": (["negative infinity", r"\text{minus infinity}", r"-\text{infinity}"], ["infinity", "positive infinity"]),
    "an ellipse": (["ellipse", r"\text{an ellipse}", "the ellipse"], ["a circle", "ellipsoid"]),
    "25000": (["25'000", r"25\!,\!000", "25,000"], ["25", "25.000", "2'500"]),
    "212_3": ([r"212_{\text{three}}", r"212_{\text{base }3}"], [r"212_{\text{four}}", "212"]),
    r"\frac12": ([r"\mathbf{\frac12}", r"\text{$\frac12$}"], [r"\mathbf{\frac13}"]),
    "6!": (["720"], ["3!!"]),
}  # fmt: skip


def pairs(place):
    return [(gold, answer) for gold, answers in NOTATIONS.items() for answer in answers[place]]


@pytest.mark.parametrize(("gold", "answer"), pairs(0))
def test_the_same_value_in_another_notation_is_right(gold, answer):
    assert fast("\\boxed{" + answer + "}", gold).score == 1


@pytest.mark.parametrize(("gold", "answer"), pairs(1))
def test_another_value_in_a_similar_notation_is_wrong(gold, answer):
    assert math("\\boxed{" + answer + "}", gold).score == 0


@pytest.mark.parametrize("gold", NOTATIONS)
def test_these_golds_accept_themselves(gold):
    assert check_gold(gold) is None


def test_all_of_these_are_decided_without_a_worker():
    late = [pair for pair in pairs(0) + pairs(1) if not isinstance(fast("\\boxed{" + pair[1] + "}", pair[0]), Verdict)]
    assert late == []
