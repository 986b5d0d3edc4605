"""The checkpoint of a run that loses its server in the middle of a step is that of the last whole step, to the bit."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.sampling import vllm_http
from grpo_plus.sampling.vllm_http import ServerError
from tests.device import DEVICE
from tests.qlora import vllm_like
from tests.qlora.runs import ROWS, RUN, digits, lora

OF_THE_CLOCK = ("record",)
CLOCKS = re.compile(r"time|latency")


class Seeded(vllm_like.State):
    """Draws the same for the same prompt from the same adapter, and leaves the trainer's generator alone."""

    def complete(self, body):
        with torch.random.fork_rng():
            torch.manual_seed(sum(body["prompt"]) + 1000 * int(body["model"].rpartition("-")[2]))
            return super().complete(body)


def run(folder, url, out, **changes):
    # A step draws twice, and metrics wait for the next log.
    steps = {"gradient_accumulation_steps": 2, "steps_per_generation": 1, "max_steps": 4, "logging_steps": 3}
    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": url, "vllm_server_timeout": 0.2}
    values = {**RUN, **steps, **server, "seed": 1, "advantage": "zscore", "selection": "contrast"}
    args = GRPOPlusConfig(output_dir=str(out), **{**values, **changes})
    return GRPOPlusTrainer(folder, digits, args, ROWS, peft_config=lora(lora_dropout=0.1))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(vllm_http, "PAUSES", (0.01,))


def serving(kind, folder):
    return vllm_like.serving(kind(AutoModelForCausalLM.from_pretrained(folder).to(DEVICE), folder))


def content(checkpoint):
    """What a run goes on from, by file; clocks are left out."""
    found = {}
    for path in sorted(checkpoint.iterdir()):
        if path.suffix == ".safetensors":
            values = {name: repr(value.tolist()) for name, value in load_file(path).items()}
            found[path.name] = {name: value for name, value in values.items() if not CLOCKS.search(name)}
        elif path.name == "grpo_plus_state.json":
            parts = json.loads(path.read_text())["parts"]
            found[path.name] = {name: part for name, part in parts.items() if name not in OF_THE_CLOCK}
        elif path.suffix in {".pt", ".pth"}:
            found[path.name] = repr(torch.load(path, weights_only=False))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("draws", [4, 5], ids=["first draw of step 3", "second draw of step 3"])
def test_a_server_lost_within_a_step_leaves_the_checkpoint_of_the_step_before(draws, folder, tmp_path):
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    with serving(Seeded, folder) as url:
        run(folder, url, whole, save_strategy="steps", save_steps=2, save_total_limit=None).train()
    with serving(Seeded, folder) as url:
        trainer = run(folder, url, lost)
        own, count = trainer.pipeline.vllm_server.server._complete, iter(range(100))

        def complete(prompts):
            if next(count) >= draws:
                raise ServerError("gone")
            return own(prompts)

        trainer.pipeline.vllm_server.server._complete = complete
        with pytest.raises(ServerError, match=rf"gone The run is saved up to step 2, in {lost / 'checkpoint-2'}"):
            trainer.train()
    expected, found = content(whole / "checkpoint-2"), content(lost / "checkpoint-2")
    assert found.keys() == expected.keys()
    assert {"optimizer.pt", "rng_state.pth", "grpo_plus_state.json"} <= found.keys()
    for name, value in expected.items():
        assert found[name] == value, name


@pytest.mark.slow
def test_a_run_that_trained_no_step_says_so_and_saves_nothing(folder, tmp_path):
    with serving(vllm_like.State, folder) as url:
        trainer = run(folder, url, tmp_path / "out")
    with pytest.raises(ServerError, match=r"no vLLM server answers .* No step was trained by then\."):
        trainer.train()
    assert not list(Path(tmp_path, "out").glob("checkpoint-*"))
