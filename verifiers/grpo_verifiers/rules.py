"""What a part needs, excludes and replaces: a row for each rule, and its one reader."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

Test = Callable[[Any], Any]
"""Looks at a choice of parts and fields, whose ``get`` gives the value of a field or key; None: not set."""


_TEXTS = {
    "needs": "{who} needs {what}: {why}. {way}.",
    "excludes": "{who} does not go with {what}: {why}. {way}.",
    "replaces": "{who} replaces {what}: {why}. {way}.",
    "notes": "{who}: {why}.",
}
_WAYS = {"needs": "Set {name}", "excludes": "Remove one of the two", "replaces": "Remove {name}", "notes": ""}


@dataclass(frozen=True)
class Rule:
    """One thing that a part needs, excludes, replaces, or that a user should know of it.

    >>> rule = excludes("fp16", "its loss has no gradient scaler", way="Use bf16")
    >>> rule.text("critic", {"fp16": True})
    'critic does not go with fp16 (True): its loss has no gradient scaler. Use bf16.'

    Attributes:
        what: a field of the config, a key of one (``engine.layout``), or words.
        why: the reason, for `str.format`: ``c`` is the choice.
        way: what to do instead, in the same form.
        when: whether the rule is broken; None: a field that is needed is unset, one that is excluded is set, a note is.
        only: the values of the field that are excluded, or those that are needed; empty: all.
    """

    relation: Literal["needs", "excludes", "replaces", "notes"]
    what: str
    why: str
    way: str = ""
    when: Test | None = None
    only: tuple[Any, ...] = ()

    def broken(self, choice: Any) -> bool:
        """Whether a choice breaks the rule."""
        if self.when is not None:
            return bool(self.when(choice))
        if self.relation == "notes":
            return True
        value = choice.get(self.what)
        fits = value in self.only if self.only else value is not None
        return not fits if self.relation == "needs" else fits

    def text(self, who: str, choice: Any) -> str:
        """The rule in a sentence, with the value of its field."""
        value = choice.get(self.what)
        shown = "" if value is None else f" ({value!r})"
        what, why, way = (text.format(c=choice) for text in (self.what, self.why, self.way))
        what = what.removeprefix(f"{who}.")
        way = way or _WAYS[self.relation].format(name=what)
        return _TEXTS[self.relation].format(who=who, what=what + shown, why=why, way=way)


def needs(what: str, why: str, *only: Any, way: str = "", when: Test | None = None) -> Rule:
    """A field, a value of it, or another part without which this one cannot work."""
    return Rule("needs", what, why, way, when, only)


def excludes(what: str, why: str, *only: Any, way: str = "", when: Test | None = None) -> Rule:
    """A field, a value of it, or another part that cannot work together with this one."""
    return Rule("excludes", what, why, way, when, only)


def replaces(what: str, why: str) -> Rule:
    """A field of TRL that this part makes inert; ``why`` says how the same is written."""
    return Rule("replaces", what, why)


def notes(why: str, when: Test | None = None) -> Rule:
    """What may surprise, and is right all the same."""
    return Rule("notes", "", why, when=when)


@dataclass(frozen=True)
class Part:
    """A part that a config may choose, with its rules.

    Attributes:
        who: its name in messages, for `str.format`: ``c`` is the choice.
        chosen: whether it is there.
    """

    who: str
    chosen: Test
    rules: tuple[Rule, ...] = field(default=())


def broken_rules(parts: Iterable[Part], choice: Any, *, notes: bool = False) -> list[str]:
    """A sentence for each rule that a choice breaks; with ``notes`` those that are only notes."""
    return [
        rule.text(part.who.format(c=choice), choice)
        for part in parts
        if part.chosen(choice)
        for rule in part.rules
        if (rule.relation == "notes") == notes and rule.broken(choice)
    ]
