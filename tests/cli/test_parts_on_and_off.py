"""Parts of a run that a mapping turns on: null and false leave them off, {} asks for the defaults, true is an error."""

import pytest
import yaml

from grpo_plus.cli import UserError
from grpo_plus.cli._arguments import parse
from grpo_plus.cli.train import build_trainer

PARTS = {"measure": {"split": "train"}, "warm_start": {"steps": 2}, "critic": {"on": "model"}}
PARTS |= {"reward_model": {"every": 2}}
OFF = {None: "null", False: "false"}


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
@pytest.mark.parametrize("off", OFF)
def test_null_and_false_leave_a_part_off_in_a_file_and_as_a_flag(given, part, off):
    assert given(part, f"--{part}", OFF[off]) is None
    assert given(part, **{part: off}) is None
    if part != "critic":  # whose estimator would miss it
        assert given(part, f"--{part}", OFF[off], **{part: PARTS[part]}) is None
    flags = ["--advantage", "gae"] * (part == "critic")
    flags += [word for key, value in PARTS[part].items() for word in (f"--{part}.{key}", str(value))]
    assert given(part, *flags, **{part: off}) == PARTS[part]


@pytest.mark.parametrize("part", PARTS)
def test_an_empty_mapping_asks_for_a_part_in_a_file_and_as_a_flag(given, part):
    assert given(part, **{part: {}}) == {}
    assert given(part, f"--{part}", "{}") == {}


@pytest.mark.parametrize("part", PARTS)
def test_true_is_no_mapping_and_the_message_says_how_to_ask_for_the_defaults(given, part):
    for flags, values in (((), {part: True}), ((f"--{part}", "true"), {})):
        with pytest.raises(UserError, match=rf"{part} is True, expected a mapping.*, or {{}} for the defaults\."):
            given(part, *flags, **values)


@pytest.mark.parametrize("field", ["prompt"])
def test_mappings_of_keywords_are_empty_at_null_and_false_alike(given, field):
    assert given(field, **{field: False}) == given(field, f"--{field}", "false") == given(field) == {}


def test_an_empty_measure_measures_the_test_split(config):
    def build(**values):
        return build_trainer(parse("grpo-plus train", [config(**values)]))

    trainer = build(measure={}, dataset_test_split="train", verifiers=["math"])
    assert "%" in trainer.measure.take("before")
    assert trainer.measure.found["before"] is not None
    assert build(measure=False).measure is None
    with pytest.raises(UserError, match="measure"):
        build(measure={}, dataset_test_split="held_out")
