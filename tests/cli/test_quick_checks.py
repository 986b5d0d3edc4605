"""What a command line cannot work for is told before torch and TRL are imported, which takes seconds."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser

from grpo_plus.cli._arguments import make_parser
from grpo_plus.cli._help import host_options, own_options
from grpo_plus.cli._quick_checks import launch_options, light_parser, mappings
from grpo_plus.config import MAPPINGS
from grpo_plus.recipe.aliases import aliases
from tests.cases.rows import sections

PROGRAM = """
import json, sys
from grpo_plus.cli import main
found = []
for words in json.loads(sys.argv[1]):
    code = main(words)
    found.append([code, sorted({"torch", "trl", "transformers"} & set(sys.modules))])
    print("---", file=sys.stderr)
print(json.dumps(found))
"""
EARLY = [
    (tuple(shlex.split(words)), expected)
    for words, _, expected in (row.partition(" => ") for row in sections("early_commands.txt")["grpo-plus"])
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Exit code, heavy modules and message of every case, in one process: what comes late would be seen in all after it."""
    here = tmp_path_factory.mktemp("early")
    (here / "ok.yaml").write_text("dataset_name: ./rows.jsonl\nmodel_name_or_path: ./no_model\noutput_dir: out\n")
    shutil.copy(Path(__file__).parents[1] / "cases" / "typos.yaml", here)
    (here / "folder").mkdir()
    (here / "broken.yaml").write_text("a: [1\n")
    (here / "rows.jsonl").write_text('{"prompt": "1", "answer": "2"}\n')
    command = [sys.executable, "-c", PROGRAM, json.dumps([words for words, _ in EARLY])]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    return dict(zip((words for words, _ in EARLY), zip(codes, done.stderr.split("---\n"), strict=False), strict=True))


@pytest.mark.parametrize(("words", "expected"), EARLY, ids=[" ".join(words)[:60] for words, _ in EARLY])
def test_a_mistake_is_told_before_torch_is_imported(told, words, expected):
    (code, heavy), err = told[words]
    assert (code, heavy) == (2, [])
    assert expected in err


def test_training_says_at_once_that_it_reads_the_config(cli, config):
    code, out, err = cli("train", config(num_generations=1))
    assert code == 2, err
    assert out.splitlines()[0].startswith("Reading ")
    program = "import sys, grpo_plus.cli._quick_checks; sys.exit(bool({'torch', 'trl'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=120).returncode == 0


def test_what_is_known_early_is_what_the_parser_takes():
    late = {option for action in make_parser("x")._actions for option in action.option_strings}
    early = set(light_parser()._option_string_actions)
    dotted = {option for option in late if "." in option}
    assert {option.removeprefix("--").partition(".")[0] for option in dotted} <= set(mappings())
    assert late - dotted - early <= {"-h", "--help"}
    assert set(MAPPINGS) <= set(mappings())
    known = {option for action in launch_command_parser()._actions for option in action.option_strings}
    assert {option[2:].replace("-", "_") for option in known if option.startswith("--")} - launch_options() <= {"help"}


def test_a_name_of_another_project_leads_to_options_that_exist():
    (options, remedies), names = aliases(), {*host_options(), *own_options(), *launch_options()}
    assert {*options.values()} <= names | {"args", "processing_class"}  # arguments of the trainer
    for text in remedies.values():
        written = re.findall(r"(?<=write )\w+(?=: )|\b[a-z]+(?:_[a-z]+)+\b", re.sub(r"\{.*\}", "", text))
        assert {*written} - names <= {"group_norm", "dr_grpo", "length_overlong", "cosine_with_min_lr"}, text
