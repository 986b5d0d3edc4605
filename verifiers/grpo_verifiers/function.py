"""A verifier from one check function: its settings, its columns, its calls."""

import functools
import inspect
import os
import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from grpo_verifiers.base import Pending, Rows, Verifier
from grpo_verifiers.base.golds import BrokenReport, GoldReport, Trial, check_trials
from grpo_verifiers.base.traits import OnError, Traits, traits_of
from grpo_verifiers.errors import ColumnError, VerifierError
from grpo_verifiers.errors.messages import short, type_name, unknown
from grpo_verifiers.exec.form import Form, arguments, form_of
from grpo_verifiers.exec.isolation import ELSEWHERE, is_elsewhere, isolation_problems
from grpo_verifiers.exec.outcome import MARK, Outcome
from grpo_verifiers.exec.policy import HOPELESS, Policy
from grpo_verifiers.exec.samples import NOT_COLUMNS, RESERVED, Samples
from grpo_verifiers.options import fits, option_problems
from grpo_verifiers.registry import source_of
from grpo_verifiers.verdict import Verdict

if TYPE_CHECKING:
    from grpo_verifiers.exec.calls import Executor

GOLD = "answer"
"""The parameter that holds gold answers."""
DEFAULT_TIMEOUT = 10.0
DEFAULT_BATCH_TIMEOUT = 60.0
DEFAULT_ASYNC_TIMEOUT = 120.0


class FunctionVerifier(Verifier):
    """A check function as a verifier, from ``@verifier`` or ``get_verifier``."""

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str,
        traits: Traits,
        *,
        label: str | None = None,
        columns: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Wrap a check with a registered name or a reference; ``label`` defaults to ``name``.

        ``columns`` maps parameter to dataset column, where they differ.
        """
        super().__init__(label if label is not None else name)
        self.fn = fn
        self.name = name
        self.traits = traits
        self.columns = dict(columns or {})
        self.options = dict(options or {})
        self.form: Form = form_of(name, fn)
        self._options = {name: value for name, value in self.options.items() if name in self.form.options}
        self.gives_steps = False if traits.steps is None and traits.builtin else traits.steps
        self.reader = None if traits.stated is None else self._read
        self._map_columns()
        source = None if traits.builtin else fn
        self._policy = Policy(self.label, source, traits.on_error, self.timeout, batch=self.form.batch)
        self.__doc__ = fn.__doc__
        self.__module__ = getattr(fn, "__module__", __name__)

    # -- settings

    def _map_columns(self) -> None:
        """Map the parameters without an option to columns."""
        columns, form = self.columns, self.form
        open_to = {name: needed for name, needed in form.columns.items() if name not in self.options}
        self.named_columns = {name: column for name, column in columns.items() if name not in self.options}
        self.required_columns = {name: columns.get(name, name) for name, needed in open_to.items() if needed}
        if form.open:
            more = {name: column for name, column in self.named_columns.items() if name not in form.columns}
            self.required_columns |= more
        self.optional_columns = {name: columns.get(name, name) for name, needed in open_to.items() if not needed}
        self.tried_columns = {name: columns.get(name, name) for name in self.traits.gold_columns}

    @property
    def isolation(self) -> str:
        """Run in a worker process, in the trainer, or elsewhere."""
        if self.traits.isolation is not None:
            return self.traits.isolation
        if self.traits.home == "inline" and self._timeout_needs_process():
            return "process"
        return self.traits.home or ("inline" if self.form.is_async or self.form.extras else "process")

    def _timeout_needs_process(self) -> bool:
        return self.traits.timeout is not None and not self.form.is_async

    @property
    def timeout(self) -> float | None:
        """Seconds that one call may take; None: no limit."""
        if self.traits.timeout is not None:
            # `check` reports a wrong type.
            return float(self.traits.timeout) if fits(self.traits.timeout, float) else self.traits.timeout
        if self.isolation == "inline":
            return DEFAULT_ASYNC_TIMEOUT if self.form.is_async else None
        return DEFAULT_BATCH_TIMEOUT if self.form.batch else DEFAULT_TIMEOUT

    @property
    def on_error(self) -> OnError:
        """The score of a failure that may depend on the completion: ``"zero"``, ``"null"``, or ``"raise"``."""
        return self.traits.on_error or "zero"

    def stated(self, completion: str) -> Any:
        """The answer in a completion, from the check's own function."""
        return None if self.traits.stated is None else self.traits.stated(completion, **self._options)

    def _read(self, completion: str) -> str | None:
        try:
            answer = self.stated(completion)
        except Exception as error:  # noqa: BLE001 - a sample without a vote, not the end of an evaluation
            self._policy.unreadable(f"raised {type_name(type(error))}: {short(error)}")
            return None
        if answer is None or isinstance(answer, str):
            return answer
        self._policy.unreadable(f"gave {short(answer)}")
        return None

    def derive(
        self,
        *,
        label: str | None = None,
        columns: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        **changed: Any,
    ) -> "FunctionVerifier":
        """A copy with changed settings."""
        return type(self)(
            self.fn,
            self.name,
            replace(self.traits, **changed),
            label=self.label if label is None else label,
            columns={**self.columns, **(columns or {})},
            options={**self.options, **(options or {})},
        )

    @property
    def stricter(self) -> dict[str, Any]:
        """Options of the stricter variant that differ from its own; empty if there is none."""
        parameters = inspect.signature(self.fn).parameters
        return {
            name: value
            for name, value in (self.traits.stricter or {}).items()
            if name in parameters and self.options.get(name, parameters[name].default) != value
        }

    def state_dict(self) -> dict[str, Any]:
        """The counts of its policy."""
        counts = {name: getattr(self._policy, name) for name in ("failures", "late")}
        return counts if any(counts.values()) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts."""
        self._policy.failures, self._policy.late = int(state["failures"]), int(state["late"])

    def check(self) -> list[str]:
        """Problems with its settings, options and columns."""
        form, subject = self.form, f"verifier {self.label!r}"
        unset = form.columns.keys() - self.options.keys()
        skip = {form.first, *form.reserved, *form.extras, *form.logs, *unset}
        problems = self.traits.problems(subject)
        problems += option_problems(subject, self.fn, self.options, skip=skip, where="option", bare=True)
        here = not is_elsewhere(self.isolation)
        own = [*isolation_problems(self.isolation), *self._column_problems()]
        own += self.traits.declared_problems(self.fn, self._options, here=here)
        own += self._place_problems()
        problems += [f"{subject}: {problem}" for problem in own]
        if self.isolation != "inline" and not problems:
            try:
                self.spec  # noqa: B018 - raises unless the function can travel
            except VerifierError as error:
                problems.append(f"{subject}: {error}")
        return problems

    def _place_problems(self) -> Iterator[str]:
        if self.isolation == "inline" and self._timeout_needs_process():
            yield (
                f"timeout is {self.traits.timeout!r}, but isolation is 'inline': only a worker process can be "
                "stopped. Remove the one that you set."
            )
        if self.isolation != "inline" and self.form.extras:
            yield (
                f"it needs {self.form.extras[0]!r}, which exists in the trainer's process only; choose "
                "isolation='inline'."
            )
        waits = self.traits.builtin and self.form.is_async
        if waits and self.isolation != "inline" and (self.isolation == "process" or not self.traits.boxes):
            yield (
                f"isolation is {self.isolation!r}, but it only waits for a server or for boxes of its own: leave "
                "isolation out ('ray' has the boxes on other machines)."
            )
        if is_elsewhere(self.isolation) and (missing := ELSEWHERE.get(self.isolation).problem()):
            yield missing

    def _column_problems(self) -> Iterator[str]:
        form = self.form
        for column, option in (self.traits.instead or {}).items():
            if self.options.get(option) is None and column not in self.columns | self.options:
                yield f"set its option {option}, or columns: {{{column}: COLUMN}} for a column of the dataset."
        fixed = {*RESERVED, *NOT_COLUMNS, form.first, *form.options}
        parameters = [*form.columns, *self.traits.gold_columns]
        mapped: Mapping[str, Any] = self.columns  # from a config: values of any type
        for parameter, column in mapped.items():
            if parameter in fixed:
                yield f"columns maps {parameter!r}, which is not filled from the dataset."
            elif parameter not in parameters and not form.open:
                yield f"columns: {unknown('parameter', parameter, parameters)}"
            elif not isinstance(column, str):
                yield f"columns maps {parameter!r} to {column!r}, expected the name of a dataset column."
            elif parameter in self.options:
                yield f"{parameter!r} is set in kwargs ({self.options[parameter]!r}) and mapped in columns."

    def check_golds(self, rows: Any) -> GoldReport | None:
        """Check the gold answers, or the tests, of a dataset; None without any."""
        golds, trials = self.traits.golds, self.traits.trials
        check: Callable[[], GoldReport | None]
        if trials is not None:
            names = self._columns_of(rows, self.required_columns.values())
            cells = {name: list(rows[column]) for name, column in self.gold_columns.items() if column in names}
            kind, check = "trials", functools.partial(self._try_rows, cells, trials)
        elif golds is not None:
            answers, column = [self.options.get(GOLD)], self.columns.get(GOLD, GOLD)
            if GOLD not in self.options:
                self._columns_of(rows, [column])
                answers = rows[column]
            kind, check = "golds", functools.partial(golds, answers, **self._options)
        else:
            return None
        try:
            report = check()
            sound = report is None or (hasattr(report, "ok") and callable(getattr(report, "lines", None)))
        except VerifierError:
            raise
        except Exception as error:  # noqa: BLE001 - of a plug-in: a report, not the end of a run
            return BrokenReport(f"{kind} raised {short(error)}.")
        return report if sound else BrokenReport(f"{kind} gave {short(report)}, expected a report or None.")

    def _columns_of(self, rows: Any, needed: Iterable[str]) -> list[str]:
        """The column names of a dataset or a mapping; ColumnError if a needed one is missing."""
        names = getattr(rows, "column_names", None)
        if names is None and not isinstance(rows, Mapping):
            raise ColumnError(
                f"check_golds takes a dataset or columns, as in {{'answer': ['4']}}, got {type_name(rows)}."
            )
        present = list(rows if names is None else names)
        for column in needed:
            if column not in present:
                raise ColumnError(f"verifier {self.label!r}: {unknown('column', column, present)}")
        return present

    def _try_rows(self, cells: Mapping[str, Sequence[Any]], trials: Callable[..., Sequence[Trial]]) -> GoldReport:
        """The report of trials on rows, as the values of each parameter."""
        fixed = {name: value for name, value in self.options.items() if name in self.form.columns}
        size = len(next(iter(cells.values()), [None]))
        values = [{name: cells[name][row] for name in cells} for row in range(size)]

        def verify(completions: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
            columns = {column: [row[name] for row in rows] for name, column in self.required_columns.items()}
            return self.verify_batch(None, completions, None, **columns)

        return check_trials(values, lambda row: trials(**fixed, **row, **self._options), verify)

    def describe(self) -> dict[str, Any]:
        """Settings for people."""
        return {
            "name": self.name,
            "label": self.label,
            "source": source_of(self.fn),
            "form": "batch" if self.form.batch else "single",
            "isolation": self.isolation,
            "timeout": self.timeout,
            "on_error": self.on_error,
            "required_columns": dict(self.required_columns),
            "optional_columns": dict(self.optional_columns),
            "options": dict(self.options),
        }

    @functools.cached_property
    def spec(self) -> Any:
        """The function for workers."""
        from grpo_verifiers.exec.runner import default_memory
        from grpo_verifiers.exec.spec import make_spec

        traits = self.traits
        cap = default_memory() if traits.memory is None else int(traits.memory * (1 << 30)) or None
        return make_spec(
            self.fn,
            confined=traits.builtin,
            memory=cap,
            env=traits.env,
            plugins=traits.plugins,
            boxes=traits.max_concurrency if traits.boxes else 0,
            elsewhere=is_elsewhere(self.isolation),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        from grpo_verifiers.exec.spec import by_value, make_spec

        declared, names = traits_of(self.fn), [field.name for field in fields(Traits)]
        own = {name: value for name in names if (value := getattr(self.traits, name)) != getattr(declared, name)}
        state = (self.name, by_value(own), self.label, self.columns, self.options)
        return _rebuild, (make_spec(self.fn, plugins=self.traits.plugins), *state)

    # -- running

    def warm(self) -> None:
        """Start its worker processes, without waiting."""
        if self._runs_in_workers():
            from grpo_verifiers.exec.runner import shared_runner

            shared_runner(self.isolation).warm(self.spec)

    def start(
        self, /, prompts: Rows | None, completions: Rows, completion_ids: Rows | None = None, **columns: Any
    ) -> Pending:
        """Submit everything without waiting."""
        samples = Samples.of(self.label, prompts, completions, completion_ids, columns)
        everything = range(len(samples))
        collect = self._place(self._calls(samples))

        def finish() -> tuple[list[Verdict], list[float]]:
            outcomes = collect()
            calls: list[tuple[Sequence[int], Outcome]] = [([row], each) for row, each in enumerate(outcomes)]
            if self.form.batch and outcomes:
                failed = outcomes[0].kind == "raised" and self.on_error != "raise"
                calls = self._in_parts(samples, outcomes[0]) if failed else [(everything, outcomes[0])]
            results: dict[int, tuple[Verdict, float]] = {}
            judged: dict[int, list[Verdict]] = {}  # equal questions share an outcome, and a failure counts once
            for rows, outcome in calls:
                if id(outcome) not in judged:
                    judged[id(outcome)] = self._policy.verdicts(outcome, len(rows))
                results.update(zip(rows, ((each, outcome.seconds) for each in judged[id(outcome)]), strict=True))
            return [results[row][0] for row in everything], [results[row][1] for row in everything]

        return Pending(finish)

    def _calls(self, samples: Samples) -> list[tuple[Any, dict[str, Any], int | None]]:
        inline = self.isolation == "inline"
        return arguments(self.form, samples, self.columns, self.options, raw=self.traits.raw, inline=inline)

    def _in_parts(self, samples: Samples, failed: Outcome) -> list[tuple[Sequence[int], Outcome]]:
        """Check each completion of a failed batch alone: its row, and its own outcome.

        A check that fails on all of ``HOPELESS`` completions, sampled with a fixed seed, is not run on the rest: its
        one failure is the failure of the batch.
        """
        everything = range(len(samples))
        if len(everything) == 1:
            return [(everything, failed)]

        def ask(rows: Sequence[int]) -> dict[int, Outcome]:
            calls = [call for row in rows for call in self._calls(samples.pick([row]).without_logs())]
            return dict(zip(rows, self._place(calls)(), strict=True))

        outcomes = ask(random.Random(0).sample(everything, min(HOPELESS, len(everything))))  # noqa: S311 - no secret
        failures = [outcome for outcome in outcomes.values() if outcome.kind != "value"]
        if len(failures) == len(outcomes):
            broken = (each for each in failures if each.kind == "broken")
            return [(everything, next(broken, failed))]
        outcomes |= ask([row for row in everything if row not in outcomes])
        return [([row], outcomes[row]) for row in everything]

    def _runs_in_workers(self) -> bool:
        # A check that uses a verifier runs in a worker already: the same deadline holds for both.
        return self.isolation != "inline" and MARK not in os.environ

    @functools.cached_property
    def _place(self) -> "Executor":
        """One for all threads, created on first use; of several created at once only the first is used."""
        place: Executor = vars(self).setdefault("_place", self._new_place())
        return place

    def _new_place(self) -> "Executor":
        from grpo_verifiers.exec.aio import Gate
        from grpo_verifiers.exec.calls import in_event_loop, in_this_thread, in_workers

        timeout = self.timeout or 0.0
        if self._runs_in_workers():
            pure, isolation = self.traits.pure, self.isolation
            return functools.partial(in_workers, self.label, self.spec, timeout, pure=pure, isolation=isolation)
        if self.form.is_async and self.isolation == "inline":
            return functools.partial(in_event_loop, self.fn, timeout, Gate(self.traits.max_concurrency))
        return functools.partial(in_this_thread, self.fn)

    def failed(self, reason: str) -> Verdict:
        """The verdict on a completion that the check failed on, by policy."""
        return self._policy.failed(reason)


def _rebuild(  # noqa: PLR0917 - the state from __reduce__
    spec: Any, name: str, own: bytes, label: str, columns: dict[str, str], options: dict[str, Any]
) -> FunctionVerifier:
    fn = spec.load()
    traits = replace(traits_of(fn), **pickle.loads(own))  # noqa: S301 - written by `__reduce__` above
    return FunctionVerifier(fn, name, traits, label=label, columns=columns, options=options)
