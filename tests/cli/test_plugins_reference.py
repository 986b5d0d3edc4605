"""``grpo-plus plugins NAME``: a part in full, of this package or of a user, with a docstring or without."""

import re
import subprocess
import sys

import pytest
import yaml

from grpo_plus.cli.plugins import references
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
    """The references of names, after the files among them have been imported as the command does."""
    cli.done("plugins", *names)
    return [part for name in names if name != "./mine.py" for part in references(name)]


def test_a_built_in_verifier_is_shown_in_full(cli):
    out = cli.done("plugins", "numeric")
    for text in (
        "verifier numeric (built-in), from grpo_verifiers.text:numeric",
        "- `answer`: required column. the expected number, as a number or text",
        "- `rel_tol`: a number of at least 0 and less than 1 (1e-09). tolerance as a share of the answer.",
        *("Scores: 1 correct; 0 wrong", "verifiers: [numeric]", ">>> numeric("),
    ):
        assert text in out
    assert "gives_steps: yes" in cli.done("plugins", "math_steps")


def test_an_objective_shows_its_composition_with_the_keywords_of_its_preset(cli):
    (part,) = described(cli, "ppo_clip")
    assert part.facts == {"ratio": "token", "surrogate": "clip", "kl": "k3", "reduce": "token_mean"}
    assert part.keywords["dual"][0].endswith("(3.0)")
    assert "[dual = 3.0]" in part.formula
    (part,) = described(cli, "dr_grpo")
    assert "length" in part.keywords
    assert described(cli, "cispo")[1].formula == "sg[min(r, epsilon_max)]·A·lp_t"


def test_a_name_of_several_kinds_shows_all(cli, mine):
    kinds = [part.kind for part in described(cli, "constant", "target")]
    assert kinds == ["reduction", "KL schedule", "objective", "surrogate"]
    parts = [(part.kind, part.way) for part in described(cli, "./mine.py", "zscore")]
    assert parts == [("advantage estimator", "built-in"), ("verifier", "registered")]


def test_a_name_that_leads_nowhere_is_one_message(cli, mine):
    for name, expected in (
        ("lenght_kimi", "unknown part 'lenght_kimi'. Did you mean 'length_kimi'"),
        ("no_such_thing_at_all", "unknown part 'no_such_thing_at_all'. grpo-plus plugins lists all"),
        ("./mine.py:chek", "unknown attribute 'chek'. Did you mean 'check'?"),
    ):
        assert expected in cli.refused("plugins", name)


def test_parts_without_a_docstring_show_what_their_code_declares(cli, mine):
    bare, loss, chosen = described(cli, "./mine.py", "shown_bare", "shown_loss", "shown_selection")
    assert bare.summary == ""
    assert bare.facts == {"per": "token", "group_relative": "yes", "scope": "batch"}
    assert bare.keywords == {
        "gain": ("a number of at least 0 and at most 2 (1.5)", ""),
        "mode": ("one of 'a', 'b' (b)", ""),
    }
    assert bare.config == "advantage: shown_bare"
    assert "mine.py:11" in bare.source
    assert loss.formula == "L = −A·log p [power = 2]\nloss = reduce(L), reduce = Σ_t / tokens"
    defaults = {"least": "(0.5)", "explore": "(0.1)", "weighted": "(false)", "decay": "(0.7)", "every": "(null)"}
    assert {name: values.split()[-1] for name, (values, _) in chosen.keywords.items()} == defaults
    assert "It has no docstring" in cli.done("plugins", "shown_bare")


def test_a_docstring_of_a_user_shows_in_the_same_places(cli, mine):
    told, check = described(cli, "./mine.py", "shown_told", "shown_check")
    assert told.formula == "gain · R"
    use = "Use it when one reward is not enough."
    assert told.prose == ("Twice is enough.", use, "Paper: of nobody, arXiv:2402.03300.")
    assert told.keywords["gain"][1] == "how much more."
    assert told.config == "advantage: {name: shown_told, gain: 2.0}"
    assert (told.example, check.summary) == (">>> 1 + 1\n2", "Score 1 where all is well")
    columns = {"answer": ("required column", "digits."), "hint": ("optional column", "")}
    assert check.keywords == {**columns, "radix": ("an integer from 2 to 36 (10)", "of the digits.")}
    assert (check.facts["gives_steps"], check.facts["timeout"]) == ("yes", "2.0")
    assert check.prose == ("Scores: 1 correct; 0 wrong.",)


def test_a_reference_is_shown_as_what_it_is(cli, mine):
    for reference, kind, config in (
        ("told", "advantage estimator", "advantage: {name: shown_told"),
        ("by_table", "advantage estimator", "advantage: ./mine.py:by_table"),
        ("reward", "verifier", "verifiers: [./mine.py:reward]"),
        ("check", "verifier", "verifiers: [./mine.py:check]"),
        ("paragraphs", "segmenter", "verifiers: [{name: math_steps, steps: ./mine.py:paragraphs}]"),
    ):
        (part,) = described(cli, f"./mine.py:{reference}")
        assert (part.kind, part.way, part.name) == (kind, "reference", reference)
        assert part.config.startswith(config)
        assert yaml.safe_load(part.config)


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
