"""Every block of every page: Python is run, configs are read by the command line, commands are parsed or run."""

import ast
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))
from pages import PAGES, REASONS, ROOT, blocks, commands, name

from tests import started

if not (ROOT / "docs").exists():
    pytest.skip("the sources are not here", allow_module_level=True)
CPU = ("--use_cpu", "true", "--bf16", "false", "--fp16", "false", "--report_to", "none")
BY_HAND = [ROOT / "docs" / "start" / f"{page}.md" for page in ("estimators", "verifiers", "four_bits")]
BY_HAND.append(ROOT / "docs" / "install.md")
"""Pages whose commands are followed from the first to the last."""
MANUAL = ROOT / "verifiers" / "README.md"
"""Its files are there on every page."""
OTHERS = re.compile("git|source|pip|python3|ray|vllm|trl|ollama|cat|taskset|export|printf|eval|sbatch|sky|kubectl")
"""Commands of other programs, which are not looked at."""


def having(*languages):
    return [page for page in PAGES if any(True for _ in blocks(page, *languages))]


def lay_out(page, folder):
    """The files that a page and the manual of verifiers name, and the examples, in a folder; gives the Python files of the page."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    for example in (ROOT / "examples").glob("*.py"):
        shutil.copy(example, folder / example.name)
    for documents in ("notes", "documents"):
        (folder / documents).mkdir()
    files = []
    for source in (MANUAL, page):
        for block in blocks(source, "python"):
            if block.file and not block.needs:
                (folder / block.file).write_text(block.text, encoding="utf-8")
                files += [block.file] if source == page else []
    return files


@pytest.fixture
def clean(monkeypatch):
    """What a page registers is gone afterwards, and what other tests left behind is not there."""
    from grpo_plus.advantages import advantages
    from grpo_plus.objectives import objectives
    from grpo_plus.selection import selections
    from grpo_verifiers.verifying import REGISTRY

    for registry in (advantages, objectives, selections, REGISTRY):
        monkeypatch.setattr(registry, "_registered", {})
        monkeypatch.setattr(registry, "_resolved", {})


def test_what_is_not_run_says_why_and_imports_what_exists():
    """Names of this project and TRL; blocks that are run say it themselves."""
    for page in PAGES:
        for block in blocks(page, "python", "yaml", "bash"):
            where = f"{name(page)}:{block.line}"
            assert block.needs in REASONS or not block.note.startswith("not run"), f"{where}: {block.note}"
            tree = ast.parse(block.text if block.needs and block.language == "python" else "")
            for node in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)):
                if node.module.split(".")[0] in ("grpo_plus", "grpo_verifiers", "trl"):
                    module = importlib.import_module(node.module)
                    missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                    assert not missing, f"{where}: {node.module} has no {missing}"


RUNNER = """
import sys
from grpo_verifiers.registry import load_plugin

scope = {"__name__": "page"}
for path in sys.argv[1:]:
    if path.startswith("block_"):
        exec(compile(open(path, encoding="utf-8").read(), path, "exec"), scope)
    elif not path.startswith("test_"):
        load_plugin(f"./{path}", None)
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", having("python"), ids=name)
def test_the_python_of_a_page_runs(page, tmp_path, clean_environment):
    lay_out(page, tmp_path)
    order = []
    for number, block in enumerate(blocks(page, "python")):
        if block.needs:
            continue
        is_test = re.search(r"^def test_", block.text, re.MULTILINE)
        path = block.file or f"{'test' if is_test else 'block'}_{number}.py"
        (tmp_path / path).write_text(block.text, encoding="utf-8")
        order.append(path)
    (tmp_path / "run_page.py").write_text(RUNNER, encoding="utf-8")

    def python(*words):
        settings = {"cwd": tmp_path, "env": clean_environment, "capture_output": True, "text": True}
        return started.run([sys.executable, *words], check=False, **settings)

    done = python("run_page.py", *order)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    tests = [path for path in order if path.startswith("test_")]
    if tests:
        done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@pytest.mark.slow
@pytest.mark.parametrize("page", having("yaml"), ids=name)
def test_the_configs_of_a_page_are_read_without_a_problem(page, tmp_path, monkeypatch, clean):
    from grpo_plus.cli._arguments import make_parser, parse

    known = {action.dest for action in make_parser("grpo-plus train")._actions}
    files = [file for file in lay_out(page, tmp_path) if not file.startswith("test_")]
    monkeypatch.chdir(tmp_path)
    for number, block in enumerate(blocks(page, "yaml")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block.text, encoding="utf-8")
        if block.needs:
            assert yaml.safe_load(block.text).keys() <= known, f"{name(page)}:{block.line}"
            continue
        flags = [] if "plugins:" in block.text or not files else ["--plugins", *files]
        flags += [] if "output_dir:" in block.text else ["--output_dir", "out"]
        try:
            parse("grpo-plus train", [str(path), *CPU, *flags])
        except Exception as error:  # the message is what a reader of the page would get
            pytest.fail(f"{name(page)}:{block.line}: {error}")


class Stop(KeyboardInterrupt):
    """The words of a command were understood; nothing on the way takes this for a failure."""


def understood(words, monkeypatch):
    """Have a command take its words, and stop there; what it does not understand raises."""
    from grpo_plus import cli
    from grpo_plus.check import examination
    from grpo_plus.cli import _arguments, _config_check, sweep
    from grpo_plus.cli._parser import CommandParser

    command = importlib.import_module(f"grpo_plus.cli.{words[0].replace('-', '_')}")
    if words[0] == "train":
        _arguments.parse("grpo-plus train", [*words[1:], *CPU])
        return
    if words[0] == "sweep":
        options, shared = sweep._options(words[1:])
        given = [f"--{pair}" for vary in options.vary for pair in [vary.partition(",")[0]]]
        _arguments.parse("grpo-plus sweep", [options.config, *shared, *given, *CPU])
        return
    whole = CommandParser.parse_args
    read = _arguments.parse

    def parse_args(self, *args, **kwargs):
        whole(self, *args, **kwargs)
        raise Stop

    def parse(*args, **kwargs):
        read(*args, **kwargs)
        raise Stop

    def examine_machine(*_, **__):
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(CommandParser, "parse_args", parse_args)
        patch.setattr(_arguments, "parse", parse)
        patch.setattr(_config_check, "parse", parse)
        patch.setattr(examination, "examine_machine", examine_machine)
        if hasattr(command, "parse"):
            patch.setattr(command, "parse", parse)
        with pytest.raises(Stop):
            command.run(words[1:])
    assert words[0] in cli.COMMANDS


CONFIG = """
model_name_or_path: grpo_plus.cli.quickstart:model
dataset_name: grpo_plus.cli.quickstart:dataset
output_dir: runs/config
verifiers: [math]
use_cpu: true
bf16: false
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", having("bash"), ids=name)
def test_the_commands_of_a_page_are_understood(page, tmp_path, monkeypatch, clean):
    lay_out(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    for file in ("config.yaml", "run.yaml"):
        (tmp_path / file).write_text(CONFIG, encoding="utf-8")
    for block in blocks(page, "bash"):
        for command in commands(block):
            words = shlex.split(command)
            while re.match(r"\w+=", words[0]):
                words.pop(0)
            program = words[0].removeprefix(".venv/bin/")
            where = f"{name(page)}:{block.line}: {command}"
            if program == "grpo-plus" and words[1].startswith("-"):
                assert words[1] in ("--version", "--help"), where
            elif program == "grpo-plus" and words[1] == "init":
                from grpo_plus.cli import init

                assert init.run(words[2:]) == 0, where
            elif program == "grpo-plus":
                try:
                    understood(words[1:], monkeypatch)
                except Exception as error:
                    pytest.fail(f"{where}: {type(error).__name__}: {error}")
            elif program == "python" and words[1] == "-m":
                assert words[2] == "pytest" or words[2] == "build" or importlib.util.find_spec(words[2]), where
            elif program.startswith((".ci/", "benchmarks/")):
                assert (ROOT / program).exists(), where
            else:
                assert OTHERS.fullmatch(program) or "/" in program or block.needs, where


WRAPPER = """#!{python}
import sys

from grpo_plus.cli import main

words, small = sys.argv[1:], {small!r}
if words[0] in ("train", "sweep"):
    for name in small:
        if name in words:
            del words[words.index(name) : words.index(name) + 2]
    words += [*(f"{{name}}={{value}}" for name, value in small.items())]
    words += ["--dry-run"] * (words[0] == "sweep")
sys.exit(main(words))
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.sample(0, 1)
@pytest.mark.parametrize("page", BY_HAND, ids=name)
def test_a_page_can_be_followed_from_the_first_command_to_the_last(page, tmp_path, tiny_model, clean_environment):
    """In an empty folder; only the model is tiny, the steps are two, and a sweep checks its runs without starting them."""
    small = {"model_name_or_path": tiny_model, "max_steps": 2, "measure": "null", "warm_start": "null"}
    small |= {"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    small |= {"max_completion_length": 12, "logging_steps": 1}
    programs = tmp_path / "programs"
    programs.mkdir()
    wrapper = programs / "grpo-plus"
    flags = {f"--{key}": value for key, value in small.items()}
    wrapper.write_text(WRAPPER.format(python=sys.executable, small=flags), encoding="utf-8")
    wrapper.chmod(0o755)
    script = ["set -e", f'python() {{ "{sys.executable}" "$@"; }}']
    for block in blocks(page, "python", "bash"):
        if block.needs:
            continue
        if block.language == "python":
            script.append(f"cat > {block.file} <<'END_OF_PAGE'\n{block.text}END_OF_PAGE")
        else:
            kept = [
                line for line in block.text.splitlines() if not re.match(r"(\.venv/bin/|python3 -m venv|pip )", line)
            ]
            script.append("\n".join(kept))
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {**clean_environment, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("package", ["grpo_plus", "grpo_plus.testing", "grpo_verifiers"])
def test_the_page_of_python_names_has_every_public_name_with_its_first_line(package):
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    module = importlib.import_module(package)
    shown = set(re.findall(rf"^::: {re.escape(package)}\.(\w+)$", text, re.MULTILINE))
    assert shown == set(module.__all__)
    for each in module.__all__:
        first = inspect.getdoc(getattr(module, each)).splitlines()[0]
        assert f"| `{each}` | {first} |" in text, each
