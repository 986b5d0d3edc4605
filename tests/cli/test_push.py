"""A push to the hub at the end of a training, to a hub on this machine."""

import os
import subprocess
import sys

import pytest
import safetensors.torch
from huggingface_hub import ModelCard

from grpo_plus.checkpoints.disk import UNSAVED
from tests.cli.hub import running_hub

pytestmark = pytest.mark.slow
TOKEN = "hf_" + "aSecretThatNobodySees" * 2


def push(config, hub, **more):
    """Train with a push, in a process of its own: the hub's address is read at import."""
    path = config(push_to_hub=True, hub_model_id="me/sums", **{"hub_strategy": "every_save", **more})
    env = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    env |= {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "grpo_plus.cli", "train", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=env, check=False)


def test_what_a_push_carries(config, folder):
    with running_hub() as hub:
        done = push(config, hub, use_peft=True, lora_r=2, save_strategy="steps", save_steps=1)
    assert done.returncode == 0, done.stderr
    assert hub.created[0]["name"] == "sums"
    assert hub.created[0].get("organization") == "me"
    assert hub.tokens == {f"Bearer {TOKEN}"}
    assert hub.messages[-1] == "End of training"
    assert any("step 1" in message for message in hub.messages)
    assert not [name for name in hub.files if name.startswith(("checkpoint-", "_"))]
    card = ModelCard(hub.files["README.md"].decode())
    assert {"grpo", "grpo_plus", "trl"} <= set(card.data.tags)
    assert card.data.pipeline_tag == "text-generation"
    assert card.data.library_name == "peft"
    assert card.data.model_name == "sums"
    assert "## How it was trained" in card.text
    kept = safetensors.torch.load(hub.files["adapter_model.safetensors"])
    mine = safetensors.torch.load_file(next(folder.rglob("adapter_model.safetensors")))
    assert kept.keys() == mine.keys()
    assert len(kept) > 0
    everything = b"\n".join(hub.files.values()) + (done.stdout + done.stderr).encode()
    assert TOKEN.encode() not in everything


def test_a_hub_that_refuses_is_told_before_anything_is_trained(config, folder):
    with running_hub() as hub:
        hub.refuse = 403
        done = push(config, hub)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "push_to_hub: the repository 'me/sums' cannot be made: 403" in done.stderr


def test_a_hub_that_is_down_is_told_before_anything_is_trained(config, folder):
    with running_hub() as hub:
        pass
    done = push(config, hub)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "push_to_hub: the repository 'me/sums' cannot be made" in done.stderr


def test_a_hub_that_goes_down_meanwhile_leaves_the_model_and_says_how_to_push_it(config, folder):
    with running_hub() as hub:
        hub.down_after = 0
        done = push(config, hub, hub_strategy="end")
    assert done.returncode == UNSAVED
    assert "Traceback" not in done.stderr
    assert "was not pushed to the Hub" in done.stderr
    assert f"hf upload me/sums {folder / 'out'}" in done.stderr
    assert (folder / "out" / "model.safetensors").is_file()
