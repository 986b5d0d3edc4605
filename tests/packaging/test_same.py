"""The comparison of two trees finds small differences, reads its table of names, and refuses bad input."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("benchmarks", reason="the sources are not here")
from benchmarks.same.__main__ import main
from benchmarks.same.compare import differences
from benchmarks.same.renames import Renames

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path):
    """Two folders of a run that differ in nothing that counts."""
    for side in ("old", "new"):
        folder = tmp_path / side / "out" / "checkpoint-2"
        folder.mkdir(parents=True)
        save_file({"head": torch.tensor([1.0, 2.0]), "body": torch.zeros(2)}, folder / "model.safetensors")
        (folder / "training_args.bin").write_text(side)
        lines = [{"step": 1, "time": hash(side), "values": {"loss": 0.5, "step_time": hash(side), "timeout": 3}}]
        lines += [{"step": 2, "values": {"loss": 0.25}}]
        (folder.parent / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
        (tmp_path / side / "printed-0.txt").write_text(f"in {tmp_path / side}: {ord(side[0])}.5 s\nmodel: a\n")
    return tmp_path


def compared(runs, **table):
    places = {str(runs / side): "<home>" for side in ("old", "new")}
    renames = Renames(table)
    return [str(one) for one in differences(runs / "old", runs / "new", renames, places)], renames.unused()


def edit(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_the_earliest_step_comes_first_and_weights_say_how_far_they_are_off(runs):
    assert compared(runs) == ([], []), "times, paths and pickles are no difference"
    weights = {"head": torch.tensor([1.0, 2.0000002]), "body": -torch.zeros(2)}
    save_file(weights, runs / "new/out/checkpoint-2/model.safetensors")
    edit(runs / "new/printed-0.txt", "model: a", "model: b")
    edit(runs / "new/out/metrics.jsonl", "0.25", "0.2500001")
    edit(runs / "new/out/metrics.jsonl", '"timeout": 3', '"timeout": 4')
    assert compared(runs)[0] == [
        "step 1: line 1 timeout 3 → 4 (out/metrics.jsonl)",
        "step 2: line 2 loss 0.25 → 0.2500001 (out/metrics.jsonl)",
        "step 2: body off by up to 0 (out/checkpoint-2/model.safetensors)",  # another bit: the sign
        "step 2: head off by up to 2.38e-07 (out/checkpoint-2/model.safetensors)",
        "'model: a' → 'model: b' (printed-0.txt)",
    ]


def test_new_names_are_matched_by_the_table_and_rows_without_use_are_named(runs):
    edit(runs / "new/out/metrics.jsonl", '"loss"', '"objective/loss"')
    edit(runs / "new/printed-0.txt", "model: a", "model is a")
    (runs / "new/out/metrics.jsonl").rename(runs / "new/out/log.jsonl")
    (runs / "new/out/checkpoint-2/extra.json").write_text("{}")
    assert len(compared(runs)[0]) == 4
    table = {"metrics": {"loss": "objective/loss", "no": "never"}, "files": {"metrics.jsonl": "log.jsonl"}}
    table |= {"texts": {"model: a": "model is a"}, "added": {"files": ["extra.json"]}}
    assert compared(runs, **table) == ([], ["metrics: no"])


def test_configs_are_translated():
    fields = {"old": "new", "critic.on": "where"}
    renames = Renames({"fields": fields, "merged": {"sign_kwargs": "advantage"}, "dropped": {"fields": ["gone"]}})
    config = {"old": 1, "critic": {"on": "trunk"}, "advantage": "sign", "sign_kwargs": {"band": 0.1}, "gone": 2}
    translated = {"new": 1, "critic": {"where": "trunk"}, "advantage": {"name": "sign", "band": 0.1}}
    assert (renames.config(config), renames.unused()) == (translated, [])


FAULTS = {
    "fields: [a]": "fields is ['a'], expected a mapping",
    "metric: {a: b}": "unknown section 'metric'. There is: fields",
    "metrics: {a: 3}": "metrics: 'a' is 3, expected a new name",
    "metrics: {a: c, b: c}": "two old names become 'c'",
    "dropped: {fish: []}": "unknown list 'fish'. There is: fields, metrics",
    "dropped: {runs: x}": "dropped.runs is 'x', expected a list",
}
REFUSED = {
    "--base no-such-commit": "--base no-such-commit: ",
    "--quick": "--base is missing",
    "--base HEAD --only nothing": "--only nothing: no run's name begins so",
    "--base HEAD --jobs 0": "--jobs is 0, expected at least 1",
}


@pytest.mark.parametrize("given", [*FAULTS, *REFUSED])
def test_a_malformed_table_and_what_cannot_be_compared_end_with_2(given, tmp_path, capsys):
    (tmp_path / "table.yaml").write_text(given)
    words = given.split() if given in REFUSED else ["--base", "HEAD", "--renamed", str(tmp_path / "table.yaml")]
    assert main(words) == 2
    assert (FAULTS | REFUSED)[given] in capsys.readouterr().err


@pytest.mark.nightly
def test_a_commit_is_the_same_as_itself_and_a_changed_formula_is_found(tmp_path, capsys):
    tar, tree = tmp_path / "tree.tar", tmp_path / "tree"
    archive = ["git", "-C", str(ROOT), "archive", "HEAD", "grpo_plus", "verifiers", "examples", "-o", str(tar)]
    if shutil.which("git") is None or subprocess.run(archive, check=False).returncode:
        pytest.skip("there is no git repository")
    shutil.unpack_archive(tar, tree)
    compare = ["--base", "HEAD", "--new", str(tree), "--only", "grpo-maxrl"]
    assert main(compare) == 0
    edit(tree / "grpo_plus/advantages/maxrl.py", "1 / mean_G", "1 / (1e-6 + mean_G)")
    capsys.readouterr()
    assert main(compare) == 1
    assert "grpo-maxrl differs: step 1: " in " ".join(capsys.readouterr().out.split())
