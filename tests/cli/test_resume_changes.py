"""A command that resumes with other settings: one line of refusal, or one note."""

import shutil

import pytest

from grpo_plus.testing import make_tiny_model

pytestmark = pytest.mark.slow

LORA = {"use_peft": True, "lora_r": 4, "lora_alpha": 8, "lora_target_modules": ["q_proj", "v_proj"]}
REFUSED = {
    "optimizer": ({}, {"optim": "sgd"}, "it was saved with optim adamw_torch_fused, and this run has sgd"),
    "rank": (LORA, {"lora_r": 8}, "the adapter's r 4, and this run has 8"),
    "modules": (LORA, {"lora_target_modules": ["q_proj", "k_proj"]}, "target_modules ['q_proj', 'v_proj'], and"),
    "adapter": ({}, LORA, "it holds all weights, and this run trains an adapter"),
    "model": ({}, {"model_name_or_path": "wider"}, "it is of a Qwen2ForCausalLM with 25,184 parameters"),
}


@pytest.fixture
def saved(cli, config):
    def saved(**settings):
        cli.done("train", config(save_strategy="steps", save_steps=1, **settings))

    return saved


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_go_on_is_one_line_without_a_traceback(cli, config, saved, folder, name):
    before, after, words = REFUSED[name]
    after = {key: str(folder / value) if value == "wider" else value for key, value in after.items()}
    make_tiny_model(folder / "wider", hidden=48)
    saved(**before)
    shutil.rmtree(folder / "out" / "checkpoint-2")
    code, out, err = cli("train", config(**before | after), "--resume_from_checkpoint", "last")
    assert code == 2
    assert words in err
    assert f"the checkpoint {folder / 'out' / 'checkpoint-1'} does not fit this run" in err
    assert "Traceback" not in out + err
    assert len([line for line in err.splitlines() if "does not fit" in line]) == 1


def test_what_changed_is_one_note(cli, config, saved, caplog):
    saved()
    cli.done("train", config(max_steps=3, learning_rate=2e-3), "--resume_from_checkpoint", "last")
    (note,) = [record.getMessage() for record in caplog.records if "other settings" in record.getMessage()]
    said = [line.partition(" (")[0] for line in note.splitlines()[1:3]]
    assert said == ["  max_steps: 2 then, 3 now", "  learning_rate: 0.001 then, 0.002 now"]
