"""Files, folders and numbers of the wrong kind in every command: one message that names the thing, and no traceback."""

import shutil

import pytest

OK = """\
model_name_or_path: ./tiny
output_dir: out
dataset_name: ./rows.jsonl
verifiers: [exact]
max_steps: 1
use_cpu: true
bf16: false
report_to: none
num_generations: 2
per_device_train_batch_size: 2
max_completion_length: 4
"""
ROW = '{"prompt": "1", "answer": "2", "completion": "2"}\n'
BINARY = bytes(range(256)) * 8


@pytest.fixture
def place(tmp_path, tiny_model, monkeypatch):
    """A folder full of what is no config, no data, no model and no run."""
    here = tmp_path / "place"
    here.mkdir()
    monkeypatch.chdir(here)
    for name in ("folder", "run/grpo_plus"):
        (here / name).mkdir(parents=True)
    for name, text in {
        "ok.yaml": OK, "rows.jsonl": ROW, "with space.jsonl": ROW, "really_json.csv": ROW, "header.csv": "a,b\n",
        "empty.jsonl": "", "empty.yaml": "", "list.yaml": "- a\n", "broken.yaml": "a: [1\n", "cut.jsonl": '{"a": 1',
        "list.json": "[]", "numbers.jsonl": '{"completion": 5, "answer": 4}\n', "text.md": "hello",
        "run/grpo_plus/run.json": "junk", "broken.py": "def f(:\n",
    }.items():  # fmt: skip
        (here / name).write_text(text)
    for name in ("binary.yaml", "binary.jsonl", "binary.parquet", "binary.csv", "binary.py"):
        (here / name).write_bytes(BINARY)
    (here / "latin.yaml").write_bytes(b"a: \xe9\n")
    (here / "latin.jsonl").write_bytes(b'{"completion": "\xe9", "answer": "4"}\n')
    (here / "tiny").symlink_to(tiny_model)
    shutil.copytree(tiny_model, here / "broken_model")
    (here / "broken_model" / "config.json").write_text("{")
    return here


EVAL = ("eval", "tiny", "--split", "train", "--verifier", "exact", "--max-completion-length", "2", "--dataset")
CASES = [
    (("train", "folder"), "config file folder cannot be read"),
    (("train", "empty.yaml"), "must hold a mapping"),
    (("train", "list.yaml"), "must hold a mapping"),
    (("train", "broken.yaml"), "is no valid YAML"),
    (("train", "binary.yaml"), "config file binary.yaml cannot be read"),
    (("train", "latin.yaml"), "config file latin.yaml cannot be read"),
    (("train", "rows.jsonl"), "is data: a config is YAML"),
    (("train", "ok.yaml", "--dataset_name", "./empty.jsonl"), "holds no rows"),
    (("train", "ok.yaml", "--dataset_name", "./binary.jsonl"), "it is no UTF-8"),
    (("train", "ok.yaml", "--dataset_name", "./text.md"), "a file must end in .jsonl"),
    (("train", "ok.yaml", "--dataset_name", "./nothing.csv"), "does not exist"),
    (("train", "ok.yaml", "--model_name_or_path", "./rows.jsonl"), "'./rows.jsonl' is a file"),
    (("train", "ok.yaml", "--model_name_or_path", "./folder"), "holds no model: it has no config.json"),
    (("train", "ok.yaml", "--model_name_or_path", "./nothing"), "does not exist"),
    (("train", "ok.yaml", "--model_name_or_path", "./broken_model"), "broken_model"),
    (("train", "ok.yaml", "--output_dir", "rows.jsonl"), "output_dir rows.jsonl: nothing can be written there"),
    (("train", "ok.yaml", "--max_steps", "99999999999999999999"), "max_steps is 99999999999999999999"),
    (("train", "ok.yaml", "--learning_rate", "1e400"), "learning_rate is inf"),
    (("train", "ok.yaml", "--num_generations", "1e9"), "invalid int value: '1e9'"),
    (("train", "ok.yaml", "--seed", "-1"), "seed is -1"),
    (("train", "ok.yaml", "--plugins", "binary.py"), "binary.py"),
    (("train", "ok.yaml", "--plugins", "./broken.py"), "broken.py cannot be imported: SyntaxError"),
    (("train", "ok.yaml", "rest"), "unexpected arguments: rest"),
    (("explain", "ok.yaml", "--rewards", ""), "--rewards is empty"),
    (("explain", "ok.yaml", "--rewards", "1e400,1"), "expected finite numbers"),
    (("explain", "folder"), "config file folder cannot be read"),
    (("plan", "folder"), "config file folder cannot be read"),
    (("plan", "--model", "rows.jsonl"), "rows.jsonl"),
    (("plan", "--model", "folder"), "folder"),
    (("plan", "--model", "broken_model"), "broken_model"),
    (("plan", "--model", "tiny", "--vram", "1e400"), "--vram is inf"),
    (("verify", "folder", "--verifier", "exact"), "folder"),
    (("verify", "empty.jsonl", "--verifier", "exact"), "holds no rows"),
    (("verify", "binary.jsonl", "--verifier", "exact"), "data: "),
    (("verify", "binary.parquet", "--verifier", "exact"), "cannot be loaded as Parquet"),
    (("verify", "binary.csv", "--verifier", "exact"), "binary.csv cannot be read as text"),
    (("verify", "really_json.csv", "--verifier", "exact"), "holds no rows. Its first line names the columns."),
    (("verify", "header.csv", "--verifier", "exact"), "holds no rows"),
    (("verify", "cut.jsonl", "--verifier", "exact"), "cannot be loaded as JSON, one object a line"),
    (("verify", "list.json", "--verifier", "exact"), "list.json"),
    (
        ("verify", "latin.jsonl", "--verifier", "exact"),
        "latin.jsonl cannot be read as text: it is no UTF-8 (invalid continuation byte near byte 16)",
    ),
    (("verify", "text.md", "--verifier", "exact"), "data 'text.md': a file must end in"),
    (("verify", "rows.jsonl", "--verifier", "exact", "--out", "folder"), "results file folder cannot be written"),
    (("verify", "rows.jsonl", "--verifier", "exact", "--out", "rows.jsonl/x.jsonl"), "cannot be written"),
    (("verify", "rows.jsonl", "--verifier", "./rows.jsonl:f"), "rows.jsonl"),
    (("verify", "rows.jsonl", "--verifier", "./binary.py:f"), "binary.py"),
    (("verify", "rows.jsonl", "--verifier", ":"), "is no reference"),
    (("verify", "rows.jsonl", "--verifier", ""), "no name"),
    (("verify", "rows.jsonl", "--verifier", "exact", "--timeout", "nan"), "timeout is nan"),
    ((*EVAL, "empty.jsonl"), "holds no rows"),
    ((*EVAL, "text.md"), "--dataset 'text.md': a file must end in"),
    ((*EVAL, "rows.jsonl", "-n", "0"), "n is 0"),
    ((*EVAL, "rows.jsonl", "--device", "tpu9"), "--device"),
    ((*EVAL, "rows.jsonl", "--device", "cuda:99"), "--device"),
    ((*EVAL, "rows.jsonl", "--out", "folder"), "must end in .jsonl"),
    ((*EVAL, "rows.jsonl", "--out", "rows.jsonl/x.jsonl"), "cannot be written"),
    (("eval", "broken_model", *EVAL[2:], "rows.jsonl"), "broken_model"),
    (("eval", "rows.jsonl", *EVAL[2:], "rows.jsonl"), "rows.jsonl"),
    (("eval", "folder", *EVAL[2:], "rows.jsonl"), "holds no config.json"),
    (("eval", "", *EVAL[2:], "rows.jsonl"), "model"),
    (("chat", "rows.jsonl", "--once", "a"), "rows.jsonl"),
    (("chat", "folder", "--once", "a"), "holds no config.json"),
    (("chat", "broken_model", "--once", "a"), "broken_model"),
    (("chat", "tiny", "--once", "a", "--max-completion-length", "0"), "max_completion_length is 0"),
    (("chat", "tiny", "--once", "a", "--device", "tpu9"), "--device"),
    (("report", "rows.jsonl"), "rows.jsonl is a file"),
    (("report", "folder"), "folder is no run"),
    (("report", ""), "is no run"),
    (("export", "rows.jsonl", "--out", "x"), "rows.jsonl"),
    (("export", "folder", "--out", "x"), "folder"),
    (("export", "tiny", "--out", "x"), "tiny"),
    (("export", "run", "--out", "rows.jsonl"), "rows.jsonl exists and is not an empty folder"),
    (("plugins", "./binary.py"), "binary.py"),
    (("plugins", "./nothing.py:f"), "nothing.py"),
    (("init", "quickstrt"), "Did you mean 'quickstart'?"),
    (("init", "quickstart", "--out", "rows.jsonl"), "rows.jsonl"),
    (("sweep", "folder", "--vary", "beta=1"), "folder"),
    (("sweep", "binary.yaml", "--vary", "beta=1"), "binary.yaml"),
    (("sweep", "ok.yaml", "--vary", "beta"), "beta"),
    (("sweep", "ok.yaml", "--vary", "=1"), "=1"),
    (("sweep", "ok.yaml", "--vary", "beta=0,1", "--seeds", "0"), "seeds"),
    (("sweep", "ok.yaml", "--vary", "beta=0,1", "--seeds", "99999999999"), "seeds"),
    (("sweep", "ok.yaml", "--vary", "beta=0,1", "--out", "rows.jsonl"), "rows.jsonl"),
    (("reward-model", "train", "--model", "tiny", "--data", "empty.jsonl"), "holds no rows"),
    (("reward-model", "train", "--model", "tiny", "--data", "binary.jsonl"), "it is no UTF-8"),
    (("reward-model", "train", "--model", "rows.jsonl", "--data", "rows.jsonl"), "rows.jsonl"),
    (("reward-model", "train", "binary.yaml"), "binary.yaml"),
    (("reward-model", "eval", "rows.jsonl", "--data", "rows.jsonl"), "rows.jsonl"),
    (("reward-model", "eval", "folder", "--data", "rows.jsonl"), "chosen, rejected"),
]


def _names(folder):
    """What lies there, but for the folder that a run makes before anything else."""
    return sorted(path.name for path in folder.iterdir() if path.name != "out")


@pytest.mark.sample(12)
@pytest.mark.parametrize(("words", "expected"), CASES, ids=[" ".join(words)[:60] for words, _ in CASES])
def test_a_wrong_input_is_one_message_that_names_it(cli, place, words, expected):
    before = _names(place)
    code, _, err = cli(*words)
    assert code == 2, err
    assert expected in err
    assert "Traceback" not in err or ".py" in " ".join(words), "but for that of a plug-in"
    assert len(err) < 4000
    assert _names(place) == before, "nothing was written, but for the folder of a run"


@pytest.mark.parametrize("words", [("verify", "with space.jsonl", "--verifier", "exact")])
def test_names_with_spaces_are_names(cli, place, words):
    code, out, err = cli(*words)
    assert code == 0, err
    assert "results: with space.verdicts.jsonl" in out


def test_a_number_that_was_a_text_is_one_and_other_values_are_named(cli, place):
    code, out, err = cli("verify", "numbers.jsonl", "--verifier", "exact")
    assert code == 0, err
    assert "rows: 1, mean score: 0.0000" in out
    (place / "truths.jsonl").write_text('{"completion": true, "answer": "4"}\n')
    code, _, err = cli("verify", "truths.jsonl", "--verifier", "exact")
    assert code == 2
    assert "completion 0 is True, expected a string or a list of chat messages" in err
