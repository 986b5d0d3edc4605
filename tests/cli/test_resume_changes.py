"""A command that resumes another run: one table, a refusal, or `--allow_changes`."""

import pytest

pytestmark = pytest.mark.slow


def test_another_run_is_refused_with_a_table_and_goes_on_with_allow_changes(cli, config, caplog):
    saving = {"save_strategy": "steps", "save_steps": 1}
    cli.done("train", config(**saving))
    resume = ("train", config(**saving, max_steps=3, learning_rate=2e-3), "--resume_from_checkpoint", "last")
    code, out, err = cli(*resume)
    assert code == 2
    assert "Traceback" not in out + err
    rows = [[cell.strip() for cell in line.split(" | ")] for line in err.splitlines() if " | " in line]
    assert rows == [["name", "checkpoint", "now"], ["learning_rate", "0.001", "0.002"]]
    assert "or set allow_changes (--allow_changes)" in err
    cli.done(*resume, "--allow_changes")
    assert any("learning_rate | 0.001      | 0.002" in record.getMessage() for record in caplog.records)
    assert cli(*resume[:1], config(**saving, max_steps=4, optim="sgd"), *resume[2:], "--allow_changes")[0] == 2
