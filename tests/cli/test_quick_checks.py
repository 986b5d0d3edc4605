"""What a command line cannot work for is told before torch and TRL are imported, which takes seconds."""

import json
import subprocess
import sys

import pytest
from accelerate.commands.launch import launch_command_parser

from grpo_plus.cli._arguments import make_parser
from grpo_plus.cli._quick_checks import launch_options, light_parser, mappings
from grpo_plus.config import MAPPINGS

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
GIVEN = ("--split", "train", "--verifier", "exact")
EARLY = [
    (("train", "nowhere.yaml"), "nowhere.yaml cannot be read"),
    (("train", "."), "cannot be read"),
    (("train", "broken.yaml"), "is no valid YAML"),
    (("train", "ok.yaml", "--lerning_rate", "1"), "unknown option --lerning_rate. Did you mean --learning_rate?"),
    (("train", "ok.yaml", "--beta", "1", "--beta", "2"), "--beta is given twice"),
    (("train", "ok.yaml", "--dataset_name", "./nothing.jsonl"), "'./nothing.jsonl' does not exist"),
    (("train", "ok.yaml", "--dataset-name=./nothing.csv"), "'./nothing.csv' does not exist"),
    (("train", "ok.yaml"), "the folder './no_model' does not exist"),
    (("check", "nowhere.yaml"), "nowhere.yaml cannot be read"),
    (("check", "ok.yaml", "--lenghts", "1"), "Did you mean --lengths?"),
    (("eval", "./nothing", "--dataset", "rows.jsonl", *GIVEN), "the folder './nothing' does not exist"),
    (("eval", "./mine.py:make", "--dataset", "rows.jsonl", *GIVEN), "the folder './mine.py:make' does not exist"),
    (("eval", "base", "--dataset", "nothing.jsonl", *GIVEN), "'nothing.jsonl' does not exist"),
    (("eval", "base", "--dataset", "rows.jsonl", "--verifier", "exat"), "Did you mean 'exact'?"),
    (("eval", "base", "--dataset", "rows.jsonl", "-k", "a", *GIVEN), "-k is 'a'"),
    (("verify", "nothing.jsonl", "--verifier", "exact"), "does not exist"),
    (("export", "nothing", "--out", "x"), "the run nothing is no folder: it does not exist"),
    (("report", "nothing"), "nothing does not exist"),
    (("sweep", "nowhere.yaml", "--vary", "beta=1"), "nowhere.yaml"),
    (("plugins", "./nothing.py"), "does not exist"),
]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Exit code, heavy modules and message of every case, in one process: what comes late would be seen in all after it."""
    here = tmp_path_factory.mktemp("early")
    (here / "ok.yaml").write_text("dataset_name: ./rows.jsonl\nmodel_name_or_path: ./no_model\noutput_dir: out\n")
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
    plain = {option.replace("_", "-") for option in launch_options()}
    assert {option.replace("_", "-") for option in known if option.startswith("--")} - plain <= {"--help"}
