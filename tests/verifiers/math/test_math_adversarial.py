"""Answers made to hang checkers, through the verifier and its workers, from a thread that no signal could reach."""

import os
import threading
import time

import psutil
import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.exec.runner import close_shared_runners, default_memory

pytestmark = pytest.mark.slow

TIMEOUT = 1.0
SLACK = 0.2


def check_in_a_thread(texts, golds):
    """Verdicts and the seconds of each check, with the most memory that this process's children held meanwhile."""
    found = {}

    def work():
        pending = get_verifier("math", timeout=TIMEOUT).start(None, texts, answer=golds)
        found.update(verdicts=pending.result(), seconds=pending.seconds)

    thread = threading.Thread(target=work)
    thread.start()
    most = 0
    ends = time.monotonic() + 120
    while thread.is_alive():
        assert time.monotonic() < ends, "a check hangs"
        thread.join(0.05)
        for child in psutil.Process(os.getpid()).children():
            try:
                most = max(most, child.memory_info().rss)
            except psutil.NoSuchProcess:
                continue
    return found["verdicts"], found["seconds"], most


def test_no_answer_outlives_its_deadline_or_takes_the_memory(cases):
    rows = cases("adversarial_math.jsonl")
    close_shared_runners()  # so that the children are those of this test
    verdicts, seconds, most = check_in_a_thread([row["pred"] for row in rows], [row["gold"] for row in rows])
    late = [row for row, spent in zip(rows, seconds, strict=True) if spent > TIMEOUT + SLACK]
    for row in late:  # alone, so that another process of the machine does not count for its answer
        spent = min(check_in_a_thread([row["pred"]], [row["gold"]])[1][0] for _ in range(3))
        assert spent <= TIMEOUT + SLACK, row["id"]
    assert most < default_memory()
    assert not [row["id"] for row, verdict in zip(rows, verdicts, strict=True) if verdict.status is Status.ERROR]
