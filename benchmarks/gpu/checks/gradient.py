"""The gradient of a generation batch, packed, trimmed, auto and stock, against stock TRL's on the same completions."""

# ruff: noqa: SLF001 - TRL has no public way to hand its trainer a generation batch
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu.check import Context
from benchmarks.gpu.checks.setup import lora, prompts, release, reward, settings
from benchmarks.gpu.models import number_tokenizer, random_model
from benchmarks.update_phase import Case, distance, generation_batch, update

LAYOUTS = ("packed", "trimmed", "auto", "stock")
EXACT = 1e-5
"""Largest distance to TRL's gradient in float32, as a part of its size."""
ROUNDS = 1.3
"""In 16 bits: largest distance to the float32 gradient, in TRL's own distance to it."""
ATTENTIONS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention")


@dataclass(frozen=True)
class Setting:
    """A way to train: fields of the config, and what is changed in model and batch.

    Attributes:
        fields: of the config, for both trainers.
        tokens_per_pass: of the engine.
        adapters: train LoRA; ``four_bit``: on a base in NF4.
        batch: changes a generation batch.
        dtype: of the weights.
        autocast: bfloat16 on float32 weights.
        attention: transformers' name of it.
        layouts: of ours.
        within: score within what top-p left to draw from, which TRL cannot: ours on TRL's path is the truth.
    """

    fields: Mapping[str, Any] = field(default_factory=dict)
    tokens_per_pass: int | None = None
    adapters: bool = False
    four_bit: bool = False
    batch: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]] = dict
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    attention: str = "sdpa"
    layouts: tuple[str, ...] = LAYOUTS
    within: bool = False

    @property
    def rounds(self) -> bool:
        """It computes in 16 bits."""
        return self.autocast or self.dtype != torch.float32


def _near(name: str, spread: float) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Log-probabilities of another model, some way off."""

    def changed(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        random = torch.Generator().manual_seed(3)
        ids = batch["completion_ids"]
        noise = spread * torch.randn(ids.shape, generator=random).to(ids.device)
        return {**batch, name: noise - torch.full(ids.shape, 6.0, device=ids.device)}

    return changed


def _turns(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Completions of a prompt begin alike, and have a result of a tool in them that is not trained."""
    ids, mask = batch["completion_ids"].clone(), batch["completion_mask"]
    shared = ids.shape[1] // 3
    for group in range(0, len(ids), 8):
        longest = int(mask[group : group + 8].sum(1).argmax()) + group
        ids[group : group + 8, :shared] = ids[longest, :shared]
    tools = torch.ones_like(ids)
    tools[:, shared // 3 : shared // 2] = 0
    return {**batch, "completion_ids": ids * mask, "tool_mask": tools * mask}


def _supports(batch: dict[str, Any]) -> dict[str, Any]:
    """What could be drawn: a third of the vocabulary for each token, the token itself among it."""
    from grpo_plus.sampling.allowed_tokens import AllowedTokensLog

    noted, random = AllowedTokensLog(), torch.Generator().manual_seed(5)
    ids, mask = batch["completion_ids"], batch["completion_mask"]
    vocabulary = int(ids.max()) + 1
    for place in range(ids.shape[1]):
        rows = mask[:, place].nonzero()[:, 0]
        outside = torch.rand(len(rows), vocabulary, generator=random).to(ids.device) > 1 / 3
        outside[torch.arange(len(rows)), ids[rows, place]] = False
        noted.note(
            rows,
            torch.full_like(rows, place),
            torch.zeros_like(outside, dtype=torch.float32).masked_fill(outside, -torch.inf),
        )
    return {**batch, "support": noted.rows(mask.sum(1).tolist())}


def _per_token(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(4)
    ids = batch["completion_ids"]
    return {**batch, "advantages": torch.randn(ids.shape, generator=random).to(ids.device)}


SETTINGS: dict[str, Setting] = {
    "plain": Setting(),
    "LoRA": Setting(adapters=True),
    "4 bits": Setting(adapters=True, four_bit=True),
    "checkpointing": Setting(
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}, adapters=True
    ),
    "reference": Setting({"beta": 0.04}, adapters=True, batch=_near("ref_per_token_logps", 0.3)),
    "off policy": Setting({"num_iterations": 2}, batch=_near("old_per_token_logps", 0.3)),
    "turns": Setting(batch=_turns),
    "per token": Setting(batch=_per_token),
    "temperature": Setting({"temperature": 0.7}),
    "in parts": Setting(tokens_per_pass=600, layouts=("packed", "trimmed", "auto")),
    "top-p": Setting(batch=_supports, layouts=("packed", "trimmed", "auto"), within=True),
    "entropy bonus": Setting({"entropy_coef": 0.01}),
    "bf16 autocast": Setting(autocast=True),
    "bf16 weights": Setting(dtype=torch.bfloat16, adapters=True),
    "bf16, 4 bits": Setting(dtype=torch.bfloat16, adapters=True, four_bit=True),
}


def run(context: Context, *, model: str) -> None:
    """Every setting, for a family of models."""
    few = ("plain", "LoRA", "checkpointing", "bf16 autocast")
    chosen = SETTINGS if model == "qwen3" or not context.tiny else {name: SETTINGS[name] for name in few}
    _compare_all(context, model, chosen)


def attentions(context: Context) -> None:
    """Plain training with each attention that is there; and whether cuDNN's kernels, which are left out, would do."""
    chosen = {}
    for name in ATTENTIONS:
        chosen[f"{name}, float32"] = Setting(attention=name)
        chosen[f"{name}, bf16"] = Setting(attention=name, dtype=torch.bfloat16, adapters=True)
    if context.real:
        with_cudnn, without = (_not_finite(enabled) for enabled in (True, False))
        context.report(not_finite={"with cuDNN": with_cudnn, "without": without})
        context.expect(without == 0, f"{without} numbers of a gradient with a mask are not finite")
    _compare_all(context, "qwen3", chosen)


def _not_finite(cudnn: bool) -> int:
    """NaN and infinite numbers in the gradient of attention under a mask, where all logits are far below zero.

    After pytorch/pytorch#196678: cuDNN's backward pass has some for lengths of 64 beyond a multiple of 128.
    """
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    length, width = 704, 64
    query, key = (0.1 * torch.randn(1, 1, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    value = torch.randn(1, 1, length, width, device="cuda", dtype=torch.bfloat16)
    query[..., 0], key[..., 0] = 1.0, -120.0 * width**0.5
    query.requires_grad_()
    mask = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()[None, None]
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    try:
        scaled_dot_product_attention(query, key, value, attn_mask=mask).sum().backward()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    assert query.grad is not None
    return int((~query.grad.isfinite()).sum())


def _compare_all(context: Context, model: str, chosen: Mapping[str, Setting]) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    worst: dict[bool, float] = {False: 0.0, True: 0.0}
    left_out: list[str] = []
    for name, setting in chosen.items():
        try:
            if setting.attention == "flex_attention" and not context.real:
                raise ImportError("compiled for a card only")  # noqa: TRY301 - one way to be missing among others
            found = compare(context, model, setting)
        except ImportError as error:
            left_out.append(name)
            context.report(**{name: f"not there: {str(error).splitlines()[0][:120]}"})
            continue
        context.report(**{name: found})
        for layout, apart in found["layouts"].items():
            worst[setting.rounds] = max(worst[setting.rounds], apart)
            most, unit = (ROUNDS, " of TRL's distance to float32") if setting.rounds else (EXACT, "")
            context.expect(apart <= most, f"{name}, {layout}: off by {apart:.2g}{unit}, expected {most:g}")
        limit = 0.05 if setting.rounds else 1e-3
        context.expect(found["ratio"] < limit, f"{name}: the ratio of a fresh batch is off by {found['ratio']:.1e}")
        release()
    context.headline(
        f"{len(chosen) - len(left_out)} settings: float32 off by {worst[False]:.1e}, bf16 by {worst[True]:.2f} of TRL's"
        + (f"; not there: {', '.join(left_out)}" if left_out else "")
    )


def compare(context: Context, family: str, setting: Setting) -> dict[str, Any]:
    """Each layout's distance, the size of TRL's own error where it rounds, and how far a fresh ratio is from 1."""
    batch = setting.batch(_batch(context))
    truth = host = _trainer(context, family, setting, "stock" if setting.within else None)
    update(host, batch)
    unit = 1.0
    if setting.rounds:
        plain = Setting(**{**vars(setting), "dtype": torch.float32, "autocast": False})
        truth = _trainer(context, family, plain, None, like=host)
        update(truth, batch)
        unit = distance(host, truth)
    found, ratios, saved = {}, {}, {}
    for layout in setting.layouts:
        if family == "gpt2" and layout == "packed":  # refused: left padding moves its positions in TRL
            continue
        ours = _trainer(context, family, setting, layout)
        reports = update(ours, batch)
        found[layout] = distance(ours, truth) / unit
        saved[layout] = sum(one.get("engine/tokens_saved", 0.0) for one in reports) / len(reports)
        ratios[layout] = _ratio(ours, batch)
        del ours
    return {"layouts": found, "ratio": max(ratios.values()), "saved": saved, "unit": unit if setting.rounds else 0.0}


def _batch(context: Context) -> dict[str, torch.Tensor]:
    """Four prompts with eight completions each, half of the prompts without an advantage."""
    prompts, completions = ((6, 14), (8.0, 0.5, 20)) if context.tiny else ((60, 200), (90.0, 0.7, 256))
    case = Case("", prompts, completions, 0.5, 4, 1.0)
    return generation_batch(case, _shape(context)["vocab_size"], str(context.device))


def _shape(context: Context) -> dict[str, int]:
    hidden, layers, vocabulary = (64, 2, 512) if context.tiny else (512, 4, 40_000)
    heads = hidden // (16 if context.tiny else 64)
    return {
        "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads // 2, "max_position_embeddings": 2048,
    }  # fmt: skip


def _config(context: Context, family: str, attention: str) -> Any:
    from transformers import AutoConfig

    shape = _shape(context)
    more: dict[str, Any] = {"attn_implementation": attention, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    if family == "gpt2":
        more |= {"n_inner": shape.pop("intermediate_size"), "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        del shape["num_key_value_heads"]
    elif family != "llama":
        more["head_dim"] = shape["hidden_size"] // shape["num_attention_heads"]
    if family == "gemma3_text":
        more |= {"query_pre_attn_scalar": more["head_dim"], "sliding_window": 512}
    # The spread bounds what rotary positions round: left padding moves them in TRL, and large logits of attention
    # magnify the float32 angles. At 0.06 that alone is 1.2e-5 of a Llama's gradient.
    return AutoConfig.for_model(family, **shape, **more, tie_word_embeddings=True, initializer_range=0.03)


def _trainer(context: Context, family: str, setting: Setting, layout: str | None, *, like: Any = None) -> Any:
    """TRL's trainer, or ours with a layout; its model has the weights of ``like``, or those of a seed."""
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer

    config = _config(context, family, setting.attention)
    torch.manual_seed(0)
    if setting.four_bit:
        model = random_model(config, context.device, setting.dtype, four_bit=True)
    else:
        model = AutoModelForCausalLM.from_config(config, dtype=setting.dtype).to(context.device)
    fields = settings(
        context, per_device_train_batch_size=8, gradient_accumulation_steps=4, num_generations=8,
        max_completion_length=256, loss_type="dapo", **setting.fields,
    )  # fmt: skip
    fields["bf16"] = setting.autocast or (setting.rounds and setting.adapters)
    if layout is not None:
        engine = {"layout": layout, "tokens_per_pass": setting.tokens_per_pass}
        fields |= {"engine": engine, "report": False}
    made = (GRPOTrainer if layout is None else GRPOPlusTrainer)(
        model=model,
        reward_funcs=[reward],
        args=(GRPOConfig if layout is None else GRPOPlusConfig)(**fields),
        train_dataset=prompts(64, 4),
        processing_class=number_tokenizer(config.vocab_size),
        peft_config=lora(8) if setting.adapters else None,
    )
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.model.named_parameters():
            if "lora_" in name:  # half of them start at zero, where the gradient of the others is zero
                drawn = 0.02 * torch.randn(parameter.shape, generator=random).bfloat16().to(parameter.device)
                # TRL holds those of a quantised base in bf16; in float32 the gradient of both can be compared.
                parameter.data = drawn.to(parameter.dtype if setting.rounds else torch.float32)
        if like is not None:
            for own, other in zip(made.model.parameters(), like.model.parameters(), strict=True):
                if own.shape == other.shape and own.is_floating_point():
                    own.copy_(other)
    return made


def _ratio(trainer: Any, batch: Mapping[str, Any]) -> float:
    """How far the ratio of old and new log-probabilities is from 1, before any step, at the tokens of live rows."""
    order = torch.randperm(len(batch["advantages"]), generator=torch.Generator().manual_seed(2))  # dead among live rows
    batch = {name: _rows(value, order.tolist()) for name, value in batch.items()}
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    width, worst = batch["completion_ids"].shape[1], 0.0
    score = trainer._get_per_token_logps_and_entropies
    for start in range(0, len(ids), 8):
        part = list(range(start, start + 8))
        micro = {name: _rows(value, part) for name, value in batch.items()}
        options = {"batch_size": 8, **({"support": micro["support"]} if "support" in micro else {})}
        with torch.no_grad():
            old = score(trainer.model, ids[part], mask[part], width, **options)[0]
        engine = getattr(trainer, "engine", None)
        with nullcontext() if engine is None else engine.loss_on(micro):
            new = score(trainer.model, ids[part], mask[part], width, **options)[0].detach()
        live = (micro["completion_mask"] * micro.get("tool_mask", 1)).bool() & (
            micro["advantages"].reshape(len(micro["advantages"]), -1) != 0
        )
        if live.any():
            worst = max(worst, float(torch.expm1(new - old)[live].abs().max()))
    return worst


def _rows(value: Any, chosen: list[int]) -> Any:
    """These rows of a value of a batch; what is one for all stays."""
    if isinstance(value, list):
        return [value[row] for row in chosen]
    return value[chosen] if value.dim() else value
