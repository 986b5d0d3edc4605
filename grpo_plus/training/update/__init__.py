"""From a micro-batch to a gradient: objective, engine, critic, references, retry, a 4-bit base."""

from grpo_plus.training.update.critic import Critic as Critic
from grpo_plus.training.update.engine import UpdateEngine as UpdateEngine
from grpo_plus.training.update.inner import InnerIterations as InnerIterations
from grpo_plus.training.update.loss import ObjectiveLoss as ObjectiveLoss
from grpo_plus.training.update.loss import StockLoss as StockLoss
from grpo_plus.training.update.quantised import QuantisedGuard as QuantisedGuard
from grpo_plus.training.update.quantised import planned as planned
from grpo_plus.training.update.quantised import request_for as request_for
from grpo_plus.training.update.reference import AdapterReference as AdapterReference
from grpo_plus.training.update.reference import ModelReference as ModelReference
from grpo_plus.training.update.reference import load_adapter as load_adapter
from grpo_plus.training.update.retry import Retry as Retry
