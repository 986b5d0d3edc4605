"""Are completions of ``rollout: auto`` distributed as the model says, and as those of `generate`? By chi-square."""

from collections import Counter
from typing import Any

import torch

from benchmarks.gpu.check import Context

LEAST = 1e-5
"""A p-value below this fails: by chance that happens once in some thousand runs of this check."""

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.15},
}


def run(context: Context) -> None:
    """Two tokens behind each of three prompts of different lengths, under each setting."""
    from grpo_plus.sampling.decode import decode
    from grpo_plus.sampling.sampler import Sampling
    from grpo_plus.testing import make_tiny_model

    model, tokenizer = make_tiny_model(architecture="qwen3", vocab="0123456789", hidden=64, initializer_range=0.1)
    model = model.to(context.device)
    texts, count = ("1+2", "07", "31415"), 256 if context.tiny else 4096
    prompts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    torch.manual_seed(0)
    worst: dict[str, float] = {}
    for name, changed in SETTINGS.items():
        sampling = Sampling(stops=(), most=2, pad=0, **changed)
        truth = [_exact(model, prompt, sampling, context.device) for prompt in prompts]
        asked = [prompt for prompt in prompts for _ in range(count)]
        for kind, rows in (("auto", None), ("few rows", count)):
            drawn = decode(model, asked, sampling, most_rows=rows, device=context.device).completions
            worst[f"{name}, {kind}"] = min(
                _chance(drawn[at * count : (at + 1) * count], pairs) for at, pairs in enumerate(truth)
            )
        drawn = _generated(model, asked, sampling, context.device)
        chances = [_chance(drawn[at * count : (at + 1) * count], pairs) for at, pairs in enumerate(truth)]
        worst[f"{name}, generate"] = min(chances)
    context.report(p_values=worst)
    for name, chance in worst.items():
        context.expect(chance >= LEAST, f"{name}: p = {chance:.1e} that the draws are the model's")
    context.headline(
        f"{3 * count:,} draws of {len(worst)} kinds against exact probabilities: least p {min(worst.values()):.3f}"
    )


def _exact(model: Any, prompt: list[int], sampling: Any, device: torch.device) -> dict[tuple[int, int], float]:
    """The probability of each pair of tokens."""
    from grpo_plus.sampling.sampler import processors

    chain = processors(sampling)

    def chances(rows: list[list[int]]) -> torch.Tensor:
        ids = torch.tensor(rows, device=device)
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, -1].float()
        scores: torch.Tensor = chain(ids, logits)
        return scores.softmax(-1).double().cpu()

    first = chances([prompt])[0]
    second = chances([[*prompt, token] for token in range(len(first))])
    return {(one, two): float(first[one] * second[one, two]) for one in range(len(first)) for two in range(len(first))}


def _chance(drawn: list[list[int]], expected: dict[tuple[int, int], float]) -> float:
    """The p-value of Pearson's test; pairs that are expected less than five times are put together."""
    counts, total = Counter(map(tuple, drawn)), len(drawn)
    if any(expected.get(pair, 0.0) <= 0.0 for pair in counts):  # type: ignore[call-overload]
        return 0.0
    statistic, cells, rest = 0.0, 0, [0.0, 0.0]
    for pair, share in expected.items():
        if share * total < 5:
            rest = [rest[0] + counts[pair], rest[1] + share * total]  # type: ignore[index]
        else:
            statistic, cells = statistic + (counts[pair] - share * total) ** 2 / (share * total), cells + 1  # type: ignore[index]
    if rest[1] > 0:
        statistic, cells = statistic + (rest[0] - rest[1]) ** 2 / rest[1], cells + 1
    if cells < 2:
        return 1.0
    degrees = torch.tensor((cells - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))


def _generated(model: Any, prompts: list[list[int]], sampling: Any, device: torch.device) -> list[list[int]]:
    """The same by the model's own `generate`."""
    from transformers import GenerationConfig

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    config = GenerationConfig(
        max_new_tokens=sampling.most, do_sample=True, temperature=sampling.temperature, top_k=sampling.top_k,
        top_p=sampling.top_p, min_p=sampling.min_p, pad_token_id=0, disable_compile=True,
    )  # fmt: skip
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        output = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    found: list[list[int]] = output[:, width:].tolist()
    return found
