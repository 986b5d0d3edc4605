"""Checks of ``doctor`` on a config: settings, model, data and verifiers, each run separately."""

import inspect
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_plus.cli import UserError
from grpo_plus.cli._data import load_rows, model_path
from grpo_plus.cli.plan import storage_of
from grpo_plus.doctor.examination import ELSEWHERE, INVALID, NOTE, READ, Examination, examine_machine, refused_findings
from grpo_plus.doctor.finding import CheckFinding
from grpo_plus.doctor.fit import fit_findings
from grpo_plus.doctor.golds import COLUMN, GOLD, gold_findings, reaches_out
from grpo_plus.doctor.machine import cards, memory
from grpo_plus.doctor.rows import is_empty, key_of, length_findings, prompt_length, row_findings, text_lengths
from grpo_plus.doctor.tokens import Files, model_files, template_findings, token_findings
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.registry import is_reference

if TYPE_CHECKING:
    from grpo_plus.cli._arguments import Parsed
    from grpo_plus.recipe.entries import VerifierPart

PROG = "grpo-plus doctor"
OWN_OPTIONS = ("--json", "--strict", "--rows", "--all-rows")
MOST_ROWS = 100_000
"""Largest number of rows searched for empty and repeated prompts; fewer are tokenized."""
STANDARD = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
"""Keywords that TRL passes to a reward function in addition to the columns."""


def examine_config(examination: Examination, arguments: Sequence[str], sample: int | None) -> None:
    """Check the machine and everything that a config names, with ``sample`` rows, or all if None."""
    parsed: Parsed | None = None
    config = Examination()
    with config.failing("config"):
        parsed, config.sections["config"] = _read(arguments)
    examine_machine(examination, None if parsed is None else str(parsed.training.output_dir))
    examination.sections |= config.sections
    if parsed is None:
        examination.unchecked.append("model, data and verifiers: the config was refused")
        return
    _ConfigCheck(examination, parsed, sample).run_all()


def _read(arguments: Sequence[str]) -> "tuple[Parsed | None, list[CheckFinding]]":
    """Parse the config as train does; if only this machine is unsuitable, parse it for a CPU."""
    from grpo_plus.cli._arguments import parse

    try:
        return parse(PROG, arguments, own=OWN_OPTIONS), []
    except UserError as error:
        refused = str(error)
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    try:
        parsed = parse(PROG, [*arguments, "--use_cpu", "true"], own=OWN_OPTIONS)
    except UserError as error:
        return None, list(refused_findings(str(error)))
    return parsed, list(refused_findings(refused, ELSEWHERE))


@dataclass
class _Data:
    """Prompts and golds of all rows, and all columns of a sample, whose rows have the indices ``places``."""

    columns: tuple[str, ...]
    prompts: list[Any] = field(default_factory=list)
    golds: list[Any] = field(default_factory=list)
    sample: dict[str, list[Any]] = field(default_factory=dict)
    places: list[int] = field(default_factory=list)
    total: int | None = None


class _ConfigCheck:
    """Checks of one config; later checks use the results of earlier ones."""

    def __init__(self, examination: Examination, parsed: "Parsed", sample: int | None) -> None:
        self.examination, self.parsed, self.limit = examination, parsed, sample
        self.args, self.script, self.model = parsed.training, parsed.script, parsed.model
        self.prompt = parsed.prompt
        self.files = Files()
        self.name = ""
        self.data: _Data | None = None
        self.held_out: _Data | None = None
        self._loaded: dict[tuple[Any, ...], Any] = {}

    def load_rows(self, name: str, *where: Any, **more: Any) -> Any:
        """Load rows once, and keep them or the error."""
        key = (name, *where, *more.items())
        if key not in self._loaded:
            try:
                self._loaded[key] = load_rows(name, *where, **more)
            except UserError as error:
                self._loaded[key] = error
        if isinstance(rows := self._loaded[key], UserError):
            raise rows
        return rows

    def run_all(self) -> None:
        """Run the checks of all sections, in the order of the report."""
        examination = self.examination
        examination.run("config", self._config)
        examination.run("model", self._model)
        examination.run("data", self._load)
        if (data := self.data) is not None:
            examination.run("data", lambda: self._rows(data))
            if self.files.tokenizer is not None:
                examination.run("model", lambda: self._template(data))
                examination.run("data", lambda: self._lengths(data))
            examination.run("verifiers", lambda: self._columns(data))
            examination.run("verifiers", lambda: self._golds(data))
        examination.run("fit", self._fit)
        examination.unchecked += [
            "weights: only the model's config and tokenizer were read",
            *([f"the vLLM server at {self.args.vllm_server_host}"] if self.args.use_vllm else []),
        ]

    def _config(self) -> Iterator[CheckFinding]:
        from grpo_plus.cli._gather import problems_before_loading
        from grpo_plus.cli._notes import command_notes, prompt_notes, slow_here

        slow, refused = slow_here(self.parsed), problems_before_loading(self.parsed, self.load_rows)
        if slow:
            yield from refused_findings(slow, ELSEWHERE)
        for text in refused:
            yield from refused_findings(text, INVALID)
        if not (slow or refused or self.examination.sections["config"]):
            yield READ.at("config", "every check passed")
        yield from (NOTE.at("config", note) for note in (*command_notes(self.parsed), *prompt_notes(self.parsed)))

    def _refused(self, error: UserError) -> Iterator[CheckFinding]:
        """Yield the problems that train would report, unless the config already has these findings."""
        yield from (one for one in refused_findings(str(error)) if one not in self.examination.findings)

    def _model(self) -> Iterator[CheckFinding]:
        name = self.model.model_name_or_path or ""
        if is_reference(name) and not Path(name).expanduser().exists():
            reason = f"{name} is a function, which may train a model, and is not called"
            self.examination.unchecked.append(f"model, tokenizer, template and lengths: {reason}")
            return
        try:
            self.name = model_path(self.model.model_name_or_path, self.parsed.folder)
        except UserError as error:
            yield from self._refused(error)
            return
        self.files = model_files(self.name, self._loading())
        yield from self.files.failed
        if not self.files.failed:
            yield from token_findings(self.name, self.files)

    def _loading(self) -> dict[str, Any]:
        settings = {"revision": self.model.model_revision, "trust_remote_code": self.parsed.trusts_code or None}
        settings |= {key: value for key, value in (self.args.model_init_kwargs or {}).items() if key in settings}
        return {key: value for key, value in settings.items() if value is not None and value != "main"}

    def _template(self, data: _Data) -> Iterator[CheckFinding]:
        files = self.files
        if files.failed or not data.prompts:
            return
        if files.tokenizer.chat_template is None and hasattr(files.config, "vision_config"):
            self.examination.unchecked.append("the chat template: a vision model has it in its processor")
            return
        formats = [part.entry for part in self.args.recipe.verifiers if part.entry.name == "think_format"]
        yield from template_findings(
            files.tokenizer,
            next((one for one in data.prompts if not is_empty(one)), data.prompts[0]),
            files.ends,
            keywords=self.args.chat_template_kwargs or {},
            schemas=self._schemas(data),
            think_format=bool(formats),
            prefilled=all(entry.kwargs.get("prefilled") for entry in formats),
        )

    def _schemas(self, data: _Data) -> list[Any]:
        from grpo_plus.recipe.recipe import schemas_of

        return schemas_of(self.args.recipe, {name: values[0] for name, values in data.sample.items() if values})

    def _load(self) -> Iterator[CheckFinding]:
        from grpo_plus.cli._gather import find_rows

        try:
            _, sets = find_rows(self.parsed, self.load_rows)
        except UserError as error:
            yield from self._refused(error)
            return
        train = sets.pop("dataset_train_split")
        self.data = self._read_rows(train)
        self._report_unread(self.data)
        if evaluation := [rows for rows in sets.values() if rows is not train]:
            self.held_out = self._read_rows(evaluation[0])

    def _read_rows(self, rows: Any) -> _Data:
        """Read the prompts of all rows up to a bound, and all columns of an even sample."""
        from grpo_plus.cli._prompts import maker
        from grpo_verifiers.stats import evenly

        chat = getattr(self.files.tokenizer, "chat_template", None) is not None
        make = maker(self.prompt, chat=chat) if self.prompt else lambda row: row.get("prompt")
        total = len(rows) if hasattr(rows, "__len__") else None
        count = self.limit or MOST_ROWS if total is None else total if self.limit is None else min(total, MOST_ROWS)
        sampled = evenly(range(count), self.limit)
        golds = [name for part in self._parts() for name in part.verifier.gold_columns.values()]
        chosen, compared = set(sampled), [name for name in dict.fromkeys(golds) if name != "prompt"]
        data = _Data(tuple(rows.column_names or ()), total=total)
        for at, row in enumerate(islice(rows, count)):
            prompt = make(row)
            data.prompts.append(prompt)
            data.golds.append(key_of([row.get(name) for name in compared]))
            if at in chosen:
                data.places.append(at)
                for name, value in {**row, "prompt": prompt}.items():
                    data.sample.setdefault(name, []).append(value)
        return data

    def _report_unread(self, data: _Data) -> None:
        read, unchecked = len(data.prompts), self.examination.unchecked
        if data.total is None:
            unchecked.append(f"a stream: only its first {read} rows were checked")
        elif read < data.total:
            unchecked.append(f"rows from {read} on, of {data.total}")
        if len(data.places) < read:
            share = f"{len(data.places)} of {read} rows were checked (--rows N, --all-rows)"
            unchecked.append(f"tokens and golds of other rows: {share}")

    def _parts(self) -> "list[VerifierPart]":
        recipe = self.args.recipe
        return [*recipe.verifiers, *recipe.eval_verifiers]

    def _rows(self, data: _Data) -> Iterable[CheckFinding]:
        if "prompt" not in data.sample and not self.prompt:
            return []
        held_out = self.held_out.prompts if self.held_out else []
        return row_findings(
            data.prompts, data.golds, held_out, total=data.total, repeats=bool(self.args.recipe.environments)
        )

    def _lengths(self, data: _Data) -> Iterable[CheckFinding]:
        tokenizer, prompts = self.files.tokenizer, data.sample.get("prompt", [])
        chat = any(not isinstance(prompt, str) for prompt in prompts)
        if any(prompt is None for prompt in prompts) or (chat and tokenizer.chat_template is None):
            return []
        schemas = self._schemas(data)
        keywords = {**(self.args.chat_template_kwargs or {}), **({"tools": schemas} if schemas else {})}
        try:
            sizes = [prompt_length(tokenizer, prompt, keywords) for prompt in prompts]
        except Exception as error:  # noqa: BLE001 - a template that refuses a prompt
            self.examination.unchecked.append(f"lengths of prompts: the template raised {type(error).__name__}")
            return []
        maps = [{**part.verifier.optional_columns, **part.verifier.required_columns} for part in self._parts()]
        columns = sorted({columns[GOLD] for columns in maps if columns.get(GOLD) in data.sample})
        answers = {name: text_lengths(tokenizer, data.sample[name]) for name in columns}
        context = None if self.files.failed else self.files.context
        return length_findings(sizes, answers, data.places, context=context, limit=self.args.max_completion_length)

    def _columns(self, data: _Data) -> Iterator[CheckFinding]:
        """Check the columns required by reward functions; the config check covers those of verifiers."""
        from grpo_plus.cli._gather import resolve_rewards

        if self.args.recipe.environments or not data.columns:
            return  # an environment may add columns, and a stream may not list its columns
        columns = {*data.columns, *STANDARD, *(["prompt"] if self.prompt else [])}
        for name in self.script.reward_funcs or []:
            try:
                (function,) = resolve_rewards(None, [name], self.parsed.folder)
                parameters = inspect.signature(function).parameters.values()
            except (UserError, ValueError, TypeError):
                continue
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            for one in parameters:
                if one.kind in kinds and one.default is one.empty and one.name not in columns:
                    yield COLUMN.at(f"reward_funcs {name}", unknown("column", one.name, data.columns))

    def _golds(self, data: _Data) -> Iterator[CheckFinding]:
        from grpo_verifiers.exec.runner import close_shared_runners

        functions = [*(self.script.reward_funcs or []), self.script.reward_model_name_or_path]
        if names := ", ".join(filter(None, functions)):
            self.examination.unchecked.append(f"golds of reward functions and models: {names}")
        try:
            for part in self._parts():
                yield from self._golds_of(part, data)
        finally:
            close_shared_runners()

    def _golds_of(self, part: "VerifierPart", data: _Data) -> Iterator[CheckFinding]:
        verifier, label = part.verifier, part.label
        needed = {**verifier.required_columns, **verifier.named_columns}.values()
        if reaches_out(verifier.describe()):
            self.examination.unchecked.append(f"golds of {label}: it calls a server or loads a model")
            return
        if any(column not in data.sample for column in needed):
            return  # reported above
        rows = [at for at in range(len(data.places)) if self._is_for(label, data, at)]
        columns = {name: [values[at] for at in rows] for name, values in data.sample.items() if name != "prompt"}
        prompts = [data.sample["prompt"][at] for at in rows] if "prompt" in data.sample else [""] * len(rows)
        if not rows:
            return
        findings = gold_findings(verifier, columns, [data.places[at] for at in rows], prompts)
        if findings is None:
            self.examination.unchecked.append(f"golds of {label}: it has none to check")
        yield from findings or ()

    def _is_for(self, label: str, data: _Data, at: int) -> bool:
        column = self.args.verifier_column
        rewards = any(part.label == label for part in self.args.recipe.verifiers)
        return not column or not rewards or data.sample.get(column, [label] * (at + 1))[at] == label

    def _fit(self) -> Iterable[CheckFinding]:
        from trl import get_peft_config

        if self.files.config is None:
            return []
        here, adapter = cards(), get_peft_config(self.model)
        capacity = float(here[0].total) or None if here and not self.args.use_cpu else None
        bits, double = storage_of(self.parsed, self.name, self.files.config)
        # Bytes of a loaded weight.
        width = bits / 8 * 1.1 if bits else 2.0 if str(self.model.dtype) in ("auto", "bfloat16", "float16") else 4.0
        if capacity is not None and adapter is None:
            self.examination.unchecked.append("memory of a step: the planner counts runs with adapters (use_peft) only")
        if (self.parsed.processes or 1) > 1:
            self.examination.unchecked.append("memory of several processes: the estimate is of one card")
        return fit_findings(
            self.args,
            self.files.config,
            self.name,
            adapter,
            width=width,
            memory=memory()[0],
            capacity=capacity,
            bits=bits,
            double=double,
            sharded=(self.parsed.processes or 1) > 1 or bool(self.args.fsdp or self.args.deepspeed),
        )
