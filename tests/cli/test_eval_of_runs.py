"""`grpo-plus eval RUN` makes prompts and draws as the run did, and says so."""

import json

import pytest

PROMPT = {"user": "What is {answer} times two?", "system": "Be brief.", "template": "boxed"}
MEASURED = {"verifiers": ["math"], "reward_funcs": None, "measure": {"split": "train", "n": 2, "limit": 3}}


def samples(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def run(cli, config, folder):
    path = config(prompt=PROMPT, max_steps=1, max_completion_length=5, temperature=0.7, **MEASURED)
    cli.done("train", path)
    return folder / "out"


@pytest.mark.slow
def test_a_run_is_evaluated_as_it_measured_itself(cli, run, folder, tmp_path):
    common = ("--dataset", folder / "data.jsonl", "--split", "train", "--verifier", "math", "-n", "2", "--limit", "3")
    code, _, err = cli("eval", run, *common, "--out", tmp_path / "again.jsonl", "--device", "cpu")
    assert code == 0, err
    assert f"As in the run {run}: prompt {{" in err
    assert "user: 'What is {answer} times two?'" in err
    assert "completions of at most 5 tokens, temperature 0.7" in err
    after, again = samples(run / "measure" / "after.jsonl"), samples(tmp_path / "again.jsonl")
    assert [row["prompt"] for row in again] == [row["prompt"] for row in after]
    assert [row["completion"] for row in again] == [row["completion"] for row in after]
    assert "Be brief." in json.dumps(again[0]["prompt"])
    # Flags override; a prompt of one's own replaces that of the run where they say the same.
    cli.done(
        "eval", run, *common, "--out", tmp_path / "own.jsonl", "--user", "{answer}?", "--system", "Be long.",
        "--max-completion-length", "3", "--temperature", "0.1",
    )  # fmt: skip
    own = samples(tmp_path / "own.jsonl")
    assert "Be long." in json.dumps(own[0]["prompt"])
    assert "times two" not in json.dumps(own[0]["prompt"])
    assert "boxed" in json.dumps(own[0]["prompt"])
    assert max(row["tokens"] for row in own) <= 3
    # A base may be asked the same way as what became of it, and a run as if it were no run.
    flags = ("--settings-from", "none", "--prompt-column", "answer", "--max-completion-length", "2")
    code, _, err = cli("eval", run, *common, *flags, "--out", tmp_path / "bare.jsonl")
    assert code == 0, err
    assert "As in the run" not in err
    assert "Be brief" not in json.dumps(samples(tmp_path / "bare.jsonl"))


@pytest.mark.slow
def test_many_cut_off_completions_are_told_and_the_length_too(cli, run, folder, tiny_model):
    common = ("--dataset", folder / "data.jsonl", "--split", "train", "--verifier", "math", "--limit", "2")
    code, out, err = cli("eval", tiny_model, "--settings-from", run, *common)
    assert code == 0, err
    assert "As in the run" in err
    assert "of the completions were cut off at 5 tokens, before they could end: raise --max-completion-length" in out
    assert "nothing" in cli.refused("eval", run, *common, "--user", "{nothing}")
