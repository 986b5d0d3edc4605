"""One completion while it is drawn: the calls that it began, and what came of them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from grpo_verifiers.tools.arguments import argument_problem
from grpo_verifiers.tools.part import Method, ToolPart
from grpo_verifiers.tools.sessions import Reply, Session
from grpo_verifiers.turns import Call, CallStatus, calls_of


class CallError(Exception):
    """What a call came to that has no result; its text is what the model gets."""


@dataclass
class Asked:
    """A call that was begun: under way, or wrong as it was written."""

    name: str
    arguments: Any
    reply: "Future[Reply]"
    given: bool = False

    @property
    def ended(self) -> Reply:
        """What came of it, waited for."""
        return self.reply.result()


@dataclass
class Row:
    """One completion while it is drawn.

    Attributes:
        session: its tools; None where all are the caller's own, which run in the trainer.
        reset: what its environment said at the start.
        turns: the calls that were begun in each turn; None for a call of a caller's own tool.
        states: the environment's state before each turn.
        rewards: the environment's reward for each turn that called.
    """

    methods: Mapping[str, Method]
    part: ToolPart | None = None
    session: Session | None = None
    reset: "Future[Reply] | None" = None
    turns: list[list[Asked | None]] = field(default_factory=list)
    states: "list[Future[Reply]]" = field(default_factory=list)
    rewards: "list[Future[Reply]]" = field(default_factory=list)
    reward: "Future[Reply] | None" = None

    def look(self) -> None:
        """Ask for the state before the turn that comes."""
        if self.part is not None and self.part.states and self.session is not None:
            self.states.append(self.session.state())

    def asked_of(self) -> dict[str, str | None]:
        """What its environment was asked for while it lived, with its first error; reset alone, where that failed."""
        asked: dict[str, Sequence[Future[Reply] | None]] = {
            "reset": [self.reset], "state_key": self.states, "get_turn_reward": self.rewards,
            "get_reward": [self.reward],
        }  # fmt: skip
        found: dict[str, str | None] = {}
        for name, futures in asked.items():
            replies = [future.result() for future in futures if future is not None]
            living = [reply for reply in replies if not reply.ended]
            if living:
                found[name] = next((reply.text for reply in living if reply.status != "ok"), None)
            if name == "reset" and found.get(name) is not None:
                break
        return found

    def begin(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Begin the calls of a turn, in order; then ask what the turn was worth, and how things stand."""
        self.turns.append([self._ask(call) for call in calls])
        if self.part is not None and self.part.turn_rewards and self.session is not None:
            self.rewards.append(self.session.turn_reward())
        self.look()

    def _ask(self, call: Mapping[str, Any]) -> Asked | None:
        function = call.get("function") or {}
        name, arguments = function.get("name") or call.get("name") or "", function.get("arguments")
        method = self.methods.get(name)
        if method is None or self.session is None:
            return None
        problem = argument_problem(method, arguments)
        if problem is not None or not isinstance(arguments, Mapping):
            return Asked(name, arguments, _ended(Reply("bad_arguments", problem or "")))
        return Asked(name, arguments, self.session.call(name, arguments))

    def find(self, name: str, arguments: Mapping[str, Any]) -> Asked | None:
        """The first call of the last turn with these words that nobody has asked for."""
        for asked in self.turns[-1] if self.turns else ():
            if asked is not None and not asked.given and asked.name == name and asked.arguments == arguments:
                asked.given = True
                return asked
        return None


def calls_with_results(row: Row, messages: Sequence[Mapping[str, Any]]) -> list[tuple[Call, ...]]:
    """The calls of each of the assistant's messages with what the model got for them."""
    found: list[tuple[Call, ...]] = []
    begun = iter(row.turns)
    for place, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        written = message.get("tool_calls") or ()
        results = []
        for later in messages[place + 1 :]:
            if later.get("role") != "tool":
                break
            results.append(str(later.get("content")))
        calls = calls_of(written, results)
        asked = next(begun, None) if written else None
        found.append(tuple(_ended_as(call, *each) for call, each in zip(calls, _replies(asked, calls), strict=True)))
    return found


def _replies(asked: Sequence[Asked | None] | None, calls: Sequence[Call]) -> list[tuple[CallStatus | None, float]]:
    """Status and seconds of each call; None where a caller's own tool ran, or nothing did."""
    if asked is None:
        return [(None, 0.0)] * len(calls)
    return [(None, 0.0) if each is None else (each.ended.status, each.ended.seconds) for each in asked]


def _ended_as(call: Call, status: CallStatus | None, seconds: float) -> Call:
    if call.status == "cut":
        status = "cut"
    elif status is None:
        missing = call.result == str({"error": f"Tool {call.name} not found."})
        status = "unknown" if missing else call.status
    return Call(call.name, call.arguments, call.result, status, seconds)


def ok_texts(replies: "Sequence[Future[Reply]]") -> list[str | None]:
    """The texts of replies, waited for; None where there was an error."""
    ended = [reply.result() for reply in replies]
    return [reply.text if reply.status == "ok" else None for reply in ended]


def _ended(reply: Reply) -> "Future[Reply]":
    future: Future[Reply] = Future()
    future.set_result(reply)
    return future
