"""The warm start of a run: its data, the place where it is kept, and what the run goes on from."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._prompts import check_columns, maker
from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.training.hooks import Hook
    from grpo_plus.warm_start.make import Base

RECORD = "_warm_start.json"
"""In a run's folder: the warm start that it began with."""
Tell = Callable[..., None]


@dataclass(frozen=True)
class Begun:
    """A model that a run begins with, and what makes it so.

    Attributes:
        model: its name or folder.
        hooks: one that loads a warm-started adapter, where there is one.
        fact: a few words for the model card.
    """

    model: str
    hooks: tuple["Hook", ...] = ()
    fact: str | None = None


def begin(  # noqa: PLR0917
    parsed: "Parsed",
    start: "Base",
    tokenizer: Any,
    splits: Any,
    sets: Mapping[str, Any],
    resumed: Path | None,
    tell: Tell,
) -> Begun:
    """Make the warm start of a run, or find it; without one the run begins with the model as it is.

    ``sets`` are the rows of the run, prompts made, by the field that chose them. A run that is ``resumed`` keeps the
    warm start that it began with.
    """
    from grpo_plus import _trl
    from grpo_plus.checkpoints.folder import read_json
    from grpo_plus.warm_start.make import headline
    from grpo_plus.warm_start.store import FILE

    args, wanted = parsed.training, parsed.warm_start is not None
    record = Path(args.output_dir) / RECORD
    if resumed is not None:
        found = _trl.from_main(lambda: _former(resumed))
        if found is None:
            if wanted:
                tell(f"warm start: the run of {resumed} had none, and a resumed run makes none: it has no effect.")
            return Begun(start.model)
        tell(f"warm start: as the run of {resumed} began, from {found['folder']}.")
    elif wanted:
        folder, adapter = _made(parsed, start, tokenizer, splits, sets, tell)
        found = {"folder": str(folder.resolve()), "adapter": adapter}
    else:
        _trl.from_main(lambda: record.unlink(missing_ok=True))
        return Begun(start.model)
    _trl.from_main(lambda: _write(record, found))
    folder = Path(found["folder"])
    fact = f"supervised, {_trl.from_main(lambda: headline(read_json(folder / FILE).get('facts', {})))}"
    if not found["adapter"]:
        return Begun(str(folder), fact=fact)
    if start.adapter is None:
        raise UserError(
            f"warm_start: the run of {resumed} trained an adapter from the beginning, which is in {folder}, and this "
            "config trains none: put use_peft and the options of LoRA back."
        )
    from grpo_plus.training.reference import WarmAdapter

    return Begun(start.model, (WarmAdapter(folder),), fact)


def _former(checkpoint: Path) -> dict[str, Any] | None:
    """The warm start that the run of a checkpoint began with; the run's folder may have been moved."""
    from grpo_plus.checkpoints import manifest
    from grpo_plus.checkpoints.folder import read_json
    from grpo_plus.warm_start.make import FOLDER

    found = read_json(checkpoint.parent / RECORD)
    if not {"folder", "adapter"} <= found.keys():
        return None
    kept = Path(found["folder"])
    if not kept.exists():
        kept = checkpoint.parent / FOLDER / kept.name
    torn = manifest.problem(kept)
    if torn is not None:
        raise UserError(
            f"warm_start: the run of {checkpoint} began with the warm start in {found['folder']}, which is not whole "
            f"({torn}). Make it anew by a run of the same warm_start into another output_dir, with max_steps: 1 and "
            f"warm_start: {{folder: {kept.parent}}}."
        )
    return {**found, "folder": str(kept.resolve())}


def _write(path: Path, found: Mapping[str, Any]) -> None:
    from grpo_verifiers.files import write_whole

    with suppress(OSError):  # a full disk costs the note, not the run
        write_whole(path, json.dumps(found))


def _made(  # noqa: PLR0917
    parsed: "Parsed", start: "Base", tokenizer: Any, splits: Any, sets: Mapping[str, Any], tell: Tell
) -> tuple[Path, bool]:
    """The folder of the warm start, and whether it is an adapter's."""
    from accelerate import PartialState

    from grpo_plus.warm_start.examples import encode
    from grpo_plus.warm_start.make import FOLDER, obtain, store_of
    from grpo_plus.warm_start.options import WarmStart

    args = parsed.training
    settings, measured = parsed.warm_start or {}, parsed.measure or {}
    rows, column = _rows(parsed, settings, tokenizer, splits)
    hidden = [row["prompt"] for row in sets.get("dataset_test_split", ())]
    hidden += [row["prompt"] for row in islice(iter(sets.get("measure", ())), measured.get("limit"))]
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
    tell(*examples.messages())
    named = settings.get("folder")
    home = Path(named).expanduser() if named else Path(args.output_dir) / FOLDER
    store = store_of(home, start, examples, options)

    return (
        obtain(store, start, examples, options, tokenizer, tell, alone=not named, refused=_sharded(args)),
        start.adapter is not None,
    )


def _chats(args: Any, tokenizer: Any) -> Any:
    """How chats with tools are written; None where the run has none."""
    from grpo_plus.training.markers import markers_of
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
    """Prompts with their solutions, and the column of these."""
    from grpo_plus.cli._data import load_rows, pick_split
    from grpo_plus.recipe.tools import COLUMN, schemas_of
    from grpo_plus.warm_start.examples import SolutionRow

    column = settings.get("solution", "solution")
    named = settings.get("dataset")
    if named:
        splits = load_rows(named, settings.get("config"), base=parsed.folder, field="warm_start.dataset")
    split = settings.get("split", "train" if named else parsed.script.dataset_train_split)
    rows = pick_split(splits, split, "warm_start.split")
    if not hasattr(rows, "__len__"):
        raise UserError(
            f"warm_start: the split {split!r} is a stream, and its rows must be counted: set dataset_streaming: "
            "false, or warm_start: {dataset: …} to a file, a folder or a name on the hub, which is loaded whole."
        )
    if len(rows) == 0:
        raise UserError(f"warm_start: the split {split!r} holds no rows.")
    if column not in rows.column_names:
        told = unknown("column", column, rows.column_names)
        raise UserError(f"warm_start: {told} Set warm_start: {{solution: …}} to the one with the solutions.")
    recipe = parsed.training.recipe
    if recipe.environments and None not in recipe.environments:
        if COLUMN not in rows.column_names:
            raise UserError(f"warm_start: the solutions have no column {COLUMN!r}, which names each row's environment.")
        tools = [schemas_of(recipe, {COLUMN: value}) for value in rows[COLUMN]]
    else:
        tools = [schemas_of(recipe, {})] * len(rows)
    check_columns(rows, parsed.prompt, "warm_start")
    if parsed.prompt:
        make = maker(parsed.prompt, chat=tokenizer.chat_template is not None)
        asked = [make(row) for row in rows]
    else:
        asked = list(rows["prompt"])
    return [SolutionRow(*each) for each in zip(asked, rows[column], tools, strict=True)], column


def _sharded(args: Any) -> str | None:
    """Why a warm start cannot be made here; one that is kept is used all the same."""
    from grpo_plus.recipe.choice import ConfigFacts

    choice = ConfigFacts(args, args.recipe)
    kind = "DeepSpeed" if choice.deepspeed else "FSDP" if choice.fsdp else None
    if kind is None:
        return None
    return (
        f"warm_start cannot be made under {kind}. Make it first in one process or with plain data parallelism, by the "
        "same config without its launch options and with max_steps: 1; it is kept, and this run will find it."
    )


def warm_start_lines(settings: Mapping[str, Any] | None, *, adapter: bool) -> list[str]:
    """The warm start for ``explain``."""
    from grpo_plus.warm_start.options import ADAPTER_RATE, FULL_RATE

    if settings is None:
        return []
    lora = adapter and not settings.get("full")
    length = f"{settings['steps']} steps" if "steps" in settings else f"{settings.get('epochs', 1)} epochs"
    rate = settings.get("learning_rate", ADAPTER_RATE if lora else FULL_RATE)
    first = (
        f"warm start: {length} of supervised training on the column {settings.get('solution', 'solution')!r} of "
        f"{settings.get('dataset', 'the training data')}"
    )
    second = "the adapter, which GRPO goes on with" if lora else "all weights"
    return [first, f"  trains {second}; learning rate {rate:g}, {settings.get('batch_size', 32)} rows a step", ""]
