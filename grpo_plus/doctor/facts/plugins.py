"""Every entry point of the registries, loaded."""

from typing import TYPE_CHECKING, Any

from grpo_plus.doctor.checks.plugins import Plugins, Point
from grpo_verifiers.errors import DuplicateNameError

if TYPE_CHECKING:
    from grpo_verifiers.registry import Registry


def plugins() -> Plugins:
    """Load what installed packages register."""
    from grpo_plus.advantages import advantages
    from grpo_plus.objectives import objectives, piece_registries
    from grpo_plus.selection import selections
    from grpo_verifiers.tools.registry import ENVIRONMENTS, TOOLS
    from grpo_verifiers.verifying import REGISTRY

    registries: list[Registry[Any]] = [advantages, objectives, *piece_registries.values(), selections, REGISTRY]
    points: list[Point] = []
    clashes = []
    for registry in [*registries, TOOLS, ENVIRONMENTS]:
        try:
            entries = registry.entries()
        except DuplicateNameError as error:
            clashes.append((registry.kind, str(error)))
            continue
        points += [_point(registry, entry.name, entry.source) for entry in entries if entry.way == "entry point"]
    return Plugins(points, clashes)


def _point(registry: Any, name: str, source: str) -> Point:
    try:
        registry.get(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plug-in may raise anything
        return Point(registry.kind, name, source, f"{type(error).__name__}: {error}")
    return Point(registry.kind, name, source)
