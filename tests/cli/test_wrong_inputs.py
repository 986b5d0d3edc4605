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
        "ok.yaml": OK, "rows.jsonl": ROW, "with space.jsonl": ROW, "really_json.csv": ROW, "empty.jsonl": "",
        "cut.jsonl": '{"a": 1', "numbers.jsonl": '{"completion": 5, "answer": 4}\n', "text.md": "hello",
        "run/grpo_plus/run.json": "junk",
    }.items():  # fmt: skip
        (here / name).write_text(text)
    for name in ("binary.yaml", "binary.jsonl", "binary.parquet", "binary.csv", "binary.py"):
        (here / name).write_bytes(BINARY)
    (here / "latin.jsonl").write_bytes(b'{"completion": "\xe9", "answer": "4"}\n')
    (here / "tiny").symlink_to(tiny_model)
    shutil.copytree(tiny_model, here / "broken_model")
    (here / "broken_model" / "config.json").write_text("{")
    return here


EVAL = ("eval", "tiny", "--split", "train", "--verifier", "exact", "--max-completion-length", "2", "--dataset")
VERIFY = ("verify", "rows.jsonl", "--verifier", "exact")
CASES = [
    (("train", "rows.jsonl"), "is data: a config is YAML"),
    (("train", "ok.yaml", "--dataset_name", "./empty.jsonl"), "holds no rows"),
    (("train", "ok.yaml", "--dataset_name", "./binary.jsonl"), "it is no UTF-8"),
    (("train", "ok.yaml", "--dataset_name", "./text.md"), "a file must end in .jsonl"),
    (("train", "ok.yaml", "--model_name_or_path", "./rows.jsonl"), "'./rows.jsonl' is a file"),
    (("train", "ok.yaml", "--model_name_or_path", "./folder"), "holds no model: it has no config.json"),
    (("train", "ok.yaml", "--model_name_or_path", "./broken_model"), "broken_model"),
    (("train", "ok.yaml", "--output_dir", "rows.jsonl"), "output_dir rows.jsonl: nothing can be written there"),
    (("train", "ok.yaml", "--max_steps", "99999999999999999999"), "max_steps is 99999999999999999999"),
    (("train", "ok.yaml", "--learning_rate", "1e400"), "learning_rate is inf"),
    (("train", "ok.yaml", "--plugins", "binary.py"), "binary.py"),
    (("train", "ok.yaml", "rest"), "unexpected arguments: rest"),
    (("train", "ok.yaml", "--stop_on", "dead"), "stop_on: unknown finding 'dead'"),
    (("explain", "ok.yaml", "--rewards", ""), "--rewards is empty"),
    (("plan", "--model", "rows.jsonl"), "rows.jsonl"),
    (("verify", "folder", "--verifier", "exact"), "folder"),
    (("verify", "binary.parquet", "--verifier", "exact"), "cannot be loaded as Parquet"),
    (("verify", "binary.csv", "--verifier", "exact"), "binary.csv cannot be read as text"),
    (("verify", "really_json.csv", "--verifier", "exact"), "holds no rows. Its first line names the columns."),
    (("verify", "cut.jsonl", "--verifier", "exact"), "cannot be loaded as JSON, one object a line"),
    (("verify", "latin.jsonl", "--verifier", "exact"), "it is no UTF-8 (invalid continuation byte near byte 16)"),
    (("verify", "rows.jsonl", "--verifier", "exact", "--out", "folder"), "results file folder cannot be written"),
    (("verify", "rows.jsonl", "--verifier", "./rows.jsonl:f"), "rows.jsonl"),
    (("verify", "rows.jsonl", "--verifier", "./binary.py:f"), "binary.py"),
    (("verify", "rows.jsonl", "--verifier", ":"), "is no reference"),
    (("verify", "rows.jsonl", "--verifier", ""), "no name"),
    (("verify", "rows.jsonl", "--verifier", "exact", "--timeout", "nan"), "timeout is nan"),
    ((*EVAL, "text.md"), "--dataset 'text.md': a file must end in"),
    ((*EVAL, "rows.jsonl", "-n", "0"), "n is 0"),
    ((*EVAL, "rows.jsonl", "--device", "tpu9"), "--device"),
    ((*EVAL, "rows.jsonl", "--out", "folder"), "must end in .jsonl"),
    ((*EVAL, "rows.jsonl", "--out", "rows.jsonl/x.jsonl"), "cannot be written"),
    (("eval", "broken_model", *EVAL[2:], "rows.jsonl"), "broken_model"),
    (("eval", "folder", *EVAL[2:], "rows.jsonl"), "holds no config.json"),
    (("chat", "tiny", "--once", "a", "--max-completion-length", "0"), "max_completion_length is 0"),
    (("export", "rows.jsonl", "--out", "x"), "rows.jsonl"),
    (("sweep", "ok.yaml", "--vary", "beta=0,1", "--seeds", "99999999999"), "seeds"),
    (("sweep", "--vary", "advantage=sign"), "the config file comes first"),
    (("sweep", "ok.yaml"), "nothing varies"),
    (("sweep", "ok.yaml", "--vary", "beta=0,1", "max_steps=1,2"), "what is 'max_steps=1,2'?"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--seed", "3"), "--seeds sets it"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--output_dir=x"), "--out sets it"),
    (("sweep", "ok.yaml", "--vary", "max_steps=1,2", "--max_steps", "3"), "both varied and given"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--push_to_hub"), "would replace each other's model"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--jobs", "2"), "--jobs is gone: --on ray runs as many"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--devices=0,1"), "CUDA_VISIBLE_DEVICES=0,1 before the command"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--on", "slurm"), "--on"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--cpus", "2"), "--cpus counts with --on ray only"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--on", "ray", "--cpus", "0"), "--cpus is 0, expected"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--on", "ray", "--gpus", "-1"), "--gpus is -1, expected"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--on", "ray", "--gpus", "1.5"), "above 1 a whole one"),
    (("sweep", "ok.yaml", "--vary", "a=1", "--out", "run"), "holds no sweep"),
    (("reward-model", "eval", "folder", "--data", "rows.jsonl"), "chosen, rejected"),
    (("chat", "nowhere/model/x", "--once", "a"), "cannot be loaded"),
    (("chat", "tiny", "--once", " "), "--once is empty"),
    (("chat", "tiny", "--once", "a", "--gold", "4"), "--gold is for a verifier, and there is none"),
    (("chat", "tiny", "--once", "a", "--template", "boxd"), "Did you mean 'boxed'?"),
    (("chat", "tiny", "--once", "a", "--column", "answer=b"), "a chat has none"),
    (("chat", "tiny", "--once", "a", "--settings-from", "nowhere"), "there is no run with a record in it"),
    (("chat", "tiny", "--once", "\udcff"), "the input is no text in UTF-8"),
    (("eval", "tiny", "--dataset", "rows.jsonl", "--verifier", "exact", "--split", "tset"), "--split: "),
    ((*EVAL, "rows.jsonl", "--column", "answer=anwser"), "Did you mean 'answer'?"),
    ((*EVAL, "rows.jsonl", "--prompt-column", "promt"), "Did you mean 'prompt'?"),
    ((*EVAL, "rows.jsonl", "-n", "2", "-k", "1,8"), "k is 8, but it must be a whole number from 1 to n (2)"),
    ((*EVAL, "rows.jsonl", "--option", "tga=a"), "tga"),
    ((*EVAL, "rows.jsonl", "--adapter", "."), "no adapter_config.json in it"),
    ((*EVAL, "rows.jsonl", "--dtype", "half"), "--dtype: "),
    ((*EVAL, "rows.jsonl", "--temperature", "-1"), "temperature is -1.0"),
    ((*EVAL, "rows.jsonl", "--limit", "0"), "--limit is 0"),
    ((*EVAL, "rows.jsonl", "--settings-from", "."), "--settings-from .: there is no run with a record in it."),
    ((*EVAL, "rows.jsonl", "--settings-from", ".", "--no-run-settings"), "are both given: keep one"),
    ((*VERIFY, "--show", "wrng"), "unknown status 'wrng'. Did you mean 'wrong'?"),
    ((*VERIFY, "--verifier", "numeric", "--option", "abs_tol=10"), "write --option exact.abs_tol=10"),
    ((*VERIFY, "--verifier", "numeric", "--column", "solution=answer"), "none of exact, numeric has a parameter"),
    ((*VERIFY, "--show", "disagree"), "needs a second --verifier"),
    ((*VERIFY, "--show-rows", "0"), "--show-rows is 0, expected at least 1"),
    ((*VERIFY, "--check-golds", "--show", "wrong"), "--check-golds scores no completions"),
    ((*VERIFY, "--verifier", "exact"), "'exact' is used 2 times"),
    ((*VERIFY, "--verifier", "{name: exact"), "--verifier is no valid JSON or YAML"),
    ((*VERIFY, "--column", "answer=prompt", "--column", "answer=answer"), "--column gives answer twice"),
    ((*VERIFY, "--completion-column", "text"), "completion: unknown column 'text'"),
    ((*VERIFY, "--column", "answer=gold"), "answer: unknown column 'gold'"),
    ((*VERIFY, "--column", "gold"), "--column is 'gold', expected KEY=VALUE"),
    ((*VERIFY, "--split", "test"), "unknown split 'test'"),
    (("verify", "rows.jsonl", "--verifier", "think_format", "--check-golds"), "no gold answers"),
    (("verify", "rows.jsonl"), "say what judges: --verifier math"),
    (("plan", "--critic"), "--critic: expected a value: a critic beside the policy: trunk, adapter"),
    (("sweep", "c.yaml", "--on"), "--on: expected a value: one of ray: run side by side"),
    (("train", "--dead_groups"), "--dead_groups: expected a value: one of keep, resample"),
    (("train", "--prompt.template", "--beta", "0"), "--prompt.template: expected a value: How the prompt is made"),
    (("train", "--beta", "x"), "--beta: invalid float value: 'x'"),
]


def _names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "out")


@pytest.mark.sample(20)
@pytest.mark.parametrize(("words", "expected"), CASES, ids=[repr(" ".join(words)[:60]) for words, _ in CASES])
def test_a_wrong_input_is_one_message_that_names_it(cli, place, words, expected):
    before = _names(place)
    err = cli.refused(*words)
    assert expected in err
    assert "Traceback" not in err or ".py" in " ".join(words), "but for that of a plug-in"
    assert len(err) < 4000
    assert _names(place) == before, "nothing was written, but for the folder of a run"


def test_a_number_that_was_a_text_is_one_other_values_are_named_and_names_may_have_spaces(cli, place):
    assert "rows: 1, mean score: 0.0000" in cli.done("verify", "numbers.jsonl", "--verifier", "exact")
    (place / "truths.jsonl").write_text('{"completion": true, "answer": "4"}\n')
    err = cli.refused("verify", "truths.jsonl", "--verifier", "exact")
    assert "completion 0 is True, expected a string or a list of chat messages" in err
    assert "results: with space.verdicts.jsonl" in cli.done("verify", "with space.jsonl", "--verifier", "exact")
