"""The sandbox of programs, and the workers of checks."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from grpo_plus.doctor.finding import Finding, info, ok, problem, warning

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


@dataclass(frozen=True)
class Boxes:
    """The highest level of confinement of programs, and for each level what it gave, or why it does not work."""

    level: str
    details: Mapping[str, str]


@dataclass(frozen=True)
class WorkerTrial:
    """The trial of a worker: seconds to its answer and its confinement, or the error."""

    seconds: float = 0.0
    confinement: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


def box_findings(facts: Boxes) -> Iterator[Finding]:
    """The level reached, and why the higher ones are not."""
    kind = {"full": FULL, "process": PARTIAL}.get(facts.level, NONE)
    order = ("full", "process", "none")
    shown = order[: order.index(facts.level) + 1] if facts.level in order else order
    yield kind.at("sandbox", "; ".join(f"{level}: {facts.details[level]}" for level in shown if level in facts.details))


def worker_findings(facts: WorkerTrial) -> Iterator[Finding]:
    """A worker that answers, or the reason why none does."""
    if facts.error:
        yield WORKER_FAILS.at("workers", facts.error)
        return
    told = ", ".join(f"{name}: {value}" for name, value in facts.confinement.items())
    yield WORKER.at("workers", f"answered after {facts.seconds:.1f} s" + (f" ({told})" if told else ""))
