"""Parse ``advantage=zscore,sign`` into variants of a config."""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from grpo_plus.recipe.values import StrictLoader
from grpo_verifiers.options import numbers

PER_RUN = {"seed": "--seeds", "output_dir": "--out", "resume_from_checkpoint": "the same command again"}
"""Options that a sweep sets for each run, and the flag for each."""

_KEY = re.compile(r"[A-Za-z_][\w.]*\Z")
_NAME_LENGTH = 80


class SweepError(ValueError):
    """A sweep that cannot run as requested, with the necessary change in the message."""


@dataclass(frozen=True)
class Variant:
    """One value for each option that varies, as pairs in the order of the command line."""

    values: tuple[tuple[str, Any], ...]

    @property
    def label(self) -> str:
        """``advantage=sign, beta=0.04``."""
        return ", ".join(f"{key}={_text(value)}" for key, value in self.values)

    @property
    def folder(self) -> str:
        """The label as a folder name; a digest distinguishes labels with the same plain characters."""
        plain = re.sub(r"[^\w.=+-]+", "-", self.label).strip("-.")
        if plain == self.label and len(plain) <= _NAME_LENGTH:
            return plain
        return f"{plain[:_NAME_LENGTH]}-{hashlib.sha256(self.label.encode()).hexdigest()[:6]}"

    def flags(self) -> list[str]:
        """Return the variant as flags of ``grpo-plus train``."""
        return [word for key, value in self.values for word in _flag(key, value)]


def read_variants(texts: Sequence[str]) -> list[Variant]:
    """Return every combination of the ``--vary`` arguments ``key=a,b``, each an option with YAML values."""
    options = [_option(text) for text in texts]
    keys = [key for key, _ in options]
    for key in keys:
        if keys.count(key) > 1:
            raise SweepError(f"--vary gives {key} more than once: put all its values into one, as in {key}=a,b,c.")
        if inside := [other for other in keys if key.startswith(f"{other}.")]:
            raise SweepError(f"--vary gives both {inside[0]} and {key}, which is part of it: vary one of the two.")
    every = itertools.product(*(values for _, values in options))
    variants = [Variant(tuple(zip(keys, values, strict=True))) for values in every]
    labels = [variant.label for variant in variants]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise SweepError(f"--vary makes the variant {twice!r} more than once: give each value once.")
    return variants


def read_seeds(text: str) -> list[int]:
    """Parse seeds: ``3`` is 1, 2 and 3, ``7,8`` these two, and ``7,`` this one."""
    words = [word.strip() for word in text.split(",")]
    if len(words) > 1 and not words[-1]:
        words = words[:-1]
    if not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        raise SweepError(f"--seeds is {text!r}, expected a number (3) or a list (7,8,9).")
    seeds = [int(word) for word in words]
    if "," not in text:
        if not 1 <= seeds[0] <= 1000:
            raise SweepError(f"--seeds is {text!r}, expected 1 to 1000 of them; for the seed {seeds[0]}, write {text},")
        return list(range(1, seeds[0] + 1))
    if len(set(seeds)) < len(seeds):
        raise SweepError(f"--seeds is {text!r}, which names a seed twice.")
    return seeds


def _option(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    key = key.strip()
    if not equals or not _KEY.match(key):
        raise SweepError(f"--vary is {text!r}, expected an option and its values, as in advantage=zscore,sign.")
    if key in PER_RUN:
        raise SweepError(f"--vary {key}: every run of a sweep has its own; {PER_RUN[key]} sets it.")
    return key, _values(key, values)


def _values(key: str, text: str) -> list[Any]:
    try:
        values = yaml.load(f"[{text}]", StrictLoader)  # noqa: S506 - a subclass of the safe loader
    except yaml.YAMLError as error:
        reason = str(getattr(error, "problem", None) or error)
        raise SweepError(
            f"--vary {key}={text}: the values are no valid YAML ({reason}). Quote values with commas or braces."
        ) from error
    if not isinstance(values, list) or not values:
        raise SweepError(f"--vary {key} has no values: give at least one, as in {key}=a,b.")
    # As in a config file: YAML reads a bare `no` as false, but these options expect the word.
    values = ["no" if value is False and key.endswith("_strategy") else value for value in values]
    if None in values and key not in ("advantage", "objective"):
        raise SweepError(
            f"--vary {key}={text}: an empty value or null cannot be given on a command line. "
            f"Name the value that {key} has when it is unset."
        )
    return [numbers(value) for value in values]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=str)


def _flag(key: str, value: Any) -> list[str]:
    # argparse would take a value such as -1e-3 for an option without the equals sign.
    if not isinstance(value, list) or "." in key:
        return [f"--{key}={_text(value)}"]
    return [f"--{key}", *map(_text, value)]
