import json
import os
import pty
import subprocess
import sys

import pytest
from datasets import Dataset

from grpo_plus import __version__
from tests import started
from tests.cli.test_check_parts import row


def test_usage_version_and_unknown_commands(cli):
    code, out, _ = cli()
    assert code == 2
    assert "grpo-plus COMMAND" in out
    assert cli("--version") == (0, f"{__version__}\n", "")
    assert "unknown command 'trian'. Did you mean 'train'?" in cli.refused("trian")


GOLDEN = [
    ({"advantage": {"name": "sign", "band": 0.5}}, ("--rewards", "0,.4,.5,.6,1"), [-1, 0, 0, 0, 1]),
    ({"advantage": "sign", "use_cpu": None, "bf16": True}, (), [1, 1, 1, -1]),  # a config for a card, without one
    ({"advantage": {"name": "zscore", "ddof": 0, "eps": 0}}, (), [0.57735, 0.57735, 0.57735, -1.732051]),
    ({}, (), [0.4999, 0.4999, 0.4999, -1.4997]),
    ({"advantage": "opo"}, ("--lengths", "10,20,30,40"), [0.4, 0.4, 0.4, -0.6]),
    ({"advantage": {"name": "mix", "parts": {"sign": 1.0, "center": 2.0}}}, (), [1.5, 1.5, 1.5, -2.5]),
]


@pytest.mark.parametrize(("values", "flags", "expected"), GOLDEN)
def test_explain_shows_the_advantages_of_sample_rewards(cli, config, values, flags, expected):
    out = cli.done("check", "--only=config", config(**values), *flags)
    assert row(out, "advantages") == pytest.approx(expected, abs=1e-4)


RAMP = """
import torch
from grpo_plus.advantages import register_advantage

@register_advantage("ramp", per="token", group_relative=False)
def ramp(table):
    place = torch.arange(int(table.lengths.max())) / (table.lengths[:, None] - 1)
    return (2 * place - 1) * (1 + table.rewards)
"""


def test_explain_shows_tokens_where_their_mean_says_nothing(cli, config, folder):
    (folder / "ramp.py").write_text(RAMP)
    path = config(advantage="ramp", plugins=["./ramp.py"])
    out = cli.done("check", "--only=config", path, "--rewards", "1,0", "--lengths", "3,5")
    assert [row(out, name) for name in ("advantages", "first token", "last token")] == [[0, 0], [-2, -1], [2, 1]]


UNWEIGHED = [{"name": name, "weight": 0} for name in ("math", "math_steps")]


def test_explain_shows_how_the_outcome_counts_beside_steps(cli, config):
    for given, weight in (
        ({"verifiers": ["math", UNWEIGHED[1]]}, "1"),
        ({"verifiers": UNWEIGHED, "reward_funcs": None}, "0"),
        ({"verifiers": ["math_steps"], "reward_funcs": ["accuracy_reward"]}, "1"),
        ({"verifiers": ["math_steps"], "reward_funcs": None}, "0"),
        ({"verifiers": ["math", "math_steps"], "advantage": {"name": "process", "outcome_weight": 0.3}}, "0.3"),
    ):
        out = cli.done("check", "--only=config", config(**{"advantage": "process", **given}))
        (line,) = [line for line in out.splitlines() if "outcome_weight = " in line]
        assert float(line.rpartition("=")[2]) == float(weight)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "flags", [("--advantage=mine.py:half",), ("--advantage", '{"name": "mix", "parts": {"./mine.py:half": 1.0}}')]
)
def test_a_file_named_on_the_command_line_is_the_one_in_front_of_the_user(cli, config, folder, monkeypatch, flags):
    here = folder / "elsewhere"
    here.mkdir()
    monkeypatch.chdir(here)
    path = config()
    (folder / "mine.py").write_text('def half(table):\n    """R / 2, say."""\n    return table.totals() / 2\n')
    out = cli.done("check", "--only=config", path, *flags, "--rewards", "2,0")
    assert ("R / 2, say" in out) == (len(flags) == 1)
    assert row(out, "advantages") == [1.0, 0.0]  # only the config's folder has it
    (here / "mine.py").write_text("def half(table):\n    return table.totals() / 4\n")
    out = cli.done("check", "--only=config", path, *flags, "--rewards", "2,0")
    assert row(out, "advantages") == [0.5, 0.0]


def test_plugins_lists_what_a_file_registers(cli, folder):
    (folder / "ramp.py").write_text(RAMP.replace("ramp", "listed_here"))
    out = cli.done("plugins", folder / "ramp.py")
    (line,) = [line for line in out.splitlines() if "listed_here" in line]
    assert "registered" in line


ROWS = [("42", "42", 1.0), ("41", "42", 0.0), ("", "7", 0.0), (None, "7", 0.0), (" 7 ", "7", 1.0)]


@pytest.fixture
def completions(folder):
    path = folder / "done.jsonl"
    path.write_text("".join(json.dumps({"text": text, "gold": gold}) + "\n" for text, gold, _ in ROWS))
    Dataset.from_json(str(path)).to_parquet(folder / "done.parquet")
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_verify_scores_a_file(cli, completions, kind):
    flags = ("--verifier", "exact", "--completion-column", "text", "--column", "answer=gold")
    out = cli.done("verify", completions / f"done.{kind}", *flags, "--out", completions / "out.jsonl")
    results = [json.loads(line) for line in (completions / "out.jsonl").read_text().splitlines()]
    assert [row["row"] for row in results] == list(range(len(ROWS)))
    assert [row["score"] for row in results] == [score for *_, score in ROWS]
    assert "rows: 5, mean scores: exact 0.4000" in out
    assert "correct" in out


def test_verify_writes_reasons_that_are_no_unicode(cli, tmp_path):
    (tmp_path / "loud.py").write_text(
        "from grpo_verifiers import Verdict\n"
        "def loud(completion):\n    return Verdict(0.0, detail='\\ud800\\x00 ' + completion)\n"
    )
    (tmp_path / "data.jsonl").write_text('{"completion": "x"}\n')
    cli.done(
        "verify", tmp_path / "data.jsonl", "--verifier", f"{tmp_path}/loud.py:loud", "--out", tmp_path / "out.jsonl"
    )
    (row,) = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    assert row["detail"] == "?\ufffd x"


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [False, True])
def test_verify_draws_its_progress_on_a_terminal_only(completions, terminal, clean_environment):
    command = [sys.executable, "-m", "grpo_plus.cli", "verify", "done.parquet", "--verifier", "exact"]
    command += ["--completion-column", "text", "--column", "answer=gold"]
    master, end = pty.openpty()
    done = started.run(
        command, cwd=completions, env={**clean_environment, "TERM": "xterm"}, stdout=subprocess.PIPE,
        stderr=end if terminal else subprocess.PIPE, text=True, timeout=120, check=True,
    )  # fmt: skip
    os.close(end)
    drawn = os.read(master, 1 << 16).decode() if terminal else done.stderr
    os.close(master)
    assert ("verifying" in drawn) == terminal
    assert terminal or not drawn
    assert "verifying" not in done.stdout


def test_verify_counts_what_could_not_be_judged_in_its_exit_code(cli, completions):
    (completions / "odd.py").write_text(
        "from grpo_verifiers import verifier\n\n"
        "@verifier('odd_check', isolation='inline')\ndef odd_check(completion: str, *, limit: int = 1):\n"
        "    if len(completion) > limit:\n        raise RuntimeError('too long')\n    return 1.0\n"
    )
    out_file = completions / "results.jsonl"
    command = ("verify", completions / "done.jsonl", "--plugin", completions / "odd.py", "--verifier", "odd_check")
    command += ("--completion-column", "text", "--out", out_file)
    code, out, err = cli(*command)
    assert code == 1, err
    assert "error" in out
    cli.done(*command, "--option", "limit=50", "--overwrite")
    assert len(out_file.read_text().splitlines()) == len(ROWS)


@pytest.mark.parametrize("golds", [["42", "\\frac{1}{2}", "3\\sqrt2"], ["42", "\\frac{1}{", "7"]])
def test_verify_checks_that_golds_accept_themselves(cli, completions, golds):
    (completions / "golds.jsonl").write_text("".join(json.dumps({"answer": gold}) + "\n" for gold in golds))
    code, out, err = cli("verify", completions / "golds.jsonl", "--verifier", "math", "--check-golds")
    assert code == (0 if golds[1].endswith("}") else 1), out + err
    if code == 1:
        assert "frac" in out


@pytest.mark.slow
@pytest.mark.parametrize(("solution", "code"), [("def add(a, b):\n    return a + b", 0), ("def add(a, b): ...", 1)])
def test_verify_checks_that_reference_solutions_pass_and_idle_programs_do_not(cli, tmp_path, solution, code):
    row = {"tests": json.dumps([{"function": "add", "args": [1, 2], "expected": 3}]), "canonical": solution}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    column = ("--column", "solution=canonical")
    found, out, err = cli("verify", tmp_path / "rows.jsonl", "--verifier", "code", "--check-golds", *column)
    assert found == code, out + err
    assert ("row 0: " in out) is bool(code)
    assert f"{1 - code} of 1 rows pass" in out
    misspelled = ("--column", "solution=cannonical")
    found, _, err = cli("verify", tmp_path / "rows.jsonl", "--verifier", "code", "--check-golds", *misspelled)
    assert found == 2
    assert "solution: unknown column 'cannonical'. Did you mean 'canonical'?" in err
