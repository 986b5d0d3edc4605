"""Checkpoints of a run, and a run that resumes: state, position in the data, fingerprint, agreement of the ranks."""

from grpo_plus.training.resume.data_position import DataPosition as DataPosition
from grpo_plus.training.resume.data_position import GenerationBatch as GenerationBatch
from grpo_plus.training.resume.data_position import Geometry as Geometry
from grpo_plus.training.resume.data_position import UnstorableError as UnstorableError
from grpo_plus.training.resume.data_position import packed as packed
from grpo_plus.training.resume.data_position import unpacked as unpacked
from grpo_plus.training.resume.rank_check import RankCheck as RankCheck
from grpo_plus.training.resume.rank_check import require_on_all_machines as require_on_all_machines
from grpo_plus.training.resume.run_changes import ResumeCheck as ResumeCheck
from grpo_plus.training.resume.saving import Saving as Saving
from grpo_plus.training.resume.state import StateError as StateError
