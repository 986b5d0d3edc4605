"""Checks of ``grpo-plus check`` on a config: its parts, data, model and memory, each run separately."""

import inspect
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from trl import get_peft_config

from grpo_plus.check.data import DataCheck, read_data
from grpo_plus.check.examination import ELSEWHERE, INVALID, NOTE, PART_FAILS, READ, Examination, refused_findings
from grpo_plus.check.finding import CheckFinding, Severity
from grpo_plus.check.fit import SHORT, fit_findings
from grpo_plus.check.golds import COLUMN
from grpo_plus.check.machine import cards, memory
from grpo_plus.check.memory import REPORTED, memory_lines, planned_run, storage_of, uncounted
from grpo_plus.check.parts import part_lines
from grpo_plus.check.sample import read_sample
from grpo_plus.check.time import time_lines
from grpo_plus.check.tokens import UNREADABLE, Files, context_of, model_files, token_findings
from grpo_plus.cli import UserError
from grpo_plus.cli._arguments import Parsed, parse, reward_names
from grpo_plus.cli._data import load_rows, model_path
from grpo_plus.cli._gather import find_rows, problems_before_loading, resolve_rewards
from grpo_plus.cli._notes import adapter_notes, load_notes, prompt_notes, slow_here
from grpo_plus.cli._parser import by_option, without
from grpo_plus.cli._prompts import FORMATS, maker
from grpo_plus.cli._quick_checks import on_cpu
from grpo_plus.cli._warm_start import warm_start_lines
from grpo_plus.memory.estimate import GIB
from grpo_plus.memory.shape import read_model_config
from grpo_plus.qlora.defaults import Device
from grpo_plus.recipe.rewards import named_weights, weight_problems
from grpo_plus.recipe.table import config_notes
from grpo_verifiers.errors.frames import plugin_traceback
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.exec.runner import close_shared_runners
from grpo_verifiers.redaction import redact_text
from grpo_verifiers.registry import is_reference

PROG = "grpo-plus check"
STANDARD = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"}
"""Keywords that TRL passes to a reward function in addition to the columns."""


def check_config(
    examination: Examination, arguments: Sequence[str], options: Namespace, sections: set[str]
) -> str | None:
    """Check everything that a config names; return its output folder."""
    words, rivals = _split_rivals(arguments)
    parsed: Parsed | None = None
    with examination.failing("config"):
        parsed, findings = _read(words, options.own, traceback=not options.json)
        about_here = bool({"data", "machine"} & sections) and options.vram is None
        examination.sections["config"] = findings if about_here or parsed is None else []
    if parsed is None:
        examination.unchecked.append("data, model and memory: the config was refused")
        return None
    check = ConfigCheck(examination, parsed, words, options)
    rest = without(words, ("--advantage",))  # with the keywords of the first one
    rival_configs = [parse(PROG, [*rest, "--advantage", name], own=options.own).training for name in rivals]
    check.run_all(rival_configs, sections)
    return str(parsed.training.output_dir)


def _split_rivals(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split ``--advantage A,B,C``: the words with A, and the estimators to compare it with."""
    rest, rivals = [], []
    for option, word in by_option(words):
        head, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
        names = value.split(",") if option == "--advantage" and not value.lstrip().startswith(("{", "--")) else [value]
        rest.append(f"{head}{equals}{names[0]}")
        rivals += [name.strip() for name in names[1:]]
        if len(names) > 1 and not all(name.strip() for name in names):
            raise UserError(f"--advantage is {value!r}, expected names separated by commas.")
    return rest, rivals


def _read(arguments: Sequence[str], own: Sequence[str], *, traceback: bool) -> tuple[Parsed | None, list[CheckFinding]]:
    """Parse the config as train does; if only this machine is unsuitable, parse it for a CPU.

    The ``traceback`` of a plug-in is printed to stderr.
    """
    try:
        return parse(PROG, arguments, own=own), []
    except UserError as error:
        refused = str(error)
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    try:
        parsed = parse(PROG, on_cpu(arguments), own=own)
    except UserError as error:
        sys.stderr.write(redact_text(plugin_traceback(error)) * traceback)
        return None, list(refused_findings(str(error)))
    return parsed, list(refused_findings(refused, ELSEWHERE))


class ConfigCheck:
    """Checks of one config; later sections use the results of earlier ones."""

    def __init__(self, examination: Examination, parsed: Parsed, arguments: Sequence[str], options: Namespace) -> None:
        self.examination, self.parsed, self.arguments, self.options = examination, parsed, arguments, options
        self.args, self.script, self.model = parsed.training, parsed.script, parsed.model
        self.limit: int | None = None if options.all_rows else options.rows
        self.load_rows = cache(load_rows)

    def run_all(self, rivals: Sequence[Any], sections: set[str]) -> None:
        """Check the sections, in the order of the report."""
        if "config" in sections:
            self.tell(rivals)
        checks: dict[str, list[Callable[[], Iterable[CheckFinding]]]] = {
            "config": [lambda: self._config(complete="data" in sections)],
            "data": [*([] if "config" in sections else [self._refusals]), self._rows, self._columns, self._golds],
            "model": [self._model, self._template],
            "memory": [self._memory],
        }
        for section, parts in checks.items():
            for part in parts if section in sections else ():
                self.examination.run(section, part)
        if "model" in sections:
            self.examination.unchecked.append("weights: only the model's config and tokenizer were read")
        if self.args.use_vllm:
            self.examination.unchecked.append(f"the vLLM server at {self.args.vllm_server_host}")

    def tell(self, rivals: Sequence[Any]) -> None:
        """Show the prompt, the warm start and the parts, with their effect on the sample rewards."""
        functions, options = reward_names(self.script), self.options
        start = warm_start_lines(self.parsed.warm_start, adapter=bool(self.model.use_peft))
        try:
            weights = self._weights(functions)
            sample = read_sample(options.rewards, options.lengths, [*weights.items()])
            parts, failed = part_lines(self.args, sample, weights, functions, model=self.model, rivals=rivals)
        except ValueError as error:
            raise UserError(str(error)) from error
        for failure in failed:
            sys.stderr.write(redact_text(plugin_traceback(failure)) * (not options.json))
            self.examination.sections["config"].append(PART_FAILS.at("sample group", failure))
        loads = load_notes(self.parsed)
        self.examination.tell("config", [*self._prompt_lines(), *start, *parts])
        self.examination.tell("config", ["", "to load:", *(f"  {line}" for line in loads)] if loads else [])

    def _weights(self, functions: list[str]) -> dict[str, float]:
        recipe = self.args.recipe
        if problems := weight_problems(recipe, functions):
            raise ValueError(" ".join(problems))
        own = {part.label: 1.0 for part in recipe.environments.values() if part.rewards}
        return {**dict(named_weights(recipe, functions)), **own}

    def _prompt_lines(self) -> list[str]:
        prompt = self.parsed.prompt
        lines = ["prompt:", *(f"  {key}: {value}" for key, value in prompt.items())] if prompt else []
        if template := prompt.get("template"):
            lines += [f"    {FORMATS[template].text}", f"    checked by verifiers: [{FORMATS[template].checked_by}]"]
        return [*lines, ""] if lines else []

    def _config(self, *, complete: bool) -> Iterator[CheckFinding]:
        earlier = [one for one in self.examination.sections["config"] if one.severity is Severity.PROBLEM]
        slow = slow_here(self.parsed) if complete else ""
        refused = [*(refused_findings(slow, ELSEWHERE) if slow else []), *(self._refusals() if complete else [])]
        yield from refused
        if not complete:
            self.examination.unchecked.append("columns of the data: they belong to the section data")
        elif not (refused or earlier or self.files.failed):
            yield READ.at("config", "every check passed")
        notes = [*config_notes(self.args), *adapter_notes(self.parsed), *prompt_notes(self.parsed)]
        yield from (NOTE.at("config", note) for note in notes)

    def _refusals(self) -> Iterator[CheckFinding]:
        for text in problems_before_loading(self.parsed, self.load_rows):
            yield from refused_findings(text, INVALID)

    def _refused(self, error: UserError) -> Iterator[CheckFinding]:
        """Yield the problems that train would report, unless the config already has these findings."""
        yield from (one for one in refused_findings(str(error)) if one not in self.examination.findings)

    @cached_property
    def files(self) -> Files:
        """The small files of the model; nothing but the reason if there are none."""
        name = self.model.model_name_or_path or ""
        if is_reference(name) and not Path(name).expanduser().exists():
            reason = f"{name} is a function, which may train a model, and is not called"
            self.examination.unchecked.append(f"model, tokenizer, template and lengths: {reason}")
            return Files()
        try:
            path = model_path(name, self.parsed.folder)
        except UserError as error:
            refused = tuple(self._refused(error))
            try:  # the memory of a config alone can be planned
                return Files(name, read_model_config(name) if Path(name).is_file() else None, failed=refused)
            except ValueError as unreadable:
                return Files(name, failed=(UNREADABLE.at(name, unreadable),))
        settings = {"revision": self.model.model_revision, "trust_remote_code": self.parsed.trusts_code or None}
        settings |= {key: value for key, value in (self.args.model_init_kwargs or {}).items() if key in settings}
        return model_files(path, {key: value for key, value in settings.items() if value not in (None, "main")})

    @cached_property
    def data(self) -> DataCheck | None:
        """The rows of the run; None if they cannot be read, which is a finding."""
        chat = getattr(self.files.tokenizer, "chat_template", None) is not None
        make = maker(self.parsed.prompt, chat=chat) if self.parsed.prompt else lambda row: row.get("prompt")
        parts = [*self.args.recipe.verifiers, *self.args.recipe.eval_verifiers]
        try:
            _, sets = find_rows(self.parsed, self.load_rows)
            train = sets.pop("dataset_train_split")
            data = read_data(train, parts, make, self.limit)
            further = [data if rows is train else read_data(rows, parts, make, self.limit) for rows in sets.values()]
        except UserError as error:
            self.examination.sections.setdefault("data", []).extend(self._refused(error))
            self.examination.unchecked.append("rows, golds, lengths and template: the data could not be read")
            return None
        self.examination.unchecked += data.unread
        if self.files.failed:
            self.examination.unchecked.append("lengths and template: the model's files could not be read")
        files = Files() if self.files.failed else self.files
        second = further[0] if further else None
        context = None if files.config is None else context_of(files.config)
        return DataCheck(self.args, data, parts, second, files.tokenizer, context)

    def _rows(self) -> Iterator[CheckFinding]:
        if self.data is not None:
            yield from self.data.quick()

    def _columns(self) -> Iterator[CheckFinding]:
        """Check the columns required by reward functions; the config check covers those of verifiers."""
        if self.data is None or self.args.recipe.environments or not self.data.data.columns:
            return  # an environment may add columns, and a stream may not list its columns
        columns = {*self.data.data.columns, *STANDARD, *(["prompt"] if self.parsed.prompt else [])}
        for name in self.script.reward_funcs or []:
            try:
                (function,) = resolve_rewards(None, [name], self.parsed.folder)
                parameters = inspect.signature(function).parameters.values()
            except (UserError, ValueError, TypeError):
                continue
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            for one in parameters:
                if one.kind in kinds and one.default is one.empty and one.name not in columns:
                    yield COLUMN.at(f"reward_funcs {name}", unknown("column", one.name, self.data.data.columns))

    def _golds(self) -> Iterator[CheckFinding]:
        if self.data is None:
            return
        functions = [*(self.script.reward_funcs or []), self.script.reward_model_name_or_path]
        if names := ", ".join(filter(None, functions)):
            self.examination.unchecked.append(f"golds of reward functions and models: {names}")
        try:
            yield from self.data.golds(self.examination.unchecked.append)
        finally:
            close_shared_runners()

    def _model(self) -> Iterator[CheckFinding]:
        yield from self.files.failed
        if not self.files.failed and self.files.config is not None:
            yield from token_findings(self.model.model_name_or_path, self.files)

    def _template(self) -> Iterator[CheckFinding]:
        if self.files.template_elsewhere:
            self.examination.unchecked.append("the chat template: a vision model has it in its processor")
        if self.data is not None:
            yield from self.data.template(self.files)

    def _memory(self) -> Iterator[CheckFinding]:
        """Check memory and disk; tell the planner's table for a run with adapters, and the time of an earlier run."""
        if self.files.config is None:
            yield from (one for one in self.files.failed if one not in self.examination.findings)
            self.examination.unchecked.append("memory: the model's config could not be read")
            return
        here, adapter = cards(), get_peft_config(self.model)
        elsewhere = self.options.vram is not None
        capacity = float(here[0].total) or None if here and not (self.args.use_cpu or elsewhere) else None
        if elsewhere and adapter is None:
            capacity = self.options.vram * REPORTED * GIB
        bits, double = storage_of(self.model, self.files.name, self.files.config, trusts_code=self.parsed.trusts_code)
        sharded = (self.parsed.processes or 1) > 1 or bool(self.args.fsdp or self.args.deepspeed)
        # Bytes of a loaded weight.
        width = bits / 8 * 1.1 if bits else 2.0 if str(self.model.dtype) in ("auto", "bfloat16", "float16") else 4.0
        yield from fit_findings(
            self.args, self.files.config, self.files.name, adapter, width=width, capacity=capacity,
            memory=None if elsewhere else memory()[0],
            bits=bits, double=double, sharded=sharded,
        )  # fmt: skip
        self.examination.tell("memory", time_lines(self.args, self.model.model_name_or_path))
        yield from self._plan()

    def _plan(self) -> Iterator[CheckFinding]:
        """Tell the memory of a run with adapters on a card, with the defaults that a card has."""
        if not self.model.use_peft:
            self.examination.unchecked.append("memory of a step: the planner counts runs with adapters (use_peft) only")
            return
        on_card = parse(PROG, on_cpu(self.arguments), own=self.options.own, device=Device("cuda", bf16=True))
        length = self.options.prompt_length
        try:
            plan = planned_run(
                on_card.training, on_card.model, self.files.name, prompt_length=length, trusts_code=on_card.trusts_code
            )
            for line in memory_lines(on_card.training, *plan, self.options.vram):
                self.examination.tell("memory", [line])
        except ValueError as error:
            yield SHORT.at("memory", error)
        self.examination.unchecked += uncounted(
            on_card.training,
            reward_model=bool(self.script.reward_model_name_or_path),
            full_warm_start=bool((self.parsed.warm_start or {}).get("full")),
            prompt_length=length,
        )
