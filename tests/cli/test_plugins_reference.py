"""``grpo-plus plugins NAME``: a part in full, of this package or of a user, with a docstring or without."""

import re
import subprocess
import sys

import pytest

from grpo_plus.cli.plugins import describe, find
from grpo_plus.objectives import objectives
from grpo_plus.selection import selections

MINE = '''
from typing import Annotated, Literal

from grpo_plus.advantages import register_advantage
from grpo_plus.objectives import register_objective
from grpo_plus.selection import register_selection
from grpo_verifiers import verifier
from grpo_verifiers.options import Range


@register_advantage("shown_bare", per="token", scope="batch")
def bare(table, *, gain: Annotated[float, Range(0, 2)] = 1.5, mode: Literal["a", "b"] = "b"):
    return gain * table.totals()


@register_advantage("shown_told")
def told(table, *, gain: float = 1.0):
    """gain · R.

    Twice is enough.

    Use it when one reward is not enough.

    Paper: of nobody, arXiv:2402.03300.

    Args:
        table: the rewards.
        gain: how much
            more.

    Config:
        advantage: {name: shown_told, gain: 2.0}

    >>> 1 + 1
    2
    """
    return gain * table.totals()


@register_objective("shown_loss", formula="−A·log p", kl="none")
def loss(batch, *, power: Annotated[int, Range(1)] = 2):
    return -batch.advantages * batch.logps


@register_selection("shown_selection", weighted=False)
def chosen(history, *, least: float = 0.5):
    return least + history.drawn


@verifier("shown_check", timeout=2.0, steps=True, stated=lambda completion, **_: completion)
def check(completion: str, answer: str, hint=None, *, radix: Annotated[int, Range(2, 36)] = 10):
    """Score 1 where all is well.

    Scores: 1 correct; 0 wrong.

    Args:
        completion: the text.
        answer: digits.
        radix: of the digits.
    """
    return 1.0


@verifier("zscore")
def same_name(completion: str):
    return 1.0


def reward(completions, answer, **columns):
    return [0.0 for _ in completions]


def by_table(table, *, k: int):
    return table.totals()


def paragraphs(text):
    return [(0, len(text))]
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    yield
    objectives.unregister("shown_loss")
    selections.unregister("shown_selection")


def described(cli, *names):
    """The texts of names, after the files among them have been imported as the command does."""
    cli.done("plugins", *names)
    return ["\n".join(describe(*part)) for name in names if name != "./mine.py" for part in find(name)]


def test_a_built_in_verifier_is_shown_in_full(cli):
    out = cli.done("plugins", "numeric")
    for text in (
        "verifier numeric (built-in), from grpo_verifiers.text:numeric",
        "- `answer`: required column.",
        "- `rel_tol`: a number of at least 0 and less than 1 (1e-09).",
        "rel_tol: tolerance as a share of the answer.",
        *("Scores: 1 correct; 0 wrong", "verifiers: [numeric]", ">>> numeric("),
    ):
        assert text in out
    assert "gives_steps: yes" in cli.done("plugins", "math_steps")


def test_an_objective_shows_its_composition_with_the_keywords_of_its_preset(cli):
    (part,) = described(cli, "ppo_clip")
    assert "ratio: token · surrogate: clip · kl: k3 · reduce: token_mean" in part
    assert re.search(r"- `dual`: .*\(3\.0\)", part)
    assert "[dual = 3.0]" in part
    (part,) = described(cli, "dr_grpo")
    assert "- `length`" in part
    assert "sg[min(r, epsilon_max)]·A·lp_t" in described(cli, "cispo")[1]


def test_a_name_of_several_kinds_shows_all(cli, mine):
    kinds = [kind.words for name in ("constant", "target") for kind, _ in find(name)]
    assert kinds == ["reduction", "KL schedule", "objective", "surrogate"]
    parts = described(cli, "./mine.py", "zscore")
    for part, start in zip(
        parts, ("advantage estimator zscore (built-in)", "verifier zscore (registered)"), strict=True
    ):
        assert part.startswith(start)


def test_a_name_that_leads_nowhere_is_one_message(cli, mine):
    for name, expected in (
        ("lenght_kimi", "unknown part 'lenght_kimi'. Did you mean 'length_kimi'"),
        ("no_such_thing_at_all", "unknown part 'no_such_thing_at_all'. grpo-plus plugins lists all"),
        ("./mine.py:chek", "unknown attribute 'chek'. Did you mean 'check'?"),
    ):
        assert expected in cli.refused("plugins", name)


def test_parts_without_a_docstring_show_what_their_code_declares(cli, mine):
    bare, loss, chosen = described(cli, "./mine.py", "shown_bare", "shown_loss", "shown_selection")
    assert bare.splitlines()[1:] == [
        "It has no docstring; the rest is from its code.",
        "per: token · group_relative: yes · scope: batch",
        "- `gain`: a number of at least 0 and at most 2 (1.5).",
        "- `mode`: one of 'a', 'b' (b).",
        "advantage: shown_bare",
    ]
    assert "mine.py:11" in bare
    assert "L = −A·log p [power = 2]\nloss = reduce(L), reduce = Σ_t / tokens" in loss
    defaults = {"least": "(0.5)", "explore": "(0.1)", "weighted": "(false)", "decay": "(0.7)", "every": "(null)"}
    assert dict(re.findall(r"- `(\w+)`: .*(\(\S+\))\.$", chosen, re.MULTILINE)) == defaults


def test_a_docstring_of_a_user_is_shown_as_it_stands(cli, mine):
    told, check = described(cli, "./mine.py", "shown_told", "shown_check")
    for text in (
        "gain · R.\n\nTwice is enough.",
        "Paper: of nobody",
        "how much\n        more.",
        "gain: 2.0}",
        ">>> 1 + 1",
    ):
        assert text in told
    assert "advantage: shown_told" not in told, "its docstring has an example"
    assert "Score 1 where all is well.\n\nScores: 1 correct; 0 wrong." in check
    assert "timeout: 2.0 · gives_steps: yes" in check
    values = ["- `answer`: required column.", "- `hint`: optional column.", "- `radix`: an integer from 2 to 36 (10)."]
    assert [line for line in check.splitlines() if line.startswith("- `")] == values


def test_a_reference_is_shown_as_what_it_is(cli, mine):
    for reference, kind, config in (
        ("told", "advantage estimator", "advantage: {name: shown_told"),
        ("by_table", "advantage estimator", "advantage: ./mine.py:by_table"),
        ("reward", "verifier", "verifiers: [./mine.py:reward]"),
        ("check", "verifier", "verifiers: [./mine.py:check]"),
        ("paragraphs", "segmenter", "verifiers: [{name: math_steps, steps: ./mine.py:paragraphs}]"),
    ):
        (part,) = described(cli, f"./mine.py:{reference}")
        assert part.startswith(f"{kind} {reference} (reference), from ")
        assert config in part


TOOLS = '''
def ring(times: int, *, bell: str) -> str:
    """Ring the bell.

    Args:
        times: How often.
    """


class Room:
    def reset(self, door, **columns): ...

    def leave(self) -> str:
        """Leave the room."""


def bad(x): ...
'''


def test_tools_and_environments_are_shown_with_what_a_model_may_call(cli, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(TOOLS)
    monkeypatch.chdir(tmp_path)
    out = cli.done("plugins", "calculator", "./mine.py:ring", "./mine.py:Room", "./mine.py:bad")
    assert "tool calculator" in out
    assert "- `digits`: an integer from 1 to 100 (12)." in out
    assert "- `bell`: a string (required)." in out
    assert '"name": "ring"' in out
    assert "environment Room" in out
    assert '"name": "leave"' in out
    assert "Cannot generate JSON schema for bad because it has no docstring" in out


def test_the_list_has_every_kind(cli):
    out = cli.done("plugins")
    assert re.search(r"^  math +[A-Z].* gold answer$", out, re.MULTILINE)
    assert "grpo_verifiers.math" not in out
    kinds = {"segmenters", "KL schedules", "ways with dead groups", "tools", "ratios", "compositions of verifiers"}
    assert kinds <= {*out.splitlines()}


@pytest.mark.slow
def test_neither_the_list_nor_a_verifier_imports_torch():
    code = (
        "import sys\nfrom grpo_plus.cli import main\nassert main(['plugins']) == 0\n"
        "assert main(['plugins', 'math', 'keep', 'newline']) == 0\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True)
