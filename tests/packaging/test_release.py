"""The files for other machines agree with the package: versions, addresses, the Dockerfile's sources, a release's checks."""

import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = ["CITATION.cff", "SECURITY.md", "Dockerfile", "examples/quickstart.ipynb"]
FILES += [str(path.relative_to(ROOT)) for path in sorted((ROOT / ".github").rglob("*.*ml"))]
pytestmark = pytest.mark.skipif(not (ROOT / ".ci" / "release").is_file(), reason="the sources are not here")


@pytest.fixture
def release(tmp_path):
    """Runs the check of a tag in a copy of the files that it reads; gives the exit code and what was said."""
    for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md", "grpo_plus/__init__.py", ".ci/release"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)

    def release(*words, **changes):
        for name, (old, new) in changes.items():
            path = tmp_path / name.replace("__", ".")
            text = path.read_text()
            assert old in text
            path.write_text(text.replace(old, new, 1))
        command = [sys.executable, tmp_path / ".ci" / "release", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return release


def version():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_a_tag_is_released_where_all_files_agree(release):
    now = version()
    code, said = release("check", f"v{now}", CHANGELOG__md=("## Unreleased", f"## {now} (2026-12-01)"))
    assert (code, said) == (0, f"v{now}: all files agree\n")
    code, said = release("notes", f"v{now}")
    assert code == 0
    assert said.startswith("### Breaking")
    assert "\n## " not in said


def test_the_versions_in_the_sources_agree_and_a_tag_that_some_file_does_not_have_names_it(release):
    found = re.findall(r"(\S+) says (\S+?)[;.]?(?:\s|$)", release("check", "v0")[1])
    assert {name for name, _ in found} == {"pyproject.toml", "grpo_plus/__init__.py", "CITATION.cff"}
    assert {stated for _, stated in found} == {version()}
    code, said = release("check", "v99.0.0", CITATION__cff=(f"version: {version()}", "version: 99.0.0"))
    assert code == 1
    assert f"pyproject.toml says {version()}" in said
    assert "CITATION.cff" not in said
    assert "no section '## 99.0.0'" in said
    assert release("notes", "v99.0.0")[0] == 1
    assert release("publish", "v1")[0] == 1


@pytest.mark.parametrize("name", FILES)
def test_addresses_are_those_of_the_package(name):
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    own = urls["Repository"]
    for found in re.findall(r"https://github\.com/[^\s\"')#@\\]+", (ROOT / name).read_text()):
        assert found.startswith(own), found
        path = found.removeprefix(own).removeprefix("/blob/main/")
        assert path in ("", ".git") or (ROOT / path).exists(), found


def test_what_the_images_are_made_of_is_there_and_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().split()
    copied = [
        word
        for line in re.findall(r"^COPY (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
        for word in line.split()[:-1]
        if not word.startswith("--")
    ]
    assert {"pyproject.toml", "constraints.txt", "grpo_plus", "verifiers"} <= set(copied)
    for name in copied:
        assert (ROOT / name).exists(), name
        assert not any(fnmatch(name, pattern) for pattern in ignored), name
    # The wheel is built inside, from what was copied: everything that it takes in by name must be there.
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for path in (*built["packages"], *built["force-include"]):
        assert path.split("/")[0] in copied, path
