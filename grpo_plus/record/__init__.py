"""The record of a run, for reports: written during training, readable at any time."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.record.files import RunError as RunError
    from grpo_plus.record.files import mark_sweep as mark_sweep
    from grpo_plus.record.reader import Run as Run
    from grpo_plus.record.reader import open_run as open_run
    from grpo_plus.record.reader import runs_near as runs_near

_WHERE = {"files": "RunError mark_sweep", "reader": "Run open_run runs_near"}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
