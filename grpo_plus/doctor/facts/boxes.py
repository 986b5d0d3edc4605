"""A box at each level, and a worker that is really started."""

import time

from grpo_plus.doctor.checks.boxes import Boxes, WorkerTrial

SECONDS = 120.0
"""For the answer of a worker; a loaded machine starts one slowly."""


def boxes() -> Boxes:
    """Try each level of confinement."""
    from grpo_verifiers.code import probe

    findings = probe()
    return Boxes(findings.level, findings.details)


def worker() -> WorkerTrial:
    """Start a worker of a built-in check, and ask it for a verdict."""
    from grpo_verifiers import get_verifier
    from grpo_verifiers.exec.runner import close_shared_runners, shared_runner
    from grpo_verifiers.verdict import Status

    start = time.monotonic()
    try:
        verdict = get_verifier("exact", isolation="process", timeout=SECONDS).verify("4", answer="4")
        if verdict.status is not Status.CORRECT:
            return WorkerTrial(error=f"its verdict is {verdict.status.value}: {verdict.detail}")
        seconds = time.monotonic() - start
        return WorkerTrial(seconds, dict(getattr(shared_runner(), "confinement", {})))
    except Exception as error:  # noqa: BLE001 - whatever hinders a worker is what is asked for
        return WorkerTrial(error=f"{type(error).__name__}: {error}")
    finally:
        close_shared_runners()
