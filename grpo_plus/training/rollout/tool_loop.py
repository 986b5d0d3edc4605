"""Tools and environments of a config in the trainer: a session for each completion, and the turns of a completion.

TRL's own loop parses calls, runs them one completion after another and continues sampling. Here the calls of all
completions start as soon as a turn is sampled, each in the session of its completion; TRL's loop only waits for them.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from grpo_plus.recipe.entries import COLUMN
from grpo_plus.recipe.recipe import Recipe, call_problems
from grpo_plus.sampling.token_spans import decoder
from grpo_plus.training.hooks import PromptRow, Setup, TrainerStage
from grpo_plus.training.rollout.call_rows import CallError, CallRow, ok_texts
from grpo_plus.training.rollout.markers import Markers, markers_of
from grpo_plus.training.rollout.tool_proxies import environment_proxy, tool_proxy
from grpo_plus.training.scoring import turns_of
from grpo_plus.trl.host import Host, temporary_attribute
from grpo_plus.trl.logs import log_metrics
from grpo_plus.trl.ranks import gather_objects
from grpo_plus.trl.tools import parse_turn, tools_by_row
from grpo_verifiers.errors import Problem, VerifierFailedError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.redaction import get_logger
from grpo_verifiers.tools.part import ToolPart
from grpo_verifiers.tools.sessions import Sessions, open_sessions
from grpo_verifiers.turns import CallStatus, Turn

logger = get_logger("grpo_plus")


@dataclass
class _Loop:
    """TRL's loop over a batch while it runs; TRL extends the lists.

    ``full`` are rows with results, but without room for another turn.
    """

    prompt_ids: Sequence[Sequence[int]]
    completion_ids: Sequence[Sequence[int]]
    completions: Sequence[list[dict[str, Any]]]
    rounds: int = 0
    full: set[int] = field(default_factory=set)


class Turns(NamedTuple):
    """The turns of each completion, and the span of tokens of each turn."""

    turns: list[Sequence[Turn]]
    tokens: list[list[tuple[int, int]]]


class ToolLoop(TrainerStage):
    """The tools and environments of the recipe, with a session for each completion during sampling."""

    name = "calling"

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._tools, self._environments = recipe.tools, recipe.environments
        self._warned: set[tuple[str, str]] = set()
        self._parts = (*self._tools, *self._environments.values())
        self._sessions: Sessions | None = None
        self._rows: list[CallRow] = []
        self._places: dict[int, int] = {}  # id of an environment's proxy to its row
        self._loop: _Loop | None = None

    # -- the stage --------------------------------------------------------------------------------------------------

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """Duplicate names of tools, missing columns of environments, and prompts that are not chats."""
        own = {getattr(tool, "__name__", str(tool)) for tool in setup.further.get("tools") or ()}
        most = getattr(setup.args, "max_tool_calling_iterations", None)
        problems = [*call_problems(self._recipe, sorted(own), most, open_ended=setup.rows_may_grow)]
        if not self._parts:
            return problems
        problems += [
            f"tools: {name!r} is also the name of a tool passed to the trainer: rename one of the two."
            for name in self._method_names()
            if name in own
        ]
        if self._environments and setup.further.get("environment_factory") is not None:
            problems.append("environment is set, and the trainer got an environment_factory too: keep one of them.")
        if setup.further.get("rollout_func") is not None:
            problems.append("tools and environment cannot be called by a rollout_func: keep one of them.")
        for name, rows, _ in setup.datasets():
            problems += self.data_problems(name, rows)
        return problems

    def data_problems(self, name: str, data: Any) -> list[str]:
        """Missing columns of environments, rows without an environment, and prompts that are not chats."""
        columns = getattr(data, "column_names", None)
        if columns is None or isinstance(columns, Mapping):
            return []
        problems = []
        if self._environments and None not in self._environments:
            if COLUMN not in columns:
                return [f"{name} has no column {COLUMN!r}, which names the environment of each row."]
            labels = [str(value) for value in self._environments]
            values = data.unique(COLUMN) if hasattr(data, "unique") else ()
            problems += [
                f"{name}: the column {COLUMN!r} has {value!r}. {unknown('environment', value, labels)}"
                for value in values
                if value not in self._environments
            ]
        for part in self._environments.values():
            problems += [
                f"{name} has no column {column!r}, which the environment {part.label!r} needs: its reset has the "
                f"parameter {column}. Add the column, or give the parameter a default."
                for column in part.columns
                if column not in columns
            ]
        if "prompt" in columns and hasattr(data, "__len__") and len(data) and isinstance(data[0]["prompt"], str):
            problems.append(
                f"{name}: the prompts are texts, and tools are called in chats: make them lists of messages "
                "(grpo-plus: prompt: {chat: true})."
            )
        return problems

    def before_loading(self, setup: Setup) -> None:
        """Start the processes of the tools, and pass proxies of the tools to TRL."""
        if not self._parts:
            return
        self._start_sessions()
        if self._tools:
            own = list(setup.further.get("tools") or ())
            proxies = [tool_proxy(part, self._call_outside_completion) for part in self._tools]
            setup.further["tools"] = [*own, *proxies]
        if self._environments:
            handlers: dict[str, Callable[..., Any]]
            handlers = {"reset": self._reset, "get_reward": self._reward, "call": self._method}
            classes: dict[Any, Any]
            classes = {value: environment_proxy(part, handlers) for value, part in self._environments.items()}
            setup.further["environment_factory"] = classes.get(None, classes)

    def open(self, rows: Sequence[PromptRow]) -> None:
        """Open a session for each row, and start to reset the environments."""
        self._close_sessions()
        if not self._parts:
            return
        sessions = self._start_sessions()
        methods = {method.name: method for part in self._tools for method in part.methods}
        for columns in rows:
            part = self._environments.get(columns.get(COLUMN) if None not in self._environments else None)
            own = {} if part is None else {method.name: method for method in part.methods}
            session = sessions.open(None if part is None else part.label)
            row = CallRow({**methods, **own}, part, session)
            if part is not None:
                row.reset = session.reset(self._reset_arguments(part, columns))
            row.request_state()
            self._rows.append(row)

    @contextmanager
    def sessions(self, rows: Sequence[PromptRow]) -> Iterator[None]:
        """Around a round of sampling: each row has a session, which is closed at the end."""
        try:
            with self._patched_parser() if self._parts else nullcontext():
                self.open(rows)
                yield
        finally:
            self._close_sessions()

    @contextmanager
    def _patched_parser(self) -> Iterator[None]:
        """Read calls that are nested too deep as text, as TRL does with invalid JSON; escape marks in tools' names."""
        tokenizer = getattr(self.host.processing_class, "tokenizer", self.host.processing_class)
        parse, escape = tokenizer.parse_response, self._markers.without

        def parse_response(*arguments: Any, **keywords: Any) -> Any:
            try:
                parsed = parse(*arguments, **keywords)
            except RecursionError as error:
                raise ValueError("the response is nested too deep") from error
            for call in (parsed.get("tool_calls") or ()) if isinstance(parsed, dict) else ():
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict) and isinstance(function.get("name"), str):
                    function["name"] = escape(function["name"])
            return parsed

        tokenizer.parse_response = parse_response
        try:
            yield
        finally:
            del tokenizer.parse_response

    @contextmanager
    def rewarding(self, turns: Sequence[Sequence[Turn]] | None) -> Iterator[None]:
        """Request the rewards of all environments at once; log the calls of the completions' turns."""
        self.request_rewards()
        if turns is not None:
            self._log(turns)
        yield
        self._report_environment_errors()

    def request_rewards(self) -> None:
        """Request the rewards of all environments."""
        for row in self._rows:
            if row.part is not None and row.part.rewards and row.session is not None:
                row.reward = row.session.reward()

    def close(self) -> None:
        self._close_sessions()
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None

    # -- around TRL's loop ------------------------------------------------------------------------------------------

    @contextmanager
    def borrowed_by(self, host: Host) -> Iterator[None]:
        """Another trainer of TRL's samples with the tools inside the block."""
        with temporary_attribute(self, "host", host):
            try:
                yield
            finally:
                self._close_sessions()

    @property
    def rows_to_continue(self) -> list[int] | None:
        """The rows of the next turn, in its order; None for the first turn, which all rows have."""
        loop = self._loop
        if loop is None:
            return None
        rows = [place for place, messages in enumerate(loop.completions) if messages[-1].get("role") == "tool"]
        return [place for place in rows if place not in loop.full]

    @property
    def round(self) -> int:
        """Number of sampled turns of each row in `rows_to_continue`."""
        return 0 if self._loop is None else self._loop.rounds + 1

    def room(self, prefixes: Sequence[Sequence[int]]) -> list[int]:
        """Tokens left for the next turn of each row in `rows_to_continue`; ``prefixes`` are its ids so far."""
        loop, limit = self._loop, self.host.max_completion_length
        if loop is None or limit is None:
            return [sys.maxsize] * len(prefixes)
        rows = zip(self.rows_to_continue or [], prefixes, strict=True)
        return [max(0, limit - (len(ids) - len(loop.prompt_ids[place]))) for place, ids in rows]

    def loop(
        self,
        run: Callable[[], Any],
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
        completions: Sequence[list[dict[str, Any]]],
    ) -> tuple[Any, Turns]:
        """TRL's loop and the turns of its completions; each call goes to the session of its row."""
        if not self._rows:
            self._rows = [CallRow({}) for _ in completions]
        for place, tools in enumerate(tools_by_row(self.host)):
            tools |= {name: self._function(place, name) for name in self._rows[place].methods if name in tools}
        self._loop = _Loop(prompt_ids, completion_ids, completions)
        self._start_calls({place: messages[0] for place, messages in enumerate(completions)})
        try:
            result = run()
        finally:
            self._loop = None
        mask, completions, completion_ids = result[:3]
        decode = decoder(self.host.processing_class)
        turns_and_spans = [
            turns_of(
                ids, own, messages, decode, calls=row.calls_with_results(messages), states=ok_texts(row.states),
                rewards=[reply.result().number for reply in row.rewards],
            )
            for row, ids, own, messages in zip(self._rows, completion_ids, mask, completions, strict=True)
        ]  # fmt: skip
        return result, Turns([turns for turns, _ in turns_and_spans], [spans for _, spans in turns_and_spans])

    def begin_calls(self, prefixes: Sequence[Sequence[int]], ids: Sequence[Sequence[int]]) -> None:
        """Start the calls of a later turn, as TRL's loop will parse them."""
        loop = self._loop
        if loop is None:
            return
        messages = {}
        rows = zip(self.rows_to_continue or [], prefixes, ids, self.room(prefixes), strict=True)
        for place, prefix, sampled, room in rows:
            turn = list(sampled[:room])
            messages[place] = parse_turn(self.host, place, turn, list(prefix))
            if not turn:
                loop.full.add(place)
        loop.rounds += 1
        self._start_calls(messages)

    def _start_calls(self, messages: Mapping[int, Mapping[str, Any]]) -> None:
        """Start the calls of a turn if TRL's loop will run them."""
        assert self._loop is not None
        if self._loop.rounds < self.host.max_tool_calling_iterations:
            for place, message in messages.items():
                if calls := message.get("tool_calls"):
                    self._rows[place].start(calls)

    def _function(self, place: int, name: str) -> Callable[..., str]:
        """A tool for TRL's loop; the model reads Python's own message about arguments that are not a mapping."""

        def call(**arguments: Any) -> str:
            return self._result(place, name, **arguments)

        call.__module__, call.__qualname__ = "builtins", name
        return call

    def _result(self, place: int, name: str, **arguments: Any) -> str:
        reply = self._rows[place].take(name, arguments)
        if reply is None:
            raise CallError(f"the tool {name} was not called by this completion")
        text = self._markers.without(reply.text)
        if reply.status != "ok":
            raise CallError(text)
        return text

    def _call_outside_completion(self, name: str, arguments: Mapping[str, Any]) -> Any:
        raise CallError(f"the tool {name} is called outside of a completion, with {dict(arguments)!r:.200}")

    # -- environments -----------------------------------------------------------------------------------------------

    def _reset(self, proxy: Any, _columns: Mapping[str, Any]) -> str | None:
        """The reply to ``reset``, which was requested for all rows; TRL resets row by row, in order."""
        place = self._places[id(proxy)] = len(self._places)
        row = self._rows[place]
        assert row.reset is not None
        if place == 0:
            self._check_resets()
        reply = row.reset.result()
        text = self._markers.without(reply.text)
        if reply.status != "ok":
            return str({"error": text})
        return text or None

    def _check_resets(self) -> None:
        """Refuse a batch in which each reset failed: it would train on nothing."""
        replies = [row.reset.result() for row in self._rows if row.reset is not None]
        if replies and all(reply.status != "ok" for reply in replies):
            part = self._rows[0].part
            name = part.label if part is not None else "environment"
            raise VerifierFailedError(
                f"the environment {name!r} failed in reset for all {len(replies)} rows of a batch; the first: "
                f"{replies[0].text}"
            )

    def why_no_reward(self, proxy: Any) -> str:
        """The error of the environment of a completion of the last batch; empty if it returned None."""
        place = self._places.get(id(proxy))
        if place is None:
            return ""
        row = self._rows[place]
        futures = (("reset", row.reset), ("get_reward", row.reward))
        replies = [(name, future.result()) for name, future in futures if future is not None]
        return next((f"{name} failed: {reply.text}" for name, reply in replies if reply.status != "ok"), "")

    def _report_environment_errors(self) -> None:
        """Count and log the errors of environments; stop a run whose environment fails in all completions."""
        if not self._environments:
            return
        local = [(row.part.label, row.environment_errors()) for row in self._rows if row.part is not None]
        gathered = gather_objects(local)
        requests = Counter((label, name) for label, errors in gathered for name in errors)
        failed: dict[tuple[str, str], list[str]] = {}
        for label, errors in gathered:
            for name, text in errors.items():
                if text is not None:
                    failed.setdefault((label, name), []).append(text)
        log_metrics(self.host, {"tools/environment_errors": float(sum(map(len, failed.values())))})
        for (label, name), texts in failed.items():
            count = requests[label, name]
            if name in _REQUESTED_ALWAYS and len(texts) == count > 1:
                raise VerifierFailedError(
                    f"the environment {label!r} failed in {name} for all {len(texts)} completions of a batch; the "
                    f"first: {texts[0]}"
                )
            if (label, name) not in self._warned:
                self._warned.add((label, name))
                logger.warning(
                    "the environment %r failed in %s in %d of %d completions (tools/environment_errors has the count "
                    "from here on). The first: %s", label, name, len(texts), count, texts[0],
                )  # fmt: skip

    def _method(self, proxy: Any, name: str, arguments: Mapping[str, Any]) -> str:
        return self._result(self._places[id(proxy)], name, **arguments)

    def _reward(self, proxy: Any) -> float | None:
        """The environment's reward; None, which leaves the completion out, after an error."""
        row = self._rows[self._places[id(proxy)]]
        if row.reset is None or row.reset.result().status != "ok" or row.reward is None:
            return None
        reply = row.reward.result()
        return reply.number if reply.status == "ok" else None

    def _reset_arguments(self, part: ToolPart, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a row for ``reset``, as TRL would pass them, but without those that it does not take."""
        columns = {name: value for name, value in row.items() if name != COLUMN or None in self._environments}
        return columns if part.takes is None else {name: columns[name] for name in part.takes if name in columns}

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _method_names(self) -> list[str]:
        return [method.name for part in self._parts for method in part.methods]

    def _start_sessions(self) -> Sessions:
        if self._sessions is None:
            self._sessions = open_sessions(self._parts)
        return self._sessions

    @cached_property
    def _markers(self) -> Markers:
        host = self.host
        return markers_of(host.processing_class, host.chat_template, **host.chat_template_kwargs)

    def _close_sessions(self) -> None:
        for row in self._rows:
            if row.session is not None:
                row.session.close()
        self._rows, self._places = [], {}

    def _log(self, turns_of_rows: Sequence[Sequence[Turn]]) -> None:
        """Log calls of a generation batch by status, turns per completion, and seconds per call."""
        summaries = [
            (call.name, call.status, call.seconds) for turns in turns_of_rows for turn in turns for call in turn.calls
        ]
        gathered = gather_objects([(len(turns_of_rows), sum(map(len, turns_of_rows)), summaries)])
        calls = [call for _, _, of_rank in gathered for call in of_rank]
        statuses = Counter(status for _, status, _ in calls)
        count, turns = (sum(of_rank[place] for of_rank in gathered) for place in (0, 1))
        values = {"tools/calls": float(len(calls)), "tools/turns": turns / max(1, count)}
        values |= {f"tools/{name}": float(statuses[status]) for name, status in _STATUSES.items()}
        if calls:
            values["tools/seconds"] = sum(seconds for _, _, seconds in calls) / len(calls)
        for name in sorted(set(self._method_names())):
            own = [seconds for called, _, seconds in calls if called == name]
            values[f"tools/{name}/calls"] = float(len(own))
            if own:
                values[f"tools/{name}/seconds"] = sum(own) / len(own)
        log_metrics(self.host, values)


_REQUESTED_ALWAYS = ("state_key", "get_reward")
"""Requests in each completion, whatever the model does."""
_STATUSES: dict[str, CallStatus] = {
    "errors": "error", "late": "late", "died": "died", "unknown": "unknown", "bad_arguments": "bad_arguments",
}  # fmt: skip
"""Metrics by status of calls."""
