"""A run with tools is not measured without them."""

import pytest
from datasets import Dataset

from grpo_plus.evaluation.measure import Measure
from grpo_verifiers.errors import ConfigError


class Trainer:
    """What `Measure` looks at before it draws."""

    is_fsdp_enabled = is_deepspeed_enabled = False

    def __init__(self, tools):
        self.tools, self.verification, self.accelerator = tools, self, self
        self.live, self.state, self.distributed_type = [1], None, "NO"


@pytest.mark.parametrize("tools", [[], [len]])
def test_measure_refuses_tools_and_names_what_draws_with_them(tools, monkeypatch):
    from grpo_plus import _trl

    monkeypatch.setattr(_trl, "zero_stage", lambda _: 0)
    monkeypatch.setattr(_trl, "is_fsdp2", lambda _: False)
    rows = Dataset.from_dict({"prompt": ["a"]})
    if not tools:
        Measure({}, Trainer(tools), rows)
        return
    with pytest.raises(ConfigError, match=r"measure does not draw with tools yet.*eval_strategy"):
        Measure({}, Trainer(tools), rows)
