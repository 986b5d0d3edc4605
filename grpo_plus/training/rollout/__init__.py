"""Sampling: the lean rollout, tools in turns, vLLM, allowed tokens."""

from grpo_plus.training.rollout.allowed_tokens import AllowedTokenScoring as AllowedTokenScoring
from grpo_plus.training.rollout.lean import LeanRollouts as LeanRollouts
from grpo_plus.training.rollout.markers import markers_of as markers_of
from grpo_plus.training.rollout.tool_loop import ToolLoop as ToolLoop
from grpo_plus.training.rollout.tool_loop import Turns as Turns
from grpo_plus.training.rollout.vllm_colocated import ColocatedRollout as ColocatedRollout
from grpo_plus.training.rollout.vllm_drift import DriftError as DriftError
from grpo_plus.training.rollout.vllm_drift import LogpDrift as LogpDrift
from grpo_plus.training.rollout.vllm_server import ServerRollout as ServerRollout
