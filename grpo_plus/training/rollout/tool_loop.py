"""Tools and environments of a config in the trainer: sessions apart, and the turns that a completion took.

TRL's own loop parses calls, runs them one completion after another and goes on drawing. Here the calls of all
completions begin as soon as a turn is drawn, each in the session of its completion, and TRL's loop finds them under
way.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.tools import COLUMN, call_problems
from grpo_plus.sampling.token_spans import decoder
from grpo_plus.training.hooks import PromptRow, Setup, TrainerStage
from grpo_plus.training.rollout.call_rows import CallError, Row, calls_with_results, ok_texts
from grpo_plus.training.rollout.markers import Markers, markers_of
from grpo_plus.training.rollout.stand_ins import environment_stand_in, tool_stand_in
from grpo_plus.training.scoring.turn_spans import turns_of
from grpo_plus.trl.host import Host
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


class CallSummary(NamedTuple):
    """A call as the ranks count it."""

    name: str
    status: CallStatus
    seconds: float


@dataclass
class _Loop:
    """TRL's loop over a batch while it runs; the lists are its own, and grow.

    ``over`` are rows that got results and had no room left to say anything behind them.
    """

    prompt_ids: Sequence[Sequence[int]]
    completion_ids: Sequence[Sequence[int]]
    completions: Sequence[list[dict[str, Any]]]
    rounds: int = 0
    over: set[int] = field(default_factory=set)


class Turns(NamedTuple):
    """The turns of each completion, and the span of tokens of each turn."""

    turns: list[Sequence[Turn]]
    tokens: list[list[tuple[int, int]]]


class ToolLoop(TrainerStage):
    """The tools and environments of the recipe, with a session for each completion that is being sampled."""

    name = "calling"

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._tools, self._environments = recipe.tools, recipe.environments
        self._warned: set[tuple[str, str]] = set()
        self._parts = (*self._tools, *self._environments.values())
        self._sessions: Sessions | None = None
        self._markers: Markers | None = None
        self._rows: list[Row] = []
        self._places: dict[int, int] = {}  # id of an environment's stand-in to the row that it plays for
        self._resets = 0
        self._loop: _Loop | None = None

    # -- the stage --------------------------------------------------------------------------------------------------

    def problems(self, setup: Setup) -> Sequence[Problem]:
        """Names that the caller's own tools have, too; columns that an environment needs; prompts that are no chats."""
        own = {getattr(tool, "__name__", str(tool)) for tool in setup.further.get("tools") or ()}
        most = getattr(setup.args, "max_tool_calling_iterations", None)
        problems = [*call_problems(self._recipe, sorted(own), most, open_ended=setup.rows_may_grow)]
        if not self._parts:
            return problems
        problems += [
            f"tools: {method.name!r} is the name of a tool that the trainer was given, too: give one another name."
            for part in self._parts
            for method in part.methods
            if method.name in own
        ]
        if self._environments and setup.further.get("environment_factory") is not None:
            problems.append("environment is set, and the trainer was given an environment_factory: keep one of them.")
        if setup.further.get("rollout_func") is not None:
            problems.append("tools and environment cannot be called by a rollout_func: keep one of them.")
        for name, rows, _ in setup.datasets():
            problems += self.data_problems(name, rows)
        return problems

    def data_problems(self, name: str, data: Any) -> list[str]:
        """Columns that an environment needs and rows that no environment plays; prompts that are no chats."""
        columns = getattr(data, "column_names", None)
        if columns is None or isinstance(columns, Mapping):
            return []
        problems = []
        several = None not in self._environments
        if self._environments and several:
            if COLUMN not in columns:
                return [f"{name} has no column {COLUMN!r}, which names the environment of each row."]
            known = [str(value) for value in self._environments]
            values = data.unique(COLUMN) if hasattr(data, "unique") else ()
            problems += [
                f"{name}: the column {COLUMN!r} has {value!r}. {unknown('environment', value, known)}"
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
        """Start what runs the tools, and hand TRL their stand-ins."""
        if not self._parts:
            return
        self._opened()
        if self._tools:
            own = list(setup.further.get("tools") or ())
            stand_ins = [tool_stand_in(part, self._call_outside_completion) for part in self._tools]
            setup.further["tools"] = [*own, *stand_ins]
        if self._environments:
            asked: dict[str, Callable[..., Any]]
            asked = {"reset": self._reset, "get_reward": self._reward, "call": self._method}
            made: dict[Any, Any] = {
                value: environment_stand_in(each, asked) for value, each in self._environments.items()
            }
            setup.further["environment_factory"] = made.get(None, made)

    def open(self, rows: Sequence[PromptRow]) -> None:
        """Open a session for each row, and begin to reset the environments."""
        self._leave()
        if not self._parts:
            return
        sessions = self._opened()
        methods = {method.name: method for part in self._tools for method in part.methods}
        for row in rows:
            part = self._environments.get(row.get(COLUMN) if None not in self._environments else None)
            own = {} if part is None else {method.name: method for method in part.methods}
            session = sessions.open(None if part is None else part.label)
            made = Row({**methods, **own}, part, session)
            if part is not None:
                made.reset = session.reset(self._columns(part, row))
            made.look()
            self._rows.append(made)

    @contextmanager
    def sessions(self, rows: Sequence[PromptRow]) -> Iterator[None]:
        """Within the block each row has a session; no session stays open behind it."""
        try:
            with self._reading() if self._parts else nullcontext():
                self.open(rows)
                yield
        finally:
            self._leave()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Read calls that are nested too deep as text, as TRL reads what is no JSON; no name of a tool holds a mark."""
        tokenizer = getattr(self.host.processing_class, "tokenizer", self.host.processing_class)
        read, names = tokenizer.parse_response, self._marks().without

        def parse_response(*arguments: Any, **keywords: Any) -> Any:
            try:
                parsed = read(*arguments, **keywords)
            except RecursionError as error:
                raise ValueError("the response is nested too deep") from error
            for call in (parsed.get("tool_calls") or ()) if isinstance(parsed, dict) else ():
                function = call.get("function") if isinstance(call, dict) else None
                if isinstance(function, dict) and isinstance(function.get("name"), str):
                    function["name"] = names(function["name"])
            return parsed

        tokenizer.parse_response = parse_response
        try:
            yield
        finally:
            del tokenizer.parse_response

    @contextmanager
    def rewarding(self, turns: Sequence[Sequence[Turn]] | None) -> Iterator[None]:
        """Ask all environments for their rewards at once; log the calls of the completions' turns."""
        self.ask_rewards()
        if turns is not None:
            self._log(turns)
        yield
        self._look_at_environments()

    def ask_rewards(self) -> None:
        """Have all environments begin on their rewards."""
        for row in self._rows:
            if row.part is not None and row.part.rewards and row.session is not None:
                row.reward = row.session.reward()

    def close(self) -> None:
        """End everything that runs tools."""
        self._leave()
        if self._sessions is not None:
            self._sessions.close()
            self._sessions = None

    # -- around TRL's loop ------------------------------------------------------------------------------------------

    @contextmanager
    def borrowed_by(self, host: Host) -> Iterator[None]:
        """Within the block another trainer of TRL's samples with the tools."""
        own, self.host = self.host, host
        try:
            yield
        finally:
            self._leave()
            self.host = own

    @property
    def rows_to_continue(self) -> list[int] | None:
        """The rows that a further turn is drawn for, in its order; None for the first turn, which is drawn for all."""
        loop = self._loop
        if loop is None:
            return None
        got = [at for at, messages in enumerate(loop.completions) if messages[-1].get("role") == "tool"]
        return [at for at in got if at not in loop.over]

    @property
    def round(self) -> int:
        """How many turns of each row in `rows_to_continue` are drawn."""
        return 0 if self._loop is None else self._loop.rounds + 1

    def room(self, behind: Sequence[Sequence[int]]) -> list[int]:
        """Tokens left for a further turn of each row in `rows_to_continue`; ``behind`` has its ids so far."""
        loop, whole = self._loop, self.host.max_completion_length
        if loop is None or whole is None:
            return [sys.maxsize] * len(behind)
        taken = [
            len(ids) - len(loop.prompt_ids[at]) for at, ids in zip(self.rows_to_continue or [], behind, strict=True)
        ]
        return [max(0, whole - length) for length in taken]

    def loop(
        self,
        run: Callable[[], Any],
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
        completions: Sequence[list[dict[str, Any]]],
    ) -> tuple[Any, Turns]:
        """TRL's loop and the turns of its completions; each call goes to the session of its row."""
        if not self._rows:
            self._rows = [Row({}) for _ in completions]
        for place, tools in enumerate(tools_by_row(self.host)):
            tools |= {name: self._giver(place, name) for name in self._rows[place].methods if name in tools}
        self._loop = _Loop(prompt_ids, completion_ids, completions)
        self._begin({place: messages[0] for place, messages in enumerate(completions)})
        try:
            result = run()
        finally:
            self._loop = None
        mask, completions, completion_ids = result[:3]
        decode = decoder(self.host.processing_class)
        found = [
            turns_of(
                ids, own, messages, decode, calls=calls_with_results(row, messages), states=ok_texts(row.states),
                rewards=[reply.result().number for reply in row.rewards],
            )
            for row, ids, own, messages in zip(self._rows, completion_ids, mask, completions, strict=True)
        ]  # fmt: skip
        return result, Turns([turns for turns, _ in found], [spans for _, spans in found])

    def begin_calls(self, behind: Sequence[Sequence[int]], ids: Sequence[Sequence[int]]) -> None:
        """A further turn of the rows that got results: begin its calls as TRL's loop will read them."""
        loop = self._loop
        if loop is None:
            return
        places = self.rows_to_continue or []
        messages = {}
        for place, before, own, room in zip(places, behind, ids, self.room(behind), strict=True):
            cut = list(own[:room])
            messages[place] = parse_turn(self.host, place, cut, list(before))
            if not cut:
                loop.over.add(place)
        loop.rounds += 1
        self._begin(messages)

    def _begin(self, messages: Mapping[int, Mapping[str, Any]]) -> None:
        """The calls of a turn, if TRL's loop will run them."""
        assert self._loop is not None
        runs = self._loop.rounds < self.host.max_tool_calling_iterations
        for place, message in messages.items():
            calls = message.get("tool_calls")
            if calls and runs:
                self._rows[place].begin(calls)

    def _giver(self, place: int, name: str) -> Callable[..., str]:
        """What TRL's loop calls; Python's own message about arguments that are no mapping is the model's to read."""

        def give(**arguments: Any) -> str:
            return self._give(place, name, **arguments)

        give.__module__, give.__qualname__ = "builtins", name
        return give

    def _give(self, place: int, name: str, **arguments: Any) -> str:
        """The result of a call that TRL's loop asks for."""
        asked = self._rows[place].find(name, arguments)
        if asked is None:
            raise CallError(f"the tool {name} was not called by this completion")
        reply = asked.ended
        text = self._marks().without(reply.text)
        if reply.status != "ok":
            raise CallError(text)
        return text

    def _call_outside_completion(self, name: str, arguments: Mapping[str, Any]) -> Any:
        raise CallError(f"the tool {name} is called outside of a completion, with {dict(arguments)!r:.200}")

    # -- environments -----------------------------------------------------------------------------------------------

    def _reset(self, stand_in: Any, columns: Mapping[str, Any]) -> str | None:
        """TRL resets row by row, in order."""
        del columns  # they went out with all rows
        place = self._resets
        self._resets += 1
        self._places[id(stand_in)] = place
        row = self._rows[place]
        assert row.reset is not None
        if place == 0:
            self._refuse_broken()
        reply = row.reset.result()
        text = self._marks().without(reply.text)
        if reply.status != "ok":
            return str({"error": text})
        return text or None

    def _refuse_broken(self) -> None:
        """An environment that no row could be reset with would train on nothing."""
        replies = [row.reset.result() for row in self._rows if row.reset is not None]
        if replies and all(reply.status != "ok" for reply in replies):
            part = self._rows[0].part
            name = part.label if part is not None else "environment"
            raise VerifierFailedError(
                f"the environment {name!r} failed in reset for all {len(replies)} rows of a batch; the first: "
                f"{replies[0].text}"
            )

    def why_no_reward(self, stand_in: Any) -> str:
        """Why the environment of a completion of the last drawing gave no reward; empty where it gave None."""
        place = self._places.get(id(stand_in))
        asked = () if place is None else (("reset", self._rows[place].reset), ("get_reward", self._rows[place].reward))
        replies = [(name, future.result()) for name, future in asked if future is not None]
        return next((f"{name} failed: {reply.text}" for name, reply in replies if reply.status != "ok"), "")

    def _look_at_environments(self) -> None:
        """Count and tell of what environments failed in; one that fails everywhere would train on nothing."""
        if not self._environments:
            return
        here = [(row.part.label, row.asked_of()) for row in self._rows if row.part is not None]
        everywhere = gather_objects(here)
        asked = Counter((label, name) for label, errors in everywhere for name in errors)
        failed: dict[tuple[str, str], list[str]] = {}
        for label, errors in everywhere:
            for name, text in errors.items():
                if text is not None:
                    failed.setdefault((label, name), []).append(text)
        log_metrics(self.host, {"tools/environment_errors": float(sum(map(len, failed.values())))})
        for (label, name), texts in failed.items():
            of_all = f"{len(texts)} of {asked[label, name]}"
            if name in _FOR_ALL and len(texts) == asked[label, name] > 1:
                raise VerifierFailedError(
                    f"the environment {label!r} failed in {name} for all {len(texts)} completions of a batch; the "
                    f"first: {texts[0]}"
                )
            if (label, name) not in self._warned:
                self._warned.add((label, name))
                logger.warning(
                    "the environment %r failed in %s in %s completions, %s. The first: %s. It is told once; "
                    "tools/environment_errors counts.", label, name, of_all, _FAILED[name], texts[0],
                )  # fmt: skip

    def _method(self, stand_in: Any, name: str, arguments: Mapping[str, Any]) -> str:
        return self._give(self._places[id(stand_in)], name, **arguments)

    def _reward(self, stand_in: Any) -> float | None:
        """None, which leaves the completion out, where the environment broke."""
        row = self._rows[self._places[id(stand_in)]]
        broke = row.reset is None or row.reset.result().status != "ok" or row.reward is None
        if broke or row.reward is None:
            return None
        reply = row.reward.result()
        return reply.number if reply.status == "ok" else None

    def _columns(self, part: ToolPart, row: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a row that reset is given: as TRL gives them, without what it does not take."""
        columns = {name: value for name, value in row.items() if name != COLUMN or None in self._environments}
        return columns if part.takes is None else {name: columns[name] for name in part.takes if name in columns}

    # -- its parts --------------------------------------------------------------------------------------------------

    def _opened(self) -> Sessions:
        if self._sessions is None:
            self._sessions = open_sessions(self._parts)
        return self._sessions

    def _marks(self) -> Markers:
        if self._markers is None:
            host = self.host
            self._markers = markers_of(host.processing_class, host.chat_template, **host.chat_template_kwargs)
        return self._markers

    def _leave(self) -> None:
        for row in self._rows:
            if row.session is not None:
                row.session.close()
        self._rows, self._places, self._resets = [], {}, 0

    def _log(self, turns_of_rows: Sequence[Sequence[Turn]]) -> None:
        """Calls of a generation batch, those that failed, turns of a completion, seconds of a call."""
        here = [call for turns in turns_of_rows for turn in turns for call in turn.calls]
        told = [CallSummary(call.name, call.status, call.seconds) for call in here]
        everywhere = gather_objects([(len(turns_of_rows), sum(map(len, turns_of_rows)), told)])
        calls = [call for _, _, made in everywhere for call in made]
        statuses = Counter(call.status for call in calls)
        count, turns = (sum(each[at] for each in everywhere) for at in (0, 1))
        values = {"tools/calls": float(len(calls)), "tools/turns": turns / max(1, count)}
        values |= {name: float(statuses[status]) for name, status in _COUNTED.items()}
        if calls:
            values["tools/seconds"] = sum(call.seconds for call in calls) / len(calls)
        known = {method.name for part in self._parts for method in part.methods}
        for name in sorted(known):
            own = [call.seconds for call in calls if call.name == name]
            values[f"tools/{name}/calls"] = float(len(own))
            if own:
                values[f"tools/{name}/seconds"] = sum(own) / len(own)
        log_metrics(self.host, values)


_FAILED = {
    "reset": "which are not rewarded",
    "state_key": "whose turns have no state there",
    "get_turn_reward": "whose turns have no score there",
    "get_reward": "which are left out",
}
"""What the trainer asks of an environment, and what becomes of a completion in which it fails."""
_FOR_ALL = ("state_key", "get_reward")
"""Asked in each completion, whatever the model does."""
_COUNTED: dict[str, CallStatus] = {
    "tools/errors": "error",
    "tools/late": "late",
    "tools/died": "died",
    "tools/unknown": "unknown",
    "tools/bad_arguments": "bad_arguments",
}
