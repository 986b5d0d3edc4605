"""A batch in TRL's reward signature, and the values that a check may request from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_verifiers.errors import ColumnError
from grpo_verifiers.errors.messages import unknown
from grpo_verifiers.reading.messages import content_text
from grpo_verifiers.turns import Turn, turns_of_messages

NOT_COLUMNS = frozenset({"trainer_state", "log_extra", "log_metric", "environments"})
"""Keywords that TRL passes in addition to the dataset's columns."""


@dataclass(frozen=True)
class Samples:
    """N completions, as texts or lists of chat messages, with columns of N values each; ``extras`` are no columns."""

    label: str
    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Any] | None
    columns: Mapping[str, Sequence[Any]]
    extras: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        label: str,
        prompts: Sequence[Any] | None,
        completions: Sequence[Any],
        completion_ids: Sequence[Any] | None,
        keywords: Mapping[str, Any],
    ) -> "Samples":
        """Check that everything has one entry for each completion."""
        if isinstance(completions, str) or not isinstance(completions, Sequence):
            raise TypeError(
                f"verifier {label!r}: completions must be a list with one completion for each row, not "
                f"{type(completions).__name__}; for a single one there is verify()."
            )
        count = len(completions)
        for index, completion in enumerate(completions):
            is_chat = isinstance(completion, Sequence) and not isinstance(completion, str | bytes)
            if not isinstance(completion, str) and not (is_chat and all(isinstance(m, Mapping) for m in completion)):
                raise TypeError(
                    f"verifier {label!r}: completion {index} is {completion!r:.80}, expected a string or a list of "
                    "chat messages (with 'role' and 'content')."
                )
        for name, values in (("prompts", prompts), ("completion_ids", completion_ids)):
            if values is not None and len(values) != count:
                raise ValueError(f"verifier {label!r}: {len(values)} {name} for {count} completions.")
        columns = {
            name: value for name, value in keywords.items() if name not in NOT_COLUMNS and _is_column(value, count)
        }
        extras = {name: value for name, value in keywords.items() if name not in columns}
        return cls(
            label, prompts if prompts is not None else [None] * count, completions, completion_ids, columns, extras
        )

    def __len__(self) -> int:
        return len(self.completions)

    def pick(self, rows: Sequence[int]) -> "Samples":
        """Some of the rows, for a verifier that judges only those."""
        return Samples(
            self.label,
            [self.prompts[row] for row in rows],
            [self.completions[row] for row in rows],
            None if self.completion_ids is None else [self.completion_ids[row] for row in rows],
            {name: [values[row] for row in rows] for name, values in self.columns.items()},
            self.extras,
        )

    def without_logs(self) -> "Samples":
        """A copy that discards the logs of checks: TRL expects one value for each row, only once."""
        logs = [name for name in ("log_extra", "log_metric") if self.extras.get(name) is not None]
        return replace(self, extras={**self.extras, **dict.fromkeys(logs, lambda *_, **__: None)})

    def column(self, name: str, parameter: str) -> Sequence[Any]:
        """The values of a required column."""
        if name in self.columns:
            return self.columns[name]
        if name in self.extras and name not in NOT_COLUMNS:
            raise ColumnError(
                f"verifier {self.label!r}: column {name!r} is {self.extras[name]!r:.80}, expected a list with one "
                f"value for each of the {len(self)} completions."
            )
        raise ColumnError(
            f"verifier {self.label!r} needs the column {name!r} (its parameter {parameter!r}): "
            f"{unknown('column', name, self.columns)} Rename the column, or map it with columns: "
            f"{{{parameter}: <column>}}."
        )

    def reserved(self, name: str, row: int) -> Any:
        """The value of a reserved parameter, which is no column."""
        if name == "prompt":
            return self.prompts[row]
        if name == "messages":
            return [*_as_chat(self.prompts[row], "user"), *_as_chat(self.completions[row], "assistant")]
        if name == "completion_ids":
            return None if self.completion_ids is None else self.completion_ids[row]
        if name == "turns":
            return self.turns(row)
        if name == "turn_spans":
            turns = self._sampled_turns(row)
            return None if turns is None else [turn.span for turn in turns]
        values = self.columns.get("completion_text")  # decoded with special tokens by a trainer that has the tokenizer
        return values[row] if values is not None else completion_text(self.completions[row])

    def turns(self, row: int) -> tuple[Turn, ...]:
        """The turns of a completion: those of a trainer with tools, else those of its messages."""
        sampled = self._sampled_turns(row)
        if sampled is not None:
            return sampled
        turns = turns_of_messages(self.completions[row])
        if len(turns) != 1 or "completion_text" not in self.columns:
            return turns
        return (replace(turns[0], start=0, end=len(self.columns["completion_text"][row])),)  # as sampled

    def _sampled_turns(self, row: int) -> tuple[Turn, ...] | None:
        """The turns of a trainer with tools; None without one: a dataset column of that name may hold anything."""
        values = self.columns.get("turns")
        turns = None if values is None else values[row]
        if not isinstance(turns, list | tuple) or not all(isinstance(turn, Turn) for turn in turns):
            return None
        return tuple(turns)


RESERVED = ("prompt", "messages", "completion_ids", "completion_text", "turns", "turn_spans")


def completion_text(completion: Any) -> str:
    """A completion's text: the string itself, or the last message of the assistant in a chat."""
    if isinstance(completion, str):
        return completion
    for message in reversed(completion):
        if message.get("role") == "assistant":
            return content_text(message.get("content"))
    return ""


def _as_chat(value: Any, role: str) -> list[dict[str, Any]]:
    if value is None:
        return []
    return [{"role": role, "content": value}] if isinstance(value, str) else [dict(message) for message in value]


def _is_column(value: Any, count: int) -> bool:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__getitem__"):
        return False
    try:
        return len(value) == count
    except TypeError:  # a zero-dimensional array
        return False
