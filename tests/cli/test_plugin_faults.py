"""What a plug-in raises, returns or exits with is shown as its own: in its own frames, with an exit code that is not 0."""

import re

import pytest

ENDS = {
    "raises": ("raise LookupError('no luck')", "LookupError: no luck"),
    "sys.exit": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "SystemExit": ("raise SystemExit", "SystemExit"),
    "a chain": ("\n    try: {}['a']\n    except KeyError as e: raise OSError('sorry') from e", "OSError: sorry"),
}
ENDS_OF_CALLS = ENDS | {"a group": ("raise ExceptionGroup('two', [ValueError('one')])", "ExceptionGroup: two")}
ENDS_OF_CALLS["an exception of no ordinary kind"] = ("raise type('Odd', (BaseException,), {})('so')", "Odd: so")
PART = "./mine.py:part"
REWARD = {"reward_funcs": [PART]}
CALLED = {
    "an estimator": ({"advantage": PART}, "table"),
    "a surrogate": ({"objective": {"name": "grpo", "surrogate": PART}}, "batch, ratio"),
    "an objective": ({"objective": PART}, "batch"),
    "a reward function": (REWARD, "**columns"),
    "a dataset": ({"dataset_name": PART}, ""),
    "a model": ({"model_name_or_path": PART}, ""),
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


@pytest.mark.sample(0, 12)
@pytest.mark.parametrize("end", ENDS_OF_CALLS)
@pytest.mark.parametrize("kind", CALLED)
def test_a_part_that_ends_its_call_ends_the_run_with_its_own_traceback(cli, config, folder, kind, end):
    values, parameters = CALLED[kind]
    body, expected = ENDS_OF_CALLS[end]
    (folder / "mine.py").write_text(f"def part({parameters}):\n    {body}\n")
    err = cli.refused("train", config(**values))
    shown_alone(err, expected)


@pytest.mark.sample(1, 8)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("command", ["train", "check", "verify", "eval", "plugins", "sweep"])
def test_a_plug_in_that_ends_its_import_ends_every_command(cli, config, folder, command, end):
    body, expected = ENDS[end]
    (folder / "mine.py").write_text("def part():\n    " + body + "\n\npart()\n")
    path, data, mine = config(plugins=["./mine.py"]), folder / "data.jsonl", folder / "mine.py"
    arguments = {
        "verify": (data, "--verifier", "exact", "--plugin", mine),
        "eval": ("model", "--dataset", data, "--verifier", "exact", "--plugin", mine),
        "plugins": (mine,),
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


GRPO = {"objective": "grpo"}
RETURNS = {
    "NaN from an estimator": ({"advantage": PART}, "table", "table.rewards[:, 0] * float('nan')", "nan at"),
    "a scalar from an estimator": ({"advantage": PART}, "table", "1.0", "returned float, expected"),
    "a scalar from an objective": ({"objective": PART}, "batch", "batch.logps.sum()", "returned values of shape ()"),
    "nothing from a surrogate": (GRPO | {"objective": {"name": "grpo", "surrogate": PART}}, "batch, ratio", "None", "surrogate"),
    "nothing from a ratio": (GRPO | {"objective": {"name": "grpo", "ratio": PART}}, "batch", "None", "returned NoneType"),
    "tokens from a reduction": (GRPO | {"objective": {"name": "grpo", "reduce": PART}}, "values, batch", "values", "(8, 8), expected"),
    "a number from a reward": (REWARD, "**columns", "1.0", "returned 1.0, expected a list"),
    "too few from a reward": (REWARD, "**columns", "[1.0]", "returned 1 scores"),
    "words from a reward": (REWARD, "completions, **columns", "['a'] * len(completions)", "expected a list of 8"),
    "a column from a reward": (REWARD, "**columns", "__import__('torch').ones(8, 1)", "expected a list of 8"),
    "an emptied list from a reward": (REWARD, "completions, **_", "completions.clear() or completions", "returned 0"),
    "a number for a dataset": ({"dataset_name": PART}, "", "3", "returned 3 for the split 'train', expected"),
    "words for rows": ({"dataset_name": PART}, "", "['a', 'b']", "returned ['a', 'b'] for the split 'train'"),
    "no rows": ({"dataset_name": PART}, "", "[]", "returned [] for the split 'train'"),
    "lists for splits": ({"dataset_name": PART}, "", "{'train': [1]}", "returned [1] for the split 'train'"),
    "rows of two kinds": ({"dataset_name": PART}, "", "[{'a': 1}, {'a': 'x'}]", "do not fit one table"),
    "nothing for a model": ({"model_name_or_path": PART}, "", "None", "returned None, expected the path"),
    "no folder for a model": ({"model_name_or_path": PART}, "", "'/nowhere/at/all'", "/nowhere/at/all"),
}  # fmt: skip


@pytest.mark.sample(0, 8)
@pytest.mark.parametrize("case", RETURNS)
def test_a_part_that_returns_something_else_is_named_without_a_traceback(cli, config, folder, case):
    values, parameters, value, expected = RETURNS[case]
    (folder / "mine.py").write_text(f"def part({parameters}):\n    return {value}\n")
    err = cli.refused("train", config(**values))
    told = err[err.index("grpo-plus train:") :]
    assert expected in told
    assert "Traceback" not in told


@pytest.mark.slow
def test_a_reward_function_may_return_what_the_host_takes(cli, config, folder):
    returned = {
        "array": "torch.rand(len(completions))",
        "some": "[None, *[0.5] * (len(completions) - 1)]",
        "huge": "[10**400, *[0.5] * (len(completions) - 1)]",  # infinite
        "later": "[1.0] * len(completions)",
        "short": "[1.0]",
    }
    later = {"later": "async ", "short": "async "}
    text = [f"{later.get(name, '')}def {name}(completions, **_): return {what}\n" for name, what in returned.items()]
    (folder / "mine.py").write_text("import torch\n" + "".join(text))
    *taken, refused = [f"./mine.py:{name}" for name in returned]
    cli.done("train", config(reward_funcs=taken))
    assert "returned 1 scores, expected a list of 8" in cli.refused("train", config(reward_funcs=[refused]))


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["sys.exit(0)", "raise asyncio.CancelledError", "raise KeyboardInterrupt"])
def test_an_async_reward_function_that_ends_its_call_leaves_nobody_waiting(cli, config, folder, ending):
    (folder / "mine.py").write_text(f"import asyncio, os, sys\n\nasync def part(**columns):\n    {ending}\n")
    err = cli.refused("train", config(reward_funcs=["./mine.py:part"]))
    shown_alone(err, "'./mine.py:part' ended its call with ")


@pytest.mark.slow
def test_an_inline_verifier_that_exits_has_failed_and_the_run_goes_on(cli, config, folder):
    (folder / "mine.py").write_text(
        "from grpo_verifiers import verifier\n\n@verifier('leaves', isolation='inline', on_error='zero')\n"
        "def leaves(completion):\n    raise SystemExit(0)\n\n"
        "@verifier('leaves_later', on_error='zero')\nasync def leaves_later(completion):\n    raise SystemExit(0)\n"
    )
    verifiers = ["leaves", "leaves_later"]
    code, _, err = cli("train", config(plugins=["./mine.py"], verifiers=verifiers, max_steps=1))
    assert code in (0, 2), err
    assert "leaves" in err or code == 0


def test_weights_of_0_are_refused_before_a_model_is_made(cli, config, folder):
    (folder / "models.py").write_text("def make():\n    raise AssertionError('the model was asked for')\n")
    code, _, err = cli("train", config(reward_weights=[0.0]))
    assert (code, "has weight 0, so nothing teaches" in err) == (2, True)
    entries = [{"name": "math", "weight": 0}, {"name": "math_steps", "weight": 0}]
    err = cli.refused("train", config(reward_funcs=None, verifiers=entries, model_name_or_path="./models.py:make"))
    assert "every reward (math, math_steps) has weight 0" in err
    cli.done("check", "--only=config", config(reward_funcs=None, verifiers=entries, advantage="process"))


BROKEN, HERE = "import grpo_plus\n\n1 / 0\n", "./broken.py:mine"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "chosen",
    [
        {"plugins": ["./broken.py", "./worse.py"]},
        {"advantage": HERE},
        {"objective": HERE},
        {"objective": {"name": "grpo", "surrogate": HERE}},
        {"objective": {"name": "grpo", "kl": {"estimator": HERE}}, "beta": 0.1},
        {"verifiers": [HERE]},
    ],
    ids=str,
)
def test_a_plug_in_that_fails_shows_its_own_traceback(cli, config, folder, chosen):
    (folder / "broken.py").write_text(BROKEN)
    (folder / "worse.py").write_text("{}['missing']\n")
    err = cli.refused("check", "--only=config", config(**chosen))
    assert "ZeroDivisionError: division by zero" in err
    assert "    1 / 0" in err
    assert ("KeyError: 'missing'" in err) == ("plugins" in chosen)
