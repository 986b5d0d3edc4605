"""What a plug-in raises, returns or exits with is shown as its own: in its own frames, with an exit code that is not 0."""

import os
import re

import pytest

ENDS = {
    "raises": ("raise LookupError('no luck')", "LookupError: no luck"),
    "sys.exit": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "os._exit": ("import os; os._exit(0)", "SystemExit: 0"),
    "SystemExit": ("raise SystemExit", "SystemExit"),
    "a chain": (
        "\n    try:\n        {}['a']\n    except KeyError as e:\n        raise OSError('sorry') from e",
        "OSError: sorry",
    ),
}
ENDS_OF_CALLS = ENDS | {
    "an exception of no ordinary kind": ("raise type('Odd', (BaseException,), {})('so')", "Odd: so"),
    "a group": ("raise ExceptionGroup('two', [ValueError('one')])", "ExceptionGroup: two"),
}
CALLED = {
    "an estimator": ({"advantage": "./mine.py:part"}, "table"),
    "a surrogate": ({"objective": "grpo", "objective_kwargs": {"surrogate": "./mine.py:part"}}, "batch, ratio"),
    "an objective": ({"objective": "./mine.py:part"}, "batch"),
    "a reward function": ({"reward_funcs": ["./mine.py:part"]}, "**columns"),
    "a dataset": ({"dataset_name": "./mine.py:part"}, ""),
    "a model": ({"model_name_or_path": "./mine.py:part"}, ""),
}


def shown_alone(err, expected, file="mine.py"):
    """The part of the output that tells of the plug-in: its frames, and no other file of ours or the host's."""
    told = err[err.index("Traceback (most recent call last)") :]
    assert expected in told
    assert file in told
    assert told.count("Traceback (most recent call last)") <= 2
    frames = re.findall(r'  File "([^"]+)"', told)
    assert frames
    assert frames[0].endswith(file)
    assert not [frame for frame in frames if "/grpo_plus/" in frame or "/grpo_verifiers/" in frame or "/trl/" in frame]


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS_OF_CALLS)
@pytest.mark.parametrize("kind", CALLED)
def test_a_part_that_ends_its_call_ends_the_run_with_its_own_traceback(cli, config, folder, kind, end):
    values, parameters = CALLED[kind]
    body, expected = ENDS_OF_CALLS[end]
    (folder / "mine.py").write_text(f"def part({parameters}):\n    {body}\n")
    code, _, err = cli("train", config(**values))
    assert code == 2
    shown_alone(err, expected)


@pytest.mark.sample(1)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("command", ["train", "explain", "verify", "eval", "plugins", "sweep"])
def test_a_plug_in_that_ends_its_import_ends_every_command(cli, config, folder, command, end):
    body, expected = ENDS[end]
    (folder / "mine.py").write_text("def part():\n    " + body + "\n\npart()\n")
    path = config(plugins=["./mine.py"])
    arguments = {
        "verify": (f"{folder}/data.jsonl", "--verifier", "exact", "--plugin", f"{folder}/mine.py"),
        "eval": ("model", "--dataset", f"{folder}/data.jsonl", "--verifier", "exact", "--plugin", f"{folder}/mine.py"),
        "plugins": (f"{folder}/mine.py",),
        "sweep": (path, "--vary", "advantage=zscore,sign", "--seeds", "1"),
    }.get(command, (path,))
    code, _, err = cli(command, *arguments)
    assert code not in (0, None)
    shown_alone(err, expected)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["import", "call"])
def test_an_interrupt_that_a_plug_in_raises_says_where(cli, config, folder, where):
    raised = "raise KeyboardInterrupt"
    (folder / "mine.py").write_text(f"{raised}\n" if where == "import" else f"def part(table):\n    {raised}\n")
    code, _, err = cli("train", config(advantage="./mine.py:part"))
    assert code == 130
    assert re.search(r"interrupted in .*mine\.py, line [12]", err)


RETURNS = {
    "NaN from an estimator": ({"advantage": "./mine.py:part"}, "table", "table.rewards[:, 0] * float('nan')", "nan at"),
    "a scalar from an estimator": ({"advantage": "./mine.py:part"}, "table", "1.0", "returned float, expected"),
    "nothing from an estimator": ({"advantage": "./mine.py:part"}, "table", "None", "returned NoneType, expected"),
    "a scalar from an objective": ({"objective": "./mine.py:part"}, "batch", "batch.logps.sum()", "returned values of shape ()"),
    "nothing from a surrogate": (
        {"objective": "grpo", "objective_kwargs": {"surrogate": "./mine.py:part"}}, "batch, ratio", "None", "surrogate",
    ),
    "nothing from a ratio": (
        {"objective": "grpo", "objective_kwargs": {"ratio": "./mine.py:part"}}, "batch", "None", "returned NoneType",
    ),
    "tokens from a reduction": (
        {"objective": "grpo", "objective_kwargs": {"reduce": "./mine.py:part"}}, "values, batch", "values",
        "returned a tensor of shape (8, 8), expected one of shape ().",
    ),
    "a number from a reward": ({"reward_funcs": ["./mine.py:part"]}, "**columns", "1.0", "returned 1.0, expected a list"),
    "too few from a reward": ({"reward_funcs": ["./mine.py:part"]}, "**columns", "[1.0]", "returned 1 scores"),
    "words from a reward": (
        {"reward_funcs": ["./mine.py:part"]}, "completions, **columns", "['a'] * len(completions)", "expected a list of 8",
    ),
    "a column from a reward": (
        {"reward_funcs": ["./mine.py:part"]}, "completions, **columns", "__import__('torch').ones(len(completions), 1)",
        "expected a list of 8",
    ),
    "the list it emptied from a reward": (
        {"reward_funcs": ["./mine.py:part"]}, "completions, **columns", "completions.clear() or completions",
        "returned 0 scores",
    ),
    "a number for a dataset": ({"dataset_name": "./mine.py:part"}, "", "3", "returned int, expected"),
    "words for rows": ({"dataset_name": "./mine.py:part"}, "", "['a', 'b']", "returned a list with 'a'"),
    "no rows": ({"dataset_name": "./mine.py:part"}, "", "[]", "returned an empty list"),
    "lists for splits": ({"dataset_name": "./mine.py:part"}, "", "{'train': [1]}", "no Dataset: 'train'"),
    "rows of two kinds": ({"dataset_name": "./mine.py:part"}, "", "[{'a': 1}, {'a': 'x'}]", "do not fit one table"),
    "nothing for a model": ({"model_name_or_path": "./mine.py:part"}, "", "None", "returned None, expected the path"),
    "no folder for a model": ({"model_name_or_path": "./mine.py:part"}, "", "'/nowhere/at/all'", "/nowhere/at/all"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", RETURNS)
def test_a_part_that_returns_something_else_is_named_without_a_traceback(cli, config, folder, case):
    values, parameters, value, expected = RETURNS[case]
    (folder / "mine.py").write_text(f"def part({parameters}):\n    return {value}\n")
    code, _, err = cli("train", config(**values))
    assert code == 2
    told = err[err.index("grpo-plus train:") :]
    assert expected in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_reward_function_may_return_what_the_host_takes(cli, config, folder):
    text = (
        "import torch\ndef array(completions, **_):\n    return torch.rand(len(completions))\n"
        "def some(completions, **_):\n    return [None, *[0.5] * (len(completions) - 1)]\n"
        "async def later(completions, **_):\n    return [1.0] * len(completions)\n"
    )
    (folder / "mine.py").write_text(text)
    code, _, err = cli("train", config(reward_funcs=[f"./mine.py:{name}" for name in ("array", "some", "later")]))
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", ["sys.exit(0)", "os._exit(0)", "raise asyncio.CancelledError", "raise KeyboardInterrupt"]
)
def test_an_async_reward_function_that_ends_its_call_leaves_nobody_waiting(cli, config, folder, ending):
    (folder / "mine.py").write_text(f"import asyncio, os, sys\n\nasync def part(**columns):\n    {ending}\n")
    code, _, err = cli("train", config(reward_funcs=["./mine.py:part"]))
    assert code == 2
    shown_alone(err, "'./mine.py:part' ended its call with ")


@pytest.mark.slow
def test_async_scores_are_checked_like_others(cli, config, folder):
    (folder / "mine.py").write_text("async def part(**columns):\n    return [1.0]\n")
    code, _, err = cli("train", config(reward_funcs=["./mine.py:part"]))
    assert (code, "returned 1 scores, expected a list of 8" in err) == (2, True)


@pytest.mark.slow
def test_a_score_beyond_all_floats_is_infinite_and_ends_no_run(cli, config, folder):
    (folder / "mine.py").write_text(
        "def part(completions, **_):\n    return [10**400, *[0.5] * (len(completions) - 1)]\n"
    )
    code, _, err = cli("train", config(reward_funcs=["./mine.py:part"], max_steps=1))
    assert code == 0, err


@pytest.mark.slow
def test_an_inline_verifier_that_exits_has_failed_and_the_run_goes_on(cli, config, folder):
    text = (
        "from grpo_verifiers import verifier\n\n@verifier('leaves', isolation='inline', on_error='zero')\n"
        "def leaves(completion):\n    raise SystemExit(0)\n\n"
        "@verifier('leaves_later', on_error='zero')\nasync def leaves_later(completion):\n    raise SystemExit(0)\n"
    )
    (folder / "mine.py").write_text(text)
    verifiers = ["leaves", "leaves_later"]
    code, _, err = cli("train", config(plugins=["./mine.py"], verifiers=verifiers, max_steps=1))
    assert code in (0, 2), err
    assert "leaves" in err or code == 0


def test_an_exit_of_anybody_else_ends_the_process():
    from grpo_verifiers.errors.frames import exits_caught

    with exits_caught():
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os._exit.__module__ == "posix"


def test_weights_that_leave_nothing_to_learn_from_are_refused(cli, config):
    code, _, err = cli("train", config(reward_weights=[0.0]))
    assert (code, "reward_weights is [0.0]: nothing is left to learn from" in err) == (2, True)
    entries = [{"name": "think_format", "weight": 0}, {"name": "exact", "weight": 0.0}]
    code, _, err = cli("train", config(reward_funcs=None, verifiers=entries))
    assert code == 2
    assert "every reward (think_format, exact) has weight 0, so nothing teaches" in err


def test_weights_of_0_are_refused_before_a_model_is_made(cli, config, folder):
    (folder / "models.py").write_text("def make():\n    raise AssertionError('the model was asked for')\n")
    entries = [{"name": "math", "weight": 0}, {"name": "math_steps", "weight": 0}]
    code, _, err = cli("train", config(reward_funcs=None, verifiers=entries, model_name_or_path="./models.py:make"))
    assert code == 2
    assert "every reward (math, math_steps) has weight 0" in err
    code, _, err = cli("explain", config(reward_funcs=None, verifiers=entries, advantage="process"))
    assert code == 0, err
