"""Objects of a program's classes as data: named tuples, members of enumerations, objects with fields.

No code of such a class runs outside of the program. A replica has the names and the values of the fields, and the
names of the classes, but no methods and properties.
"""

import keyword
import sys
from collections import namedtuple
from functools import lru_cache
from typing import Any

TAGS = frozenset({"m", "o", "e"})
_PROGRAM_MODULES = frozenset({"program", "__main__"})
_PLAIN_BASES = frozenset({"object", "Generic", "Protocol", "ABC"})
_MOST_BASES = 20
# Special names that do not matter; with any other one, a class has behaviour beyond its fields.
_HARMLESS = frozenset({
    "__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__annotations__",
    "__orig_bases__", "__parameters__", "__init__", "__new__", "__post_init__", "__repr__", "__str__", "__eq__",
    "__ne__", "__hash__", "__init_subclass__", "__match_args__", "__dataclass_fields__", "__dataclass_params__",
    "__replace__", "__abstractmethods__", "__getstate__", "__setstate__", "__reduce__", "__static_attributes__",
    "__firstlineno__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__classcell__",
    "__setattr__", "__delattr__", "__format__", "__sizeof__", "__copy__", "__deepcopy__",
    "__lt__", "__le__", "__gt__", "__ge__",  # a replica has none: a test that compares fails
})  # fmt: skip


class Replica:
    """An object of a program's class, in its tests: its fields and nothing else."""

    _names_: tuple[str, ...] = ()
    _by_fields_ = True

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{type(self).__name__!r} has no field {name!r} (objects cross as their fields; "
            "for their methods, assert_mode='in_process')"
        )

    def __eq__(self, other: object) -> bool:
        if self._by_fields_ and isinstance(other, Replica):
            return type(self).__name__ == type(other).__name__ and vars(self) == vars(other)
        return self is other

    def __hash__(self) -> int:
        return hash(type(self).__name__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class ReplicaMember(Replica):
    """A member of a program's enumeration, in its tests."""

    name: str
    value: Any

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ReplicaMember):
            return (type(self).__name__, self.name) == (type(other).__name__, other.name)
        return not self._by_fields_ and bool(self.value == other)  # a number or a text at the same time

    __hash__ = Replica.__hash__


def record_of(value: Any) -> tuple[str, list[Any], list[Any]] | None:
    """The tag of an object, its head (the names), and its values; None for one with behaviour beyond its fields."""
    kind = type(value)
    if isinstance(value, ReplicaMember):
        return "e", [kind.__name__, list(kind._names_), value.name, not kind._by_fields_], [value.value]
    if isinstance(value, Replica):
        return "o", [kind.__name__, list(kind._names_), list(vars(value)), kind._by_fields_], list(vars(value).values())
    if kind.__module__ == "types" and kind.__name__ == "SimpleNamespace":
        fields = {name: item for name, item in vars(value).items() if is_name(name)}
        return "o", [kind.__name__, [kind.__name__], list(fields), True], list(fields.values())
    if kind.__module__ not in _PROGRAM_MODULES or not is_name(kind.__name__):
        return None
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
        items = list(tuple.__iter__(value))
        return ("m", [kind.__name__, list(names)], items) if names and len(names) == len(items) else None
    if "enum" in sys.modules and isinstance(value, sys.modules["enum"].Enum):
        kinds = [base.__name__ for base in kind.__mro__ if base.__module__ in _PROGRAM_MODULES][:_MOST_BASES]
        if not is_name(value.name):
            return None  # several flags
        return "e", [kind.__name__, kinds, value.name, issubclass(kind, int | str)], [value._value_]
    bases = [base for base in kind.__mro__ if base.__module__ in _PROGRAM_MODULES]
    if any(base.__name__ not in _PLAIN_BASES for base in kind.__mro__ if base not in bases):
        return None
    own = {name for base in bases for name in vars(base) if name.startswith("__") and name.endswith("__")}
    if own - _HARMLESS or issubclass(kind, type | BaseException):
        return None
    fields = {name: item for name, item in _fields(value, bases).items() if is_name(name)}
    names = [base.__name__ for base in bases][:_MOST_BASES]
    return "o", [kind.__name__, names, list(fields), "__eq__" in own], list(fields.values())


def _fields(value: Any, bases: list[type]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for base in reversed(bases):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                fields[name] = getattr(value, name)
    return fields | getattr(value, "__dict__", {})


def is_of(value: Any, name: str) -> bool:
    """True if a value of a program is of its class of that name."""
    kind = type(value)
    return kind.__module__ == "program" and name in getattr(kind, "_names_", (kind.__name__,))


def is_name(name: Any) -> bool:
    """True for a name that a class or a field of a replica may have."""
    return (
        type(name) is str
        and len(name) <= 100
        and name.isidentifier()
        and not (name.startswith("__") and name.endswith("__"))
        and not keyword.iskeyword(name)
        and not name.endswith("_names_")
        and not name.endswith("_by_fields_")
    )


def is_head(tag: str, head: list[Any], count: int) -> bool:
    """True for a head that ``described`` can return for so many values."""
    if tag == "m":
        name, fields = head
        plain = _are_names(fields, 10_000) and not any(field.startswith("_") for field in fields)
        return is_name(name) and plain and len(fields) == count
    name, names, third, flag = head
    if not is_name(name) or not _are_names(names, _MOST_BASES) or type(flag) is not bool:
        return False
    return (is_name(third) and count == 1) if tag == "e" else (_are_names(third, 10_000) and len(third) == count)


def _are_names(names: Any, most: int) -> bool:
    return type(names) is list and len(names) <= most and all(map(is_name, names)) and len(set(names)) == len(names)


def replica_of(tag: str, head: list[Any], values: list[Any]) -> Any:
    """The replica of a described object."""
    if tag == "m":
        return _named_tuple(head[0], tuple(head[1]))._make(values)
    name, names, third, flag = head
    if tag == "e":
        member = object.__new__(_class(ReplicaMember, name, tuple(names), not flag))
        vars(member).update(name=third, value=values[0])
        return member
    instance = object.__new__(_class(Replica, name, tuple(names), flag))
    vars(instance).update(zip(third, values, strict=True))
    return instance


@lru_cache(maxsize=1000)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields, module="program")  # noqa: PYI024 - its fields are dynamic


@lru_cache(maxsize=1000)
def _class(base: type, name: str, names: tuple[str, ...], by_fields: bool) -> Any:
    return type(name, (base,), {"_names_": names, "_by_fields_": by_fields, "__module__": "program"})


def rebuild(space: dict[str, Any], tag: str, head: list[Any], values: list[Any]) -> Any:
    """The object itself, in the program that has its class; a replica if that is impossible."""
    kind = space.get(head[0])
    try:
        if isinstance(kind, type) and tag == "m":
            return kind(*values)
        if isinstance(kind, type) and tag == "e":
            return kind[head[2]]  # type: ignore[index]
        if isinstance(kind, type):
            instance: Any = object.__new__(kind)
            for name, value in zip(head[2], values, strict=True):
                object.__setattr__(instance, name, value)
            return instance
    except Exception:  # noqa: BLE001 - the program's own class
        return replica_of(tag, head, values)
    return replica_of(tag, head, values)
