"""docs/record.md lists the fields of every type of the record, as the schema declares them."""

import re
from pathlib import Path
from types import NoneType
from typing import Annotated, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from grpo_plus.record import schema

DOCUMENT = (Path(__file__).parents[2] / "docs" / "record.md").read_text(encoding="utf-8")
NAMES = {
    str: "text", bool: "flag", schema.Number: "number", schema.Count: "count", schema.Score: "score", schema.Span: "span",
    schema.ScoredSpan: "scored span", schema.Figures: "figures", schema.Settings: "settings",
}  # fmt: skip
TYPES = {name: kind for name, kind in vars(schema).items() if is_typeddict(kind)}


def in_words(kind):
    if kind in NAMES:
        return NAMES[kind]
    if is_typeddict(kind):
        return kind.__name__
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list:
        return f"list of {in_words(inner[0])}"
    if origin is dict:
        return f"{in_words(inner[1])}s by name"
    if origin is Literal:
        return f'"{inner[0]}"'
    if inner[1:] == (NoneType,):
        return f"{in_words(inner[0])} or null"
    assert origin in (Annotated, NotRequired), kind
    return in_words(inner[0])


def documented(name):
    """The fields of a type in the document: name, mark of a required one, type."""
    section = re.search(rf"^### {name}\n(.*?)(?=^##|\Z)", DOCUMENT, re.MULTILINE | re.DOTALL)[1]
    return re.findall(r"^\| `(\w+)`( \*)? \| (.+?) \| .+ \|$", section, re.MULTILINE)


def test_every_type_and_every_field_is_documented_as_the_schema_declares_it():
    assert sorted(re.findall(r"^### (\w+)$", DOCUMENT, re.MULTILINE)) == sorted(TYPES)
    for name, kind in TYPES.items():
        hints, required = get_type_hints(kind, include_extras=True), kind.__required_keys__
        declared = [(field, " *" * (field in required), in_words(hint)) for field, hint in hints.items()]
        assert documented(name) == declared, name


def test_every_simple_type_is_explained():
    table = re.search(r"^## Types\n(.*?)^Required", DOCUMENT, re.MULTILINE | re.DOTALL)[1]
    assert sorted(re.findall(r"^\| ([a-z ]+) \| (?!JSON)", table, re.MULTILINE)) == sorted(NAMES.values())


def test_the_document_names_the_version_and_the_limits_of_the_code():
    from grpo_plus.record import files, sample
    from grpo_plus.training.observers import recorder

    names = files.RUN, files.METRICS, files.GROUPS, files.SWEEP, f"{files.PREVIOUS}/"
    for words in (
        f"`schema` in `run.json` is {files.SCHEMA}.", f"up to {files.BYTES // 2**20} MiB and {files.SHARE_OF_TIME:.0%} of the time",
        f"Up to {recorder.BATCHES} generation batches", f"up to {sample.GROUPS_PER_BATCH} groups of each",
        f"up to {sample.PROMPT_KEPT} characters", f"beyond {sample.TOKENS_KEPT} tokens", f"up to {sample.REASON_KEPT} characters",
        *(f"| `{name}` |" for name in names),
    ):  # fmt: skip
        assert words in DOCUMENT
