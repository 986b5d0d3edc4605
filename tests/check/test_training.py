"""Training does the checks of `grpo-plus check`: what makes a run worthless ends it before a model loads."""

import pytest
from datasets import Dataset
from PIL import Image

from grpo_plus import GRPOPlusConfig, GRPOPlusTrainer
from grpo_plus.check.data import check_arguments
from grpo_plus.check.rows import tells
from grpo_verifiers.errors import ConfigError
from tests.check.conftest import ROWS
from tests.device import FLOAT32


def said(*turns):
    return [{"role": role, "content": text} for role, text in turns]


LONG = [{**row, "prompt": said(("user", "1" * 3000 + str(n)))} for n, row in enumerate(ROWS)]
EMPTY = [{**row, "prompt": said(("user", " "))} if n < 4 else row for n, row in enumerate(ROWS)]
ANSWERED = [{**row, "prompt": [*row["prompt"], *said(("assistant", f"It is {row['answer']}."))]} for row in ROWS]
CONFLICT = [*ROWS[:4], *({**row, "answer": "7"} for row in ROWS[4:6]), *({**row, "answer": "8"} for row in ROWS[4:6])]
WORDS = [{**row, "answer": word} for row, word in zip(ROWS, ("one", "two") * 4, strict=True)]
REFUSED = [
    (LONG, {}, "8 of 8 rows, the longest (row 0) 3006 tokens + 64 of a completion, context 2048"),
    (EMPTY, {}, "prompts: 4 of 8 rows: 0, 1, 2, 3. The prompt is empty"),
    (ANSWERED, {}, "prompts: 8 of 8 rows"),
    (CONFLICT, {}, "prompts: 2 of 8 rows: 6 repeats 4, 7 repeats 5"),
    (ROWS, {"max_completion_length": 4096}, "max_completion_length: 4096, context 2048"),
    (WORDS, {"verifiers": ["numeric"], "check": "strict"}, "verifier numeric: none of 8 rows"),
]


@pytest.mark.parametrize(("rows", "changes", "words"), REFUSED)
def test_worthless_data_end_the_command_and_check_says_the_same(case, look, cli, monkeypatch, rows, changes, words):  # noqa: PLR0917 - its cases
    case.rows(rows)
    report = look(**changes)
    assert report.codes("problem") or (changes.get("check") == "strict" and report.codes("warning"))
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: pytest.fail("loaded"))
    code, out, err = cli("train", case.config(**changes))
    assert (code, words in err) == (2, True), out + err
    assert "check: warn" in err


@pytest.mark.slow
def test_warnings_are_lines_and_a_problem_can_be_trained_with(case, cli):
    case.rows(WORDS)
    code, out, _ = cli("train", case.config(verifiers=["numeric"]))
    assert (code, out.count("verifier numeric: none of 8 rows")) == (0, 1)
    case.rows(EMPTY)
    code, _, err = cli("train", case.config(check=False, overwrite_output_dir=True))
    assert (code, "prompts: 4 of 8 rows" in err) == (0, False)


def test_the_trainer_checks_the_rows_that_it_can_see(case, caplog):
    settings = {"report_to": "none", "num_generations": 2, "per_device_train_batch_size": 2, "loss_type": "dapo"}
    args = GRPOPlusConfig(str(case.folder / "out"), verifiers=["exact"], **settings, **FLOAT32)
    with pytest.raises(ConfigError, match="prompts: 4 of 8 rows: 0, 1, 2, 3"):
        GRPOPlusTrainer(str(case.model), None, args, Dataset.from_list(EMPTY))
    few = [*ROWS, *ROWS, {**ROWS[0], "answer": "9"}]
    GRPOPlusTrainer(str(case.model), None, args, Dataset.from_list(few))
    assert "prompts: 1 of 17 rows: 16 repeats 0" in caplog.text


@pytest.mark.parametrize(
    ("prompt", "gold", "expected"),
    [
        ("What is 2 + 2? Answer: 4", "4", True),
        ("Compute 2 + 2 = 4 and add 4", "4", False),
        (r"So the result is \boxed{4}.", 4, True),
        ("... #### 4", "4", True),
        ("Is the answer 14", "4", False),
        (said(("user", "2+2?"), ("assistant", "Let me think")), "4", False),
        (said(("user", "2+2?"), ("assistant", "4")), "4", True),
        (said(("user", "2+2?"), ("assistant", "44")), "4", False),
        ("anything", None, False),
        ("", "", False),
        ("A: 4", "4", True),
        ("答案是4。", "4", True),
        (said(("user", "q"), ("assistant", "Step 1: ")), "1", False),
        (said(("user", "q"), ("assistant", "A look at both options:")), "A", False),
    ],
)
def test_prompts_that_end_with_the_answer(prompt, gold, expected):
    assert any(tells(prompt, [gold], turn=turn) for turn in (False, True)) is expected


def test_rows_of_any_type_are_read_and_what_no_reward_reads_only_warns(case):
    settings = {"report_to": "none", "num_generations": 2, "per_device_train_batch_size": 2, "loss_type": "dapo"}
    args = GRPOPlusConfig(str(case.folder / "out"), **settings, **FLOAT32)
    image = Image.new("RGB", (2, 2))
    plain = {
        "prompt": "0+1",
        "extra": {"index": 0},
        "parts": [{"a": 1}],
        "messages": [{"role": "user", "content": "x"}],
    }
    rows = [{**plain, "answer": str(n)} for n in range(4)]
    pictures = Dataset.from_list([{"prompt": "What is it?", "answer": str(n), "image": image} for n in range(4)])
    for kind, data, expected in (("rows", Dataset.from_list(rows), {"warning"}), ("pictures", pictures, set())):
        found = [one for one in check_arguments(str(case.model), args, data) if one.thing == "prompts"]
        assert {one.severity for one in found if one.severity.rank > 1} == expected, kind
