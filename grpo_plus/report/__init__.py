"""Runs as one self-contained page: charts, and an inspector of the sampled groups."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.report.group import group_text as group_text
    from grpo_plus.report.write import write_report as write_report

_NAMES = {
    "group_text": "grpo_plus.report.group",
    "write_report": "grpo_plus.report.write",
}
__getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = sorted(_NAMES)  # noqa: PLE0605 - one list of names, not two
