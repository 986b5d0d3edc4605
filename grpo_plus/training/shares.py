"""Shares of rows in TRL's own loss, which knows none: they multiply the advantages."""

from typing import Any

from torch import Tensor

from grpo_plus.objectives.batch import SHARE
from grpo_plus.recipe.choice import Choice, divides_by_tokens
from grpo_plus.recipe.recipe import Recipe
from grpo_plus.recipe.table import SHARES
from grpo_plus.training.hooks import Hook
from grpo_plus.training.minibatch import add_shares, settle_coins
from grpo_plus.training.reward_table import group_ids
from grpo_verifiers.errors import raise_all
from grpo_verifiers.rules import broken_rules


class StockShares(Hook):
    """Takes the place of an objective of ours where the batch has shares and TRL computes the loss."""

    after = ("Advantages", "Recorder")  # weighs the advantages; the record has them unweighted

    def batch(self, output: dict[str, Any]) -> None:
        """Weigh the advantages, and the tokens that the loss divides by."""
        if SHARE not in output:
            return
        raise_all(broken_rules((SHARES,), Choice(self.host.args, Recipe())))
        add_shares(output, self._gather)
        rank, rows = self.host.accelerator.process_index, len(output["completion_ids"])
        groups_B = group_ids((rank + 1) * rows, self.host.num_generations, output["completion_ids"].device)[-rows:]
        divides = divides_by_tokens(self.host.args, None)
        settle_coins(output, groups_B, gather=self._gather, divides=divides)
        advantages: Tensor = output["advantages"]
        share_B = output[SHARE].to(advantages)
        output["advantages"] = advantages * (share_B if advantages.dim() == 1 else share_B.unsqueeze(1))

    def _gather(self, tensor: Tensor) -> Tensor:
        gathered: Tensor = self.host.accelerator.gather(tensor.contiguous())
        return gathered
