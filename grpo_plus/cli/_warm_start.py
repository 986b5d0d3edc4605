"""The warm start of a run: its data, the place where it is kept, and what the run goes on from."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._prompts import check_columns, maker, prompt_columns
from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.training.hooks import Hook
    from grpo_plus.warm_start.make import Start
    from grpo_plus.warm_start.store import Store

RECORD = "_warm_start.json"
"""In a run's folder: the warm start that it began with."""
_LOOKED_AT = 1000
"""Prompts of the run that those of the solutions are first compared with, and the last ones of a stream."""

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
    start: "Start",
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
    from grpo_plus.checkpoints import manifest
    from grpo_plus.warm_start.make import FOLDER

    args, wanted = parsed.training, parsed.script.warm_start is not None
    record = Path(args.output_dir) / RECORD
    former = _trl.from_main(lambda: _read(resumed.parent / RECORD)) if resumed is not None else None
    if resumed is not None and former is None:
        if wanted:
            tell(f"warm start: the run of {resumed} had none, and a resumed run makes none: warm_start has no effect.")
        return Begun(start.model)
    store = _store(parsed, start, tokenizer, splits, sets, tell) if wanted else None
    if resumed is not None and former is not None and (store is None or store.store.key != former["key"]):
        kept = Path(former["folder"])
        beside = resumed.parent / FOLDER / former["key"]  # the run's folder may have been moved
        if _trl.from_main(lambda: not kept.exists() and beside.exists()):
            kept, former = beside, {**former, "folder": str(beside.resolve())}
        torn = _trl.from_main(lambda: manifest.problem(kept))
        if torn is not None:
            raise UserError(
                f"warm_start: the run of {resumed} began with the warm start in {kept}, which is not whole ({torn}), "
                "and this config makes another one. Put its settings back, so that it can be made anew."
            )
        tell(f"warm start: as the run of {resumed} began, from {kept}; what warm_start says now has no effect.")
        found = former
    elif store is None:
        _trl.from_main(lambda: record.unlink(missing_ok=True))
        return Begun(start.model)
    else:
        found = {
            "key": store.store.key,
            "folder": str(store.make().resolve()),
            "adapter": store.start.adapter is not None,
        }
    _trl.from_main(lambda: _write(record, found))
    folder = Path(found["folder"])
    fact = f"supervised, {_trl.from_main(lambda: _fact(folder))}"
    if not found["adapter"]:
        return Begun(str(folder), fact=fact)
    if start.adapter is None:
        raise UserError(
            f"warm_start: the run of {resumed} trained an adapter from the beginning, which is in {folder}, and this "
            "config trains none: put use_peft and the options of LoRA back."
        )
    from grpo_plus.training.warm_adapter import WarmAdapter

    return Begun(start.model, (WarmAdapter(folder),), fact)


def _fact(folder: Path) -> str:
    from grpo_plus.checkpoints.folder import read_json
    from grpo_plus.warm_start.make import headline
    from grpo_plus.warm_start.store import FILE

    return headline(read_json(folder / FILE).get("facts", {}))


def _read(path: Path) -> dict[str, Any] | None:
    from grpo_plus.checkpoints.folder import read_json

    found = read_json(path)
    return found if {"key", "folder", "adapter"} <= found.keys() else None


def _write(path: Path, found: Mapping[str, Any]) -> None:
    from grpo_verifiers.files import write_whole

    with suppress(OSError):  # a full disk costs the note, not the run
        write_whole(path, json.dumps(found))


@dataclass(frozen=True)
class _Plan:
    store: "Store"
    start: "Start"
    make: Callable[[], Path]


def _store(  # noqa: PLR0917
    parsed: "Parsed", start: "Start", tokenizer: Any, splits: Any, sets: Mapping[str, Any], tell: Tell
) -> _Plan:
    """The place of the warm start, and the way to make it."""
    from accelerate import PartialState

    from grpo_plus.warm_start.examples import encode, frame_of
    from grpo_plus.warm_start.make import FOLDER, obtain, store_of
    from grpo_plus.warm_start.options import WarmStart

    args = parsed.training
    settings = dict(parsed.script.warm_start) if isinstance(parsed.script.warm_start, dict) else {}
    prompt = parsed.script.prompt if isinstance(parsed.script.prompt, dict) else {}
    rows, column = _rows(parsed, settings, prompt, tokenizer, splits)
    trained = sets["dataset_train_split"]
    asked = (row["prompt"] for row in iter(trained))
    mine = list(islice(asked, _LOOKED_AT))
    measured = parsed.script.measure if isinstance(parsed.script.measure, dict) else {}
    hidden = [row["prompt"] for row in sets.get("dataset_test_split", ())]
    hidden += [row["prompt"] for row in islice(iter(sets.get("measure", ())), measured.get("limit"))]
    if tokenizer.chat_template is None and any(
        not isinstance(one, str) for one in (*mine[:1], *(r.prompt for r in rows))
    ):
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
        frames=map(frame_of, chain(mine, asked if _sized(trained) else ())),
        sample=mine[0],
        held_out=hidden,
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
    tell(*examples.told())
    named = settings.get("folder")
    home = Path(named).expanduser() if named else Path(args.output_dir) / FOLDER
    store = store_of(home, start, examples, options)

    def make() -> Path:
        refused = _sharded(args)
        return obtain(store, start, examples, options, tokenizer, tell, alone=not named, refused=refused)

    return _Plan(store, start, make)


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


def _rows(
    parsed: "Parsed", settings: Mapping[str, Any], prompt: Mapping[str, Any], tokenizer: Any, splits: Any
) -> tuple[list[Any], str]:
    """Prompts with their solutions, and the column of these."""
    from grpo_plus.cli._data import load_rows, pick_split
    from grpo_plus.recipe.tools import COLUMN, schemas_of
    from grpo_plus.warm_start.examples import Row, earlier_turns

    column = settings.get("solution", "solution")
    named = settings.get("dataset")
    if named:
        splits = load_rows(named, settings.get("config"), base=parsed.folder, field="warm_start.dataset")
    split = settings.get("split", "train" if named else parsed.script.dataset_train_split)
    rows = pick_split(splits, split, "warm_start.split")
    if not _sized(rows):
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
    solutions = rows[column]
    if recipe.environments and None not in recipe.environments:
        if COLUMN not in rows.column_names:
            raise UserError(f"warm_start: the solutions have no column {COLUMN!r}, which names each row's environment.")
        tools = [schemas_of(recipe, {COLUMN: value}) for value in rows[COLUMN]]
    else:
        tools = [schemas_of(recipe, {})] * len(rows)
    carry = all(earlier_turns(solution) for solution in solutions)
    if carry and not set(prompt_columns(prompt)) <= set(rows.column_names):
        return [Row(list(earlier_turns(each)), each, own) for each, own in zip(solutions, tools, strict=True)], column
    check_columns(rows, prompt, "warm_start")
    asked = list(rows["prompt"]) if not prompt else []
    if prompt:
        make = maker(prompt, chat=tokenizer.chat_template is not None)
        asked = [make(row) for row in rows]
    return [Row(*each) for each in zip(asked, solutions, tools, strict=True)], column


def _sized(rows: Any) -> bool:
    return hasattr(rows, "__len__")


def _sharded(args: Any) -> str | None:
    """Why a warm start cannot be made here; one that is kept is used all the same."""
    from grpo_plus.recipe.unread import under_deepspeed, under_fsdp

    kind = "DeepSpeed" if under_deepspeed(args) else "FSDP" if under_fsdp(args) else None
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
