"""The machine: accelerators, memory, cores, and how many threads want them."""

from collections.abc import Iterator
from dataclasses import dataclass

from grpo_plus.checkpoints.disk import size_text
from grpo_plus.doctor.finding import Finding, info, ok, problem, warning

GIB = 1 << 30
LOW_MEMORY = 2 * GIB
"""Less than this, and loading libraries and starting workers may already be too much."""
BUSY = 0.7
"""Share of a card's memory that should be free before a run."""

CARD = ok("device", "The accelerator that a run uses.")
NO_CARD = info(
    "device-none",
    "Training runs on the processor: fine for the quickstart, hours a step for models of a billion weights.",
)
UNUSABLE = problem(
    "device-unusable",
    "The machine has an NVIDIA driver, but torch sees no card: training would run on the processor.",
    "Install a torch built for CUDA (pytorch.org, Get started), update the driver, and look at CUDA_VISIBLE_DEVICES.",
)
NO_BF16 = warning(
    "device-no-bf16",
    "The card has no bfloat16, in which TRL trains by default.",
    "Set bf16: false and fp16: true.",
)
OCCUPIED = warning(
    "device-occupied",
    "Something else holds much of the card's memory.",
    "nvidia-smi names the processes: end them, or choose another card with CUDA_VISIBLE_DEVICES.",
)
MEMORY = ok("memory", "Memory of the machine, or of its container.")
LOW = warning(
    "memory-low",
    "Little memory is left: loading a model or starting workers may end the process without a word.",
    "Close other programs, or give the container more.",
)
CORES = ok("cores", "Cores that this process may use, and the threads that torch starts on them.")
THREADS = warning(
    "threads-too-many",
    "More threads than cores: they take turns, and every step is slower, often several times.",
    "Set OMP_NUM_THREADS to the cores of a process (cores / processes).",
)


@dataclass(frozen=True)
class Card:
    """An accelerator; sizes in bytes, ``free`` None where it cannot be told."""

    name: str
    total: int
    free: int | None = None
    bf16: bool = True


@dataclass(frozen=True)
class Machine:
    """What the machine has.

    Attributes:
        cards: accelerators that torch sees.
        driver: an NVIDIA driver is there.
        torch_build: CUDA's version that torch was built for, or what it was built for instead.
        visible: the value of CUDA_VISIBLE_DEVICES; None where it is unset.
        memory: bytes of memory, of the container where it has a limit.
        available: of them, those that are free.
        cores: that this process may use, a container's quota included.
        threads: that torch starts in one process.
        processes: that one run starts on this machine.
    """

    cards: tuple[Card, ...]
    driver: bool
    torch_build: str
    visible: str | None
    memory: int
    available: int
    cores: float
    threads: int
    processes: int = 1


def machine_findings(facts: Machine) -> Iterator[Finding]:
    """Accelerators, memory and threads."""
    for card in facts.cards:
        free = "" if card.free is None else f", {size_text(card.free)} free"
        yield CARD.at("accelerator", f"{card.name}, {size_text(card.total)}{free}")
        if not card.bf16:
            yield NO_BF16.at("accelerator", card.name)
        if card.free is not None and card.free < BUSY * card.total:
            yield OCCUPIED.at("accelerator", f"{card.name}: {size_text(card.free)} of {size_text(card.total)} free")
    if not facts.cards:
        if facts.driver and facts.visible != "":
            shown = "" if facts.visible is None else f", CUDA_VISIBLE_DEVICES={facts.visible}"
            yield UNUSABLE.at("accelerator", f"a driver, no card; torch is built for {facts.torch_build}{shown}")
        else:
            yield NO_CARD.at("accelerator", f"none; torch is built for {facts.torch_build}")
    text = f"{size_text(facts.available)} of {size_text(facts.memory)} available"
    yield (LOW if facts.available < LOW_MEMORY else MEMORY).at("memory", text)
    cores, wanted = max(1, round(facts.cores)), facts.threads * facts.processes
    times = f" x {facts.processes} processes" if facts.processes > 1 else ""
    yield (THREADS if wanted > cores else CORES).at("cores", f"{facts.cores:g} cores, {facts.threads} threads{times}")
