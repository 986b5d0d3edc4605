"""The shape of the two packages, read from their syntax trees.

Imports inside functions and under TYPE_CHECKING count like any other.
"""

import ast
import importlib.util
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

PACKAGES = ("grpo_plus", "grpo_verifiers")
ROOT_FILES = {"__init__.py", "_trl.py", "config.py", "trainer.py"}
MODEL_LIBRARIES = {"grpo_verifiers.steps._prm_model": {"torch", "transformers"}}
"""The one file of the verifiers that loads a model: of step rewards, in a process of its own."""


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


def circle_in(graph):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " -> ".join(reversed(error.args[1]))
    return None


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
