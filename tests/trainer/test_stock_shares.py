"""TRL's own loss beside rows with shares: what it cannot weigh is refused, in a config and at work."""

import pytest
import torch

from grpo_plus import GRPOPlusConfig
from grpo_plus.training.hooks import Hook
from grpo_verifiers.errors import ConfigError
from tests.device import DEVICE, FLOAT32

ROULETTE = {"dead_groups": "roulette", **FLOAT32, "report_to": "none"}
CONTRAST = {"selection": "contrast", **FLOAT32, "report_to": "none"}
REFUSED = {
    "beta is 0.04, and the KL term of TRL's own loss": {"beta": 0.04},
    "loss_type is 'bnpo', and the count of tokens": {"loss_type": "bnpo"},
    "entropy_coef is 0.01, and the entropy bonus": {"entropy_coef": 0.01},
}


class Shared(Hook):
    def draw(self, draw, rows):
        output = draw(rows)
        output["share"] = torch.arange(len(rows), device=DEVICE) / 4
        return output


@pytest.mark.parametrize("said", REFUSED)
def test_a_config_that_gives_rows_shares_needs_an_objective_for_what_advantages_do_not_reach(said, tmp_path):
    for giver in (ROULETTE, CONTRAST):
        with pytest.raises(ConfigError) as caught:
            GRPOPlusConfig(output_dir=str(tmp_path), **giver, **REFUSED[said])
        assert said in str(caught.value)
        assert "set objective (to 'dapo', say), which weighs rows in all its parts, or " in str(caught.value)


@pytest.mark.parametrize("said", REFUSED)
def test_shares_of_a_hook_of_ones_own_are_refused_when_they_come(said, trained):
    with pytest.raises(ConfigError, match="the generation batch has shares, but"):
        trained(trainer={"hooks": [Shared()]}, **REFUSED[said])


def test_the_shares_multiply_the_advantages_that_the_hosts_loss_reads(build, capture):
    trainer = build(trainer={"hooks": [Shared()]}, max_steps=1, advantage="raw")
    kept = capture(trainer)
    trainer.train()
    (batch,) = kept
    raw = torch.tensor(list(trainer._logs["rewards"]["digits"]))
    share = torch.arange(8) / 4
    assert batch["advantages"].tolist() == pytest.approx((raw * share).tolist())
    assert batch["num_items_in_batch"] == (batch["completion_mask"].sum(1) * share).sum()


class Stopped(Hook):
    def draw(self, draw, rows):
        output = draw(rows)
        output["share"] = torch.tensor([0.0] * 4 + [1.0] * 4, device=DEVICE)
        return output


def test_rows_of_share_0_need_no_pass_whatever_else_pulls_on_every_row(trained):
    settings = {"objective": "dapo", "beta": 0.1, "entropy_coef": 0.1, "engine": "trimmed", "max_steps": 1}
    trainer = trained(trainer={"hooks": [Stopped()]}, **settings)
    logged = {key: value for entry in trainer.state.log_history for key, value in entry.items()}
    assert logged["engine/rows_skipped"] == 0.5
