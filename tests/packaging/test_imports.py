"""Importing costs next to nothing, and every public name is really there."""

import importlib
import importlib.metadata
import importlib.resources
import json
import subprocess
import sys

import pytest

from grpo_verifiers.lazy import installed

HEAVY = ("torch", "trl", "transformers", "datasets", "accelerate", "peft", "sympy", "numpy", "pandas", "rich", "pytest")
FACES = ("grpo_plus", "grpo_verifiers", "grpo_plus.advantages", "grpo_plus.testing")
LOOK = """
import json, sys
import {module}
print(json.dumps(sorted(set(sys.modules) & set({heavy!r}))))
"""


def python(code, environment, *flags, **options):
    command = [sys.executable, *flags, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", [*FACES, "grpo_plus.cli"])
def test_an_import_is_light(module, clean_environment):
    assert json.loads(python(LOOK.format(module=module, heavy=HEAVY), clean_environment)) == []


def test_verifiers_need_neither_torch_nor_trl(clean_environment):
    """With both hidden, a verifier is found, configured and run."""
    code = """
import sys
for name in ("torch", "trl", "transformers", "grpo_plus"):
    sys.modules[name] = None  # importing it now raises
import grpo_verifiers
from grpo_verifiers import get_verifier
with_name = [getattr(grpo_verifiers, name) for name in grpo_verifiers.__all__]
print(get_verifier("exact").verify("42", answer="42").score)
from grpo_verifiers.exec.runner import close_shared_runners
close_shared_runners()
"""
    assert python(code, clean_environment).strip() == "1.0"


@pytest.mark.slow
@pytest.mark.parametrize("module", [*FACES, "grpo_plus.advantages", "grpo_plus.objectives", "grpo_plus.selection"])
def test_every_public_name_resolves(module):
    found = importlib.import_module(module)
    assert found.__all__
    for name in found.__all__:
        assert getattr(found, name) is not None
        assert name in dir(found)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = found.no_such_name


def test_the_distribution_its_console_script_and_its_types():
    import grpo_plus

    assert all((importlib.resources.files(name) / "py.typed").is_file() for name in ("grpo_plus", "grpo_verifiers"))
    assert importlib.metadata.version("grpo-plus") == grpo_plus.__version__
    points = [point for point in importlib.metadata.entry_points(group="console_scripts") if point.name == "grpo-plus"]
    assert points
    assert points[0].value == "grpo_plus.cli:main"


def test_no_folder_of_ours_shadows_the_standard_library_or_a_known_package(tmp_path, clean_environment):
    """`math`, `code` and `verifiers` mean what they mean, wherever Python starts and whatever of ours is imported first."""
    code = "import grpo_plus, grpo_verifiers.math, math, code, importlib.util; assert math.floor(1.5) == 1 and code.interact; spec = importlib.util.find_spec('verifiers'); print(spec.origin if spec else None)"
    origin = python(code, clean_environment, cwd=tmp_path).strip()
    assert origin == "None" or "grpo_verifiers" not in origin


def test_a_folder_with_a_packages_name_is_not_that_package(tmp_path, monkeypatch):
    (tmp_path / "deepspeed_of_mine").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert installed("json")
    assert not installed("deepspeed_of_mine")
    (tmp_path / "deepspeed_of_mine/__init__.py").touch()
    importlib.invalidate_caches()
    assert installed("deepspeed_of_mine")


@pytest.mark.slow
def test_workers_start_from_any_folder(tmp_path, clean_environment):
    for shadow in ("math.py", "code.py", "json.py"):
        (tmp_path / shadow).write_text("raise RuntimeError('shadowed')\n")
    code = """
from grpo_verifiers import get_verifier
from grpo_verifiers.exec.runner import close_shared_runners
try:
    print(get_verifier("exact", isolation="process", timeout=60.0).verify("42", answer="42").status)
finally:
    close_shared_runners()
"""
    # Isolated (-I), since Python itself would take this folder's json.py for the standard library's.
    assert python(code, clean_environment, "-I", cwd=tmp_path).strip() == "correct"
