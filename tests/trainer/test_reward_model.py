"""A learned reward model beside verifiers: both through the host's own path, and the sum is the weighted one."""

import pytest
import torch
import yaml
from datasets import Dataset

from grpo_verifiers.errors import ConfigError
from tests.device import FLOAT32

TEXTS = ["42<|im_end|>", "so 7<|im_end|>", "4 2<|im_end|>", "none"]


@pytest.fixture(scope="module")
def judge(tiny_model, tmp_path_factory):
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    folder = tmp_path_factory.mktemp("judge") / "my-judge"
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = AutoConfig.from_pretrained(tiny_model, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def letters(completions, **_):
    return [sum(character.isalpha() for character in text) for text in completions]


def scores_of(folder, texts):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return [
            model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits[0, 0].item()
            for text in texts
        ]


@pytest.fixture
def data():
    return Dataset.from_list([{"prompt": f"{n}=", "answer": "42"} for n in range(8)])


@pytest.mark.parametrize("how", ["object", "path"])
def test_a_reward_model_counts_with_its_weight(trained, data, say, judge, how):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    say(lambda prompt, row: TEXTS[row % 4])
    given = {"reward_funcs": str(judge), "train_dataset": data}
    if how == "object":
        given["reward_funcs"] = AutoModelForSequenceClassification.from_pretrained(judge)
        given["reward_processing_classes"] = AutoTokenizer.from_pretrained(judge)
    trainer = trained(
        trainer=given,
        verifiers=["exact", {"name": "regex", "kwargs": {"pattern": "(?s).*[0-9].*"}}],
        reward_weights=[0.25, 2.0, -1.0],
        advantage="raw",
        max_steps=1,
    )
    assert trainer.reward_func_names == ["my-judge", "exact", "regex"]
    prompts = list(trainer._logs["prompt"])
    plain = [text.removesuffix("<|im_end|>") for text in TEXTS] * 2
    learned = scores_of(judge, [prompt + text for prompt, text in zip(prompts, plain, strict=True)])
    assert len(set(learned)) > 4
    exact, regex = [1.0, 0.0, 0.0, 0.0] * 2, [1.0, 1.0, 1.0, 0.0] * 2
    expected = [0.25 * m + 2 * e - r for m, e, r in zip(learned, exact, regex, strict=True)]
    assert trainer.generated[0]["advantages"].tolist() == pytest.approx(expected, abs=1e-5)
    assert trainer.state.log_history[0]["rewards/my-judge/mean"] == pytest.approx(sum(learned) / 8, abs=1e-5)


@pytest.mark.slow
def test_a_reward_model_by_path_in_a_config_file(judge, tiny_model, tmp_path, monkeypatch):
    import pandas as pd

    from grpo_plus.cli import main

    (tmp_path / "mine.py").write_text("def mine(completions, **_):\n    return [1.0] * len(completions)\n")
    (tmp_path / "data.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 8)
    values = {
        "model_name_or_path": tiny_model, "dataset_name": "./data.jsonl", "output_dir": str(tmp_path / "out"),
        "reward_model_name_or_path": str(judge), "reward_funcs": ["./mine.py:mine"],
        "verifiers": [{"name": "regex", "kwargs": {"pattern": "(?s).*[0-9].*"}}], "reward_weights": [0.5, 1.0, 3.0],
        "advantage": "raw", "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 8,
        "max_completion_length": 8, "log_completions": True, "logging_steps": 1, "report_to": "none", **FLOAT32,
        "save_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "run.yaml"]) == 0
    (file,) = (tmp_path / "out").rglob("completions_*.parquet")
    rows = pd.read_parquet(file)
    learned = scores_of(judge, [row["prompt"] + row["completion"] for _, row in rows.iterrows()])
    assert list(rows["my-judge"]) == pytest.approx(learned, abs=1e-4)
    digits = [float(any(c.isascii() and c.isdigit() for c in text)) for text in rows["completion"]]
    assert list(rows["regex"]) == digits
    expected = [0.5 * m + 1 + 3 * d for m, d in zip(learned, digits, strict=True)]
    assert list(rows["advantage"]) == pytest.approx(expected, abs=1e-4)


def test_weights_of_another_number_than_rewards_are_named_before_a_model_loads(build, data):
    given = {"model": "/no/such/model", "reward_funcs": ["some/where/my-judge", letters], "train_dataset": data}
    with pytest.raises(ConfigError) as caught:
        build(trainer=given, verifiers=["exact"], reward_weights=[1.0, 2.0])
    assert "reward_weights holds 2 weights ([1.0, 2.0])" in str(caught.value)
    assert "3 rewards, in this order: my-judge, letters, exact" in str(caught.value)
