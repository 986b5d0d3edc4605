"""Create the reward model of a run, and save it in the format of transformers and PEFT."""

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from grpo_plus.checkpoints.reward_model import HEADS, read_kind, write_reward_model
from grpo_plus.heads.adamw import OwnAdamW
from grpo_plus.heads.adapter import AdapterTrunk
from grpo_plus.heads.losses import bradley_terry, process_losses
from grpo_plus.heads.own_model import ModelTrunk, compare_tokenizers
from grpo_plus.heads.passes import Passes, distributed_problems
from grpo_plus.heads.reward_pairs import Comparison, Example, Ids
from grpo_plus.heads.scalar import ScalarHead, Stored, load_parts, tensors_of
from grpo_plus.heads.trunk import HeadError
from grpo_plus.recipe.recipe import recipe_of
from grpo_plus.recipe.settings import RewardModelOptions
from grpo_plus.trl.host import Host
from grpo_plus.trl.ranks import plain_model, unwrapped_model
from grpo_verifiers.errors import ConfigError, raise_all
from grpo_verifiers.redaction import get_logger

logger = get_logger(__name__)

ADAPTER = "reward"
"""Name of the adapter."""
RATES = {"adapter": 1e-4, "model": 1e-5}
"""Learning rates by kind."""
_CLASSES: Mapping[str, Any] = {
    "outcome": AutoModelForSequenceClassification,
    "process": AutoModelForTokenClassification,
}
SampledRow = tuple[Ids, Ids]
"""A prompt and a completion."""
_PREFIX = "base_model.model."
_INIT = ("trust_remote_code", "revision", "attn_implementation")


def make(host: Host, options: RewardModelOptions, on: str) -> "Scorer":
    """Create the model, its optimizer and its passes."""
    raise_all(distributed_problems(host, "reward_model"))
    device = host.accelerator.device
    tokenizer: Any = getattr(host.processing_class, "tokenizer", host.processing_class)
    try:
        trunk: AdapterTrunk | ModelTrunk
        if on == "adapter":
            rank, alpha = _rank_and_alpha(host, options)
            trunk = AdapterTrunk(unwrapped_model(host), ADAPTER, rank=rank, alpha=alpha, seed=int(host.args.seed))
        else:
            trunk = _model(host, options, tokenizer)
        head = ScalarHead(trunk.hidden_size).to(device)
        if options.start is not None:
            _load(host, Path(options.start), options.head, trunk, head)
    except HeadError as error:
        raise ConfigError([f"reward_model: {error}"]) from error
    pad = int(tokenizer.pad_token_id)
    args: Any = host.args
    engine = recipe_of(args).engine
    passes = Passes.of(host, trunk, head, layout=engine.layout, tokens_per_pass=engine.tokens_per_pass)
    # Pairs do not determine the bias: its gradient is rounding, which Adam would scale up to full steps.
    head.bias.requires_grad_(options.head == "process")
    heads = {f"head.{name}": one for name, one in head.named_parameters() if one.requires_grad}
    several = host.accelerator.num_processes > 1
    optimizer = OwnAdamW(
        trunk.named_parameters() | heads,
        learning_rate=options.learning_rate or RATES[on],
        average=partial(host.accelerator.reduce, reduction="mean") if several else None,
    )
    return Scorer(passes, optimizer, pad=pad, rows=int(args.per_device_train_batch_size), device=device)


def _rank_and_alpha(host: Host, options: RewardModelOptions) -> tuple[int, float]:
    """Rank and alpha of the options, or of the adapter to start from; its scale stays, with and without rsLoRA."""
    if options.start is None:
        return options.lora_r, 2.0 * options.lora_r
    kind, policy = read_kind(Path(options.start)), _policy_adapter(host)
    if kind.rslora is bool(policy.use_rslora):
        return kind.rank, kind.alpha
    return kind.rank, kind.alpha * kind.rank ** (0.5 if kind.rslora else -0.5)


def _policy_adapter(host: Host) -> LoraConfig:
    adapted: Any = unwrapped_model(host)
    config: LoraConfig = adapted.peft_config[adapted.active_adapters[0]]
    return config


def _model(host: Host, options: RewardModelOptions, tokenizer: Any) -> ModelTrunk:
    args: Any = host.args
    own = _base_name(host)
    name = options.start or options.model or own
    if not name:
        raise HeadError("the policy was passed as an object without a name: set model to a name or a folder.")
    init = args.model_init_kwargs or {}
    keywords = {key: init[key] for key in _INIT if key in init} if name == own else {}
    field = "start" if options.start else "model"
    if name != own:
        compare_tokenizers(name, tokenizer, field=field, may_differ=0.01)
    return ModelTrunk(
        name,
        vocabulary=len(tokenizer),
        checkpointing=bool(args.gradient_checkpointing),
        device=host.accelerator.device,
        keywords=keywords,
        field=field,
    )


def _base_name(host: Host) -> str:
    return str(plain_model(host, host.model).config._name_or_path)  # noqa: SLF001 - transformers has no other name


def _load(host: Host, folder: Path, head_kind: str, trunk: AdapterTrunk | ModelTrunk, head: ScalarHead) -> None:
    """Load a saved reward model; a `ModelTrunk` has its weights already."""
    if isinstance(trunk, AdapterTrunk):
        before, now = read_kind(folder).base, _base_name(host)
        if before and now and Path(before).expanduser().resolve() != Path(now).expanduser().resolve():
            text = "reward_model start (%s) was trained on %s, and the base is %s now: its scores fit the first one."
            logger.warning(text, folder, before, now)
        saved = {
            name.removeprefix(_PREFIX): one for name, one in load_file(folder / "adapter_model.safetensors").items()
        }
        heads = {name: saved.pop(name) for name in list(saved) if "lora_" not in name}
        renamed = {}
        for name, one in saved.items():
            stem, _, end = name.rpartition(".")  # in a model with several adapters, their name is before the last part
            renamed[f"{_PREFIX}{stem}.{ADAPTER}.{end}"] = one.float()
        try:
            trunk.load_tensors(renamed)
        except ValueError as error:
            raise HeadError(f"start ({folder}) is an adapter on other layers than this run's: {error}.") from error
    else:
        model = _CLASSES[head_kind].from_pretrained(folder)
        heads = dict(model.get_submodule(_head_name(model)).state_dict())
    tensors = {name.rpartition(".")[2]: one.detach().float() for name, one in heads.items()}
    weight = tensors["weight"]
    if weight.numel() != trunk.hidden_size:
        raise HeadError(
            f"start ({folder}) has a head of the shape {tuple(weight.shape)}, expected (1, {trunk.hidden_size})."
        )
    bias = tensors.get("bias", torch.zeros(1)).reshape(())
    head.load_tensors({"weight": weight.reshape(-1).cpu(), "bias": bias.cpu()})


def save(folder: Path, host: Host, scorer: "Scorer", options: RewardModelOptions, on: str, *, trainings: int) -> None:
    """Write the model to a folder that can be used as ``reward_model_name_or_path``."""
    about = {"head": options.head, "on": on, "trainings": trainings, "trained_by": "grpo-plus train"}

    def write(draft: Path) -> None:
        trunk, head = scorer.passes.trunk, scorer.passes.head
        config = _saved_config(host, trunk, scorer.pad)
        if on == "adapter":
            name = _blank(config, options.head)
            _adapter_config(host, options, name).save_pretrained(draft)
            weights = {key.replace(f".{ADAPTER}.", "."): one.contiguous() for key, one in trunk.tensors().items()}
            heads = {
                f"{_PREFIX}{name}.{key}": one for key, one in _rows_of(head, bias=options.head == "process").items()
            }
            save_file(weights | heads, draft / "adapter_model.safetensors", metadata={"format": "pt"})
        else:
            model = _CLASSES[options.head].from_config(config, dtype=torch.float32)
            model.base_model.load_state_dict(trunk.model.base_model.state_dict())
            linear = model.get_submodule(_head_name(model))
            linear.load_state_dict(_rows_of(head, bias=linear.bias is not None))
            model.save_pretrained(draft)
        host.processing_class.save_pretrained(draft)

    write_reward_model(folder, write, about)


def _saved_config(host: Host, trunk: Any, pad: int) -> Any:
    adapter = isinstance(trunk, AdapterTrunk)
    config = copy.deepcopy(plain_model(host, host.model).config if adapter else trunk.model.config)
    config.num_labels, config.pad_token_id = 1, pad
    return config


def _blank(config: Any, head: str) -> str:
    """Create a model for classification without weights, and return the name of its head; a ValueError without one."""
    with torch.device("meta"):
        return _head_name(_CLASSES[head].from_config(config))


def _adapter_config(host: Host, options: RewardModelOptions, head: str) -> LoraConfig:
    """The config of the policy's adapter, with the head as a saved module."""
    config: LoraConfig = copy.deepcopy(_policy_adapter(host))
    config.r, alpha = _rank_and_alpha(host, options)
    config.lora_alpha = int(alpha) if alpha.is_integer() else alpha
    config.task_type = next(task for task, kind in HEADS.items() if kind == options.head)
    config.modules_to_save, config.lora_dropout, config.bias, config.use_dora = [head], 0.0, "none", False
    config.init_lora_weights, config.inference_mode = True, True
    config.rank_pattern, config.alpha_pattern = {}, {}
    return config


def _rows_of(head: ScalarHead, *, bias: bool) -> dict[str, Tensor]:
    """The head as the weights of a linear layer with one output."""
    tensors = head.tensors()
    rows = {"weight": tensors["weight"].reshape(1, -1)}
    return rows | {"bias": tensors["bias"].reshape(1)} if bias else rows


def _head_name(model: nn.Module) -> str:
    names = [name for name in ("score", "classifier") if isinstance(getattr(model, name, None), nn.Linear)]
    if not names:
        raise HeadError(f"{type(model).__name__} has no linear head that could be saved or loaded.")
    return names[0]


class Scorer:
    """A trunk with a head as a reward model: scores of sampled ids, and updates by pairs or by labels of steps.

    A pass of the engine has at most ``rows`` rows; completions of one prompt share its computation. As in
    `AutoModelForSequenceClassification`, a completion's score is read at its last token that is not padding.
    """

    def __init__(self, passes: Passes, optimizer: OwnAdamW, *, pad: int, rows: int, device: torch.device) -> None:
        self.passes = passes
        self.optimizer = optimizer
        self.pad = pad
        self._rows = rows
        self._device = device

    @torch.no_grad()
    def outcomes(self, rows: Sequence[SampledRow]) -> Tensor:
        """A score for each completion, (B,), without a gradient."""
        with self.passes.trunk.active():
            return self._outcomes(rows) if rows else torch.zeros(0, device=self._device)

    @torch.no_grad()
    def steps(self, rows: Sequence[SampledRow], ends: Sequence[Ids]) -> list[Tensor]:
        """The score of each step, read at its last token, for each completion; without a gradient."""
        if not rows:
            return []
        with self.passes.trunk.active():
            values_BT = self._values(rows)
        return [values_BT[row, [end + 1 for end in places]] for row, places in enumerate(ends)]

    def update(self, examples: Sequence[Example], count: int, ranks: int) -> Tensor:
        """One step of the optimizer; returns the summed loss of this rank's examples.

        ``count`` is the number of losses (pairs or labels) on all ranks. Ranks call it together.
        """
        total = torch.zeros((), device=self._device, dtype=torch.float64)
        with self.passes.trunk.active(), torch.enable_grad():
            sides = 2 if any(isinstance(one, Comparison) for one in examples[:1]) else 1
            size = max(1, self._rows // sides)
            for start in range(0, len(examples), size):
                loss = self.loss(examples[start : start + size])
                (loss * ranks / max(1, count)).backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            self.optimizer.step()
        return total

    def loss(self, examples: Sequence[Example]) -> Tensor:
        """The summed loss of pairs or of labels; a text of several pairs is computed once."""
        if isinstance(examples[0], Comparison):
            rows, places_Q2 = sides_of([one for one in examples if isinstance(one, Comparison)])
            scores = self._outcomes(rows)
            chosen, rejected = places_Q2.to(self._device).T
            return bradley_terry(scores[chosen], scores[rejected]).sum()
        labelled = [one for one in examples if not isinstance(one, Comparison)]
        values_BT = self._values([(one.prompt, one.completion) for one in labelled])
        labels_BT = torch.full_like(values_BT, float("nan"))
        for row, one in enumerate(labelled):
            labels_BT[row, [end + 1 for end in one.ends]] = torch.tensor(one.labels, device=self._device).float()
        return process_losses(values_BT, labels_BT).sum()

    def tensors(self, *, moments: bool = True) -> dict[str, Tensor]:
        """The trained weights, and the moments of the optimizer unless ``moments`` is False."""
        parts = self._parts()
        if not moments:
            del parts["adam"]
        return tensors_of(parts)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned; a ValueError if they do not fit."""
        load_parts(self._parts(), tensors)

    def _parts(self) -> dict[str, Stored]:
        return {"trunk": self.passes.trunk, "head": self.passes.head, "adam": self.optimizer}

    def _outcomes(self, rows: Sequence[SampledRow]) -> Tensor:
        values_BT = self._values(rows)
        at_B = [last_read(completion, self.pad) for _, completion in rows]
        return values_BT[torch.arange(len(rows), device=self._device), torch.tensor(at_B, device=self._device)]

    def _values(self, rows: Sequence[SampledRow]) -> Tensor:
        """(B, T + 1): the head's value after 0, 1, ... tokens of the completion.

        The passes of a head read the hidden state before a token, so each completion gets one more token at its end.
        """
        start, width = max(len(prompt) for prompt, _ in rows), max(len(text) for _, text in rows) + 1
        ids_BS = torch.full((len(rows), start + width), self.pad)
        mask_BS = torch.zeros((len(rows), start + width), dtype=torch.long)
        for row, (prompt, text) in enumerate(rows):
            span = slice(start - len(prompt), start + len(text) + 1)
            ids_BS[row, span] = torch.tensor([*prompt, *text, self.pad])
            mask_BS[row, span] = 1
        return self.passes.values(ids_BS.to(self._device), mask_BS.to(self._device), width, batch_size=self._rows)


def sides_of(pairs: Sequence[Comparison]) -> tuple[list[SampledRow], Tensor]:
    """Return the texts of the pairs, each once, and (Q, 2) the indices of the better and the worse one of each pair."""
    rows: dict[SampledRow, int] = {}
    sides = [[rows.setdefault((one.prompt, text), len(rows)) for text in (one.chosen, one.rejected)] for one in pairs]
    return list(rows), torch.tensor(sides, dtype=torch.long).reshape(-1, 2)


def last_read(completion: Ids, pad: int) -> int:
    """Return the length of a completion without padding at its end.

    >>> last_read((5, 6, 0), 0), last_read((), 0)
    (2, 0)
    """
    count = len(completion)
    while count and completion[count - 1] == pad:
        count -= 1
    return count
