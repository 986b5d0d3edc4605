"""Files, folders and numbers of the wrong kind in every command: one message that names the thing, and no traceback."""

import shlex
import shutil
from pathlib import Path

import pytest

from tests.cases.rows import sections

FILES = Path(__file__).parents[1] / "cases"
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
        "rows.jsonl": ROW, "with space.jsonl": ROW, "really_json.csv": ROW, "empty.jsonl": "",
        "cut.jsonl": '{"a": 1', "numbers.jsonl": '{"completion": 5, "answer": 4}\n', "text.md": "hello",
        "run/grpo_plus/run.json": "junk", "nested.json": f'{{"data": [{ROW}]}}', "semicolons.csv": "prompt;answer\n1;2\n",
        "bad_line.jsonl": ROW + '{"prompt": "2" "answer": "3"}', "solutions.jsonl": ROW.replace("answer", "solution"),
        "questions.jsonl": '{"question": "1", "answer": "2"}',
    }.items():  # fmt: skip
        (here / name).write_text(text)
    for name in ("binary.yaml", "binary.jsonl", "binary.parquet", "binary.csv", "binary.py"):
        (here / name).write_bytes(BINARY)
    (here / "latin.jsonl").write_bytes(b'{"completion": "\xe9", "answer": "4"}\n')
    for name in ("ok.yaml", "typos.yaml"):
        shutil.copy(FILES / name, here)
    (here / "utf16.yaml").write_text((here / "ok.yaml").read_text(), encoding="utf-16")
    (here / "tiny").symlink_to(tiny_model)
    shutil.copytree(tiny_model, here / "broken_model")
    (here / "broken_model" / "config.json").write_text("{")
    return here


CASES = [
    (shlex.split(f"{start} {words}")[1:], expected)
    for start, rows in sections("refused_commands.txt").items()
    for words, _, expected in (row.partition(" => ") for row in rows)
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
    assert "rows: 1, mean scores: exact 0.0000" in cli.done("verify", "numbers.jsonl", "--verifier", "exact")
    (place / "truths.jsonl").write_text('{"completion": true, "answer": "4"}\n')
    err = cli.refused("verify", "truths.jsonl", "--verifier", "exact")
    assert "completion 0 is True, expected a string or a list of chat messages" in err
    assert "rows: 1" in cli.done("verify", "with space.jsonl", "--verifier", "exact")
