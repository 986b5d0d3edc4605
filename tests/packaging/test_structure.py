"""The shape of the two packages, read from their syntax trees: imports run one way, and few rooms stand on few floors.

A room is a folder right below a package, or a file there. A room's floor is one above the highest room it imports.
Imports inside functions and under TYPE_CHECKING count like any other.
"""

import ast
import gc
import importlib.util
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGES = ("grpo_plus", "grpo_verifiers")
ROOT_FILES = {"__init__.py", "config.py", "trainer.py"}
MODEL_LIBRARIES = {
    "grpo_verifiers.tools.schema": {"transformers"},
    "grpo_verifiers.steps._prm_model": {"torch", "transformers"},
}
"""The files of the verifiers that may: one makes schemas, and one loads a model of step rewards in a process of its own."""
MOST_FLOORS, MOST_ROOMS = 8, {"grpo_plus": 24, "grpo_plus.training": 8}
MOST_OF_WALK = {"stays": 40, "files": 23, "rooms": 6, "climbs": 3}
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def folder_of(package):
    return Path(importlib.util.find_spec(package).origin).parent


@cache
def modules():
    """Each module of both packages by dotted name: its path, and the nodes of its syntax tree that import."""
    found = {}
    gc.disable()  # it takes five times as long otherwise
    for package in PACKAGES:
        folder = folder_of(package)
        for path in sorted(set(folder.rglob("*.py")) - set(folder.glob("recipes/**/*.py"))):  # the wheel's examples
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = (path, imports_in(path.read_text(encoding="utf-8")))
    gc.enable()
    return found


def imports_in(source):
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_by(name, nodes, is_package):
    """The dotted names that a module imports, as far as they are modules of the two packages."""
    known = modules()
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
            continue
        above = name.split(".")[: len(name.split(".")) - node.level + is_package] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            if inner in known or source in known:
                yield inner if inner in known else source


@cache
def arrows():
    """Each module with the modules it imports; the faces of the packages only hand names on and are left out."""
    return {
        name: set(imported_by(name, nodes, path.name == "__init__.py")) - {name}
        for name, (path, nodes) in modules().items()
        if name not in PACKAGES
    }


def room_of(module, package="grpo_plus"):
    return ".".join(module.split(".")[: package.count(".") + 2])


def rooms_of(package):
    """Each room of a package with the rooms below it that it imports; the package's own face is none."""
    inside = {name: targets for name, targets in arrows().items() if name.startswith(f"{package}.")}
    rooms = {room_of(name, package): set() for name in inside}
    for name, targets in inside.items():
        below = {room_of(target, package) for target in targets if target in inside}
        rooms[room_of(name, package)] |= below - {room_of(name, package)}
    return rooms


def circle_in(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return None


def floors_of(rooms):
    floors = {}
    for room in TopologicalSorter(rooms).static_order():
        floors[room] = 1 + max((floors[below] for below in rooms[room]), default=0)
    return floors


def test_no_modules_import_in_a_circle_the_root_holds_three_files_and_the_trainer_is_never_of_any_type():
    assert circle_in(arrows()) is None
    assert {path.name for path in folder_of("grpo_plus").glob("*.py")} == ROOT_FILES
    for path, _ in modules().values():
        assert not re.search(r"\bdef \w+\([^)]*\btrainer: [\"']?Any\b", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("package", [*PACKAGES, "grpo_plus.training"])
def test_rooms_are_few_import_one_way_and_stand_on_few_floors(package):
    rooms = rooms_of(package)
    assert len(rooms) <= MOST_ROOMS.get(package, len(rooms)), sorted(rooms)
    assert circle_in(rooms) is None
    floors = floors_of(rooms)
    assert max(floors.values()) <= MOST_FLOORS, sorted(floors.items(), key=lambda item: item[1])


@pytest.mark.skipif(not PAGE.exists(), reason="the sources are not here")
def test_the_arrow_of_the_page_is_that_of_the_imports():
    arrow = re.search(r"```\n(grpo_verifiers →.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1)
    place = {room.strip(): at for at, rooms in enumerate(arrow.split("→")) for room in rooms.split(",")}
    for room, below in rooms_of("grpo_plus").items():
        for other in below:
            one, another = room.split(".")[1], other.split(".")[1]
            assert place[another] < place[one], f"{room} imports {other}"


def test_the_verifiers_import_neither_torch_nor_trl_nor_the_trainers_package():
    for name, (path, nodes) in modules().items():
        foreign = {"grpo_plus", "torch", "transformers", "trl"} - MODEL_LIBRARIES.get(name, set())
        for node in nodes if name.startswith("grpo_verifiers") else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found = foreign & {name.split(".")[0] for name in names}
            assert not found, f"{path}:{node.lineno} imports {found}"


def test_ray_is_two_rooms_that_nothing_else_imports():
    for name, targets in arrows().items():
        assert room_of(name).endswith(".ray") or not [each for each in targets if room_of(each).endswith(".ray")], name


def test_a_module_with_an_underscore_is_imported_from_its_own_folder_only():
    for name, targets in arrows().items():
        for target in targets:
            folder, _, module = target.rpartition(".")
            if not module.startswith("_") or module == "__main__":
                continue
            assert name == folder or name.startswith(f"{folder}."), f"{name} imports {target}"


@pytest.mark.skipif(not PAGE.exists(), reason="the sources are not here")
def test_a_config_walks_in_one_direction():
    from benchmarks.walk import walk  # it imports TRL, unlike the other tests

    files, counts = walk()
    assert {name: count for name, count in counts.items() if count > MOST_OF_WALK[name]} == {}, files


def test_a_room_of_training_is_entered_by_its_door_alone():
    for name, targets in arrows().items():
        for target in targets:
            *room, module = target.split(".")
            inside = ".".join(room)
            if len(room) == 3 and inside.startswith("grpo_plus.training."):
                assert name.startswith(inside), f"{name} imports {module} of {inside}: import from {inside}"
