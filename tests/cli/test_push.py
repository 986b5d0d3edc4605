"""Pushes to the hub at the end of trainings, to a hub on this machine."""

import json
import os
import subprocess
import sys

import pytest
import safetensors.torch
from huggingface_hub import ModelCard

from grpo_plus.checkpoints.disk import UNSAVED
from tests.cli.hub import Hub, running_hub

pytestmark = pytest.mark.slow
TOKEN = "hf_" + "aSecretThatNobodySees" * 2
COMMANDS = """
import json, sys
from grpo_plus.cli import main
for words in sys.stdin:
    print("code", main(json.loads(words)), flush=True)
"""


@pytest.fixture(scope="module")
def hub_and_process():
    """A hub, and a process that runs commands: the hub's address is read at import."""
    env = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with running_hub() as hub:
        env |= {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
        with subprocess.Popen([sys.executable, "-c", COMMANDS], env=env, **streams) as process:
            yield hub, process
            process.stdin.close()


@pytest.fixture
def push(hub_and_process, config):
    """Trains with a push to a hub of these ways; gives exit code and output."""
    hub, process = hub_and_process

    def push(ways=(), **more):
        vars(hub).update(vars(Hub(hub.address, **dict(ways))))
        path = config(push_to_hub=True, hub_model_id="me/sums", **{"hub_strategy": "every_save", **more})
        process.stdin.write(json.dumps(["train", path]) + "\n")
        process.stdin.flush()
        said = []
        for line in process.stdout:
            if line.startswith("code "):
                return int(line.split()[1]), "".join(said)
            said.append(line)
        raise AssertionError("".join(said))

    return push


def test_what_a_push_carries(push, hub_and_process, folder):
    code, said = push(use_peft=True, lora_r=2, save_strategy="steps", save_steps=1)
    assert code == 0, said
    hub, _ = hub_and_process
    assert (hub.created[0]["name"], hub.created[0].get("organization")) == ("sums", "me")
    assert (hub.tokens, hub.messages[-1]) == ({f"Bearer {TOKEN}"}, "End of training")
    assert any("step 1" in message for message in hub.messages)
    assert not [name for name in hub.files if name.startswith(("checkpoint-", "_"))]
    card = ModelCard(hub.files["README.md"].decode())
    assert (card.data.library_name, card.data.model_name) == ("peft", "sums")
    kept = safetensors.torch.load(hub.files["adapter_model.safetensors"])
    mine = safetensors.torch.load_file(next(folder.rglob("adapter_model.safetensors")))
    assert kept.keys() == mine.keys()
    assert len(kept) > 0
    assert TOKEN.encode() not in b"\n".join(hub.files.values()) + said.encode()


@pytest.mark.parametrize(("ways", "why"), [({"refuse": 403}, ": 403"), ({"down": True}, "")])
def test_a_hub_that_refuses_or_is_down_is_told_before_anything_is_trained(push, ways, why):
    code, said = push(ways)
    assert code == 2
    assert "Traceback" not in said
    assert f"push_to_hub: cannot create the repository 'me/sums'{why}" in said
    assert "{'loss'" not in said


def test_a_hub_that_goes_down_meanwhile_leaves_the_model_and_says_how_to_push_it(push, folder):
    code, said = push({"down_after": 0}, hub_strategy="end")
    assert code == UNSAVED
    assert "Traceback" not in said
    assert "was not pushed to the Hub" in said
    assert f"hf upload me/sums {folder / 'out'}" in said
    assert (folder / "out" / "model.safetensors").is_file()
