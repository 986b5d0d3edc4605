"""Rewards: verifiers, steps and turns of completions, the reward model that trains along."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.training.scoring.live_verifier import ROW_KEYS as ROW_KEYS
    from grpo_plus.training.scoring.live_verifier import LiveVerifier as LiveVerifier
    from grpo_plus.training.scoring.reward_model import RewardModelStage as RewardModelStage
    from grpo_plus.training.scoring.step_source import StepSource as StepSource
    from grpo_plus.training.scoring.turn_spans import NO_STATE as NO_STATE
    from grpo_plus.training.scoring.turn_spans import turn_scores as turn_scores
    from grpo_plus.training.scoring.turn_spans import turns_of as turns_of
    from grpo_plus.training.scoring.turn_spans import with_states as with_states
    from grpo_plus.training.scoring.verifiers import TURNS as TURNS
    from grpo_plus.training.scoring.verifiers import Verifiers as Verifiers

_WHERE = {
    "live_verifier": "LiveVerifier ROW_KEYS",
    "reward_model": "RewardModelStage",
    "step_source": "StepSource",
    "turn_spans": "NO_STATE turn_scores turns_of with_states",
    "verifiers": "TURNS Verifiers",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
