"""Parts of a run that a mapping turns on: {} asks for the defaults, true is an error."""

import pytest
import yaml

from grpo_plus.cli import UserError
from grpo_plus.cli._arguments import parse
from grpo_plus.cli.train import build_trainer

PARTS = ("measure", "warm_start", "critic", "reward_model")

BASE = {
    "model_name_or_path": "a/model", "dataset_name": "rows.jsonl", "verifiers": ["math"], "max_steps": 4, "beta": 0.1,
    "num_generations": 4, "per_device_train_batch_size": 8, "use_cpu": True, "bf16": False, "report_to": "none",
}  # fmt: skip


@pytest.fixture
def given(tmp_path):
    def given(part, *flags, **values):
        asked = values.get(part) not in (None, False) or "{}" in flags
        values |= {"advantage": "gae"} if part == "critic" and asked else {}
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({**BASE, "output_dir": str(tmp_path / "out"), **values}))
        parsed = parse("grpo-plus train", [str(path), *flags])
        return getattr(parsed.script if hasattr(parsed.script, part) else parsed.training, part)

    return given


@pytest.mark.parametrize("part", PARTS)
def test_an_empty_mapping_asks_for_a_part_and_true_is_told_so(given, part):
    assert given(part, **{part: {}}) == given(part, f"--{part}", "{}") == {}
    for flags, values in (((), {part: True}), ((f"--{part}", "true"), {})):
        with pytest.raises(UserError, match=rf"{part} is True, expected a mapping.*, or {{}} for the defaults\."):
            given(part, *flags, **values)


def test_an_empty_measure_measures_the_test_split(config):
    def build(**values):
        return build_trainer(parse("grpo-plus train", [config(**values)]))

    trainer = build(measure={}, dataset_test_split="train", verifiers=["math"])
    assert "%" in trainer.measure.take("before")
    assert trainer.measure.evaluations["before"] is not None
    assert build(measure=False).measure is None
    with pytest.raises(UserError, match="measure"):
        build(measure={}, dataset_test_split="held_out")
