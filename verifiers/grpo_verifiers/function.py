"""A verifier made from one check function: where it runs, what it is given, and what its failures mean."""

import functools
import importlib
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from grpo_verifiers.base import Pending, Verifier
from grpo_verifiers.errors import ColumnError, VerifierError, VerifierFailedError
from grpo_verifiers.errors.messages import readable, short, unknown
from grpo_verifiers.exec.form import Form, arguments, form_of
from grpo_verifiers.exec.outcome import MARK, Outcome, Refused
from grpo_verifiers.exec.samples import NOT_COLUMNS, RESERVED, Samples, rows_by_prompt
from grpo_verifiers.golds import GoldReport
from grpo_verifiers.golds.trials import Trial, check_trials
from grpo_verifiers.options import option_problems
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.registry import source_of
from grpo_verifiers.verdict import FAULTS, MAX_DETAIL, Fault, Status, Verdict, blamed, excused

if TYPE_CHECKING:
    from grpo_verifiers.exec.calls import Place

HOPELESS = 32
"""So many failures in a row, and nothing else, mean that the verifier is broken and not the completions."""
GOLD = "answer"
"""The parameter that holds gold answers."""
BATCH_FAILURE = 8
"""How many failures one failed call of a batch function counts for: one bad completion may fail them all."""
DEFAULT_TIMEOUT = 10.0
DEFAULT_BATCH_TIMEOUT = 60.0
DEFAULT_ASYNC_TIMEOUT = 120.0

Isolation = Literal["process", "inline"]
OnError = Literal["null", "zero", "raise"]

_log = get_logger("grpo_verifiers")


@dataclass(frozen=True)
class Settings:
    """How a check is run.

    Attributes:
        timeout: seconds from an item's start; None for the default of its kind (none for plain inline functions).
        isolation: in a worker process that can be killed, or in the trainer; None: processes, but for async functions.
        on_error: what it means that the check raises, or returns what is no verdict: ``"zero"`` scores the completion
            0, ``"null"`` leaves it out, ``"raise"`` stops the run. None: zero, but a check that does nothing else stops
            the run, too.
        max_concurrency: how many calls of an async check run at a time.
        memory: GiB of address space of a worker, 0 for no cap; None for the default.
        env: environment variables that workers of this check may see although they look like secrets.
        home: where a check of this package runs unless told otherwise; a timeout moves it to a worker process.
        builtin: comes with this package: its workers are confined, unless ``confined`` says otherwise.
        confined: False for a check that builds a sandbox of its own, which confinement would forbid.
        raw: wants the completions as TRL has them: chats as lists of messages.
        by_prompt: looks at all completions of a prompt together: where a batch fails, prompts are asked one by one.
        fast: see ``builtins``.
        golds: see ``builtins``.
        trials: see ``builtins``.
        gold_columns: see ``builtins``.
        gold_sample: see ``builtins``.
        option_checks: see ``builtins``.
        pure: see ``builtins``.
        steps: see ``builtins``.
        plugins: modules that workers import first.
    """

    timeout: float | None = None
    isolation: Isolation | None = None
    on_error: OnError | None = None
    max_concurrency: int = 32
    memory: float | None = None
    env: tuple[str, ...] = ()
    home: Isolation | None = None
    builtin: bool = False
    confined: bool = True
    raw: bool = False
    by_prompt: bool = False
    fast: str | None = None
    option_checks: str | None = None
    golds: str | None = None
    trials: str | None = None
    gold_columns: tuple[str, ...] = ()
    gold_sample: int | None = None
    pure: bool = False
    steps: bool = False
    plugins: tuple[str, ...] = ()

    def problems(self, what: str) -> list[str]:
        """Values that mean nothing."""
        found = []
        if self.timeout is not None and not (_is_number(self.timeout) and 0 < self.timeout < 1e9):
            found.append(f"{what}: timeout is {short(self.timeout)}, expected seconds greater than 0.")
        if self.isolation not in {None, "process", "inline"}:
            found.append(f"{what}: {unknown('isolation', self.isolation, ['process', 'inline'])}")
        if self.on_error not in {None, "null", "zero", "raise"}:
            found.append(f"{what}: {unknown('on_error', self.on_error, ['null', 'zero', 'raise'])}")
        if (
            not isinstance(self.max_concurrency, int)
            or isinstance(self.max_concurrency, bool)
            or self.max_concurrency < 1
        ):
            found.append(f"{what}: max_concurrency is {self.max_concurrency!r}, expected a whole number of at least 1.")
        if self.memory is not None and not (_is_number(self.memory) and 0 <= self.memory < 1 << 20):
            found.append(f"{what}: memory is {self.memory!r}, expected GiB (0: no cap).")
        return found


@dataclass
class _Health:
    """Failures in a row, across steps."""

    failures: int = 0
    late: int = 0
    warned: set[str] = field(default_factory=set)


class FunctionVerifier(Verifier):
    """See the module; made by ``@verifier`` and ``get_verifier``."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        settings: Settings,
        *,
        label: str | None = None,
        columns: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap a function.

        Args:
            fn: the check.
            name: what it is registered or referred to as.
            settings: how it is run.
            label: its name in this run, the ``name`` unless given.
            columns: parameter to dataset column, where they differ.
            options: keywords for the function.
        """
        super().__init__(label if label is not None else name)
        self.fn = fn
        self.name = name
        self.settings = settings
        self.columns = dict(columns or {})
        self.options = dict(options or {})
        self.form: Form = form_of(name, fn)
        self._health = _Health()
        self.__doc__ = fn.__doc__
        self.__module__ = getattr(fn, "__module__", __name__)

    # -- settings

    @property
    def isolation(self) -> Isolation:
        """Where it runs."""
        if self.settings.isolation is not None:
            return self.settings.isolation
        if self.settings.home == "inline" and self._timeout_needs_process():
            return "process"
        return self.settings.home or ("inline" if self.form.is_async or self.form.extras else "process")

    def _timeout_needs_process(self) -> bool:
        return self.settings.timeout is not None and not self.form.is_async

    @property
    def timeout(self) -> float | None:
        """Seconds that one call may take; None where nothing holds it to any."""
        if self.settings.timeout is not None:
            return float(self.settings.timeout)
        if self.isolation == "inline":
            return DEFAULT_ASYNC_TIMEOUT if self.form.is_async else None
        return DEFAULT_BATCH_TIMEOUT if self.form.batch else DEFAULT_TIMEOUT

    @property
    def on_error(self) -> OnError:
        """What a failure that may depend on the completion means for it."""
        return self.settings.on_error or "zero"

    @property
    def gives_steps(self) -> bool | None:
        """Whether its verdicts have steps; None where only running it can tell."""
        return self.settings.steps if self.settings.builtin else None

    @property
    def required_columns(self) -> dict[str, str]:
        """Parameter to dataset column, for what it cannot do without."""
        found = {name: self.columns.get(name, name) for name, needed in self.form.columns.items() if needed}
        if self.form.open:
            found.update({name: column for name, column in self.columns.items() if name not in self.form.columns})
        return {name: column for name, column in found.items() if name not in self.options}

    @property
    def gold_columns(self) -> dict[str, str]:
        """Parameter to dataset column, for what its check of golds reads where the dataset has it."""
        return self.required_columns | {name: self.columns.get(name, name) for name in self.settings.gold_columns}

    @property
    def named_columns(self) -> dict[str, str]:
        """Parameter to dataset column, as its user named them: a training set must have them, needed or not."""
        return {name: column for name, column in self.columns.items() if name not in self.options}

    @property
    def gold_sample(self) -> int | None:
        """How many rows its check of golds looks at when training starts; None: all."""
        return self.settings.gold_sample

    @property
    def optional_columns(self) -> dict[str, str]:
        """Parameter to dataset column, for what it uses where the dataset has it."""
        return {
            name: self.columns.get(name, name)
            for name, needed in self.form.columns.items()
            if not needed and name not in self.options
        }

    def derive(
        self,
        *,
        label: str | None = None,
        columns: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        **changed: Any,
    ) -> "FunctionVerifier":
        """A copy with other settings; what is not given stays."""
        return type(self)(
            self.fn,
            self.name,
            replace(self.settings, **changed),
            label=self.label if label is None else label,
            columns={**self.columns, **(columns or {})},
            options={**self.options, **(options or {})},
        )

    def check(self) -> list[str]:
        """What is wrong with its settings; empty when nothing is."""
        what = f"verifier {self.label!r}"
        form, settings = self.form, self.settings
        found = settings.problems(what)
        skip = {
            form.first,
            *form.reserved,
            *form.extras,
            *form.logs,
            *(name for name in form.columns if name not in self.options),
        }
        found += option_problems(what, self.fn, self.options, skip=skip, where="option")
        checks = _imported(self.settings.option_checks) if not found else None
        if checks is not None and self.name in checks:
            found += [f"{what}: {problem}" for problem in checks[self.name](**self._only_options())]
        taken = {*RESERVED, *NOT_COLUMNS, form.first, *form.options}
        mapped: Mapping[str, Any] = self.columns  # from a config, so anything
        for parameter, column in mapped.items():
            if parameter in taken:
                found.append(f"{what}: columns maps {parameter!r}, which is not filled from the dataset.")
            elif parameter not in (known := [*form.columns, *settings.gold_columns]) and not form.open:
                found.append(f"{what}: columns: {unknown('parameter', parameter, known)}")
            elif not isinstance(column, str):
                found.append(
                    f"{what}: columns maps {parameter!r} to {column!r}, expected the name of a dataset column."
                )
            elif parameter in self.options:
                found.append(
                    f"{what}: {parameter!r} is set in kwargs ({self.options[parameter]!r}) and mapped in columns."
                )
        if self.isolation == "inline" and self._timeout_needs_process():
            found.append(
                f"{what}: timeout is {settings.timeout!r}, but isolation is 'inline': only a worker process can be "
                "stopped. Leave one of them out."
            )
        if self.isolation == "process" and form.extras:
            found.append(
                f"{what}: it asks for {form.extras[0]!r}, which exists in the trainer's process only; choose "
                "isolation='inline'."
            )
        if self.isolation == "process" and not found:
            try:
                self.spec  # noqa: B018 - finds out whether the function can travel
            except VerifierError as error:
                found.append(f"{what}: {error}")
        return found

    def check_golds(self, rows: Any) -> GoldReport | None:
        """Whether the gold answers of a dataset can be used; None where there are none to check."""
        if self.settings.trials is not None:
            return self._try_rows(rows, _imported(self.settings.trials))
        judge = _imported(self.settings.golds)
        if judge is None:
            return None
        options = self._only_options()
        if GOLD in self.options:
            answers = [self.options[GOLD]]
        else:
            column = self.columns.get(GOLD, GOLD)
            names = getattr(rows, "column_names", None) or list(rows)
            if column not in names:
                raise ColumnError(f"verifier {self.label!r}: {unknown('column', column, names)}")
            answers = rows[column]
        report: GoldReport = judge(answers, **options)
        return report

    def _try_rows(self, rows: Any, trials: Callable[..., Sequence[Trial]]) -> GoldReport:
        """The report of trials on each row of a dataset."""
        names = getattr(rows, "column_names", None) or list(rows)
        for column in self.required_columns.values():
            if column not in names:
                raise ColumnError(f"verifier {self.label!r}: {unknown('column', column, names)}")
        columns = {name: column for name, column in self.gold_columns.items() if column in names}
        fixed = {name: value for name, value in self.options.items() if name in self.form.columns}
        held = {name: list(rows[column]) for name, column in columns.items()}
        size = len(next(iter(held.values()), [None]))
        values = [{name: held[name][row] for name in held} for row in range(size)]

        def verify(completions: Sequence[str], given: Sequence[Mapping[str, Any]]) -> list[Verdict]:
            told = {column: [row[name] for row in given] for name, column in self.required_columns.items()}
            return self.verify_batch(None, completions, None, **told)

        return check_trials(values, lambda row: trials(**fixed, **row, **self._only_options()), verify)

    def _only_options(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name in self.form.options}

    def describe(self) -> dict[str, Any]:
        """Its settings, for people."""
        return {
            "name": self.name,
            "label": self.label,
            "source": source_of(self.fn),
            "form": "batch" if self.form.batch else "single",
            "isolation": self.isolation,
            "timeout": self.timeout,
            "on_error": self.on_error,
            "required_columns": self.required_columns,
            "optional_columns": self.optional_columns,
            "options": dict(self.options),
        }

    @functools.cached_property
    def spec(self) -> Any:
        """The function as workers know it."""
        from grpo_verifiers.exec.runner import default_memory
        from grpo_verifiers.exec.spec import make_spec

        memory = self.settings.memory
        cap = default_memory() if memory is None else int(memory * (1 << 30)) or None
        confined = self.settings.builtin and self.settings.confined
        return make_spec(self.fn, confined=confined, memory=cap, env=self.settings.env, plugins=self.settings.plugins)

    def __reduce__(self) -> tuple[Any, ...]:
        from grpo_verifiers.exec.spec import make_spec

        state = (self.name, asdict(self.settings), self.label, self.columns, self.options)
        return _rebuild, (make_spec(self.fn, plugins=self.settings.plugins), *state)

    # -- running

    def warm(self) -> None:
        """Start what it runs in, without waiting."""
        if self._runs_in_workers():
            from grpo_verifiers.exec.runner import shared_runner

            shared_runner().warm(self.spec)

    def start(
        self,
        /,
        prompts: Sequence[Any] | None,
        completions: Sequence[Any],
        completion_ids: Sequence[Any] | None = None,
        **columns: Any,
    ) -> Pending:
        """Submit everything without waiting."""
        samples = Samples.of(self.label, prompts, completions, completion_ids, columns)
        everything = range(len(samples))
        collect = self._place.start(self._calls(samples))

        def finish() -> tuple[list[Verdict], list[float]]:
            outcomes = collect()
            asked: list[tuple[Sequence[int], Outcome]] = [([row], each) for row, each in enumerate(outcomes)]
            if self.form.batch and outcomes:
                failed = outcomes[0].kind == "raised" and self.on_error != "raise"
                asked = self._in_parts(samples, outcomes[0]) if failed else [(everything, outcomes[0])]
            found: dict[int, tuple[Verdict, float]] = {}
            judged: dict[int, list[Verdict]] = {}  # equal questions share an outcome, and a failure counts once
            for rows, outcome in asked:
                if id(outcome) not in judged:
                    judged[id(outcome)] = self._judge(outcome, len(rows))
                found.update(zip(rows, ((each, outcome.seconds) for each in judged[id(outcome)]), strict=True))
            return [found[row][0] for row in everything], [found[row][1] for row in everything]

        return Pending(finish)

    def _calls(self, samples: Samples) -> list[tuple[Any, dict[str, Any], int | None]]:
        inline = self.isolation == "inline"
        return arguments(self.form, samples, self.columns, self.options, raw=self.settings.raw, inline=inline)

    def _in_parts(self, samples: Samples, failed: Outcome) -> list[tuple[Sequence[int], Outcome]]:
        """What became of each part of a batch whose one call raised: the rows of the part, and its own outcome.

        The parts are single completions, or those of one prompt (``by_prompt``). A check that fails on all of
        ``HOPELESS`` parts, drawn by a fixed seed so that no pattern of the batch meets them, is not asked about the
        others: its one failure stands for the batch.
        """
        parts = rows_by_prompt(samples.prompts) if self.settings.by_prompt else [[row] for row in range(len(samples))]
        if len(parts) == 1:
            return [(parts[0], failed)]

        def ask(indices: Sequence[int]) -> dict[int, Outcome]:
            calls = [call for index in indices for call in self._calls(samples.pick(parts[index]).unlogged())]
            return dict(zip(indices, self._place.start(calls)(), strict=True))

        found = ask(random.Random(0).sample(range(len(parts)), min(HOPELESS, len(parts))))  # noqa: S311 - no secret
        failures = [outcome for outcome in found.values() if outcome.kind != "value"]
        if len(failures) == len(found):
            broken = (each for each in failures if each.kind != "value" and FAULTS[each.kind] is Fault.VERIFIER)
            return [(range(len(samples)), next(broken, failed))]
        found |= ask([index for index in range(len(parts)) if index not in found])
        return [(part, found[index]) for index, part in enumerate(parts)]

    def _runs_in_workers(self) -> bool:
        # A check that uses a verifier runs in a worker already: the same deadline holds for both.
        return self.isolation == "process" and MARK not in os.environ

    @functools.cached_property
    def _place(self) -> "Place":
        """Made on first use, and one for all threads, though several may get as far as making it."""
        place: Place = vars(self).setdefault("_place", self._made_place())
        return place

    def _made_place(self) -> "Place":
        from grpo_verifiers.exec.calls import EventLoop, ThisThread, Workers

        if self._runs_in_workers():
            return Workers(
                self.label,
                self.spec,
                self.timeout or 0.0,
                first=self.form.first,
                pure=self.settings.pure,
                fast=_imported(self.settings.fast),
            )
        if self.form.is_async and self.isolation == "inline":
            return EventLoop(self.fn, self.timeout or 0.0, self.settings.max_concurrency)
        return ThisThread(self.fn)

    def failed(self, reason: str) -> Verdict:
        """The verdict on a completion that the check failed on, by policy."""
        if self.on_error == "raise":
            raise VerifierFailedError(f"verifier {self.label!r} failed, and on_error is 'raise': {reason}")
        return excused(reason) if self.on_error == "null" else blamed(reason)

    def _judge(self, outcome: Outcome, rows: int) -> list[Verdict]:
        """The verdicts of one outcome, by policy."""
        health = self._health
        if outcome.kind == "value":
            health.failures = health.late = 0
            return [self._row(verdict) for verdict in outcome.verdicts]
        if outcome.kind == "timeout":
            health.late += rows
            if health.late >= HOPELESS and "late" not in health.warned:
                health.warned.add("late")
                _log.warning(
                    "verifier %r was too late on %d completions in a row (timeout %g s): each scored 0. Is it stuck, "
                    "or the timeout too short?",
                    self.label,
                    health.late,
                    self.timeout,
                )
            return [blamed(outcome.message, Status.TIMEOUT)] * rows
        if FAULTS[outcome.kind] is Fault.VERIFIER:
            raise VerifierFailedError(self._story("cannot run", outcome))
        self._warn(outcome)
        if outcome.kind != "died" and self.on_error == "raise":
            raise VerifierFailedError(self._story("failed, and on_error is 'raise'", outcome))
        health.failures += min(rows, BATCH_FAILURE) if self.form.batch else 1
        if health.failures >= HOPELESS and self.settings.on_error != "zero":
            counted, health.failures = health.failures, 0
            raise VerifierFailedError(
                self._story(
                    f"failed on all of the last {counted} completions; repair it, or set on_error: zero", outcome
                )
            )
        if FAULTS[outcome.kind] is Fault.OUTSIDE:
            return [excused(outcome.message)] * rows
        return [blamed(outcome.message) if outcome.kind == "died" else self.failed(outcome.message)] * rows

    def _row(self, verdict: Verdict | Refused) -> Verdict:
        """One result of a call that gave verdicts."""
        if isinstance(verdict, Verdict):
            return verdict
        self._warn(Outcome("raised", message=verdict.reason))
        return self.failed(verdict.reason)

    def _warn(self, outcome: Outcome) -> None:
        """Show the first failure, with its traceback."""
        if "failed" not in self._health.warned:
            self._health.warned.add("failed")
            _log.warning("%s", self._story("failed on a completion", outcome))

    def _story(self, what: str, outcome: Outcome) -> str:
        where = f" ({source_of(self.fn)})" if not self.settings.builtin else ""
        trace = f"\n{outcome.trace.rstrip()}" if outcome.trace else ""
        return f"verifier {self.label!r}{where} {what}: {readable(outcome.message, MAX_DETAIL)}{trace}"


def _rebuild(  # noqa: PLR0917 - what __reduce__ saved
    spec: Any, name: str, settings: dict[str, Any], label: str, columns: dict[str, str], options: dict[str, Any]
) -> FunctionVerifier:
    return FunctionVerifier(spec.load(), name, Settings(**settings), label=label, columns=columns, options=options)


def _imported(reference: str | None) -> Any:
    if reference is None:
        return None
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
