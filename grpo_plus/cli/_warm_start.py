"""Warm start of a run: its data, its folder, and the initial model of the run."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._prompts import check_columns, maker
from grpo_plus.recipe.choice import ConfigFacts
from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.warm_start.make import Base

RECORD = "_warm_start.json"
"""File in a run's folder that names its warm start."""
Print = Callable[..., None]


def begin(  # noqa: PLR0917
    parsed: "Parsed",
    start: "Base",
    tokenizer: Any,
    splits: Any,
    sets: Mapping[str, Any],
    resumed: Path | None,
    show: Print,
) -> tuple[str, Path | None, str | None]:
    """Make or reuse the warm start of a run; without one, return the model unchanged.

    Returns the initial model, the folder of a warm-started adapter, and a few words for the model card.
    ``sets`` are the rows of the run with prompts, by config field. A ``resumed`` run keeps its own warm start.
    """
    from grpo_plus.checkpoints.folder import read_json
    from grpo_plus.trl.ranks import broadcast_from_main
    from grpo_plus.warm_start.make import headline
    from grpo_plus.warm_start.store import FILE

    args, enabled = parsed.training, parsed.warm_start is not None
    record = Path(args.output_dir) / RECORD
    if resumed is not None:
        start_info = broadcast_from_main(lambda: _earlier(resumed))
        if start_info is None:
            if enabled:
                show(f"warm start: the run of {resumed} had none, and a resumed run makes none: it has no effect.")
            return start.model, None, None
        show(f"warm start: that of the run of {resumed}, from {start_info['folder']}.")
    elif enabled:
        folder, adapter = _make(parsed, start, tokenizer, splits, sets, show)
        start_info = {"folder": str(folder.resolve()), "adapter": adapter}
    else:
        broadcast_from_main(lambda: record.unlink(missing_ok=True))
        return start.model, None, None
    broadcast_from_main(lambda: _write(record, start_info))
    folder = Path(start_info["folder"])
    fact = f"supervised, {broadcast_from_main(lambda: headline(read_json(folder / FILE).get('facts', {})))}"
    if not start_info["adapter"]:
        return str(folder), None, fact
    if start.adapter is None:
        raise UserError(
            f"warm_start: the run of {resumed} trained an adapter from the beginning, which is in {folder}, and this "
            "config trains none: put use_peft and the options of LoRA back."
        )
    return start.model, folder, fact


def _earlier(checkpoint: Path) -> dict[str, Any] | None:
    """Return the warm start of a checkpoint's run, whose folder may have been moved."""
    from grpo_plus.checkpoints import manifest
    from grpo_plus.checkpoints.folder import read_json
    from grpo_plus.warm_start.make import FOLDER

    start_info = read_json(checkpoint.parent / RECORD)
    if not {"folder", "adapter"} <= start_info.keys():
        return None
    folder = Path(start_info["folder"])
    if not folder.exists():
        folder = checkpoint.parent / FOLDER / folder.name
    if (damage := manifest.problem(folder)) is not None:
        raise UserError(
            f"warm_start: the run of {checkpoint} began with the warm start in {start_info['folder']}, which is not "
            f"complete ({damage}). Repeat it by a run of the same warm_start into another output_dir, with max_steps: "
            f"1 and warm_start: {{folder: {folder.parent}}}."
        )
    return {**start_info, "folder": str(folder.resolve())}


def _write(path: Path, start_info: Mapping[str, Any]) -> None:
    from grpo_verifiers.files import write_atomic

    with suppress(OSError):  # a full disk must not end the run
        write_atomic(path, json.dumps(start_info))


def _make(  # noqa: PLR0917
    parsed: "Parsed", start: "Base", tokenizer: Any, splits: Any, sets: Mapping[str, Any], show: Print
) -> tuple[Path, bool]:
    """Return the folder of the warm start, and True if it is an adapter's."""
    from accelerate import PartialState

    from grpo_plus.warm_start.examples import encode
    from grpo_plus.warm_start.make import FOLDER, obtain, store_of
    from grpo_plus.warm_start.store import WarmStart

    args = parsed.training
    settings, measure = parsed.warm_start or {}, parsed.measure or {}
    rows, column = _rows(parsed, settings, tokenizer, splits)
    hidden = [row["prompt"] for row in sets.get("dataset_test_split", ())]
    hidden += [row["prompt"] for row in islice(iter(sets.get("measure", ())), measure.get("limit"))]
    if tokenizer.chat_template is None and any(not isinstance(row.prompt, str) for row in rows):
        raise UserError(
            "warm_start: the prompts are conversations, and the model has no chat template: set prompt: {chat: false}, "
            "or give the model one."
        )
    examples = encode(
        rows,
        tokenizer,
        column=column,
        keywords=args.chat_template_kwargs,
        verbatim=bool(settings.get("verbatim", False)),
        max_length=settings.get("max_length"),
        most=args.max_completion_length,
        measured=hidden,
        chats=_chats(args, tokenizer),
    )
    processes = PartialState().num_processes
    if settings.get("batch_size", processes) % processes:
        raise UserError(
            f"warm_start has batch_size: {settings['batch_size']}, which {processes} processes cannot share equally: "
            f"set a multiple of {processes}."
        )
    if len(examples) < processes:
        raise UserError(f"warm_start has {len(examples)} usable rows for {processes} processes: add rows.")
    options = WarmStart.of(settings, len(examples), adapter=start.adapter is not None, processes=processes)
    if options.full and start.adapter is not None:
        start = replace(start, init={**start.init, "dtype": "float32"}, quantisation=None, adapter=None)
    elif start.quantisation is not None and start.adapter is None:
        raise UserError("warm_start: a quantised base is trained by an adapter: set use_peft: true, or full: true.")
    show(*examples.messages())
    named = settings.get("folder")
    home = Path(named).expanduser() if named else Path(args.output_dir) / FOLDER
    store = store_of(home, start, examples, options)
    folder = obtain(store, start, examples, options, tokenizer, show, alone=not named, refused=_sharded(args))
    return folder, start.adapter is not None


def _chats(args: Any, tokenizer: Any) -> Any:
    from grpo_plus.training.rollout import markers_of
    from grpo_plus.warm_start.turns import ToolChats

    if not (args.recipe.tools or args.recipe.environments):
        return None
    keywords = args.chat_template_kwargs or {}
    return ToolChats.of(
        tokenizer,
        keywords,
        lambda reading, template: markers_of(reading, template, **keywords).without,
        args.max_tool_calling_iterations,
    )


def _rows(parsed: "Parsed", settings: Mapping[str, Any], tokenizer: Any, splits: Any) -> tuple[list[Any], str]:
    """Return prompts with their solutions, and the column of the solutions."""
    from grpo_plus.cli._data import load_rows, pick_split
    from grpo_plus.recipe.entries import COLUMN
    from grpo_plus.recipe.recipe import schemas_of

    column = settings.get("solution", "solution")
    if named := settings.get("dataset"):
        splits = load_rows(named, settings.get("config"), base=parsed.folder, field="warm_start.dataset")
    split = settings.get("split", "train" if named else parsed.script.dataset_train_split)
    rows = pick_split(splits, split, "warm_start.split")
    if not hasattr(rows, "__len__"):
        raise UserError(
            f"warm_start: the split {split!r} is a stream, and its rows must be counted: set dataset_streaming: "
            "false, or warm_start: {dataset: …} to a file, a folder or a name on the hub, which is loaded completely."
        )
    if len(rows) == 0:
        raise UserError(f"warm_start: the split {split!r} holds no rows.")
    if column not in rows.column_names:
        problem = unknown("column", column, rows.column_names)
        raise UserError(f"warm_start: {problem} Set warm_start: {{solution: …}} to the one with the solutions.")
    recipe = parsed.training.recipe
    if recipe.environments and None not in recipe.environments:
        if COLUMN not in rows.column_names:
            raise UserError(f"warm_start: the solutions have no column {COLUMN!r}, which names each row's environment.")
        tools = [schemas_of(recipe, {COLUMN: value}) for value in rows[COLUMN]]
    else:
        tools = [schemas_of(recipe, {})] * len(rows)
    from grpo_plus.warm_start.examples import SolutionRow

    check_columns(rows, parsed.prompt, "warm_start")
    if parsed.prompt:
        make = maker(parsed.prompt, chat=tokenizer.chat_template is not None)
        prompts = [make(row) for row in rows]
    else:
        prompts = list(rows["prompt"])
    return [SolutionRow(*each) for each in zip(prompts, rows[column], tools, strict=True)], column


def _sharded(args: Any) -> str | None:
    """Return why a warm start is impossible here; an existing one is still used."""
    facts = ConfigFacts(args, args.recipe)
    if not (facts.deepspeed or facts.fsdp):
        return None
    kind = "DeepSpeed" if facts.deepspeed else "FSDP"
    return (
        f"warm_start is impossible under {kind}. Make it first in one process or with plain data parallelism, with the "
        "same config without its launch options and with max_steps: 1; this run then reuses it."
    )


def warm_start_lines(settings: Mapping[str, Any] | None, *, adapter: bool) -> list[str]:
    """Return the lines on the warm start for ``check``."""
    if settings is None:
        return []
    weights = "the adapter" if adapter and not settings.get("full") else "all weights"
    values = ", ".join(f"{key}: {value}" for key, value in settings.items())
    return [f"warm start of {weights}: {values or 'with defaults'}", ""]
