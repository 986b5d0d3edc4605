"""The files of a record as types, and one reader that checks JSON against a type.

``docs/record.md`` describes the fields in words. A reader returns the checked value without unknown fields and raises
`Malformed` for anything else, so that every value on a page has its declared type.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypedDict,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Reader = Callable[[Any], Any]
T = TypeVar("T")

LARGEST = 1e150
"""Of a figure: its square and sums of its squares are finite."""
FARTHEST = 2**53
"""Of steps and counts: JavaScript represents integers exactly up to here."""
DEEPEST = 20
"""Levels of keywords and settings."""


class Malformed(ValueError):  # noqa: N818 - a row, not an error
    """A value of another type or shape than the record's."""


def of(kind: type[T], value: Any) -> T:
    """The value, if it is an instance of this type."""
    if not isinstance(value, kind):
        raise Malformed
    return value


def number(value: Any) -> float:
    """A finite number that can be squared and summed."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= LARGEST:
        raise Malformed
    return value


def count(value: Any) -> int:
    """An integer from 0: a count, a step or a position."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= FARTHEST:
        raise Malformed
    return value


def score(value: Any) -> float | None:
    """A number; None for null, NaN and infinity."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    return number(value)


def settings(value: Any) -> dict[str, Any]:
    """Nested plain data by name."""
    values: dict[str, Any] = _plain(of(dict, value), 0)
    return values


def _plain(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise Malformed
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) <= LARGEST else None
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    raise Malformed


def figures(value: Any) -> dict[str, float | list[float]]:
    """Numbers and lists of numbers by name; other values are left out."""
    values: dict[str, float | list[float]] = {}
    for name, item in of(dict, value).items():
        try:
            values[name] = [number(each) for each in item] if isinstance(item, list) else number(item)
        except Malformed:
            continue
    return values


def span(value: Any) -> list[int]:
    """Two counts: a first place and one past the last."""
    if len(of(list, value)) != 2:
        raise Malformed
    return [count(place) for place in value]


def scored_span(value: Any) -> list[Any]:
    """Two counts and a score."""
    *places, last = of(list, value) or [None]
    return [*span(places), score(last)]


Number = Annotated[float, number]
Count = Annotated[int, count]
Score = Annotated[float | None, score]
Settings = Annotated[dict[str, Any], settings]
Figures = Annotated[dict[str, float | list[float]], figures]
Span = Annotated[list[int], span]
ScoredSpan = Annotated[list[Any], scored_span]


class Begin(TypedDict):
    """A line of either file that marks a start: a resumed run takes back all lines of later steps."""

    step: Count


class MetricsLine(TypedDict):
    """A line of ``metrics.jsonl``: the log of a step, or the advantages of a generation batch."""

    kind: str
    step: Count
    values: Figures
    time: NotRequired[Score]


class VerdictData(TypedDict, total=False):
    """The verdict of one verifier on a completion."""

    verifier: str
    status: str
    reason: str
    steps: list[ScoredSpan]


class CallData(TypedDict):
    """A call of a tool in a turn."""

    name: str
    arguments: NotRequired[str]
    result: NotRequired[str]
    status: NotRequired[str]
    seconds: NotRequired[Score]


class TurnData(TypedDict):
    """A turn of a completion: text and calls of the model, and their results."""

    tokens: Span
    text: NotRequired[str]
    calls: NotRequired[list[CallData]]
    left_out: NotRequired[Count]
    state: NotRequired[str | None]
    reward: NotRequired[Score]
    advantage: NotRequired[Score]
    score: NotRequired[Score]


class CompletionData(TypedDict):
    """A completion of a group."""

    pieces: list[str]
    tokens: NotRequired[Count | None]
    truncated: NotRequired[bool | None]
    rewards: NotRequired[list[Score] | None]
    advantage: NotRequired[Score]
    token_advantages: NotRequired[list[Number] | None]
    token_values: NotRequired[list[Score] | None]
    verdicts: NotRequired[list[VerdictData] | None]
    steps: NotRequired[list[ScoredSpan] | None]
    untrained: NotRequired[list[Span] | None]
    left_off: NotRequired[Span | None]
    turns: NotRequired[list[TurnData] | None]


class Group(TypedDict):
    """A line of ``groups.jsonl``: the completions of one prompt."""

    kind: Literal["group"]
    step: Count
    mode: str
    group: Count
    rewards: list[str]
    completions: list[CompletionData]
    prompt: NotRequired[str]
    columns: NotRequired[dict[str, str]]
    weights: NotRequired[list[Number] | None]
    time: NotRequired[Score]


class Example(TypedDict, total=False):
    """A completion that the trained reward likes and the judge does not."""

    step: Count
    prompt: str
    completion: str
    reward: Score
    judge: Score
    reason: str


class FindingLine(TypedDict):
    """A line of ``findings.jsonl``: the beginning or the end of a finding."""

    kind: Literal["finding"]
    step: Count
    name: str
    ends: NotRequired[bool]
    severity: NotRequired[str]
    evidence: NotRequired[str]
    cause: NotRequired[str]
    remedy: NotRequired[str]
    outcome: NotRequired[str]
    values: NotRequired[Figures]
    steps: NotRequired[list[Count]]
    examples: NotRequired[list[Example]]
    time: NotRequired[Score]


class Sweep(TypedDict):
    """``sweep.json``: the run's place in a sweep."""

    variant: str
    seed: NotRequired[Number | None]


class Model(TypedDict, total=False):
    """The model of a run."""

    name: str
    parameters: Count
    trainable: Count
    adapter: bool


class PartData(TypedDict):
    """The estimator, the objective or the selection of a run."""

    name: str
    keywords: NotRequired[Settings | None]
    formula: NotRequired[str]
    host: NotRequired[bool]


class RewardData(TypedDict):
    """A reward of a run."""

    name: str
    weight: NotRequired[Score]


class VerifierData(TypedDict):
    """A verifier of a run."""

    label: str
    weight: NotRequired[Score]
    settings: NotRequired[Settings | None]


class Parts(TypedDict):
    """The parts that a config resolves to."""

    advantage: PartData
    objective: PartData
    verifiers: list[VerifierData]
    selection: NotRequired[PartData | None]
    rewards: NotRequired[list[RewardData]]
    eval_verifiers: NotRequired[list[VerifierData]]
    engine: NotRequired[str | None]
    rollout: NotRequired[str | None]


class Info(TypedDict, total=False):
    """``run.json``: a broken field is left out by itself."""

    schema: Count
    name: str
    status: str
    error: str | None
    started: Score
    ended: Score
    step: Count | None
    max_steps: Number | None
    resumed_from: Count | None
    model: Model
    parts: Parts
    versions: dict[str, str]
    processes: Count | None
    device: str | None
    host: str
    pid: Count
    config: Settings
    command: Settings | None


@cache
def reader(kind: Any) -> Reader:
    """The function that checks a JSON value against a type and returns it; it raises `Malformed`."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return inner[1]  # type: ignore[no-any-return]
    if is_typeddict(kind):
        return _mapping_reader(kind)
    if origin is Literal:
        return lambda value: of(str, value if value in inner else None)
    each = reader(inner[-1 if origin is dict else 0]) if inner else None
    if each is None:
        return lambda value: of(kind, value)
    if origin is list:
        return lambda value: [each(item) for item in of(list, value)]
    if origin is dict:
        return lambda value: {name: each(item) for name, item in of(dict, value).items()}
    return lambda value: None if value is None else each(value)


def _mapping_reader(kind: Any) -> Reader:
    readers = field_readers(kind)
    required: frozenset[str] = kind.__required_keys__

    def read(value: Any) -> dict[str, Any]:
        if not required <= of(dict, value).keys():
            raise Malformed
        return {name: each(value[name]) for name, each in readers.items() if name in value}

    return read


@cache
def field_readers(kind: Any) -> Mapping[str, Reader]:
    """The reader of each field of a mapping type."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        name: reader(get_args(hint)[0] if get_origin(hint) is NotRequired else hint) for name, hint in hints.items()
    }


def declared_fields(kind: Any, value: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The fields that can be read, and the names of those that cannot."""
    values, broken = {}, []
    for name, read in field_readers(kind).items():
        if name not in value:
            continue
        try:
            values[name] = read(value[name])
        except Malformed:
            broken.append(name)
    return values, broken
