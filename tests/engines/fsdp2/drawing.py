"""Completions drawn from sharded weights, and once more from a whole copy of them, by the same random numbers."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from fixed import adapter, build, sharded, weights
from peft import get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_plus import GRPOPlusTrainer
from grpo_plus.sampling.in_step import OtherRankFailedError, in_step

LEAN = {"rollout": "auto"}
CASES = {
    "lean": LEAN,
    "lean, LoRA, few rows": {**LEAN, "rollout": {"rows": 3}, "lora": True},
    "generate": {"rollout": "stock"},
    "generate, LoRA": {"rollout": "stock", "lora": True},
    "lean, after an error": {**LEAN, "breaks": True},
    "generate, after an error": {"rollout": "stock", "breaks": True},
    "lean, LoRA, kept whole, after an error": {**LEAN, "lora": True, "breaks": True, "keeps": True},
    "lean, bf16": {**LEAN, "bf16": True},
}
SHORT = 5


class Twice(GRPOPlusTrainer):
    """Draws each batch twice: from its sharded model, and from a whole one. The second rank's may not be as long."""

    def _generate_single_turn(self, prompt_ids, *arguments, **keywords):
        if self.accelerator.process_index:
            self.generation_config.max_new_tokens = SHORT
        before = torch.get_rng_state()
        if self.breaks:
            self.broken.append(self.fail_within_a_pass(prompt_ids, *arguments, **keywords))
            torch.set_rng_state(before)
        found, further = super()._generate_single_turn(prompt_ids, *arguments, **keywords)
        self.lengths.append(max(map(len, found)))
        if self.whole is not None:
            missing = self.whole.load_state_dict(weights(self.model), strict=False)
            assert missing.missing_keys in ([], ["lm_head.weight"], ["base_model.model.lm_head.weight"]), missing
            assert not missing.unexpected_keys
            torch.set_rng_state(before)
            lean = self.pipeline.lean
            alike = lean._in_step, self.model_wrapped
            lean._in_step, self.model_wrapped = False, self.whole
            again, _ = super()._generate_single_turn(prompt_ids, *arguments, **keywords)
            lean._in_step, self.model_wrapped = alike
            self.equal.append(again == found)
        return found, further

    def fail_within_a_pass(self, *arguments, **keywords):
        """Every rank fails in the third pass of a batch; gives what is not on the model as it was before."""

        def third(*_):
            nonlocal passes
            passes += 1
            if passes == 3:
                raise ValueError("no more")

        model, passes = self.model, 0
        layer = next(module for name, module in model.named_modules() if name.endswith("layers.1"))
        raises = layer.register_forward_pre_hook(third)
        before = installed(model)
        with pytest.raises(ValueError, match="no more"):
            super()._generate_single_turn(*arguments, **keywords)
        after = installed(model)
        raises.remove()
        return [sharded(self), *(name for name in before | after if before.get(name) != after.get(name))]


def installed(model):
    """Hooks and methods of its own that each part of a model has, and its mode."""
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        name: [[list(getattr(part, kind)) for kind in hooks], "generate" in vars(part), part.training]
        for name, part in model.named_modules()
    }


def copy_of(path, lora):
    """A model of the same shape; whatever its weights are, they are replaced."""
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    return (get_peft_model(model, adapter()) if lora else model).eval()


def failed(trainer, rank):
    """The second rank fails between two passes; the first one would draw on."""
    token = torch.zeros(1, 1, dtype=torch.long)
    try:
        with torch.no_grad(), in_step(trainer.model, torch.device("cpu")):
            for number in range(5):
                if rank and number == 2:
                    raise ValueError("no more")  # noqa: TRY301 - it has to be raised in the block
                trainer.model(input_ids=token, use_cache=False)
    except (ValueError, OtherRankFailedError) as error:
        return [type(error).__name__, number, sharded(trainer)]


def main(folder, model):
    torch.set_num_threads(1)
    found = {}
    for name, case in CASES.items():
        settings = dict(case)
        breaks = settings.pop("breaks", False)
        os.environ["FSDP_RESHARD_AFTER_FORWARD"] = str(not settings.pop("keeps", False)).lower()
        trainer = build(model, Path(folder, "out", name), kind=Twice, max_completion_length=24, **settings)
        trainer.lengths, trainer.equal, trainer.broken, trainer.breaks = [], [], [], breaks
        trainer.whole = None if case.get("bf16") else copy_of(model, case.get("lora", False))
        trainer.train()
        sharded(trainer)
        rank = trainer.accelerator.process_index
        entry = trainer.state.log_history[-2]
        stock = getattr(trainer.pipeline.lean.rollout, "stock", None)
        found[name] = {"lengths": trainer.lengths, "equal": trainer.equal, "stock": stock}
        found[name]["broken"] = trainer.broken
        found[name]["log"] = {key: value for key, value in entry.items() if key.startswith("rollout/")}
    found["failed"] = failed(trainer, rank)
    Path(folder, f"rank {rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
