"""Stages that only read: clock, recorder, prompt statistics, diagnosis; and callbacks."""

from grpo_plus.training.observers.card import complete_card as complete_card
from grpo_plus.training.observers.clock import PARTS as PARTS
from grpo_plus.training.observers.clock import StepClock as StepClock
from grpo_plus.training.observers.clock import metric as metric
from grpo_plus.training.observers.diagnosing import RunDiagnosis as RunDiagnosis
from grpo_plus.training.observers.interrupt import EvaluationInterrupted as EvaluationInterrupted
from grpo_plus.training.observers.interrupt import Interruption as Interruption
from grpo_plus.training.observers.on_finding import OnFinding as OnFinding
from grpo_plus.training.observers.recorder import Recorder as Recorder
from grpo_plus.training.observers.recorder import WriteReport as WriteReport
from grpo_plus.training.observers.run import RunHost as RunHost
