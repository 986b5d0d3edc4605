"""What is relied on in TRL is written down in one place, and a release that changes it is told apart by name."""

import ast
import re
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import grpo_plus
from grpo_plus.trl.versions import (
    OVERRIDE,
    SEAMS,
    TESTED,
    UnsupportedTRLError,
    UntestedTRLWarning,
    check_version,
    is_supported,
    is_untested,
    seam_problems,
    source_file,
)

PACKAGE = Path(grpo_plus.__file__).parent


METHODS = [(seam, name) for seam in SEAMS for name in seam.methods]
ATTRIBUTES = [(seam, name) for seam in SEAMS for name in seam.attributes]


def named(part):
    return part if isinstance(part, str) else part.name


@pytest.fixture(scope="module")
def sources():
    """The host's classes, with the methods' bodies cut down to what they assign: thousands of lines fewer to parse."""
    return {seam.name: outline(source_file(seam.package, seam.path).read_text(), seam.name) for seam in SEAMS}


def outline(source, name):
    owner = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    methods = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
    for method in methods:
        stored = [node for node in ast.walk(method) if isinstance(node, ast.Attribute)]
        stored = [node for node in stored if not isinstance(node.ctx, ast.Load)]
        method.body = [ast.parse(f"{ast.unparse(node)} = None").body[0] for node in stored] or [ast.Pass()]
    owner.body, owner.bases, owner.decorator_list = methods, [], []
    return ast.unparse(owner)


@pytest.mark.slow
def test_the_installed_release_has_every_seam_and_a_class_or_head_of_another_name_is_named(sources):
    assert seam_problems() == []
    assert seam_problems(sources) == []  # as the next tests change them
    assert seam_problems({"GRPOTrainer": "class Trainer: pass"}) == ["the class GRPOTrainer is gone"]
    head = "def add_fused_lm_head(model):\n    other.apply(model)\n"
    gone = ["add_fused_lm_head no longer scores by _ChunkedLogProbFunction"]
    assert seam_problems({**sources, "add_fused_lm_head": head}) == gone
    assert not seam_problems({**sources, "add_fused_lm_head": "def selective_log_softmax(): ..."})


def changed(sources, name, change):
    """The sources with every method of that name changed: one that a class overrides stands in the one below, too."""
    trees = {owner: ast.parse(source) for owner, source in sources.items()}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == name:
                change(node)
    return {owner: ast.unparse(tree) for owner, tree in trees.items()}


@pytest.mark.sample(2, 10)
@pytest.mark.parametrize(("seam", "name"), METHODS, ids=named)
def test_a_method_that_is_gone_or_takes_something_else_is_named(sources, seam, name):
    gone = changed(sources, name, lambda node: setattr(node, "name", "elsewhere"))
    assert seam_problems(gone) == [f"the method {name} is gone"]
    for place, expected in enumerate(seam.methods[name]):
        renamed = changed(sources, name, lambda node, at=place: setattr(node.args.args[at], "arg", "something"))
        (problem,) = seam_problems(renamed)
        assert problem.startswith(f"{name} takes (")
        assert f"expected it to start with ({', '.join(seam.methods[name])})" in problem
        assert expected not in problem.partition("), expected")[0].split("(")[1].split(", ")


@pytest.mark.sample(7)
@pytest.mark.parametrize(("seam", "name"), ATTRIBUTES, ids=named)
def test_an_attribute_that_is_gone_is_named(sources, seam, name):
    gone = {owner: re.sub(rf"\bself\.{name}\b", "self.elsewhere", source) for owner, source in sources.items()}
    assert seam_problems(gone) == [f"the attribute self.{name} is gone"]


@pytest.mark.slow
def test_a_method_that_passes_everything_on_will_do(sources):
    head, tail = sources["GRPOTrainer"].split("def _get_per_token_logps_and_entropies(", 1)
    rest = tail.split(")", 1)[1]

    def problems(parameters):
        return seam_problems({"GRPOTrainer": f"{head}def _get_per_token_logps_and_entropies({parameters}){rest}"})

    assert (problems("self, model, *args, **kwargs"), len(problems("self, model"))) == ([], 1)


VERSIONS = {
    **dict.fromkeys(["1.14.1", "1.15.0", "1.15.3"], (False, False)),
    **dict.fromkeys(["1.14.2", "1.14.9", "1.16.0", "1.16.4", "1.16.9"], (True, False)),
    **dict.fromkeys(["1.17.0.dev0", "1.17.0", "2.0"], (True, True)),
}
"""Releases, whether they are supported, and whether they are newer than the newest one tested."""


def test_the_supported_range_is_the_one_that_pip_is_told_and_what_is_newer_is_told_apart():
    (trl,) = [found for text in requires("grpo-plus") if (found := Requirement(text)).name == "trl"]
    for version, (supported, untested) in VERSIONS.items():
        assert is_supported(version) is supported, version
        assert not supported or is_untested(version) is untested, version
        assert trl.specifier.contains(version) == supported or "dev" in version, version
    assert all(is_supported(tested) and not is_untested(tested) for tested in TESTED)


@pytest.fixture
def installed(monkeypatch):
    """Makes TRL of a release the installed one, its trainer read from another file."""
    monkeypatch.delenv(OVERRIDE, raising=False)
    path = source_file

    def installed(version, other=None):
        monkeypatch.setattr("importlib.metadata.version", lambda name: version)
        stands = lambda package, file: other if other and "grpo" in file else path(package, file)  # noqa: E731
        monkeypatch.setattr("grpo_plus.trl.versions.source_file", stands)

    return installed


def test_an_older_release_is_refused_with_what_to_do_and_a_newer_one_let_in(installed, monkeypatch):
    installed("1.3.0")
    with pytest.raises(UnsupportedTRLError) as caught:
        check_version()
    for word in ("1.3.0", *TESTED, OVERRIDE, "pip install 'trl=="):
        assert word in str(caught.value)
    monkeypatch.setenv(OVERRIDE, "1")
    check_version()
    monkeypatch.delenv(OVERRIDE)  # a newer one with every seam is let in with one warning
    installed("1.17.0")
    with pytest.warns(UntestedTRLWarning, match=r"TRL 1\.17\.0 is newer than 1\.16\.0") as caught:
        check_version()
    assert len(caught) == 1


def test_a_newer_release_that_changed_a_seam_is_refused_with_each_change(installed, monkeypatch, tmp_path, sources):
    changed = sources["GRPOTrainer"].replace("def _compute_loss(", "def _other_loss(", 1)
    installed("1.17.0", tmp_path / "grpo_trainer.py")
    with pytest.raises(UnsupportedTRLError, match=r"the file trl/trainer/grpo_trainer\.py, where GRPOTrainer stood"):
        check_version()  # which was moved
    (tmp_path / "grpo_trainer.py").write_text(changed.replace("def _log_metric(", "def _log(", 1))
    with pytest.raises(UnsupportedTRLError) as caught:
        check_version()
    for words in ("_compute_loss is gone", "_log_metric is gone", "pip install 'trl==1.16.0'", OVERRIDE):
        assert words in str(caught.value)
    monkeypatch.setenv(OVERRIDE, "1")
    check_version()


def test_the_refusal_comes_before_trl_is_imported(clean_environment):
    code = """
import importlib.metadata, sys
real = importlib.metadata.version
importlib.metadata.version = lambda name: "1.3.0" if name == "trl" else real(name)
try:
    from grpo_plus import GRPOPlusConfig
except ImportError as error:
    print(type(error).__name__, "trl" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=clean_environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["UnsupportedTRLError", "False"], done.stderr


def test_private_names_of_the_host_are_used_in_one_folder_and_the_trainer_only():
    """`trainer._metrics` and the like outside `trl/` and `trainer.py` would break in a place nobody looks."""
    private = {name for _, name in (*METHODS, *ATTRIBUTES) if name.startswith("_")}
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "trl" or path.name == "trainer.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in private:
                own = isinstance(node.value, ast.Name) and node.value.id == "self"
                assert own, f"{path}:{node.lineno} uses {node.attr}"
