"""Every kind of finding, by its code."""

from collections.abc import Mapping
from types import ModuleType

from grpo_plus.doctor import examination
from grpo_plus.doctor.checks import (
    boxes,
    disk,
    fit,
    golds,
    hub,
    installed,
    lengths,
    machine,
    plugins,
    rows,
    settings,
    template,
    tokens,
)
from grpo_plus.doctor.finding import Kind

FAMILIES: tuple[ModuleType, ...] = (
    examination, installed, machine, boxes, disk, plugins, hub, settings, tokens, template, lengths, rows, golds, fit,
)  # fmt: skip

KINDS: Mapping[str, Kind] = {
    kind.code: kind for family in FAMILIES for kind in vars(family).values() if isinstance(kind, Kind)
}
