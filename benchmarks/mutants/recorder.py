"""A plugin of pytest: the end and the time of each phase of a test as a line of JSON in the file MUTANTS_RECORD.

With MUTANTS_COVERAGE, the settings of coverage, the lines of each test are written, too: a process that dies loses few.
"""

import atexit
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import coverage
import pytest

EACH = 100
"""Tests after which lines are written."""
_used = [0.0]
_lines: list[coverage.Coverage] = []
_begun = [0]
if settings := os.environ.pop("MUTANTS_COVERAGE", "") if "PYTEST_XDIST_WORKER" in os.environ else "":
    _lines.append(coverage.Coverage(config_file=settings, data_suffix=True))
    _lines[0].start()
    atexit.register(_lines[0].save)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Begin a test, which the lines that run from here on belong to."""
    for lines in _lines:
        _begun[0] += 1
        if _begun[0] % EACH == 0:
            lines.save()
        lines.switch_context(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Note the time of the processor, which a busy machine does not lengthen; a quarter of the clock's for waiting."""
    report = yield
    now = sum(os.times()[:4])
    report.seconds, _used[0] = max(now - _used[0], report.duration / 4), now
    return report


def pytest_runtest_logreport(report: Any) -> None:
    """Write down a phase; workers of xdist leave it to their controller."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ["MUTANTS_RECORD"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps([report.nodeid, report.outcome, getattr(report, "seconds", 0.0)]) + "\n")


def pytest_collectreport(report: Any) -> None:
    """Write down a file that cannot be imported."""
    if report.failed:
        pytest_runtest_logreport(report)


def pytest_collection_finish() -> None:
    """Imports and collecting are no time of a test."""
    _used[0] = sum(os.times()[:4])
