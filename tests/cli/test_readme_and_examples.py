"""What the README and the example files say is what the project does."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="the sources are not here")
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.yaml"))
CPU = ("--use_cpu", "true", "--bf16", "false", "--fp16", "false", "--report_to", "none")


def blocks(language):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def read(path, *flags):
    from grpo_plus.cli._arguments import parse

    return parse("grpo-plus train", [str(path), *CPU, *flags])


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_config_can_be_read(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    parsed = read(ROOT / "examples" / name)
    assert parsed.model.model_name_or_path
    assert parsed.training.output_dir
    assert parsed.script.dataset_name


def test_the_two_commands_of_the_readme():
    for which, expected in (("run", "examples/quickstart.yaml"), ("tests", "-m pytest")):
        command = [sys.executable, str(ROOT / ".ci" / "readme"), which]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        (line,) = done.stdout.splitlines()
        assert line.startswith("python3 -m venv .venv && .venv/bin/pip install")
        assert expected in line
        assert "sudo" not in line


def test_the_configs_of_the_readme_can_be_read_beside_its_plugins(tmp_path):
    """Code that names its file is written there and registers its parts, which the configs may name."""
    files = {match[1]: text for text in blocks("python") if (match := re.match(r"# (\w+\.py)\n", text))}
    assert files
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    plugins = [str(tmp_path / name) for name in files]
    assert blocks("yaml")
    for number, text in enumerate(blocks("yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text, encoding="utf-8")
        flags = () if "plugins:" in text else ("--plugins", *plugins)
        flags += () if "output_dir:" in text else ("--output_dir", str(tmp_path / "out"))
        assert read(path, *flags).training.output_dir


def test_the_verifier_and_the_estimator_of_the_readme_keep_their_contracts(tmp_path, monkeypatch):
    from grpo_plus.testing import parametrize_with_checks
    from grpo_verifiers.testing import check_verifier

    for text in blocks("python"):
        if match := re.match(r"# (\w+\.py)\n", text):
            (tmp_path / match[1]).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (kit,) = [text for text in blocks("python") if "@parametrize_with_checks" in text]
    names = re.findall(r'parametrize_with_checks\(\["([^"]+)"\]\)', kit)
    assert names
    for case in parametrize_with_checks(names).args[1]:
        case.values[0]()
    sums = {"answer": "4"}
    check_verifier("./my_verifiers.py:even_digits", accept=[("so 4", sums)], reject=[("", sums), ("3, so 4", sums)])


def test_the_python_of_the_readme_compiles():
    assert blocks("python")
    for text in blocks("python"):
        compile(text, "README.md", "exec")


def test_the_readme_names_every_built_in_estimator():
    from grpo_plus.advantages import advantages

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for entry in advantages.entries():
        if entry.way == "built-in":
            assert f"`{entry.name}`" in text, entry.name
