"""``--diagnosis.stop_on`` and the last lines of a run that learned nothing, on the command line and on two ranks."""

import json

import pytest

pytestmark = pytest.mark.slow

HOPELESS = {
    "reward_funcs": None, "verifiers": ["exact"], "max_steps": 5, "logging_steps": 1, "per_device_train_batch_size": 16,
}  # fmt: skip


def test_the_last_lines_say_why_a_run_learned_nothing(cli, config, caplog):
    out = cli.done("train", config(disable_tqdm=False, **HOPELESS))
    title = "This run is done, but: learned nothing."
    assert title in out
    _, _, last = out.partition(title)
    assert "dead_groups (since step 3): 100% of the groups are dead" in last
    assert "Try: " in last
    assert "The model is in" not in last, "what is wrong stands last"
    assert "engine saves 100%" not in out
    assert caplog.text.count("dead_groups, step 3") == 1
    assert "at the end of the run" not in caplog.text, "the command says it"


def test_stop_on_has_an_exit_code_of_its_own(cli, config, folder, caplog):
    code, out, err = cli("train", config(save_strategy="no", **HOPELESS), "--diagnosis.stop_on", "nan,dead_groups")
    assert code == 3, err
    assert "dead_groups is in stop_on: this step is finished" in caplog.text
    assert out.splitlines()[-2].startswith("Stopped after step 3 of 5 by stop_on dead_groups. Resume with:")
    assert "--resume_from_checkpoint last" in out.splitlines()[-1]
    run = next(path.parent.parent for path in folder.rglob("run.json"))
    assert (run / "checkpoint-3").is_dir()
    assert (run / "report.html").is_file()
    caplog.clear()
    stops = ("--diagnosis.stop_on", "nan,dead_groups", "--resume_from_checkpoint", "last")
    out = cli.done("train", config(save_strategy="no", **HOPELESS), *stops)
    assert "trained to step 5" in out or "The model is in" in out
    assert "dead_groups, step" not in caplog.text


def test_two_ranks_stop_after_the_same_step(ranked, config, folder):
    path = config(save_strategy="no", **HOPELESS | {"per_device_train_batch_size": 8})
    codes, text = ranked("train", path, "--diagnosis.stop_on", "dead_groups")
    assert codes == [3, 3], text[-3000:]
    assert "Stopped after step 3 of 5 by stop_on dead_groups" in text
    assert text.count("dead_groups, step 3") == 1
    assert (folder / "out" / "checkpoint-3").is_dir()
    assert json.loads((folder / "out" / "grpo_plus" / "run.json").read_text())["status"] == "interrupted"
