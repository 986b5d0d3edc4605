r"""Where the gold is a solved relation, the answer has to be solved, too: the question is an equivalent relation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_verifiers import Verdict
from grpo_verifiers.math import check_gold, fast, math

# Golds that are solved, each with the answers that say the same, and with those that only restate the question.
SOLVED = {
    "x=2": (
        ["x=2", "x = 2", "2=x", "2", "\\{2\\}", "x\\in\\{2\\}", "x=2=2", "$x=2$", "x=2.0", "x=\\text{2}", "[x=2]", "-x=-2", "-2=-x"],
        ["2x+4=8", "2x=4", "x-2=0", "x+1=3", "3=x+1", "0=x-2", "-2x=-4", "-x=2", "\\frac{x}{2}=1", "2x=x+2", "x=4-x", "x+0=2", "x\\cdot 1=2", "x=x^2-2", "x^3=8",
         "\\sqrt{x}=\\sqrt{2}", "\\log_2 x=1", "(x-2)(x-2)=0", "2x=4=4", "x=2, 2x=4", "|x|=2", "x\\ge 2", "y=2", "x=\\frac{4}{2}", "x=1+1", "x=x", "0=0", "2=2",
         "{4\\over 2}=x", "{2\\over 1}", "x-{2\\over 1}=0", "{x\\over 1}-2=0", "{x-2\\over 1}=0", "x\\in\\{2,3\\}", "y\\in\\{2\\}", "x=2y/y", "f(x)=2", "x\\ne 2"],
    ),
    "2=x": (["x=2", "2=x", "2"], ["2x=4", "x-2=0", "0=2-x", "2=2"]),
    "a=2": (["a=2", "2"], ["2a=4", "a-2=0"]),
    "x_1=2": (["x_1=2", "2=x_1", "x_{1}=2"], ["2x_1=4", "x_1-2=0"]),
    "AB=5": (["AB=5", "5=AB", "5"], ["2AB=10", "AB-5=0"]),
    "|AB|=5": (["|AB|=5"], ["2|AB|=10"]),
    "f(2)=5": (["f(2)=5", "5=f(2)", "5"], ["f(2)-5=0", "2f(2)=10"]),
    "(x,y)=(2,3)": (["(x,y)=(2,3)", "(2,3)"], ["x+y=5", "(x,y)-(2,3)=0"]),
    "x=\\frac{1}{2}": (["x=\\frac12", "x=0.5", "x=1/2", "\\frac{1}{2}"], ["2x=1", "2x-1=0", "\\frac{x}{2}=\\frac14", "x=\\frac{2}{4}"]),
    "x=\\sqrt{2}": (["x=\\sqrt2", "\\sqrt{2}=x", "x=\\frac{2}{\\sqrt2}"], ["x^2=2", "\\frac{x}{\\sqrt{2}}=1", "x-\\sqrt2=0"]),
    "x=\\frac{\\pi}{2}": (["x=\\frac{\\pi}{2}", "x=\\pi/2"], ["2x=\\pi", "\\sin x=1"]),
    "x=0": (["x=0", "0"], ["2x=0", "x^2=0"]),
    "x=5\\text{ cm}": (["x=5", "x=5\\text{ cm}"], ["2x=10", "2x=10\\text{ cm}"]),
    "\\theta=30^\\circ": (["\\theta=30^\\circ", "30^\\circ"], ["2\\theta=60^\\circ"]),
    "e=\\frac{1}{2}": (["e=\\frac12"], ["2e=1"]),
    "x>2": (
        ["x>2", "2<x", "(2,\\infty)", "x\\in(2,\\infty)", "x\\gt 2", "-x<-2"],
        ["3x-6>0", "x-2>0", "2x>4", "-2x<-4", "-x>-2", "x>4-x", "x+1>3", "6<3x", "0<x-2", "x\\ge 2", "x<2", "y>2", "x>\\frac{4}{2}", "x>1+1", "x>{2\\over 1}", "x^2>4", "x-{2\\over 1}>0",
         "x=2", "1>0", "x>2, 2x>4", "0<x-{2\\over 1}"],
    ),
    "x\\ge 2": (["x\\ge 2", "2\\le x", "-x\\le -2", "[2,\\infty)", "x\\geq 2", "x\\geqslant 2"], ["-2x\\le -4", "2x\\ge 4", "x-2\\ge 0", "x>2"]),
    "x<\\frac{1}{3}": (["x<\\frac13", "\\frac13>x", "(-\\infty,\\frac13)"], ["3x<1", "3x-1<0"]),
    "x<1": (["x<1", "1>x", "(-\\infty,1)"], ["|x|<1", "x-1<0", "2x<2"]),
    "x\\ne 2": (["x\\ne 2", "2\\ne x", "x\\neq 2"], ["x-2\\ne 0", "2x\\ne 4", "x=2"]),
    "1<x<3": (["1<x<3", "3>x>1", "(1,3)", "x\\in(1,3)"], ["2<2x<6", "0<x-1<2", "|x-2|<1", "1<x+0<3", "1<\\frac{2x}{2}<3", "x^2-4x+3<0", "1<y<3"]),
    "-1<x<1": (["-1<x<1", "(-1,1)", "|x|<1"], ["x^2<1", "|2x|<2", "|x+0|<1", "x^2-1<0", "(x-1)(x+1)<0"]),
    "x=2 \\text{ or } x=3": (["x=2 \\text{ or } x=3", "x=3, x=2", "2, 3", "\\{2,3\\}", "x=2,3"], ["(x-2)(x-3)=0", "x^2-5x+6=0", "2x=4, 3x=9", "x-2=0 \\text{ or } x-3=0"]),
    "x=2,x=3": (["x=2,x=3", "x=3,x=2", "2=x, 3=x"], ["2x=4, x=3", "x=2, x-3=0", "x=2", "x=2, {x\\over 1}-3=0"]),
    "x=\\pm 2": (["x=\\pm2", "x=2, x=-2", "\\pm 2", "2, -2"], ["x^2=4", "|x|=2", "x^2-4=0", "2x=\\pm 4"]),
    "x=2, y=3": (["x=2, y=3", "y=3, x=2", "(2,3)"], ["x+y=5, x-y=-1", "2x=4, y=3", "x=2, y-3=0", "x+y=5", "y=x+1, x=2"]),
    "x<-1 \\text{ or } x>1": (["x<-1 \\text{ or } x>1", "x>1 \\text{ or } x<-1", "(-\\infty,-1)\\cup(1,\\infty)", "|x|>1"], ["x^2>1", "-2x>2 \\text{ or } 2x>2", "x+1<0 \\text{ or } x-1>0"]),
    "x\\in(2,\\infty)": (["x\\in(2,\\infty)", "(2,\\infty)", "x>2"], ["3x>6", "x-2>0"]),
    "(2,\\infty)": (["(2,\\infty)", "x>2", "2<x"], ["3x-6>0", "-2x<-4", "x-2>0"]),
    "(-\\infty,1)": (["x<1"], ["|x|<1", "x-1<0"]),
    "(-\\infty,-1)\\cup(1,\\infty)": (["x<-1 \\text{ or } x>1", "|x|>1"], ["x+1<0 \\text{ or } x-1>0"]),
    "\\{2,3\\}": (["\\{2,3\\}", "x=2, x=3"], ["(x-2)(x-3)=0", "x^2-5x+6=0"]),
    "2": (["2", "x=2", "2=x"], ["2x=4", "x-2=0", "2=e", "41=x=2"]),
}  # fmt: skip
# Golds with more than one unknown, or not solved: any equivalent relation is right.
EQUIVALENT = {
    "2x+4=8": (["x=2", "x+2=4", "2x=4", "8=2x+4"], ["x=3", "2x+4=9"]),
    "2x>4": (["x>2", "2<x", "-x<-2"], ["x<2", "x\\ge 2"]),
    "x^2=4": (["x^2-4=0", "4=x^2"], ["x^2=5"]),
    "|x|=5": (["|x|-5=0", "5=|x|"], ["|x|=6"]),
    "|x|<1": (["|x|<1", "1>|x|"], ["(-\\infty,1)", "x<1"]),
    "1\\le|z|\\le\\frac32": (["z\\in[-\\frac32,-1]\\cup[1,\\frac32]"], ["z\\in[1,\\frac32]", "1\\le z\\le\\frac32"]),
    "x+y=2": (["y=2-x", "2x+2y=4", "x+y-2=0", "2=x+y"], ["x-y=2", "x+y=3"]),
    "xy=6": (["2xy=12", "xy-6=0"], ["xy=5"]),
    "y=3x+1": (["3x-y+1=0", "2y=6x+2", "3x+1=y", "3x+1", "y-1=3x"], ["y=3x", "y=3x-1"]),
    "y-1=2(x-3)": (["y=2x-5", "2x-y=5"], ["y=2x+5"]),
    "(x-1)^2+(y-2)^2=9": (["9=(x-1)^2+(y-2)^2", "x^2-2x+y^2-4y=4"], ["(x-1)^2+(y-2)^2=3"]),
    "y<3x": (["3x>y", "y-3x<0"], ["y>3x", "y\\le 3x"]),
    "x>2a": (["x>2a", "2a<x", "(2a,\\infty)", "x-2a>0"], ["x<2a"]),
    "f(x)=2x": (["f(x)=2x", "2x", "f(x)-2x=0"], ["f(x)=3x"]),
}  # fmt: skip


def pairs(table, place):
    return [(gold, answer) for gold, answers in table.items() for answer in answers[place]]


def score(gold, answer):
    return math("\\boxed{" + answer + "}", gold).score


def test_the_list_is_long_and_balanced():
    right, wrong = (len(pairs(SOLVED, place)) + len(pairs(EQUIVALENT, place)) for place in (0, 1))
    assert min(right, wrong) >= 100


@pytest.mark.parametrize(("gold", "answer"), pairs(SOLVED, 0))
def test_a_solved_answer_is_right_in_all_its_spellings(gold, answer):
    assert score(gold, answer) == 1


@pytest.mark.parametrize(("gold", "answer"), pairs(SOLVED, 1))
def test_an_answer_that_restates_the_question_is_wrong(gold, answer):
    assert score(gold, answer) == 0


@pytest.mark.parametrize(("gold", "answer"), pairs(EQUIVALENT, 0))
def test_golds_that_are_not_solved_accept_what_is_equivalent(gold, answer):
    assert score(gold, answer) == 1


@pytest.mark.parametrize(("gold", "answer"), pairs(EQUIVALENT, 1))
def test_golds_that_are_not_solved_accept_nothing_else(gold, answer):
    assert score(gold, answer) == 0


@pytest.mark.parametrize("gold", [*SOLVED, *EQUIVALENT])
def test_these_golds_accept_themselves(gold):
    assert check_gold(gold) is None


def test_restated_questions_are_refused_at_once_without_an_algebra_system():
    late = [
        (gold, answer)
        for gold, answer in pairs(SOLVED, 1)
        if not isinstance(fast("\\boxed{" + answer + "}", gold), Verdict)
    ]
    assert late == []


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    value=st.integers(-50, 50),
    factor=st.integers(-9, 9).filter(lambda factor: factor not in (-1, 0, 1)),
    shift=st.integers(-9, 9).filter(bool),
    op=st.sampled_from(["=", "<", ">", "\\le", "\\ge", "\\ne"]),
    name=st.sampled_from(["x", "t", "n", "\\theta", "x_1"]),
)
def test_whatever_is_done_to_both_sides_makes_it_another_answer(value, factor, shift, op, name):
    flipped = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le"}.get(op, op)
    gold = f"{name} {op} {value}"
    assert score(gold, gold) == score(gold, f"{value} {flipped} {name}") == 1
    turned = flipped if factor < 0 else op
    for restated in (
        f"{factor}{name} {turned} {factor * value}",
        f"{name}+{shift} {op} {value + shift}",
        f"{name}-{value} {op} 0",
        f"{factor}{name}+{shift} {turned} {factor * value + shift}",
        f"0 {flipped} {name}-{value}",
        f"\\frac{{{name}}}{{{abs(factor) + 1}}} {op} \\frac{{{value}}}{{{abs(factor) + 1}}}",
    ):
        assert score(gold, restated) == 0, restated
