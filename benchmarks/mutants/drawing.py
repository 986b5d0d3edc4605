"""Mutants drawn from the rooms of the product; their targets, and those declared to change nothing."""

import ast
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.mutants.coverage_map import CoverageMap
from benchmarks.mutants.mutate import Mutant, mutants

PRODUCT = ("grpo_plus", "verifiers/grpo_verifiers")
GROUPS = {
    "algorithms": ("grpo_plus/advantages/", "grpo_plus/objectives/", "grpo_plus/selection/"),
    "engine": ("grpo_plus/engine/",),
    "maths": ("verifiers/grpo_verifiers/math/",),
    "box": tuple(f"verifiers/grpo_verifiers/{name}/" for name in ("sandbox", "code", "exec")),
    "resume": ("grpo_plus/checkpoints/", "grpo_plus/training/resuming/"),
}
ELSEWHERE = "elsewhere"
TARGETS = {**dict.fromkeys(GROUPS, 0.90), ELSEWHERE: 0.75}
"""The least share of mutants that tests find."""
EQUIVALENT = Path(__file__).with_name("equivalent.txt")


def room_of(file: str) -> str:
    """The room of a file: a group, or its folder below the package."""
    parts = file.removeprefix("verifiers/").split("/")
    return next((room for room in GROUPS if file.startswith(GROUPS[room])), "/".join(parts[:-1][:2]))


def files_of(root: Path) -> dict[str, list[str]]:
    """The files of the product by room."""
    rooms: dict[str, list[str]] = {}
    for path in sorted(path for folder in PRODUCT for path in (root / folder).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        rooms.setdefault(room_of(file), []).append(file)
    return rooms


def draw(rooms: Mapping[str, Sequence[str]], lines: CoverageMap, root: Path, count: int, seed: int) -> list[Mutant]:
    """So many mutants, one a line: of a room in proportion to the root of its lines, of a group three times as many."""
    places: dict[str, dict[tuple[str, int], list[Mutant]]] = {}
    for room, files in rooms.items():
        for file in files:
            for one in mutants(file, (root / file).read_bytes()):
                if lines.runs(one):
                    places.setdefault(room, {}).setdefault((file, one.line), []).append(one)
    weights = {room: len(found) ** 0.5 * (3 if room in GROUPS else 1) for room, found in places.items()}
    drawn: list[Mutant] = []
    for room in sorted(weights, key=lambda room: (weights[room], room)):  # what a small room leaves, others take
        share = max(1, round((count - len(drawn)) * weights[room] / sum(weights.values())))
        del weights[room]
        chance = random.Random(f"{seed} {room}")  # a room's mutants depend on no other room
        order = chance.sample(sorted(places[room]), len(places[room]))
        chosen = [chance.choice(places[room][place]) for place in order[: min(share, count - len(drawn))]]
        drawn += [one for one in chosen if parses(one, root)]
    return drawn


def parses(mutant: Mutant, root: Path) -> bool:
    """Whether a mutant is Python."""
    try:
        ast.parse(mutant.applied((root / mutant.file).read_bytes()))
    except SyntaxError:
        return False
    return True


def entry(mutant: Mutant, root: Path) -> tuple[str, ...]:
    """A mutant as the list of equivalent ones names it, wherever its line stands by now."""
    return (
        mutant.file,
        (root / mutant.file).read_text(encoding="utf-8").splitlines()[mutant.line - 1].strip(),
        mutant.change,
    )


def equivalents(path: Path = EQUIVALENT) -> set[tuple[str, ...]]:
    """The entries of the list."""
    found = set()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line and not line.startswith("#"):
            *one, _ = parts = [part.strip() for part in line.split(" :: ")]
            if len(parts) != 4:
                raise ValueError(f"{path.name}, line {number}: expected file :: text :: before → after :: reason.")
            found.add(tuple(one))
    return found
