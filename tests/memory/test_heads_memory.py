"""Memory of a critic's hidden states, and the memory of a config by the command."""

import contextlib
import json
import re
from functools import partial

import pytest
import torch

from grpo_plus.check.memory import _table
from grpo_plus.cli import main
from grpo_plus.heads.passes import Passes
from grpo_plus.heads.scalar import ScalarHead
from grpo_plus.heads.trunk import PolicyTrunk
from grpo_plus.memory.estimate import GIB, Settings, estimate
from grpo_plus.memory.shape import shape_of
from grpo_plus.testing import make_tiny_model
from tests.device import DEVICE, NAME
from tests.memory.live import OnDevice
from tests.qlora.test_qlora_planner import qwen3

SHAPE = {"architecture": "llama", "hidden": 256, "layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}


def eight_billion():
    return qwen3("8B")


@pytest.fixture
def rows():
    """Four rows of 32 and 96 tokens."""
    draw = partial(torch.randint, 3, 90, generator=torch.Generator().manual_seed(0))
    return draw((4, 128)).to(DEVICE), torch.ones(4, 128, dtype=torch.long, device=DEVICE), 96


@pytest.mark.slow
@pytest.mark.skipif(NAME == "stand-in", reason="its attention writes out all scores")
@pytest.mark.parametrize("layout", ["stock", "packed"])
def test_hidden_states_of_a_generation_batch_take_a_pass_of_the_device(rows, layout):
    model, _ = make_tiny_model(**SHAPE, intermediate_size=768)
    trunk = PolicyTrunk(model.to(DEVICE, torch.bfloat16))
    passes = Passes(trunk, ScalarHead(trunk.hidden_size, device=DEVICE), layout=layout, autocast=contextlib.nullcontext)
    peaks = {}
    for count in (4, 64):
        ids, mask, width = (each.repeat(count // 4, 1) if isinstance(each, torch.Tensor) else each for each in rows)
        with OnDevice() as live, torch.no_grad(), trunk.active():
            values, features = passes.features(ids, mask, width, batch_size=4)
        assert live.in_main_memory(features)
        assert not live.in_main_memory(values)
        peaks[count] = live.peak
    assert peaks[64] - peaks[4] < 64 * 128 * 64  # numbers for each token, and no hidden state


class TestCommand:
    @pytest.fixture
    def config(self, tmp_path):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(eight_billion().to_dict()))
        return str(path)

    @pytest.fixture
    def run(self, config, tmp_path, capsys):
        """Plan with a YAML file of these keys and options; gives what is printed."""

        def planned_file(keys, *options, code=0):
            path = tmp_path / "run.yaml"
            keys = {"model_name_or_path": config, "load_in_4bit": True, "verifiers": ["math"], **keys}
            path.write_text(json.dumps({key: value for key, value in keys.items() if value is not None}))
            assert main(["check", "--only", "memory", str(path), *options]) == code
            printed = capsys.readouterr()
            return printed.err + re.sub(r"\s*\n {12}", " ", printed.out)

        return planned_file

    @pytest.mark.slow
    @pytest.mark.parametrize(("keys", "changes"), [
        ({}, {}),
        ({"num_generations": 4, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 8},
         {"micro_batch": 2, "rollout_rows": 16, "prompts": 4}),
        ({"lora_r": 8, "max_completion_length": 300, "optim": "adamw_torch", "gradient_checkpointing": False,
          "gradient_checkpointing_kwargs": None},
         {"rank": 8, "completion_length": 300, "optimizer": "adamw_torch", "checkpointing": False}),
        ({"load_in_4bit": False, "load_in_8bit": True}, {"four_bit": False, "eight_bit": True}),
        ({"load_in_4bit": False, "use_peft": True, "lora_target_modules": ["all-linear"], "dtype": "bfloat16",
          "optim": "paged_adamw_8bit"}, {"four_bit": False}),
    ])  # fmt: skip
    def test_a_config_is_planned_by_what_it_says(self, keys, changes, run, config):
        keys = {"max_completion_length": 1024, **keys}
        wanted, shape = Settings(**{"micro_batch": 8, **changes}), shape_of(eight_billion(), config)
        text = run(keys, "--vram", "100")
        assert "\n".join(f"  {line}" for line in _table(shape, wanted, estimate(shape, wanted))) in text
        assert "prompts have 256 tokens" in text

    @pytest.mark.slow
    def test_more_of_a_config_counts_as_in_the_trainers_own_warning(self, run):
        whole = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16, "max_completion_length": 1024}
        assert "2 completions a pass, 16 rows decoded at once" in run({**whole, "rollout": {"rows": 16}})
        unquantised = {**whole, "load_in_4bit": None, "use_peft": True}
        texts = [run({**unquantised, "dtype": dtype}, "--vram", "100") for dtype in ("bfloat16", "float32")]
        gib = [float(text.split("  weights ")[1].split()[0]) for text in texts]
        assert gib == pytest.approx([8.19 * 2e9 / GIB, 8.19 * 4e9 / GIB], rel=1e-3)

    def test_options_win_over_the_file_and_a_card_gives_lines_for_it(self, run):
        keys = {"max_completion_length": 1024, "gradient_accumulation_steps": 4}
        text = run(keys, "--max-completion-length", "512", "--prompt-length", "99", "--vram=11")
        assert "prompts of 99 and completions of 512 tokens" in text
        printed = dict(re.findall(r"^ {4}(\w+): (.*)$", text, re.MULTILINE))
        assert int(printed["per_device_train_batch_size"]) * int(printed["gradient_accumulation_steps"]) == 32

    def test_what_is_left_out_is_said(self, run):
        assert "memory of the reward model (reward_model_name_or_path)" in run({"reward_model_name_or_path": "a/b"})
        text = run({"advantage": "gae", "critic": {}, "reward_model": {}})
        assert all(
            f"memory of the {name} (12 bytes for each trained weight" in text for name in ("critic", "reward model")
        )
        steps = {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 2}
        assert "per_device_train_batch_size times steps_per_generation stays 16" in run(steps, "--vram", "8")

    def test_a_config_that_cannot_be_planned_is_refused(self, run):
        for keys, options, words in (
            ({"load_in_4bit": None, "use_cpu": True, "bf16": False}, [], "runs with adapters (use_peft) only"),
            ({"critic": {"on": "head"}}, [], "critic"),
            ({}, ["--prompt_length", "0"], "--prompt-length is 0, expected at least 1"),
            ({"model_name_or_path": None}, [], "model_name_or_path"),
        ):
            assert words in run(keys, *options, code=2)
