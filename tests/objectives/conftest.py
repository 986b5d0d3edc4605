import dataclasses

import pytest

from tests.device import DEVICE


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
            prompts_N=prompts,
            tokens_NT=torch.randint(0, 3, (rows, width), generator=generator).to(DEVICE),
            present_NT=mask,
            trained_NT=mask,
            old_logps_NT=old,
            advantages_NT=advantages,
        )
        batch = TokenBatch(
            logps=logps.requires_grad_(),
            old_logps=old,
            advantages=advantages,
            mask=mask,
            counts=Counts(float(rows), float(lengths.sum()), float(prompts.max() + 1)),
            ref_logps=logps.detach() + spread * normal(rows, width),
            beta=beta,
            prompt_tokens=prompt_tokens,
            target_logps=targets.logps,
            target_sign=targets.sign,
            target_weights=targets.weights,
            pull=torch.linspace(-1, 1, rows, dtype=dtype, device=DEVICE),
            group_loss=torch.ones(rows, dtype=dtype, device=DEVICE),
            max_completion_length=width,
        )
        return dataclasses.replace(batch, **fields)

    return make
