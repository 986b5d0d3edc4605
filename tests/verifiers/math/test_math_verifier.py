"""The registered verifier: in workers with deadlines, with the verdicts of the function."""

import os
import threading
import time

import psutil
import pytest

from grpo_verifiers import Status, get_verifier
from grpo_verifiers.exec.runner import close_shared_runners, default_memory
from grpo_verifiers.math import math

ROWS = [
    *(("42", "so \\boxed{42}"), ("42", "so \\boxed{41}"), ("42", "no answer")),
    ("\\sin 2x", "long text " * 500 + "\\boxed{2\\sin x\\cos x}"),
    ("\\sin 2x", "long text " * 500 + "\\boxed{2\\sin x\\cos y}"),
    *(("(-\\infty,2)\\cup(2,\\infty)", "\\boxed{\\mathbb{R}\\setminus\\{2\\}}"), ("", "\\boxed{1}")),
]


@pytest.mark.slow
def test_workers_say_what_the_function_says_and_deadlines_hold():
    verifier = get_verifier("math", timeout=30)
    completions, golds = [row[1] for row in ROWS], [row[0] for row in ROWS]
    verdicts = verifier.verify_batch([""] * len(ROWS), completions, None, answer=golds)
    assert verdicts == [math(completion, gold) for gold, completion in ROWS]
    assert verdicts[3].status is Status.CORRECT
    assert verdicts[-1].score is None
    assert verifier.verify("\\boxed{2\\sin x\\cos x}", answer="\\sin 2x").score == 1


def test_options_reach_the_workers():
    verifier = get_verifier("math", timeout=30, last_number=True, reduced=False)
    assert verifier.verify("it makes 42", answer="42").score == 1
    assert verifier.verify("\\boxed{\\frac{2}{4}\\sin 2x}", answer="\\sin x\\cos x").score == 1
    with pytest.raises(TypeError, match=r"reduced.*'no'"):
        get_verifier("math", reduced="no")


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


@pytest.mark.slow
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
