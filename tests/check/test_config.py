"""Each finding about a config, on a config, a model and data that really are so."""

import json

import pytest
import torch
from datasets import Dataset
from transformers import AutoConfig
from trl import GRPOConfig, GRPOTrainer, get_peft_config

from grpo_plus.check.fit import fit_findings
from grpo_plus.check.tokens import model_files
from grpo_plus.cli._arguments import parse
from tests.check.conftest import CHATML, ROWS

THINKING = (
    "{% for message in messages %}{% set text = message['content'] %}"
    "{% if message['role'] == 'assistant' and not loop.last %}{% set text = text.split('</think>')[-1] %}{% endif %}"
    "<|im_start|>{{ message['role'][0] }}{{ text }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>a"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3 writes: earlier thinking goes, and an empty section stands for none."""


def test_a_sound_config_has_no_finding_but_what_was_seen(look):
    report = look()
    assert (report.code, report.codes("info", "warning", "problem")) == (0, set())
    assert report.codes() == {"config", "model", "turn-ends", "rows", "lengths", "golds", "checkpoints-fit"}
    assert (report.one("golds")["value"], report.one("rows")["value"]) == ("8 rows tried", "8 of 8 rows")
    # Each character is a token: <|im_start|>, u, 0+1=, <|im_end|>, <|im_start|>, a.
    assert "longest 9 tokens of 8 prompts" in report.one("lengths")["value"]
    assert "<|im_end|>" in report.one("turn-ends")["value"]


def test_every_problem_of_a_config_is_a_finding(look):
    report = look(advantage="sing", selection="contrst")
    found = [one["value"] for one in report.data["findings"] if one["code"] == "config-invalid"]
    assert (report.code, len(found)) == (2, 2)
    assert any("Did you mean 'sign'?" in text for text in found)
    assert any("Did you mean 'contrast'?" in text for text in found)
    assert report.data["not_checked"] == ["everything else"]


def test_what_train_refuses_later_is_refused_in_its_words(look):
    for changes, words in (
        ({"verifiers": None}, "nothing rewards the completions"),
        ({"model_name_or_path": "./nowhere"}, "the folder './nowhere' does not exist"),
        ({"dataset_name": "./nothing.jsonl"}, "'./nothing.jsonl' does not exist"),
        ({"prompt": {"column": "qestion"}}, "unknown column 'qestion'"),
        ({"per_device_train_batch_size": 64}, "the dataset has 8 rows"),
        ({"max_steps": 0}, "max_steps is 0"),
    ):
        report = look(**changes)
        assert (report.code, "config" in report.codes()) == (2, False)
        assert words in report.one("config-invalid")["value"]


def test_sections_alone_find_what_they_are_about(look):
    missing, columns = (
        {"dataset_name": "./nothing.jsonl"},
        {"verifiers": [{"name": "exact", "columns": {"answer": "no"}}]},
    )
    for section, changes, words in (("model", missing, "does not exist"), ("data", columns, "column 'no'")):
        report = look("--only", section, **changes)
        assert report.code == 2
        assert words in report.one("config-invalid")["value"]
    assert any("columns" in text for text in look("--only", "config", **columns).data["not_checked"])


def test_a_config_for_another_machine_is_looked_at_all_the_same(look, monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a card")
    report = look(use_cpu=None, bf16=True)
    assert report.code == 2
    assert "bf16" in report.one("config-not-here")["value"]
    assert report.one("golds")["value"] == "8 rows tried"
    assert "config" not in report.codes()
    monkeypatch.setattr("grpo_plus.cli._notes.LARGE", 1)
    assert "there is no CUDA device here" in look(use_cpu=None).one("config-not-here")["value"]


def emptied(case, config=None):
    for file in case.model.iterdir():
        file.unlink()
    if config is not None:
        (case.model / "config.json").write_text(config)


def endless(case):
    case.edit("tokenizer_config.json", eos_token=None)
    case.edit("generation_config.json", eos_token_id=None)


BIG = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
BIG |= {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 128256, "layer_types": None}
MEDIUM = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
MEDIUM |= {"head_dim": 64, "num_key_value_heads": 16, "layer_types": None}
HUMAN = [{**row, "prompt": [{**turn, "role": "human"} for turn in row["prompt"]]} for row in ROWS]
LONG = [*ROWS[:7], {"prompt": [{"role": "user", "content": "1" * 2000}], "answer": "1"}]
UNPROVEN = {"verifiers": [{"name": "exact", "tag": "final"}]}
TOO_LONG = "1 of 8 rows, the longest (row 7) 2005 tokens + 64 of a completion, context 2048"


@pytest.mark.parametrize(("prepare", "changes", "exit_code", "found"), [
    (lambda case: None, {"lora_r": 8}, 0, {"config-note": "lora_r"}),
    (emptied, {}, 2, {"config-invalid": "holds no model: it has no config.json", "rows": "8 of 8 rows"}),
    (lambda case: emptied(case, "{"), {}, 2, {"model-unreadable": "", "tokenizer-unreadable": "", "rows": "8"}),
    (endless, {}, 2, {"eos-missing": "", "turn-never-ends": ""}),
    (lambda case: case.edit("config.json", vocab_size=40), {}, 2, {"vocabulary-small": "has 40 embeddings"}),
    (lambda case: case.template(CHATML.replace("<|im_end|>", "")), {}, 0, {"turn-without-end": ""}),
    (lambda case: case.template("<|im_start|>a"), {}, 2, {"template-drops-prompt": "'<|im_start|>a'"}),
    (lambda case: [path.unlink() for path in case.model.glob("tokenizer*")], {}, 2, {"tokenizer-unreadable": ""}),
    (lambda case: case.rows([*ROWS[:7], {"prompt": None, "answer": "1"}]), {}, 2, {"prompt-empty": "1 of 8 rows"}),
    (lambda case: case.rows(HUMAN), {}, 0, {"role-unknown": "8 of 8 rows"}),
    (lambda case: None, {"tools": ["calculator"]}, 2, {"tools-unsupported": "cannot write a call"}),
    (lambda case: case.rows(LONG), {}, 0, {"prompt-too-long": TOO_LONG}),
    (lambda case: case.rows(LONG), {"max_completion_length": 43}, 0, {"prompt-too-long": None}),
    (lambda case: None, UNPROVEN, 0, {"golds-unproven": "none of 8 rows; '1' scores 0", "gold-rejected": None}),
    (lambda case: case.edit("config.json", **BIG), {}, 2, {"memory-short-cpu": "71 billion weights"}),
    (lambda case: case.edit("config.json", **MEDIUM | {"num_hidden_layers": 0}), {}, 0, {"size-unknown": "no"}),
])  # fmt: skip
def test_what_is_wrong_with_a_model_a_template_or_the_rows_is_a_finding(case, look, prepare, changes, exit_code, found):  # noqa: PLR0917 - its cases
    prepare(case)
    report = look(**changes)
    assert report.code == exit_code
    for code, words in found.items():
        assert (words is None) == (code not in report.codes())
        assert words is None or words in report.one(code)["value"]


def test_a_turn_that_ends_with_another_token_never_ends_a_completion(case, look):
    """The most common reason for completions that all run to the limit."""
    case.edit("tokenizer_config.json", eos_token="</s>", pad_token="<|pad|>")
    case.edit("generation_config.json", eos_token_id=None)
    report = look()
    found = report.one("turn-never-ends")
    assert found["value"].startswith("a turn ends with <|im_end|> (4), completions at </s>")
    assert (report.code, "eos_token" in found["remedy"]) == (2, True)
    case.edit("generation_config.json", eos_token_id=4)  # as the remedy says
    assert "turn-never-ends" not in look().codes()


@pytest.mark.slow
def test_the_trainer_stops_at_the_tokens_that_the_report_names(case):
    settings = {"report_to": "none", "use_cpu": True, "bf16": False, "num_generations": 2}
    args = GRPOConfig(str(case.folder / "out"), **settings, per_device_train_batch_size=2)
    for ends in (4, [4, 2], [2, 3], None):
        case.edit("generation_config.json", eos_token_id=ends)
        rows = Dataset.from_list(ROWS)
        trainer = GRPOTrainer(str(case.model), lambda completions, **_: [0.0] * len(completions), args, rows)
        assert model_files(str(case.model), {}).ends == set(trainer.eos_token_ids)


def test_conversations_without_a_template(case, look):
    (case.model / "chat_template.jinja").unlink()
    report = look()
    assert (report.code, report.one("template-missing")["severity"]) == (2, "problem")
    case.rows([{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(8)])
    report = look()
    assert (report.code, "template-missing" in report.codes()) == (0, False)


def test_a_template_that_refuses_a_system_message(case, look):
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    case.template(refuse + CHATML)
    report = look(prompt={"system": "Be brief."})
    assert report.code == 2
    assert "no system role" in report.one("template-fails")["value"]
    assert "template-fails" not in look().codes()


def test_an_empty_thinking_section(case, look):
    case.template(THINKING)
    off = {"enable_thinking": False}
    report = look(chat_template_kwargs=off, verifiers=["exact", "think_format"])
    found = report.one("thinking-closed")
    assert r"<think>\n\n</think>" in found["value"]
    assert (report.code, found["severity"]) == (0, "warning")


def test_a_prompt_that_opens_the_thinking(case, look):
    case.template(CHATML.replace("<|im_start|>a{%", "<|im_start|>a<think>\n{%"))
    report = look(verifiers=["exact", "think_format"])
    assert r"<think>\n" in report.one("thinking-prefilled")["value"]
    told = [{"name": "think_format", "prefilled": True}, "exact"]
    assert "thinking-prefilled" not in look(verifiers=told).codes()


def test_golds_beyond_the_limit(case, look):
    case.rows([*ROWS[:7], {**ROWS[7], "answer": "1" * 65}])
    report = look()
    assert report.one("answer-too-long")["value"] == "1 of 8 rows, the longest (row 7) 65 tokens, limit 64"
    assert "answer-too-long" not in look(max_completion_length=65).codes()


def test_prompts_that_are_empty_or_contradict_each_other(case, look):
    blank = {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": " \n"}], "answer": "4"}
    case.rows([*ROWS[:4], blank, blank, ROWS[1], {**ROWS[2], "answer": "7"}])
    report = look()
    assert (report.code, report.one("prompt-empty")["value"]) == (2, "2 of 8 rows: 4, 5")
    assert report.one("prompt-conflict")["value"] == "1 of 8 rows: 7 repeats 2"


def split(case, **splits):
    (case.folder / "rows").mkdir()
    for name, rows in splits.items():
        case.rows(rows, f"rows/{name}.jsonl")


def test_held_out_prompts_that_are_trained_on(case, look):
    split(case, train=ROWS, test=[ROWS[3], {**ROWS[0], "prompt": [{"role": "user", "content": "9"}]}])
    report = look(dataset_name="./rows", measure={"split": "test"})
    assert (report.one("test-in-train")["value"], report.code) == ("1 of 2 rows: 0", 0)


def test_a_gold_that_its_verifier_does_not_accept(case, look):
    case.rows([*ROWS[:6], {**ROWS[6], "answer": "six"}, {**ROWS[7], "answer": " "}])
    report = look(verifiers=["numeric"])
    assert (report.code, report.one("gold-rejected")["severity"]) == (0, "warning")  # of few rows
    assert report.one("gold-rejected")["value"].startswith("1 of 8 rows: row 6: 'six'")
    assert report.one("gold-empty")["value"] == "1 of 8 rows: row 7: ' '"
    case.rows([*ROWS[:7], {**ROWS[7], "answer": r"\frac{1}{"}])
    assert "row 7" in look(verifiers=["math"]).one("gold-unusable")["value"]


@pytest.mark.parametrize("verifier", ["exact", "numeric", "math", {"name": "exact", "tag": "answer"}])
def test_golds_of_every_usual_form_are_accepted(look, verifier):
    report = look(verifiers=[verifier])
    assert (report.code, report.one("golds")["value"]) == (0, "8 rows tried")


VERIFIERS = """
from grpo_verifiers import verifier


@verifier("lenient", isolation="inline")
def lenient(completion: str, answer: str):
    return float(not completion or completion == answer)


@verifier("breaks", isolation="inline", on_error="raise")
def breaks(completion: str, answer: str):
    raise RuntimeError(f"no idea about {answer}")
"""


def test_verifiers_that_reward_silence_or_break(case, look):
    (case.folder / "mine.py").write_text(VERIFIERS)
    report = look(plugins=["./mine.py"], verifiers=["lenient", "breaks"])
    assert report.code == 2
    assert "an empty completion scores 1" in report.one("empty-completion-scores")["value"]
    assert "no idea about 1" in report.one("golds-unchecked")["value"]


@pytest.mark.slow
def test_tests_of_programs_that_show_nothing(case, look):
    good = {"tests": [{"function": "inc", "args": [1], "expected": 2}]}
    good["solution"] = "def inc(n): return n + 1"
    rows = [{"prompt": [{"role": "user", "content": f"inc {n}"}], **good} for n in range(8)]
    rows[3]["solution"] = "def inc(n): return n"
    rows[5] |= {"tests": [{"function": "inc", "args": [1], "expected": 1}], "solution": "def inc(n): return n"}
    rows[4] = rows[3]
    rows[6] = {**rows[6], "tests": [{"code": "assert True"}]}
    case.rows([{**row, "tests": json.dumps(row["tests"])} for row in rows])
    report = look(verifiers=["code"])
    assert report.code == 2
    assert report.one("reference-fails")["value"].startswith("2 of 8 rows: row 3")
    assert report.one("idle-passes")["value"].startswith("1 of 8 rows: row 5")
    assert "row 6" in report.one("gold-unusable")["value"]


def test_columns_that_rewards_need_and_the_data_lacks(case, look):
    case.rows([{"prompt": row["prompt"], "gold": row["answer"]} for row in ROWS])
    report = look(reward_funcs=["accuracy_reward"])
    assert report.code == 2
    assert "no column 'answer', which exact needs" in report.one("config-invalid")["value"]
    found = report.one("column-missing")
    assert found["thing"] == "reward_funcs accuracy_reward"
    assert "unknown column 'solution'" in found["value"]
    fixed = look(verifiers=[{"name": "exact", "columns": {"answer": "gold"}}])
    assert (fixed.code, fixed.one("golds")["value"]) == (0, "8 rows tried")


def test_columns_that_evaluations_lack(case, look):
    split(case, train=ROWS, test=[{"prompt": row["prompt"]} for row in ROWS])
    files = {"dataset_name": "./rows.py:splits"}
    (case.folder / "rows.py").write_text(
        "from datasets import load_dataset\nfrom pathlib import Path\nHERE = Path(__file__).parent / 'rows'\ndef splits():\n"
        "    return {n: load_dataset('json', data_files=str(HERE / f'{n}.jsonl'))['train'] for n in ('train', 'test')}\n"
    )
    assert look(**files).code == 0
    report = look(**files, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=4)
    assert report.code == 2
    assert "eval_dataset has no column 'answer', which exact needs" in report.one("config-invalid")["value"]


def test_a_sandbox_below_what_the_config_asks_for(look, monkeypatch):
    from grpo_verifiers.code import probe

    monkeypatch.setenv("PATH", "/nowhere")
    probe.cache_clear()
    try:
        report = look(verifiers=[{"name": "code", "level": "full"}])
    finally:
        probe.cache_clear()
    assert report.code == 2
    assert "apt install bubblewrap" in report.one("config-invalid")["value"]


def test_data_without_a_prompt(case, look):
    case.rows([{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(8)])
    assert "unknown column 'prompt'" in look().one("config-invalid")["value"]
    assert look(prompt={"column": "question"}).code == 0
    (case.folder / "mine.py").write_text("import nothing_of_that_name\n")
    found = look(plugins=["./mine.py"]).one("config-invalid")["value"]
    assert "No module named 'nothing_of_that_name'" in found
    assert "traceback" not in found.lower()


def test_routes_to_nobody(case, look):
    kinds = ["exact"] * 7 + ["maths"]
    case.rows([{**row, "kind": kind} for row, kind in zip(ROWS, kinds, strict=True)])
    report = look(verifier_column="kind", verifiers=["exact", "numeric"])
    assert "routes rows to 'maths'" in report.one("config-invalid")["value"]
    assert report.code == 2
    assert report.one("golds")["value"] == "7 rows tried"  # those of its own


def test_what_asks_a_server_is_not_asked(look):
    report = look(verifiers=["exact", {"name": "judge", "model": "m", "base_url": "http://127.0.0.1:9/v1"}])
    assert any(text.startswith("golds of judge") for text in report.data["not_checked"])


def test_a_disk_without_room_for_a_checkpoint(case, look, small_disk):
    place = small_disk("1m")
    settings = {"output_dir": str(place / "out"), "save_strategy": "steps", "save_steps": 1, "max_steps": 50}
    (place / "filler").write_bytes(bytes(900_000))
    report = look(**settings)
    assert report.code == 2
    assert "a checkpoint" in report.one("disk-short")["value"]
    (place / "filler").unlink()
    report = look(**settings)
    assert report.code == 0
    assert report.one("disk-short-later")["value"].endswith("50 of them are planned")
    assert look(**settings, save_total_limit=1).one("checkpoints-fit")["severity"] == "ok"


def memory_on_a_card(case, size, capacity, adapter, **changes):
    """What a card of such a capacity is said to hold: the machine of the tests need not have one."""
    case.edit("config.json", **size)
    parsed = parse("grpo-plus check", [str(case.config(**changes))])
    config = AutoConfig.from_pretrained(case.model)
    adapter = get_peft_config(parsed.model) if adapter else None
    found = fit_findings(
        parsed.training, config, "m", adapter, width=2.0, memory=1 << 35, capacity=capacity * 2**30, double=True
    )
    (found,) = [one for one in found if one.thing == "memory"]
    return found


def test_all_weights_that_do_not_fit_a_card(case):
    found = memory_on_a_card(case, BIG, 80, adapter=False)
    weights = 70_553_706_496  # of Llama 3 70B
    assert found.code == "memory-short"
    assert f"about {weights * (2 + 4 + 8) / 2**30:.1f} GiB, the card has 80.0 GiB" in found.value


@pytest.mark.parametrize(("gib", "code"), [(80, "memory-fits"), (2.7, "memory-short"), (0.01, "memory-short")])
def test_the_planner_is_asked_about_a_card(case, gib, code):
    found = memory_on_a_card(case, MEDIUM, gib, adapter=True, use_peft=True, max_completion_length=1024)
    assert found.code == code
    assert gib != 2.7 or "the card has 2.7 GiB" in found.value


def test_a_function_that_makes_a_model_is_not_called(case, look):
    text = f"def model():\n    open({str(case.folder / 'ran')!r}, 'w')\n    return {str(case.model)!r}\n"
    (case.folder / "made.py").write_text(text)
    report = look(model_name_or_path="./made.py:model")
    assert (report.code, (case.folder / "ran").exists()) == (0, False)
    assert any("is a function" in one for one in report.data["not_checked"])


def test_the_notes_on_the_prompt_are_those_of_explain(case, look):
    report = look(prompt={"user": "{answer}?"}, verifiers=["exact", "think_format"])
    assert any("never asks for it" in one["value"] for one in report.data["findings"] if one["code"] == "config-note")
