"""Runs as one self-contained page: charts, and an inspector of the sampled groups."""

from typing import TYPE_CHECKING

from grpo_verifiers.lazy import lazy_names

if TYPE_CHECKING:
    from grpo_plus.report.group import group_text as group_text
    from grpo_plus.report.write import write_report as write_report

_WHERE = {
    "group": "group_text",
    "write": "write_report",
}
__getattr__, __dir__, __all__ = lazy_names(__name__, _WHERE)
