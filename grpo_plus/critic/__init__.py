"""A critic: its options, its loss, and what it is measured by."""

from grpo_plus.critic.loss import explained_variance, value_loss
from grpo_plus.critic.options import CriticOptions

__all__ = ["CriticOptions", "explained_variance", "value_loss"]
