"""A plug-in of pytest that writes each outcome down at once, for a run that may be cut off."""

import json
import os
from typing import Any


def pytest_runtest_logreport(report: Any) -> None:
    """One line for each test; with workers, from the process that leads them."""
    if "PYTEST_XDIST_WORKER" in os.environ or (report.when != "call" and report.outcome == "passed"):
        return
    why = ""
    if report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        why = str(getattr(crash, "message", report.longrepr)).strip()[:300]
    with open(os.environ["GRPO_PLUS_OUTCOMES"], "a", encoding="utf-8") as file:  # noqa: PTH123 - a line, quickly
        file.write(json.dumps({"test": report.nodeid, "outcome": report.outcome, "why": why}) + "\n")
