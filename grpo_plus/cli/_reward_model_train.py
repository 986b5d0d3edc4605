"""``grpo-plus reward-model train``: options, the checks before a model loads, training, and the folder."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from grpo_plus.cli import UserError
from grpo_plus.cli._parser import Parser
from grpo_plus.cli._reward_data import PAIRS, Rows, in_tokens, read_rows
from grpo_plus.reward_model.fit import Fitted, Plan, fit, split_by_group
from grpo_plus.reward_model.saved import TakenError, place_problem, write_whole
from grpo_plus.reward_model.tasks import Judged, PairTask, StepTask, take
from grpo_verifiers.errors import raise_all
from grpo_verifiers.options import Range, numbers, option_problems
from grpo_verifiers.redaction import redact

PROG = "grpo-plus reward-model train"
HELD_OUT = 0.1
RATES = {True: 1e-4, False: 1e-5}
"""Of adapters, and of a whole model."""
Task = PairTask | StepTask


def _told(default: Any, told: str) -> Any:
    return field(default=default, metadata={"help": told})


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Keys of the file and flags, with their defaults."""

    model: str = field(
        metadata={"help": "a name on the hub, a folder, or module:function; a reward model is trained on"}
    )
    data: str = field(metadata={"help": "a file, a folder, a name on the hub, or module:function"})
    data_config: str | None = _told(None, "configuration of a hub dataset")
    split: str = _told("train", "split to train on")
    eval_split: str | None = _told(None, "split to measure on; without it, held_out")
    held_out: Annotated[float, Range(0, 1, open_high=True)] | None = _told(
        None, f"share of the prompts to measure on; default: {HELD_OUT}; 0: none"
    )
    output_dir: str = _told("reward-model", "folder of the trained model")
    overwrite_output_dir: bool = _told(default=False, told="replace a reward model that is there")
    learning_rate: Annotated[float, Range(0, 1, open_low=True)] | None = _told(
        None, f"falls to 0; default: {RATES[True]:g} with LoRA, {RATES[False]:g} without"
    )
    per_device_train_batch_size: Annotated[int, Range(1)] = _told(8, "rows of a pass")
    gradient_accumulation_steps: Annotated[int, Range(1)] = _told(1, "passes of an optimizer step")
    num_train_epochs: Annotated[float, Range(0, open_low=True, finite=True)] = _told(1.0, "rounds over the data")
    max_steps: Annotated[int, Range(1)] | None = _told(None, "optimizer steps, instead of num_train_epochs")
    weight_decay: Annotated[float, Range(0, finite=True)] = _told(0.0, "of AdamW")
    max_grad_norm: Annotated[float, Range(0, open_low=True)] = _told(1.0, "longer gradients are cut to this")
    eval_steps: Annotated[int, Range(1)] | None = _told(
        None, "steps between two measurements; default: at the end only"
    )
    patience: Annotated[int, Range(1)] | None = _told(
        None, "measurements without a better one, after which training stops and keeps the best"
    )
    max_length: Annotated[int, Range(2)] | None = _told(None, "tokens; longer rows are left out, and counted")
    use_peft: bool = _told(default=False, told="train LoRA adapters and the head")
    lora_r: Annotated[int, Range(1)] = _told(16, "their rank")
    lora_alpha: Annotated[float, Range(0, open_low=True, finite=True)] = _told(32.0, "their scale, times the rank")
    load_in_4bit: bool = _told(default=False, told="hold the base in 4 bits (NF4); takes use_peft")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = _told(
        "auto", "of a base under LoRA; a whole model is trained in float32"
    )
    device: str | None = _told(None, "cpu, cuda, …; default: what there is")
    revision: str | None = _told(None, "of a model on the hub")
    trust_remote_code: bool = _told(default=False, told="run the model's own code")
    logging_steps: Annotated[int, Range(1)] = _told(10, "steps between two lines")
    seed: Annotated[int, Range(0, 2**63 - 1)] = _told(0, "of the order and of what is held out")

    @property
    def rate(self) -> float:
        """The learning rate."""
        return RATES[self.use_peft] if self.learning_rate is None else self.learning_rate

    def problems(self) -> list[str]:
        """Options that do not go together."""
        found = []
        if self.eval_split is not None and self.held_out is not None:
            found.append("eval_split and held_out are both set, and both say what to measure on: remove one.")
        if self.eval_split == self.split:
            found.append(f"eval_split is {self.eval_split!r}, which is trained on: name another, or set held_out.")
        blind = self.eval_split is None and self.held_out == 0
        found += [
            f"{name} is set, but held_out is 0: there is nothing to measure on."
            for name in ("eval_steps", "patience")
            if blind and getattr(self, name) is not None
        ]
        if self.patience is not None and self.eval_steps is None and not blind:
            found.append("patience is set, but eval_steps is not: say after how many steps to measure.")
        if self.load_in_4bit and not self.use_peft:
            found.append("load_in_4bit is set, but use_peft is not: 4-bit weights are not trained. Set use_peft: true.")
        if self.dtype != "auto" and not self.use_peft:
            found.append(
                f"dtype is {self.dtype!r}, but a whole model is trained in float32: remove it, or set use_peft."
            )
        if not self.use_peft:
            found += [
                f"{name} is set, but use_peft is not: nothing would read it."
                for name in ("lora_r", "lora_alpha")
                if getattr(self, name) != TrainOptions.__dataclass_fields__[name].default
            ]
        return found


def run(arguments: Sequence[str]) -> int:
    """Check all that needs no model, then load, train, print and write."""
    options, base = _options(arguments)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a reward model is trained in one process: start the command without a launcher.")
    import datasets
    import torch

    from grpo_plus.cli._data import model_path
    from grpo_plus.cli._reward_loading import load_tokenizer

    if not sys.stderr.isatty():
        from transformers.utils import logging

        datasets.disable_progress_bars()
        logging.disable_progress_bar()
    folder = Path(options.output_dir)
    if problem := place_problem(folder, overwrite=options.overwrite_output_dir):
        raise UserError(problem)
    rows = read_rows(options.data, options.data_config, options.split, field="split", base=base)
    apart = None
    if options.eval_split is not None:
        apart = read_rows(options.data, options.data_config, options.eval_split, field="eval_split", base=base)
        if apart.kind != rows.kind:
            raise UserError(f"split has {rows.kind} and eval_split {apart.kind}: both must be of one kind.")
    if rows.kind != PAIRS and options.load_in_4bit:
        raise UserError("load_in_4bit is for pairs: a model of steps is written whole, as the verifier prm reads it.")
    name = model_path(options.model, base, "model")
    common = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
    tokenizer = load_tokenizer(name, **common)
    train, held, notes = _tasks(rows, apart, tokenizer, options)
    print(*notes, sep="\n", flush=True)
    torch.manual_seed(options.seed)
    model, new_head = _load(name, rows.kind, tokenizer, options, common)
    if new_head:
        print("The head is new and starts at 0.")
    plan = Plan(
        learning_rate=options.rate, batch=options.per_device_train_batch_size,
        accumulation=options.gradient_accumulation_steps, epochs=options.num_train_epochs, max_steps=options.max_steps,
        eval_steps=options.eval_steps, patience=options.patience, weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm, seed=options.seed,
    )  # fmt: skip

    def report(step: int, steps: int, loss: float, judged: Judged | None) -> None:
        if judged is not None or step == steps or step % options.logging_steps == 0:
            told = f" | held out: {judged.accuracy:.1%} right, loss {judged.loss:.4f}" if judged else ""
            print(f"step {step}/{steps} | loss {loss:.4f}{told}", flush=True)

    fitted = fit(model, train, held, plan, report)
    try:
        folder = _save(folder, lambda draft: _write(model, tokenizer, rows.kind, draft), _about(options, rows, fitted))
    except OSError as error:
        raise UserError(f"the model could not be written to {folder}: {error}. It is lost.") from error
    _print(rows.kind, train, fitted)
    use = (
        f"reward_model_name_or_path: {folder}"
        if rows.kind == PAIRS
        else f"{{name: prm, kwargs: {{model: {folder}, style: concat, positive: 0}}}}"
    )
    print(f"The model is in {folder}. In a config: {use}")
    return 0


def _options(arguments: Sequence[str]) -> tuple[TrainOptions, Path]:
    """The options, and the folder of the config."""
    from grpo_plus.recipe.options import read_yaml

    parser = Parser(prog=PROG, description=__doc__, usage=f"{PROG} [config.yaml] [--any-option VALUE ...]")
    parser.add_argument("config", nargs="?", help="a YAML file with the same names; a flag wins")
    hints = get_type_hints(TrainOptions, include_extras=True)
    for one in dataclasses.fields(TrainOptions):
        default = "" if one.default in (None, dataclasses.MISSING) else f" (default: {_written(one.default)})"
        flag: dict[str, Any] = {"nargs": "?", "const": "true", "metavar": "true|false"}
        parser.add_argument(
            f"--{one.name.replace('_', '-')}", default=argparse.SUPPRESS,
            help=one.metadata["help"].replace("%", "%%") + default,
            **(flag if hints[one.name] is bool else {"metavar": "VALUE"}),
        )  # fmt: skip
    given = vars(parser.parse_args(arguments))
    path = given.pop("config")
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = read_yaml(Path(path).expanduser())
        except ValueError as error:
            raise UserError(str(error)) from error
    values |= {name: _value(hints[name], text) for name, text in given.items()}
    raise_all(option_problems("reward-model train", TrainOptions, values, where="option", bare=True))
    options = TrainOptions(**values)
    raise_all(options.problems())
    return options, Path(path).expanduser().resolve().parent if path is not None else Path.cwd()


def _value(hint: Any, text: str) -> Any:
    """The value of a flag: a text as it stands where a text is asked for, else as YAML reads it."""
    import yaml

    if str in (hint, *get_args(hint)):
        return text
    try:
        return numbers(yaml.safe_load(text))
    except yaml.YAMLError:
        return text


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _tasks(
    rows: Rows, apart: Rows | None, tokenizer: Any, options: TrainOptions
) -> tuple[Task, Task | None, list[str]]:
    """What to train on and what to measure on, in tokens, and lines to print."""
    whole, kept = in_tokens(rows, tokenizer, options.max_length)
    left_out = len(rows.rows) - len(kept)
    notes = [f"{left_out} of {len(rows.rows)} rows are longer than max_length and left out."] if left_out else []
    if apart is not None:
        held, kept = in_tokens(apart, tokenizer, options.max_length)
        if left_out := len(apart.rows) - len(kept):
            notes.append(f"{left_out} of {len(apart.rows)} rows of {options.eval_split} are too long and left out.")
        if both := len(set(whole.groups) & set(held.groups)):
            notes.append(f"{both} prompts of {options.eval_split} are trained on as well: it says less than it seems.")
        train: Task = whole
    elif options.held_out == 0:
        return whole, None, [*notes, f"{len(whole)} {rows.kind} to train on, none held out."]
    else:
        try:
            ins, outs = split_by_group(whole.groups, options.held_out or HELD_OUT, options.seed)
        except ValueError as error:
            raise UserError(f"held_out: {error} Set held_out: 0, or give eval_split.") from error
        train, held = take(whole, ins), take(whole, outs)
    what = "pairs" if rows.kind == PAIRS else "rows of steps"
    for told, task in (("to train on", train), ("held out", held)):
        if task.size(range(len(task))) == 0:
            raise UserError(f"the rows {told} have no label: without one nothing can be learned or measured.")
    counts = f"{len(train)} {what} to train on, {len(held)} of {len(set(held.groups))} prompts held out."
    return train, held, [*notes, counts]


def _load(name: str, kind: str, tokenizer: Any, options: TrainOptions, common: Mapping[str, Any]) -> tuple[Any, bool]:
    """The model with adapters, if it is to have some, on its device."""
    import torch

    from grpo_plus.cli._reward_loading import head_names, load_model
    from grpo_plus.qlora.defaults import Device

    present = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    try:
        device = torch.device(options.device or str(present))
    except RuntimeError as error:
        raise UserError(f"device is {options.device!r}: {error}") from error
    fast = Device.present(use_cpu=device.type == "cpu").bf16
    best = "bfloat16" if options.use_peft and fast else "float32"
    dtype = getattr(torch, best if options.dtype == "auto" else options.dtype)
    extra: dict[str, Any] = {"dtype": dtype, "device_map": {"": str(device)}}
    if options.load_in_4bit:
        from transformers import BitsAndBytesConfig

        extra["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype,
            llm_int8_skip_modules=["score", "classifier"],
        )  # fmt: skip
    if (Path(name).expanduser() / "adapter_config.json").is_file():
        raise UserError(f"model is {name!r}, an adapter: training one on is not possible. Name a whole model.")
    model, new_head = load_model(name, kind, tokenizer, trained=False, **extra, **common)
    if not options.use_peft:
        return model.requires_grad_(requires_grad=True), new_head
    from peft import LoraConfig, get_peft_model

    if options.load_in_4bit:
        from grpo_plus.qlora.repack import keep_layout

        keep_layout(model)
    heads = head_names(model)
    lora = LoraConfig(
        task_type="SEQ_CLS" if kind == PAIRS else "TOKEN_CLS", r=options.lora_r, lora_alpha=options.lora_alpha,
        lora_dropout=0.0, target_modules="all-linear", exclude_modules=heads, modules_to_save=heads,
    )  # fmt: skip
    model = get_peft_model(model, lora)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model, new_head


def _save(folder: Path, write: Callable[[Path], None], about: Mapping[str, Any]) -> Path:
    """Write to the folder, or to the first free one beside it where another command was faster; returns which."""
    for number in count():
        place = folder.with_name(f"{folder.name}-{number}") if number else folder
        try:
            write_whole(place, write, about, overwrite=number == 0 and about["options"]["overwrite_output_dir"])
        except TakenError as error:
            print(error)
        else:
            break
    return place


def _write(model: Any, tokenizer: Any, kind: str, folder: Path) -> None:
    """An adapter, or the whole model: what reads models of steps knows no adapters."""
    from peft import PeftModel

    if isinstance(model, PeftModel) and kind != PAIRS:
        model = model.merge_and_unload()
    if isinstance(model, PeftModel):
        named = model.peft_config["default"]
        named.target_modules = sorted(named.target_modules)  # a set is written in another order every time
        if Path(named.base_model_name_or_path).exists():  # found from every folder
            named.base_model_name_or_path = str(Path(named.base_model_name_or_path).resolve())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _about(options: TrainOptions, rows: Rows, fitted: Fitted) -> dict[str, Any]:
    held = fitted.held
    return {
        "kind": rows.kind,
        "options": redact(dataclasses.asdict(options)),
        "steps": fitted.kept,
        "held_out": None if held is None else {"rows": len(held.right), "accuracy": held.accuracy, "loss": held.loss},
    }


def _print(kind: str, train: Task, fitted: Fitted) -> None:
    from grpo_plus.cli._reward_tables import console, results_table

    if fitted.stopped:
        print(f"Stopped after step {len(fitted.losses)}: no better since step {fitted.kept}, which is kept.")
    if fitted.held is None:
        print(f"{len(train)} {kind} trained on, loss {fitted.losses[-1]:.4f} at the end; none were held out.")
        return
    console().print(results_table(kind, {"held out": fitted.held}))
    print("95% confidence intervals, over the choice of prompts.")
