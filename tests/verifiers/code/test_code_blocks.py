"""Which part of a completion is its program."""

import pytest

from grpo_verifiers import get_verifier
from grpo_verifiers.code._code import _blocks
from grpo_verifiers.code.guest.blocks import PYTHON, program_of
from grpo_verifiers.reading.fences import last_block
from grpo_verifiers.reading.thinking import answer_part
from tests.waiting import no_hang


def test_a_fence_calls_python_by_every_name_that_it_has_and_by_no_other():
    for mark in [
        *("python3.11", "python3", "Python", "py", "ipython", "ipython3", "py3", 'python title="x.py"', "{.python}"),
        *("{python}", "python {cmd}", "python3.12.1", "pypy3", "python:main.py", "python,linenos", "Python 3"),
        *("{.python3 .numberLines}", "PYTHON"),
    ]:
        assert last_block(f"```text\nno\n```\n```{mark}\na\n```\n```json\n{{}}\n```", PYTHON) == "a"
    for mark in ["pycon", "text", "output", "pythonic", "bash", "json5", "python-repl", "3.11", "r3.1"]:
        assert last_block(f"```{mark}\na\n```", PYTHON) is None
        assert last_block("```json5\n1\n```", ("json",)) is None, mark


DOCUMENTED = """'''Say:
```
f(1)
```
or
```python
f(2)
```
'''
x = "``` \\"'''"  # it's QQQ
def f(y):
    QQQ
    ```
    QQQ
    return y""".replace("QQQ", '"""')


@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
@pytest.mark.parametrize("after", ["", "\nUse it:\n```bash\nls\n```\n", '\nIt says """hm\n'])
@pytest.mark.parametrize("name", ["python", ""])
def test_fences_in_long_strings_of_a_program_are_part_of_it(fence, after, name):
    assert last_block(f"Here:\n{fence}{name}\n{DOCUMENTED}\n{fence}\n{after}", PYTHON) == DOCUMENTED


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "text",
    [
        *("```python\n```\n" * 70_000, "~~~python\nx\n~~~\n" * 60_000),
        *("```" * 300_000, "```py\n" * 200_000, "`" * 1_000_000, ("```py\n" + " " * 50 + "\n") * 20_000),
        *('```py\n"""' + "\n```\n" * 200_000, '```py\n"""\n```\n' * 50_000),
        *("```py\n'''\n```py\n```\n" * 50_000 + '"""', '```py\n"""\n' + "````py\n" * 200_000 + "```"),
        '```python\n"""\n' + "<think>\n" * 50_000 + '"""\n```\n',
        ("```python\n" + "</think>\n" * 3) * 20_000 + "```\n",
    ],
)
def test_finding_a_block_takes_linear_time(text):
    with no_hang():
        last_block(text, PYTHON)
        last_block(answer_part(text), PYTHON)
        assert len(_blocks(text, 100_000)[0]) <= 100


@pytest.mark.parametrize(
    "tag", ["<think>", "</think>", "<think>\nx\n</think>", "[THINK]", "<reasoning>\n</reasoning>\n"]
)
@pytest.mark.parametrize(
    "before", ["", "Sure:\n", "<think>41</think>\n", "41\n</think>\n", "<think>\n```python\nx\n</think>\n"]
)
@pytest.mark.parametrize("after", ["", "\nDone.", "\nIt prints:\n```\n42\n```\n"])  # fmt: skip
def test_a_line_of_a_long_string_of_a_program_may_begin_with_a_tag(tag, before, after):
    program = f'PROMPT = """Say:\n{tag}\n"""\nx = 42'
    assert last_block(answer_part(f"{before}```python\n{program}\n```{after}"), PYTHON) == program


ADD = "def add(a, b):\n    return a + b"


def test_strings_tags_and_thoughts_are_no_other_part_of_the_program():
    assert last_block('```python\nx = """\n```\nno:\n```python\ny = 1\n```\n', PYTHON) == "y = 1"
    later = 'def f():\n    """doc"""'
    assert last_block(f'```python\nx = """\n```\nno:\n```python\n{later}\n```\n', PYTHON) == later
    assert last_block('```python\nx = """\n```\n', PYTHON) == 'x = """'
    for inside in ("x = '''", 'x = """a"""', "# it's '''\n", '"""'):
        text = f"<think>\n```python\n{inside}\n</think>\n```python\nx = 42\n```\n"
        assert last_block(answer_part(text), PYTHON) == "x = 42"
    text = f"<think>\n```python\n{ADD}\n```\n</think>\n```python\ndef f():\n    return add(1, 2)\n```\n"
    assert get_verifier("code").verify(text, tests=[{"function": "f", "expected": 3}]).score == 0
    long = f"{ADD}\n#{'x' * 300}"
    text = f"```python\n{long}\n```\n```python\ndef f():\n    return add(1, 2)\n```\n"
    tests = [{"function": "f", "expected": 3}]
    assert get_verifier("code", max_source=400).verify(text, tests=tests).score == 1
    assert get_verifier("code", max_source=200).verify(text, tests=tests).score == 0


MAIN = "def main():\n    print(int(input()) * 2)"


@pytest.mark.parametrize(
    ("blocks", "names", "chosen"),
    [
        *(([ADD], ["add"], [0]), ([ADD, "print(add(1, 2))"], ["add"], [0])),
        ([ADD, "from solution import add\nassert add(1, 2) == 3"], ["add"], [0]),
        ([ADD, "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(add(1, 2), 3)\nunittest.main()"], ["add"], [0]),
        *(([ADD, ">>> add(1, 2)\n3"], ["add"], [0]), ([ADD, "# prints 3"], ["add"], [0])),
        ([ADD, "$ python add.py"], [], [0]),
        ([ADD, "result = add(1, 2)\nfor x in range(3):\n    print(add(x, x))"], ["add"], [0]),
        ([ADD, "def add(a, b):\n    return b + a"], ["add"], [1]),
        (["def add(a, b):\n    return a - b", ADD, "print(add(1, 2))"], ["add"], [1]),
        *(([ADD, "def add(a, b:"], ["add"], [1]), (["def add(a, b:", ADD], ["add"], [1])),
        (["import math\nPI = math.pi", "def area(r):\n    return PI * r ** 2"], ["area"], [0, 1]),
        (["import math", "def helper(x):\n    return math.floor(x)", "def f(x):\n    return helper(x)", "print(f(2.5))"], ["f"], [0, 1, 2]),
        (["def helper(x):\n    return 1", "def helper(x):\n    return 2", "def f(x):\n    return helper(x)"], ["f"], [1, 2]),
        (["class Solution:\n    def f(self): return 1", "print(Solution().f())"], ["f", "Solution"], [0]),
        *(([ADD, "def sub(a, b):\n    return add(a, -b)"], ["mul"], [0, 1]), ([MAIN, "main()"], [], [0, 1])),
        ([MAIN + "\nmain()", "main()"], [], [0]),
        ([MAIN + "\nif __name__ == '__main__':\n    main()", "print(main())"], [], [0]),
        ([MAIN + "\nif __name__ == '__main__':\n    main()", "def test():\n    main()\ntest()\nprint('ok')"], [], [0]),
        (["print(1)", "print(2)"], [], [1]),
        (["import sys\nsys.setrecursionlimit(9)", "def go():\n    print(sys.stdin.read())\ngo()"], [], [0, 1]),
        *((["x = 1", "# nothing"], [], [0]), (["# nothing", "..."], ["f"], [1])),
        (["(" * 9000, "-" * 9000 + "1"], ["f"], [1]),
        (["try:\n    import numpy as np\nexcept ImportError:\n    np = None", "def f():\n    return np"], ["f"], [0, 1]),
    ],
)  # fmt: skip
def test_the_program_is_the_last_block_and_what_it_needs_or_what_the_tests_call(blocks, names, chosen):
    assert program_of(blocks, [names] if names else []) == "\n".join(blocks[at] for at in chosen)


@pytest.mark.parametrize("calls", [True, False])
def test_a_usage_example_after_a_program_does_not_count(level, calls):
    text = f"```python\n{ADD}\n\nif __name__ == '__main__':\n    print(add(1, int(input())))\n```\nFor example:\n```python\nprint(add(1, 2))\n```\nIt prints\n```\n3\n```\n"
    asserts = [{"code": "assert add(2, 3) == 5"}, {"function": "add", "args": [2, 2], "expected": 4}]
    tests = asserts if calls else [{"stdin": "4", "stdout": "5"}]
    verify = get_verifier("code", level=level, highest=level).verify
    assert (verify(text, tests=tests).score, verify(text.replace("a + b", "a - b"), tests=tests).score) == (1, 0)
