"""The description of a tool or an environment, for all but its own process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Method:
    """A function that the model may call, with its schema from ``transformers.utils.get_json_schema``."""

    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class ToolPart:
    """A tool or an environment, with all that a process needs to create it.

    Attributes:
        label: its name in messages and metrics.
        reference: the target to import: a name of the registry, ``package.module:attr`` or ``/a/file.py:attr``.
        kwargs: its keywords.
        methods: callable by the model: one of a tool, the public methods of an environment.
        kind: a ``function`` keeps nothing between calls; a ``class`` is instantiated once a completion and called; an
            ``environment`` is instantiated, reset with the columns of the row, and its methods are called.
        timeout: seconds that a call may take.
        columns: columns of the data that ``reset`` requires.
        takes: all columns that ``reset`` takes; None: any.
        rewards: it has ``get_reward``, its reward for the completion.
        turn_rewards: it has ``get_turn_reward``, called after each turn.
        states: it has ``state_key``, called before each turn; equal keys are equal states.
    """

    label: str
    reference: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    methods: tuple[Method, ...] = ()
    kind: str = "function"
    timeout: float = 10.0
    columns: tuple[str, ...] = ()
    takes: tuple[str, ...] | None = ()
    rewards: bool = False
    turn_rewards: bool = False
    states: bool = False
