"""What the commands say of themselves, held against the dataclasses that the command line is made of."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest
from trl import DatasetMixtureConfig, GRPOConfig, ModelConfig

from grpo_plus.cli import COMMANDS, main
from grpo_plus.cli._arguments import PlusScriptArguments
from grpo_plus.cli._help import as_written, host_options, own_options, text
from grpo_plus.cli._parser import CommandParser
from grpo_plus.config import GRPOPlusConfig

OWNERS = (GRPOConfig, ModelConfig, DatasetMixtureConfig)
HOSTS = {spec.name: spec for owner in OWNERS for spec in dataclasses.fields(owner)}
OURS = {}
for owner in (GRPOPlusConfig, PlusScriptArguments):
    known = owner.__base__.__dataclass_fields__
    OURS |= {spec.name: spec for spec in dataclasses.fields(owner) if spec.name not in known}
HELP = text("grpo-plus train", everything=False)
ALL = text("grpo-plus train", everything=True)


def entries(shown):
    """Each option of a help text with its words, once for every time that it stands there."""
    flat = re.split(r"^  (?=--)", shown, flags=re.MULTILINE)[1:]
    found = {}
    for entry in flat:
        words = entry.split("\n\n")[0]
        found.setdefault(re.match(r"--([\w-]+)", words)[1], []).append(" ".join(words.split()))
    return found


def default_of(spec):
    if spec.default is not dataclasses.MISSING:
        return as_written(spec.default)
    return "required" if spec.default_factory is dataclasses.MISSING else as_written(spec.default_factory())


@pytest.mark.sample(23)
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("shown", [HELP, ALL], ids=["help", "help-all"])
def test_every_option_of_ours_stands_in_the_help_once_with_its_default(shown, name):
    (entry,) = entries(shown)[name]
    assert f"(default: {default_of(OURS[name])})" in entry
    assert len(entry) > len(name) + 40  # says something


@pytest.mark.sample(18)
@pytest.mark.parametrize("name", HOSTS)
def test_every_option_of_the_host_stands_in_the_whole_help_once_with_its_default(name):
    (entry,) = entries(ALL)[name]
    if name == "optim":  # depends on the version of torch
        assert str(HOSTS[name].default.value if hasattr(HOSTS[name].default, "value") else HOSTS[name].default) in entry
    else:
        assert f"(default: {default_of(HOSTS[name])})" in entry


def test_the_sources_declare_the_fields_that_the_classes_have():
    assert set(own_options()) == set(OURS)
    assert set(HOSTS) | {spec.name for spec in dataclasses.fields(PlusScriptArguments)} == set(host_options()) | set(
        own_options()
    ) - (set(OURS) & {spec.name for spec in dataclasses.fields(GRPOPlusConfig)})


def test_ours_come_first_without_words_of_python():
    assert ALL.index("--advantage ") < ALL.index("--model_name_or_path") < ALL.index("--vllm_mode")
    assert "more options of grpo_plus" not in HELP
    assert not re.search(r"\| *None|Literal", ALL)


@pytest.mark.parametrize("columns", ["80", "200", "20"])
def test_the_help_is_short_at_any_width_and_needs_no_config(columns, folder):
    done = subprocess.run(
        [sys.executable, "-m", "grpo_plus.cli", "train", "--help"], capture_output=True, text=True, check=True,
        cwd=folder, env={**os.environ, "COLUMNS": columns}, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert columns == "20" or len(lines) <= 172
    assert columns != "80" or max(map(len, lines)) <= 80
    assert not done.stderr


@pytest.mark.parametrize("flag", ["--help", "--help_all"])
def test_no_help_imports_torch_or_the_host(flag):
    program = (
        "import sys\nfrom grpo_plus.cli import main\n"
        f"code = main(['train', 'nowhere.yaml', {flag!r}])\n"
        "heavy = sorted({'torch', 'trl', 'transformers', 'datasets'} & set(sys.modules))\n"
        "sys.exit(code or (f'imported {heavy}' if heavy else 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--advantage " in done.stdout


@pytest.mark.parametrize(("words", "encoding"), [("train --help-all", "ascii"), ("plugins", "utf-8")])
def test_a_reader_that_leaves_early_gets_no_traceback(words, encoding):
    command = f"{sys.executable} -u -m grpo_plus.cli {words} | true; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = ["bash", "-c", command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "train"])
def test_the_help_of_every_other_command_can_be_read(command, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: grpo-plus {command}" in out
    assert len(out.splitlines()) <= 80


MISTYPED = [
    (("sweep", "nowhere.yaml", "--vray", "a=1"), "--vary"),
    (("eval", "model", "--temperatur", "1"), "--temperature"),
    (("init", "--forec"), "--force"),
]


@pytest.mark.parametrize(("words", "meant"), MISTYPED, ids=[f"{words[0]} {words[-2]}" for words, _ in MISTYPED])
def test_an_unknown_option_names_the_nearest(cli, words, meant):
    code, out, err = cli(*words)
    assert code == 2
    assert not out
    assert re.search(rf"[dD]id you mean {meant}\?", err)
    assert err.count("\n") == 1  # no usage


def test_every_command_is_listed_in_a_line(cli):
    out = cli.done("--help")
    for command, what in COMMANDS.items():
        assert re.search(rf"^  {command} +{re.escape(what)}$", out, flags=re.MULTILINE)


def test_underscores_in_the_name_of_an_option_are_dashes_and_those_of_its_value_stay():
    parser = CommandParser(prog="grpo-plus")
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--prompt-column")
    options = parser.parse_args(["--top_k=3", "--prompt_column", "the_question"])
    assert (options.top_k, options.prompt_column) == (3, "the_question")
