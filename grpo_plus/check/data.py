"""Data of a run: its rows, their lengths, and the golds by their own verifiers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from grpo_plus.check.finding import CheckFinding
from grpo_plus.check.golds import GOLD, gold_findings, reaches_out
from grpo_plus.check.rows import is_empty, length_findings, prompt_length, row_findings, text_lengths
from grpo_plus.check.tokens import Files, context_of, model_files, template_findings, token_findings
from grpo_plus.recipe.recipe import recipe_of, schemas_of
from grpo_plus.trl.fields import prompt_problem
from grpo_verifiers.stats import evenly

if TYPE_CHECKING:
    from grpo_plus.recipe.entries import VerifierPart

MOST_ROWS = 100_000
"""Largest number of rows searched for empty and repeated prompts; fewer are tokenized."""
SAMPLE = 100
"""Rows of a trainer whose tokens are counted."""
LONGEST = 2
"""Rows with the most characters, which are tokenized besides the sample."""
FIRST, SECONDS = 20, 5.0
"""Rows whose golds are judged before training, and the time for the trials of one verifier."""
GOLDS = ("answer", "solution", "ground_truth", "gold", "target", "label")
"""Common names of the gold's column, for rewards that name none."""


@dataclass
class Data:
    """Prompts and golds of all rows, and all columns of a sample, whose rows have the indices ``places``.

    ``guessed``: the columns of the golds are `GOLDS`. ``media``: there are columns of images or sounds.
    """

    columns: tuple[str, ...]
    prompts: list[Any] = field(default_factory=list)
    golds: list[list[Any]] = field(default_factory=list)
    sample: dict[str, list[Any]] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    total: int | None = None
    guessed: bool = False
    media: bool = False

    @property
    def unread(self) -> Iterator[str]:
        """Rows that were not read, or not sampled, in words."""
        read = len(self.prompts)
        if self.total is None:
            yield f"a stream: only its first {read} rows were checked"
        elif read < self.total:
            yield f"rows from {read} on, of {self.total}"
        if len(self.places) < read:
            share = f"{len(self.places)} of {read} rows were checked (--rows N, --all-rows)"
            yield f"tokens and golds of other rows: {share}"


def read_data(
    rows: Any, parts: "Sequence[VerifierPart]", make: Callable[[Mapping[str, Any]], Any], limit: int | None
) -> Data:
    """Read the prompts, by ``make``, of all rows up to a bound, and all columns of ``limit`` evenly spaced ones."""
    total = len(rows) if hasattr(rows, "__len__") else None
    count = limit or MOST_ROWS if total is None else total if limit is None else min(total, MOST_ROWS)
    places = evenly(range(count), limit)
    named = [name for part in parts for name in part.verifier.gold_columns.values()]
    columns = tuple(rows.column_names or ())
    golds = [name for name in dict.fromkeys(named or GOLDS) if name != "prompt" and name in columns]
    features = (getattr(rows, "features", None) or {}).items()
    media = [name for name, kind in features if hasattr(getattr(kind, "feature", kind), "decode")]
    rows = rows.remove_columns(media) if media else rows  # slow to decode
    data, chosen = Data(columns, total=total, guessed=not named, media=bool(media)), set(places)
    for place, row in enumerate(islice(rows, count)):
        prompt = make(row)
        data.prompts.append(prompt)
        data.golds.append([row.get(name) for name in golds])
        if place in chosen:
            data.places.append(place)
            for name, value in {**row, "prompt": prompt}.items():
                data.sample.setdefault(name, []).append(value)
    return data


def check_arguments(
    model: Any, args: Any, train: Any, evaluated: Any = None, tokenizer: Any = None, *, grows: bool = False
) -> Iterator[CheckFinding]:
    """Do the quick checks on a trainer's arguments, as far as its rows have prompts and a length.

    A model by name is read, without its weights, for its tokenizer and context. ``grows``: an environment or a rollout
    function may add columns and prompts.
    """
    sets = [rows for rows in (train, evaluated) if "prompt" in (getattr(rows, "column_names", None) or ())]
    if not sets or sets[0] is not train or not hasattr(train, "__len__"):
        return
    recipe, config, files = recipe_of(args), getattr(model, "config", None), Files()
    parts = [*recipe.verifiers, *recipe.eval_verifiers]
    train_data, *other = [read_data(rows, parts, lambda row: row["prompt"], SAMPLE) for rows in sets]
    if isinstance(model, str):
        init = args.model_init_kwargs or {}
        keys = ("revision", "trust_remote_code")
        files = model_files(model, {key: init[key] for key in keys if init.get(key) is not None})
        files = replace(files, tokenizer=getattr(tokenizer, "tokenizer", tokenizer) or files.tokenizer)
        tokenizer, config = files.tokenizer, files.config
    check = DataCheck(
        args,
        train_data,
        parts,
        other[0] if other else None,
        getattr(tokenizer, "tokenizer", tokenizer),
        None if config is None else context_of(config),
        grows,
    )
    yield from check.quick()
    if not files.failed and files.tokenizer is not None:
        yield from token_findings(files.name, files)
        yield from check.template(files)


@dataclass(frozen=True)
class DataCheck:
    """Checks of the rows of a run; ``tokenizer`` and ``context`` are None if unknown."""

    args: Any
    data: Data
    parts: "Sequence[VerifierPart]" = ()
    evaluated: Data | None = None
    tokenizer: Any = None
    context: int | None = None
    grows: bool = False

    @property
    def template_keywords(self) -> dict[str, Any]:
        """Keywords for the chat template: those of the config, and the tools of the first row."""
        first = {name: values[0] for name, values in self.data.sample.items() if values}
        tools = schemas_of(recipe_of(self.args), first)
        return {**(self.args.chat_template_kwargs or {}), **({"tools": tools} if tools else {})}

    def quick(self) -> Iterator[CheckFinding]:
        """Check all rows, and the lengths of the sample and of the longest prompts."""
        data = self.data
        if data.prompts and any(prompt is not None for prompt in data.prompts):
            evaluated = self.evaluated.prompts if self.evaluated else []
            repeats = bool(recipe_of(self.args).environments) or data.media or self.grows
            yield from row_findings(
                data.prompts, data.golds, evaluated, total=data.total, repeats=repeats, guessed=data.guessed
            )
        if self.tokenizer is not None:
            yield from self._lengths()

    def _lengths(self) -> Iterator[CheckFinding]:
        data, tokenizer = self.data, self.tokenizer
        size = [len(str(prompt)) for prompt in data.prompts]
        longest = sorted(range(len(size)), key=size.__getitem__)[-LONGEST:]
        chosen = {row: data.prompts[row] for row in (*data.places, *longest)}
        chat = any(not isinstance(prompt, str) for prompt in chosen.values())
        if any(prompt is None for prompt in chosen.values()) or (chat and tokenizer.chat_template is None):
            return
        try:
            keywords = self.template_keywords
            sizes = {row: prompt_length(tokenizer, prompt, keywords) for row, prompt in chosen.items()}
        except Exception:  # noqa: BLE001 - a template that refuses a prompt, which is a finding of its own
            return
        exact = [part.verifier for part in self.parts if part.entry.name == "exact"]  # the rest may read a part of it
        maps = [{**verifier.optional_columns, **verifier.required_columns} for verifier in exact]
        columns = sorted({columns[GOLD] for columns in maps if columns.get(GOLD) in data.sample})
        answers = {name: text_lengths(tokenizer, data.sample[name]) for name in columns}
        limit = self.args.max_completion_length
        yield from length_findings(sizes, answers, data.places, context=self.context, limit=limit)

    def template(self, files: Files) -> Iterator[CheckFinding]:
        """Check the chat template of a model on the first prompt that is not empty."""
        prompts = [prompt for prompt in self.data.prompts if not prompt_problem(prompt, "")]
        if files.failed or files.tokenizer is None or files.template_elsewhere or not prompts:
            return
        formats = [part.entry for part in recipe_of(self.args).verifiers if part.entry.name == "think_format"]
        prompt = next((one for one in prompts if not is_empty(one)), prompts[0])
        yield from template_findings(
            files.tokenizer,
            prompt,
            files.ends,
            other=next((one for one in prompts if one != prompt and not is_empty(one)), None),
            keywords=self.args.chat_template_kwargs or {},
            schemas=self.template_keywords.get("tools", ()),
            think_format=bool(formats),
            prefilled=all(entry.kwargs.get("prefilled") for entry in formats),
        )

    def golds(
        self, unchecked: Callable[[str], None] = lambda _: None, *, quickly: bool = False
    ) -> Iterator[CheckFinding]:
        """Have each verifier judge the golds of the sample; report untried ones to ``unchecked``.

        ``quickly``: at most `FIRST` rows, and fewer for a slow verifier.
        """
        for part in self.parts:
            yield from self._golds_of(part, unchecked, quickly=quickly)

    def _golds_of(
        self, part: "VerifierPart", unchecked: Callable[[str], None], *, quickly: bool
    ) -> Iterator[CheckFinding]:
        verifier, label, data = part.verifier, part.label, self.data
        needed = {**verifier.required_columns, **verifier.named_columns}.values()
        if reaches_out(verifier.describe()):
            unchecked(f"golds of {label}: it calls a server or loads a model")
            return
        if any(column not in data.sample for column in needed):
            return  # another finding reports it
        rows = evenly([row for row in range(len(data.places)) if self._is_for(label, row)], FIRST if quickly else None)
        columns = {name: [values[row] for row in rows] for name, values in data.sample.items() if name != "prompt"}
        prompts = [data.sample["prompt"][row] for row in rows] if "prompt" in data.sample else [""] * len(rows)
        places = [data.places[row] for row in rows]
        if not rows:
            return
        seconds = SECONDS if quickly else None
        yield from gold_findings(verifier, columns, places, prompts, unchecked=unchecked, seconds=seconds)

    def _is_for(self, label: str, row: int) -> bool:
        column = self.args.verifier_column
        rewards = any(part.label == label for part in self.args.recipe.verifiers)
        return not column or not rewards or self.data.sample.get(column, [label] * (row + 1))[row] == label
