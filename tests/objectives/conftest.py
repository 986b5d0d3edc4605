import dataclasses
import gc

import pytest

from tests.device import DEVICE


@pytest.fixture(autouse=True)
def nothing_stays_registered(monkeypatch):
    from grpo_plus.objectives import objectives, piece_registries

    for registry in (objectives, *piece_registries.values()):
        for name, value in vars(registry).items():
            if isinstance(value, dict):
                monkeypatch.setattr(registry, name, dict(value))


@pytest.fixture(scope="session")
def make_batch():
    """Makes a `TokenBatch` of float64 tensors, uneven lengths, one fully masked row: `make_batch(seed=0, rows=5)`."""
    import torch

    from grpo_plus.objectives import Counts, TokenBatch, make_targets

    def make(seed=0, rows=5, width=6, *, spread=0.5, beta=0.1, per_token=False, dtype=torch.float64, **fields):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=dtype).to(DEVICE)

        lengths = torch.randint(1, width + 1, (rows,), generator=generator).to(DEVICE)
        lengths[0], lengths[1] = width, 0
        mask = torch.arange(width, device=DEVICE) < lengths[:, None]
        logps = -(normal(rows, width).abs() + 0.05)
        advantages = normal(rows, width if per_token else 1)
        prompts = torch.arange(rows, device=DEVICE) // 2
        prompt_tokens = torch.stack([lengths[prompts == prompt].sum() for prompt in prompts])
        old = logps + spread * normal(rows, width)
        targets = make_targets(
            prompts_N=prompts, tokens_NT=torch.randint(0, 3, (rows, width), generator=generator).to(DEVICE),
            present_NT=mask, trained_NT=mask, old_logps_NT=old, advantages_NT=advantages,
        )  # fmt: skip
        counts = Counts(float(rows), float(lengths.sum()), float(prompts.max() + 1))
        batch = TokenBatch(
            logps.requires_grad_(), old, advantages, mask, counts, prompt_tokens=prompt_tokens, beta=beta
        )
        own = {"ref_logps": logps.detach() + spread * normal(rows, width), "max_completion_length": width}
        own |= {"target_logps": targets.logps, "target_sign": targets.sign, "target_weights": targets.weights}
        own |= {"pull": torch.linspace(-1, 1, rows, dtype=dtype, device=DEVICE)}
        fields = {**own, "group_loss": torch.ones(rows, dtype=dtype, device=DEVICE), **fields}
        return dataclasses.replace(batch, **fields)

    return make


@pytest.fixture
def build(tiny_model, tmp_path):
    """Makes a trainer: `build(objective="target", num_iterations=2)`."""
    from datasets import Dataset

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
    from tests.objectives.runs import SETTINGS, letters

    def build(*, peft_config=None, callbacks=None, reward=letters, **settings):
        config = GRPOPlusConfig(output_dir=str(tmp_path / "out"), **{**SETTINGS, **settings})
        prompts = Dataset.from_dict({"prompt": ["1+1=", "say it", "x", "a b c"] * 4})
        trainer = GRPOPlusTrainer(tiny_model, reward, config, prompts, peft_config=peft_config, callbacks=callbacks)
        gc.freeze()
        return trainer

    return build
