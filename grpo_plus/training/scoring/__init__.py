"""Rewards: verifiers, steps and turns of completions, the reward model that trains along."""

from grpo_plus.training.scoring.live_verifier import ROW_KEYS as ROW_KEYS
from grpo_plus.training.scoring.live_verifier import LiveVerifier as LiveVerifier
from grpo_plus.training.scoring.reward_model import RewardModelStage as RewardModelStage
from grpo_plus.training.scoring.turn_spans import NO_STATE as NO_STATE
from grpo_plus.training.scoring.turn_spans import turn_scores as turn_scores
from grpo_plus.training.scoring.turn_spans import turns_of as turns_of
from grpo_plus.training.scoring.turn_spans import with_states as with_states
from grpo_plus.training.scoring.verifiers import TURNS as TURNS
from grpo_plus.training.scoring.verifiers import Verifiers as Verifiers
