"""Completion of command lines: the words themselves, and the scripts in real shells."""

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_plus.advantages.registry import advantages
from grpo_plus.cli import COMMANDS, main
from grpo_plus.cli._completing import candidates
from grpo_plus.cli.completion import SCRIPTS
from grpo_plus.cli.init import RECIPES
from tests.waiting import comes

BIN = Path(sys.executable).parent


def shell(command, **more):
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env, check=False, **more)
    assert not done.stderr
    return done.stdout.split()


TYPED = {"tr": "train", "nonsense ": "", "train ": "", "init quickstart ": "", "plugins gspo_": "gspo_token"}
TYPED |= {"train c.yaml --advantage zscore ": "", "train c.yaml --objective dr": "dr_grpo"}
TYPED["sweep c.yaml --va"] = "--vary"
TYPED |= {"train c.yaml --verifiers math_": "math_steps", "train c.yaml --load_in_4bit ": "true false"}
TYPED |= {"train c.yaml --load-in-4bit t": "true", "train c.yaml --dead_groups r": "resample roulette replay"}
TYPED |= {"explain c.yaml --reward_m": "--reward_model --reward_model_name_or_path", "eval m --verifier exa": "exact"}
TYPED |= {"reward-model ": "train eval", "reward-model eval --by": "--by", "completion ": "bash zsh fish"}
TYPED |= {"": " ".join([*COMMANDS, "--help", "--version"]), "init ": " ".join(RECIPES)}
TYPED |= {"train c.yaml --advantage ": " ".join(advantages)}


def test_the_words_that_may_stand_there():
    for typed, wanted in TYPED.items():
        assert set(candidates(typed.split(" "))) == set(wanted.split()), typed


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("train", "reward-model")])
def test_every_option_of_a_commands_help_is_completed(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = set(re.findall(r"^  (?:-\w(?: [A-Z]+)?, )?(--[a-z0-9-]+)", capsys.readouterr().out, re.MULTILINE))
    assert shown <= set(candidates([command, "--"]))


@pytest.mark.slow
def test_completion_imports_no_torch_and_an_unknown_shell_names_those_that_are_known(capsys):
    program = "import sys; from grpo_plus.cli import main; main(['completion', '--words', *sys.argv[1:]]); print('torch' in sys.modules)"
    for typed in (["train", "--"], ["explain", "x", "--advantage", "z"], ["plugins", ""], ["plan", "--"]):
        words = [sys.executable, "-c", program, *typed]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
        assert len(done.stdout.split()) > 1
        assert done.stdout.endswith("False\n"), typed
    assert main(["completion", "tcsh"]) == 2
    told = capsys.readouterr().err
    assert all(name in told for name in SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("grpo-plus train a.yaml --advantage rl", ["rloo"]),
        ("grpo-plus init paper:pp", ["ppo"]),  # after the colon, where bash begins a word
        ("grpo-plus completion ", ["bash", "fish", "zsh"]),
        ("grpo-plus train ", []),
    ],
)
def test_bash_completes(line, wanted):
    program = f"""
        source <(grpo-plus completion bash)
        COMP_LINE={line!r} COMP_POINT={len(line)}
        _grpo_plus; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    assert shell(["bash", "-c", program]) == wanted


COMPLETED = {"train a.yaml --advantage rlo": "rloo", "init paper:pp": "paper:ppo", "train ./a": "./a.yaml"}


@pytest.mark.slow
@pytest.mark.needs("fish")
@pytest.mark.parametrize(("line", "wanted"), COMPLETED.items())
def test_fish_completes(line, wanted, tmp_path):
    (tmp_path / "a.yaml").touch()
    program = f"grpo-plus completion fish | source; complete -C {f'grpo-plus {line}'!r}"
    assert shell(["fish", "--no-config", "-c", program], cwd=tmp_path) == [wanted]


@pytest.mark.slow
@pytest.mark.needs("zsh")
@pytest.mark.parametrize(("typed", "shown"), COMPLETED.items())
def test_zsh_completes(typed, shown, tmp_path):
    (tmp_path / "a.yaml").touch()
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(tmp_path)
        os.environ.update(PATH=f"{BIN}:{os.environ['PATH']}", TERM="dumb", PS1="READY> ")
        os.execvp("zsh", ["zsh", "--no-rcs", "--interactive"])
    seen = ""

    def read():
        nonlocal seen
        while select.select([terminal], [], [], 0.05)[0]:
            seen += os.read(terminal, 65536).decode(errors="replace")
        return seen

    try:
        assert comes(lambda: "READY>" in read())
        os.write(
            terminal, b'autoload -Uz compinit; compinit -u; eval "$(grpo-plus completion zsh)"; echo SET-$((1+1))\n'
        )
        assert comes(lambda: "SET-2" in read())
        seen = ""
        os.write(terminal, f"grpo-plus {typed}\t".encode())
        assert comes(lambda: f" {shown}" in read()), seen
    finally:
        os.close(terminal)
        os.kill(child, 9)
        os.waitpid(child, 0)
