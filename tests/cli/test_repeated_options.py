"""An option that is given twice collects its values, or is an error: no command drops the first one."""

import argparse

import pytest

from grpo_plus.cli import COMMANDS, UserError, main
from grpo_plus.cli._parser import CommandParser, repeated

COLLECTING = (argparse._AppendAction, argparse._AppendConstAction)
PLACES = {"sweep": ("nowhere.yaml",)}
"""The first words of commands that look at them before their options."""


class _Seen(Exception):
    pass


def parser_of(monkeypatch, words):
    def stop(parser, *_, **__):
        raise _Seen(parser)

    with monkeypatch.context() as patch:
        patch.setattr(CommandParser, "parse_known_args", stop)
        with pytest.raises(_Seen) as seen:
            main([*words, "--help"] if words[0] != "sweep" else [*words])
    return seen.value.args[0]


WORDS = [(command, *PLACES.get(command, ())) for command in COMMANDS if command != "train"]


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_every_option_of_every_command_is_taken_once_or_collected(monkeypatch, words, capsys):
    parser = parser_of(monkeypatch, words)
    actions = [action for action in parser._actions if action.option_strings and action.nargs != 0]
    assert actions or words == ("plugins",)
    for action in actions:
        value = str(next(iter(action.choices))) if action.choices else "1"
        for name in action.option_strings:
            given = [name, value, name, value]
            if isinstance(action, COLLECTING):
                assert repeated(parser, given) is None
                continue
            code = main([*words, *given])
            err = capsys.readouterr().err
            assert code == 2
            assert f"{name} is given twice, and would replace the earlier value" in err
            assert "Traceback" not in err


@pytest.mark.sample(4)
@pytest.mark.parametrize("command", ["train", "check"])
@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (("--beta=0.1", "--beta=0.1"), "--beta is given twice"),
        (("--learning_rate", "1", "--learning-rate", "2"), "--learning-rate comes after --learning_rate"),
        (("--verifiers", "math", "--verifiers", "exact"), "give it once, with all its values after it"),
        (("--advantage.band", "0", "--advantage.band", "1"), "--advantage.band is given twice"),
        (("--advantage.band", "0", "--advantage", "{}"), "comes after --advantage.band"),
        (("--mixed.yaml", "x"), "unknown option --mixed.yaml"),
        (("--no_bf16",), "unknown option --no_bf16"),
        (("--reward-model.every=5",), "unknown option --reward-model.every"),
        (("--use_cpu", "true", "stray"), "unexpected arguments: stray"),
        (("--num_processes", "2", "--num_processes", "3"), "--num_processes"),
    ],
)
def test_so_do_the_options_of_a_run(cli, config, command, flags, name):
    err = cli.refused(command, config(), *flags)
    assert name in err
    assert "Traceback" not in err


def test_keys_of_a_mapping_switches_and_lists_may_come_again():
    parser = CommandParser(prog="grpo-plus")
    parser.add_argument("--kwargs", "--kwargs.a", "--kwargs.b", dest="kwargs")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--no-fast", dest="fast", action="store_false")
    parser.add_argument("--verifier", action="append")
    parser.add_argument("-n", type=int)
    again = ["--kwargs {} --kwargs.a 1 --kwargs.b 2", "--fast --fast", "--verifier a --verifier b", "-n 4 -- -n 5"]
    for words in map(str.split, again):
        assert repeated(parser, words) is None, words
    for words in (["--fast", "--no-fast"], ["-n", "4", "-n", "5"], ["-n4", "-n5"], ["--kwargs.a=1", "--kwargs={}"]):
        assert repeated(parser, words) is not None, words
        with pytest.raises(UserError, match="would replace"):
            parser.parse_args(words)
