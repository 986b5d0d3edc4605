"""JSON that satisfies a schema."""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal

from grpo_verifiers.base.traits import Traits
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.errors.messages import show
from grpo_verifiers.options import TagName
from grpo_verifiers.reading.fences import last_block
from grpo_verifiers.reading.thinking import answer_part
from grpo_verifiers.verdict import Status, Verdict, excused

_DATA = ("const", "default", "enum", "examples")


def _option_problems(*, schema: Mapping[str, Any] | None, **_: str | None) -> list[str]:
    try:
        if schema is not None:
            _validator(schema)
    except ValueError as error:
        return [f"schema: {error}"]
    return []


@Traits(home="process", timeout=5.0, pure=True, option_problems=_option_problems, instead={"row_schema": "schema"})
def json_schema(
    completion: str,
    row_schema: Any = None,
    *,
    schema: Mapping[str, Any] | None = None,
    fences: Literal["allowed", "required", "forbidden"] = "allowed",
    think: TagName | None = "think",
) -> Verdict:
    """Score 1 where the completion, outside its thinking, is JSON that satisfies the schema.

    >>> json_schema('{"n": 1}', {"type": "object", "required": ["n"]}).score
    1.0

    The JSON is the last fenced block marked ``json``, else the last one not marked at all, else the full text. It is
    read strictly: duplicate keys, NaN, infinities and numbers beyond a float are rejected. References of a schema are
    resolved inside it; nothing is ever fetched.

    Use it when the model has to answer in JSON: calls, extraction, forms. It needs ``pip install 'grpo-plus[json]'``.

    Scores: 1 correct; 0 wrong (JSON that breaks the schema); 0 unparsable (no JSON, or fences against ``fences``);
    None, error, where the row's schema is none.

    Config:
        verifiers:
          - name: json_schema
            schema: {type: object, required: [name], properties: {name: {type: string}}}

    Args:
        completion: the text to check.
        row_schema: a schema of the row's own, as a mapping or JSON text; wins over ``schema``. Without ``schema`` its
            column has to be named. One that is no schema excludes the row.
        schema: a JSON schema for all rows; draft 2020-12 unless its ``$schema`` names another one.
        fences: whether a fenced block may, must, or must not be used.
        think: tag of the thinking section that is left out; None leaves nothing out.
    """
    if row_schema is None and schema is None:
        raise VerifierFailedError("json_schema has no schema: set its option schema, or map row_schema to a column.")
    try:
        own = json.loads(row_schema) if isinstance(row_schema, str) else row_schema
        validator = _validator(schema if row_schema is None else own)
    except ValueError as error:
        if row_schema is None:
            raise ValueError(f"json_schema: {error}") from error
        return excused(f"the row's schema: {error}"[:300])
    text = _candidate(answer_part(completion, think), fences)
    if text is None:
        return Verdict(0.0, Status.UNPARSABLE, f"fenced blocks are {fences}")
    try:
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return Verdict(0.0, Status.UNPARSABLE, f"no valid JSON: {error}"[:200])
    try:
        problem = next(validator.iter_errors(value), None)
    except RecursionError:
        return Verdict(0.0, Status.WRONG, "nested too deeply to check")
    if problem is None:
        return Verdict(1.0)
    return Verdict(0.0, detail=f"at {problem.json_path[:80]}: {problem.message}"[:300])


def _candidate(text: str, fences: str) -> str | None:
    block = last_block(text, ("json",))
    if fences == "forbidden":
        return None if block is not None else text
    return block if block is not None or fences == "required" else text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {show(key)} occurs twice")
        values[key] = value
    return values


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {show(text)} is beyond a float")
    return value


def _validator(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        raise ValueError(f"a schema is a mapping, not {type(schema).__name__}.")  # noqa: TRY004 - one error for all
    try:
        return _build(json.dumps(schema, sort_keys=True))
    except TypeError as error:
        raise ValueError(f"the schema is not JSON: {error}.") from error


@lru_cache(maxsize=256)
def _build(text: str) -> Any:
    """A cached validator: to check a schema costs more than to check most completions."""
    try:
        import jsonschema
        from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # ships no types
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import specification_with
    except ImportError as error:
        raise VerifierFailedError("json_schema needs the package jsonschema: pip install 'grpo-plus[json]'.") from error
    schema = json.loads(text)
    cls = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        cls.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"not a valid JSON schema at {error.json_path}: {error.message[:200]}.") from error
    dialect = specification_with(cls.META_SCHEMA.get("$schema", cls.META_SCHEMA.get("id")))
    registry = REGISTRY.with_resource(schema.get("$id", ""), dialect.create_resource(schema)).crawl()
    own = set(registry) - set(REGISTRY)
    for ref in _refs(schema):
        for uri in own:
            with suppress(Unresolvable):
                registry.resolver(uri).lookup(ref)
                break
        else:
            raise ValueError(f"the reference {ref!r} is not in the schema, and nothing is fetched: copy it to $defs.")
    # A registry without a retrieval function: the library's default one opens URLs.
    return cls(schema, registry=REGISTRY)


def _refs(schema: Any) -> list[str]:
    references, stack = [], [schema]
    while stack:
        item = stack.pop()
        if isinstance(item, Mapping):
            references += [item[key] for key in ("$ref", "$dynamicRef") if isinstance(item.get(key), str)]
            stack += [part for key, part in item.items() if key not in _DATA]
        elif isinstance(item, list):
            stack += item
    return references
