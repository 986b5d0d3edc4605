"""Bounds of one run of a program."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one run.

    Attributes:
        wall: seconds from its start to its end.
        cpu: whole seconds of processor time of each process; the wall bounds all of them together.
        memory: bytes of address space of each process, and of memory of all of them together.
        processes: processes and threads at a time.
        files: open files of each process.
        disk: bytes in the private folder, and in one file.
        output: bytes of standard output that are read.
        message: bytes of one answer.
        sent: bytes of all answers together; each question adds a little.
    """

    wall: float = 5.0
    cpu: int = 5
    memory: int = 1 << 30
    processes: int = 32
    files: int = 64
    disk: int = 64 << 20
    output: int = 1 << 20
    message: int = 4 << 20
    sent: int = 16 << 20
