"""Rules of parts (needs, excludes, replaces), and the function that applies them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Condition = Callable[[Any], Any]
"""A test of a choice of parts and fields; its ``get`` returns the value of a field or key, None if unset."""


_TEXTS = {
    "needs": "{who} needs {target}: {why}. {way}.",
    "excludes": "{who} does not go with {target}: {why}. {way}.",
    "replaces": "{who} replaces {target}: {why}. {way}.",
    "notes": "{who}: {why}.",
}
_WAYS = {"needs": "Set {name}", "excludes": "Remove one of the two", "replaces": "Remove {name}", "notes": ""}


@dataclass(frozen=True)
class PartRule:
    """A requirement, an exclusion, a replacement or a note of a part.

    >>> rule = excludes("fp16", "its loss has no gradient scaler", way="Use bf16")
    >>> rule.text("critic", {"fp16": True})
    'critic does not go with fp16 (True): its loss has no gradient scaler. Use bf16.'

    Attributes:
        target: a field of the config, a key of one (``engine.layout``), or words.
        why: the reason, for `str.format`: ``c`` is the choice.
        way: the remedy, in the same form.
        when: test of a broken rule; None: a needed field is unset, an excluded one is set, or always for a note.
        only: the values of the field that are excluded, or those that are needed; empty: all.
    """

    relation: Literal["needs", "excludes", "replaces", "notes"]
    target: str
    why: str
    way: str = ""
    when: Condition | None = None
    only: tuple[Any, ...] = ()

    def broken(self, choice: Any) -> bool:
        """True if a choice breaks the rule."""
        if self.when is not None:
            return bool(self.when(choice))
        if self.relation == "notes":
            return True
        value = choice.get(self.target)
        fits = value in self.only if self.only else value is not None
        return not fits if self.relation == "needs" else fits

    def text(self, who: str, choice: Any) -> str:
        """The rule in a sentence, with the value of its field."""
        value = choice.get(self.target)
        shown = "" if value is None else f" ({value!r})"
        target, why, way = (text.format(c=choice) for text in (self.target, self.why, self.way))
        target = target.removeprefix(f"{who}.")
        way = way or _WAYS[self.relation].format(name=target)
        return _TEXTS[self.relation].format(who=who, target=target + shown, why=why, way=way)


def needs(target: str, why: str, *only: Any, way: str = "", when: Condition | None = None) -> PartRule:
    """A field, a value of it, or another part without which this one cannot work."""
    return PartRule("needs", target, why, way, when, only)


def excludes(target: str, why: str, *only: Any, way: str = "", when: Condition | None = None) -> PartRule:
    """A field, a value of it, or another part that cannot work together with this one."""
    return PartRule("excludes", target, why, way, when, only)


def replaces(target: str, why: str) -> PartRule:
    """A field of TRL that has no effect with this part; ``why`` has the equivalent setting."""
    return PartRule("replaces", target, why)


def notes(why: str, when: Condition | None = None) -> PartRule:
    """A note on behaviour that is correct but may surprise."""
    return PartRule("notes", "", why, when=when)


@dataclass(frozen=True)
class ConfigPart:
    """A part that a config may choose, with its rules.

    Attributes:
        who: its name in messages, for `str.format`: ``c`` is the choice.
        chosen: test of a choice that has the part.
    """

    who: str
    chosen: Condition
    rules: tuple[PartRule, ...] = field(default=())


def broken_rules(parts: Iterable[ConfigPart], choice: Any, *, notes: bool = False) -> list[str]:
    """A sentence for each rule that a choice breaks; with ``notes`` those that are only notes."""
    return [
        rule.text(part.who.format(c=choice), choice)
        for part in parts
        if part.chosen(choice)
        for rule in part.rules
        if (rule.relation == "notes") == notes and rule.broken(choice)
    ]
