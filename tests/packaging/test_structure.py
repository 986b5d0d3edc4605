"""The shape of the two packages, read from their syntax trees: imports run one way, and few rooms stand on few floors.

A room is a folder right below a package, or a file there. A room's floor is one above the highest room it imports.
Imports inside functions and under TYPE_CHECKING count like any other.
"""

import ast
import importlib.util
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGES = ("grpo_plus", "grpo_verifiers")
ROOT_FILES = {"__init__.py", "_trl.py", "config.py", "trainer.py"}
MODEL_LIBRARIES = {
    "grpo_verifiers.tools.schema": {"transformers"},
    "grpo_verifiers.steps._prm_model": {"torch", "transformers"},
}
"""The files of the verifiers that may: one makes schemas, and one loads a model of step rewards in a process of its own."""
MOST_ROOMS = 26
ONLY_IN_A_WHEEL = {"grpo_plus.recipes"}
"""The files that ``grpo-plus init`` writes: examples/ in the sources, and no room of the house."""
MOST_FLOORS = 8


def folder_of(package):
    return Path(importlib.util.find_spec(package).origin).parent


@cache
def modules():
    """The syntax tree of each module of both packages, by dotted name."""
    trees = {}
    for package in PACKAGES:
        folder = folder_of(package)
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            trees[name] = (path, ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return trees


def imported_by(name, tree, is_package):
    """The dotted names that a module imports, as far as they are modules of the two packages."""
    known = modules()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
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
        name: set(imported_by(name, tree, path.name == "__init__.py")) - {name}
        for name, (path, tree) in modules().items()
        if name not in PACKAGES
    }


def room_of(module):
    return ".".join(module.split(".")[:2])


def rooms_of(package):
    """Each room of a package with the rooms below it that it imports; the package's own face is none."""
    inside = {name: targets for name, targets in arrows().items() if name.startswith(f"{package}.")}
    rooms = {room_of(name): set() for name in inside}
    for name, targets in inside.items():
        rooms[room_of(name)] |= {room_of(target) for target in targets if target in inside} - {room_of(name)}
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


@pytest.mark.slow
def test_imports_are_read_at_every_depth_and_level():
    tree = ast.parse(
        "from grpo_plus import _trl\n"
        "def lazy():\n    import grpo_plus.config\n"
        "if TYPE_CHECKING:\n    from .compute import compute_advantages\n"
        "from ..objectives import kl\nimport torch\n"
    )
    assert set(imported_by("grpo_plus.advantages.table", tree, is_package=False)) == {
        "grpo_plus._trl",
        "grpo_plus.config",
        "grpo_plus.advantages.compute",
        "grpo_plus.objectives.kl",
    }
    tree = ast.parse("from .compute import compute_advantages\nfrom . import table")
    assert set(imported_by("grpo_plus.advantages", tree, is_package=True)) == {
        "grpo_plus.advantages.compute",
        "grpo_plus.advantages.table",
    }


def test_no_modules_import_each_other_in_a_circle():
    assert circle_in(arrows()) is None


@pytest.mark.parametrize("package", PACKAGES)
def test_no_room_imports_one_above_it(package):
    assert circle_in(rooms_of(package)) is None


@pytest.mark.parametrize("package", PACKAGES)
def test_rooms_and_floors_are_few(package):
    rooms = rooms_of(package)
    assert len(rooms.keys() - ONLY_IN_A_WHEEL) <= MOST_ROOMS, sorted(rooms)
    floors = floors_of(rooms)
    assert max(floors.values()) <= MOST_FLOORS, sorted(floors.items(), key=lambda item: item[1])


def test_the_root_of_grpo_plus_holds_four_files():
    assert {path.name for path in folder_of("grpo_plus").glob("*.py")} == ROOT_FILES


def test_the_verifiers_import_neither_torch_nor_trl_nor_the_trainers_package():
    for name, (path, tree) in modules().items():
        if not name.startswith("grpo_verifiers"):
            continue
        foreign = {"grpo_plus", "torch", "transformers", "trl"} - MODEL_LIBRARIES.get(name, set())
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found = foreign & {name.split(".")[0] for name in names}
            assert not found, f"{path}:{node.lineno} imports {found}"


def test_a_module_with_an_underscore_is_imported_from_its_own_folder_only():
    for name, targets in arrows().items():
        for target in targets:
            folder, _, module = target.rpartition(".")
            if not module.startswith("_") or module == "__main__" or folder == "grpo_plus":
                continue
            assert name == folder or name.startswith(f"{folder}."), f"{name} imports {target}"


def test_the_trainer_is_never_of_any_type():
    for path, tree in modules().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.arg) and node.arg == "trainer" and node.annotation is not None:
                assert ast.unparse(node.annotation).strip("'\"") != "Any", f"{path}:{node.lineno}"
