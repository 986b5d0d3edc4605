"""The tool calls of a completion during sampling, and their results."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from grpo_verifiers.tools.arguments import argument_problem
from grpo_verifiers.tools.part import Method, ToolPart
from grpo_verifiers.tools.sessions import Reply, Session
from grpo_verifiers.turns import Call, calls_of


class CallError(Exception):
    """A call without a result; the model gets the text of the error."""


@dataclass
class StartedCall:
    """A call that runs in its session, or was refused for its arguments; ``used``: TRL's loop has its reply."""

    name: str
    arguments: Any
    reply: "Future[Reply]"
    used: bool = False


@dataclass
class CallRow:
    """A completion during sampling.

    Attributes:
        session: its tools; None if all tools are the caller's own, which run in the trainer.
        reset: the environment's reply to ``reset``.
        turns: the calls of each turn; None for a call of a caller's own tool.
        states: the environment's state before each turn.
        rewards: the environment's reward for each turn with calls.
    """

    methods: Mapping[str, Method]
    part: ToolPart | None = None
    session: Session | None = None
    reset: "Future[Reply] | None" = None
    turns: list[list[StartedCall | None]] = field(default_factory=list)
    states: "list[Future[Reply]]" = field(default_factory=list)
    rewards: "list[Future[Reply]]" = field(default_factory=list)
    reward: "Future[Reply] | None" = None

    def request_state(self) -> None:
        """Request the state before the next turn."""
        if self.part is not None and self.part.states and self.session is not None:
            self.states.append(self.session.state())

    def environment_errors(self) -> dict[str, str | None]:
        """The first error of each kind of request, None without; a failed ``reset`` ends the list.

        Requests to an environment that had ended do not count.
        """
        requests: dict[str, Sequence[Future[Reply] | None]] = {
            "reset": [self.reset], "state_key": self.states, "get_turn_reward": self.rewards,
            "get_reward": [self.reward],
        }  # fmt: skip
        errors: dict[str, str | None] = {}
        for name, futures in requests.items():
            replies = [future.result() for future in futures if future is not None]
            living = [reply for reply in replies if not reply.ended]
            if living:
                errors[name] = next((reply.text for reply in living if reply.status != "ok"), None)
            if name == "reset" and errors.get(name) is not None:
                break
        return errors

    def start(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Start the calls of a turn in order; then request the turn's reward and the next state."""
        self.turns.append([self._start_call(call) for call in calls])
        if self.part is not None and self.part.turn_rewards and self.session is not None:
            self.rewards.append(self.session.turn_reward())
        self.request_state()

    def _start_call(self, call: Mapping[str, Any]) -> StartedCall | None:
        function = call.get("function") or {}
        name, arguments = function.get("name") or call.get("name") or "", function.get("arguments")
        method = self.methods.get(name)
        if method is None or self.session is None:
            return None
        problem = argument_problem(method, arguments)
        if problem is None and isinstance(arguments, Mapping):
            return StartedCall(name, arguments, self.session.call(name, arguments))
        refused: Future[Reply] = Future()
        refused.set_result(Reply("bad_arguments", problem or ""))
        return StartedCall(name, arguments, refused)

    def take(self, name: str, arguments: Mapping[str, Any]) -> Reply | None:
        """The reply to the first unused call of the last turn with this name and these arguments."""
        for call in self.turns[-1] if self.turns else ():
            if call is not None and not call.used and call.name == name and call.arguments == arguments:
                call.used = True
                return call.reply.result()
        return None

    def calls_with_results(self, messages: Sequence[Mapping[str, Any]]) -> list[tuple[Call, ...]]:
        """The calls of each of the assistant's messages, with the results that the model got."""
        calls_of_messages: list[tuple[Call, ...]] = []
        turns = iter(self.turns)
        for place, message in enumerate(messages):
            if message.get("role") != "assistant":
                continue
            written = message.get("tool_calls") or ()
            replies = takewhile(lambda later: later.get("role") == "tool", messages[place + 1 :])
            calls = calls_of(written, [str(reply.get("content")) for reply in replies])
            turn = next(turns, None) if written else None
            started = [None] * len(calls) if turn is None else turn
            calls_of_messages.append(tuple(_finished(*pair) for pair in zip(calls, started, strict=True)))
        return calls_of_messages


def _finished(call: Call, started: StartedCall | None) -> Call:
    """The call with the status and the seconds of its reply, if it ran in a session."""
    reply = None if started is None else started.reply.result()
    status = call.status if reply is None else reply.status
    if call.status == "cut":
        status = "cut"
    elif reply is None and call.result == str({"error": f"Tool {call.name} not found."}):
        status = "unknown"
    return replace(call, status=status, seconds=0.0 if reply is None else reply.seconds)


def ok_texts(replies: "Sequence[Future[Reply]]") -> list[str | None]:
    """The texts of replies; None for errors."""
    return [reply.text if reply.status == "ok" else None for reply in (future.result() for future in replies)]
