"""Which part of a completion is its program."""

import time

import pytest

from grpo_verifiers.code.languages.python import LANGUAGE
from grpo_verifiers.reading.fences import last_block
from grpo_verifiers.reading.thinking import answer_part

PYTHON = LANGUAGE.names


@pytest.mark.parametrize(
    "mark",
    ["python3.11", "python3", "Python", "py", "ipython", "ipython3", "py3", 'python title="x.py"', "{.python}", "{python}", "python {cmd}", "python3.12.1",
     "pypy3", "python:main.py", "python,linenos", "Python 3", "{.python3 .numberLines}", "PYTHON"],
)  # fmt: skip
def test_a_fence_may_call_python_by_every_name_that_it_has(mark):
    assert last_block(f"```text\nno\n```\n```{mark}\na\n```\n```json\n{{}}\n```", PYTHON) == "a"


@pytest.mark.parametrize(
    "mark", ["pycon", "text", "output", "pythonic", "bash", "json5", "python-repl", "3.11", "r3.1"]
)
def test_what_is_called_something_else_is_no_python(mark):
    assert last_block(f"```{mark}\na\n```", PYTHON) is None
    assert last_block("```json5\n1\n```", ("json",)) is None


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


def test_a_string_that_never_ends_takes_no_later_block_with_it():
    assert last_block('```python\nx = """\n```\nno:\n```python\ny = 1\n```\n', PYTHON) == "y = 1"
    later = 'def f():\n    """doc"""'
    assert last_block(f'```python\nx = """\n```\nno:\n```python\n{later}\n```\n', PYTHON) == later
    assert last_block('```python\nx = """\n```\n', PYTHON) == 'x = """'


@pytest.mark.parametrize(
    "text",
    [
        "```" * 300_000,
        "```py\n" * 200_000,
        "`" * 1_000_000,
        ("```py\n" + " " * 50 + "\n") * 20_000,
        '```py\n"""' + "\n```\n" * 200_000,
        '```py\n"""\n```\n' * 50_000,
        "```py\n'''\n```py\n```\n" * 50_000 + '"""',
        '```py\n"""\n' + "````py\n" * 200_000 + "```",
        '```python\n"""\n' + "<think>\n" * 50_000 + '"""\n```\n',
        ("```python\n" + "</think>\n" * 3) * 20_000 + "```\n",
    ],
)
def test_finding_a_block_takes_linear_time(text):
    started = time.process_time()
    last_block(text, PYTHON)
    last_block(answer_part(text), PYTHON)
    assert time.process_time() - started < 5


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


def test_a_tag_outside_of_a_string_ends_the_thinking_that_left_a_block_open():
    for inside in ("x = '''", 'x = """a"""', "# it's '''\n", '"""'):
        text = f"<think>\n```python\n{inside}\n</think>\n```python\nx = 42\n```\n"
        assert last_block(answer_part(text), PYTHON) == "x = 42"
