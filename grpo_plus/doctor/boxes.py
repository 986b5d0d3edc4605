"""The sandbox of programs at each level, and a worker of the checks that is really started."""

import time
from collections.abc import Iterator

from grpo_plus.doctor.finding import Finding, info, ok, problem, warning

SECONDS = 120.0
"""For the answer of a worker; a loaded machine starts one slowly."""

FULL = ok("box-full", "Programs of completions run in namespaces of their own: level full.")
PARTIAL = info(
    "box-process",
    "Programs run confined by the kernel's Landlock and seccomp, without namespaces: level process, which verifiers "
    "accept by default.",
    "For level full install bubblewrap (apt install bubblewrap) and allow user namespaces; in a container add "
    "--security-opt seccomp=unconfined.",
)
NONE = warning(
    "box-none",
    "Programs of completions cannot be confined here: the verifiers code and code_steps refuse to run them.",
    "Install bubblewrap, or use Linux 5.13 or newer with Landlock, or let a server run programs (piston).",
)
WORKER = ok("worker", "A worker process started, and answered.")
WORKER_FAILS = problem(
    "worker-fails",
    "No worker process of the verifiers can be started: every run with a verifier in a process stops.",
    "Read the error; the usual causes are GRPO_VERIFIERS_MEMORY or GRPO_VERIFIERS_WORKERS, a full /tmp, and limits on "
    "processes (ulimit -u).",
)


def box_findings() -> Iterator[Finding]:
    """The level of confinement that is reached, and why the higher ones are not."""
    from grpo_verifiers.code import probe

    found = probe()
    kind = {"full": FULL, "process": PARTIAL}.get(found.level, NONE)
    order = ("full", "process", "none")
    shown = order[: order.index(found.level) + 1] if found.level in order else order
    yield kind.at("sandbox", "; ".join(f"{level}: {found.details[level]}" for level in shown if level in found.details))


def worker_findings() -> Iterator[Finding]:
    """Start a worker of a built-in check, and ask it for a verdict."""
    from grpo_verifiers import get_verifier
    from grpo_verifiers.exec.runner import close_shared_runners, shared_runner
    from grpo_verifiers.verdict import Status

    start = time.monotonic()
    try:
        verdict = get_verifier("exact", isolation="process", timeout=SECONDS).verify("4", answer="4")
        if verdict.status is not Status.CORRECT:
            yield WORKER_FAILS.at("workers", f"its verdict is {verdict.status.value}: {verdict.detail}")
            return
        seconds = time.monotonic() - start
        told = ", ".join(f"{name}: {value}" for name, value in getattr(shared_runner(), "confinement", {}).items())
        yield WORKER.at("workers", f"answered after {seconds:.1f} s" + (f" ({told})" if told else ""))
    except Exception as error:  # noqa: BLE001 - whatever hinders a worker is what is asked for
        yield WORKER_FAILS.at("workers", f"{type(error).__name__}: {error}")
    finally:
        close_shared_runners()
