"""The system-call filter: its answer to every call and argument, and a process under it."""

import errno
import os
import platform
import socket
import struct
import sys
from itertools import chain
from types import SimpleNamespace

import pytest

from grpo_verifiers.sandbox.inside import kernel, seccomp, syscalls

pytestmark = pytest.mark.skipif(sys.platform != "linux" or sys.byteorder != "little", reason="the box is Linux's")
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
DENY, ALLOW, UNKNOWN = errno.EPERM, None, errno.ENOSYS


def walk(code, arch, number, arguments=()):
    """The answer of a filter, None where the call is let through, by the rules of classic BPF; and its steps."""
    data = struct.pack("=IIQ", number, arch, 0) + struct.pack("=6Q", *(*arguments, *[0] * 6)[:6])
    lines = [struct.unpack_from("=HBBI", code, place) for place in range(0, len(code), 8)]
    at = taken = steps = 0
    while True:
        operation, yes, no, value = lines[at]
        at, steps = at + 1, steps + 1
        if operation == 0x20:
            taken = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x54:
            taken &= value
        elif operation == 0x05:
            at += value
        elif operation == 0x06:
            return None if value == 0x7FFF0000 else value & 0xFFFF if value >> 16 == 5 else f"{value:x}", steps
        else:
            at += yes if {0x15: taken == value, 0x35: taken >= value, 0x45: bool(taken & value)}[operation] else no


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_gets_the_answer_of_its_list(machine, alone):
    arch, column = MACHINES[machine]
    code = seccomp.assemble(arch, column, seccomp.denied_numbers(column, alone=alone))
    lists = (syscalls.DENIED,) if alone else (syscalls.DENIED, syscalls.SHARED)
    listed = {pair[column] for each in lists for pair in each.values()}
    listed = dict.fromkeys(listed, DENY) | {pair[column]: 0 for pair in syscalls.IGNORED.values()}
    listed[syscalls.UNSUPPORTED["fallocate"][column]] = errno.EOPNOTSUPP
    by_argument = {pair[column] for pair in syscalls.BY_ARGUMENT.values()} | {syscalls.CLONE3[column]}
    longest = 0
    for number in range(520):
        if number not in by_argument:
            answer, steps = walk(code, arch, number)
            assert answer == listed.get(number, UNKNOWN if number > 462 else ALLOW), number
            longest = max(longest, steps)
        assert walk(code, arch, number + 0x40000000)[0] == walk(code, arch ^ 1, number)[0] == DENY
    assert longest < 40, "the kernel walks it for every call there is whenever a program starts"
    assert (walk(code, arch, syscalls.CLONE3[column])[0], arch) == (UNKNOWN, seccomp._ARCHES[machine][0])


def among(*ranges):
    return set(chain.from_iterable(range(low, high + 1) for low, high in ranges))


LOCKS = {6, 7, 13, 14, 37, 38}
FCNTL = among((0, 5), (9, 9), (11, 12), (16, 17), (36, 36), (1025, 1025), (1027, 1028), (1030, 1030), (1032, 1035), (1037, 1037))  # fmt: skip
TERMINAL = among((0x5401, 0x5404), (0x540F, 0x5411), (0x5413, 0x5413), (0x541B, 0x541B), (0x5421, 0x5421), (0x5450, 0x5451))  # fmt: skip
FILES = {0x4020940D, 0x40049409, 0x80045200, 0x80086601, 0x802C542A, 0xC020660B}
OPTIONS = {2, 9, 13, 16, 20, 21, 66, 67}
# Of each call: the arguments around the one that is looked at, its values, and the answer to each.
RULES = {
    "clone": ([()], [1 << bit for bit in range(32)], lambda flag: DENY if flag & 0x7E020080 else ALLOW),
    "socketpair": ([(1,)], [*range(16), 0x80801, 0x80802, 0x80805], lambda kind: ALLOW if kind & 15 in {1, 5} else DENY),
    "fcntl": ([(9,)], [*range(1100), 1 << 31], lambda command: 0 if command in LOCKS else ALLOW if command in FCNTL else DENY),
    "prctl": ([()], [*range(80), 0x59616D60, 0x59616D61, 0x59616D62], lambda it: DENY if it in {4, 22, 35, 62, 0x59616D61} else ALLOW),
    "setrlimit": ([()], range(16), lambda kind: DENY if kind == 4 else ALLOW),
    "prlimit": ([(0,)], range(16), lambda _: ALLOW),
    "setsockopt": ([(3, 1)], range(100), lambda it: 0 if it in {7, 8, 32, 33} else ALLOW if it in OPTIONS else DENY),
    **dict.fromkeys(("preadv2", "pwritev2"), ([(3, 1, 2, 3, 4)], range(64), lambda flags: errno.EOPNOTSUPP if flags else ALLOW)),
    "wait4": ([(1, 2, 3)], [0, 1, 1 << 31, 1 << 40], lambda place: DENY if place else ALLOW),
    "waitid": ([(1, 2, 3, 4)], [0, 1, 1 << 31, 1 << 40], lambda place: DENY if place else ALLOW),
    "ioctl": ([(0,)], [*range(0x5400, 0x5460), *(each + by for each in FILES for by in (-1, 0, 1)), 0x8901], lambda it: ALLOW if it in TERMINAL | FILES else errno.ENOTTY),
}  # fmt: skip
MORE = {
    "socketpair": {DENY: [(2, 1), (0, 1), (17, 1)]}, "setsockopt": {DENY: [(3, 6, 2), (3, 0, 9), (3, 2, 9)]},
    "prlimit": {DENY: [(7, 3), (1, 3), (0, 4, 1), (0, 4, 1 << 40), (1 << 31, 3)], ALLOW: [(0, 3, 1), (0, 5, 1 << 40)]},
    "fcntl": {DENY: [(0, 8, 9)], ALLOW: [(8, 0)]}, "ioctl": {ALLOW: [(7, 0x5401, 1)]},
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", syscalls.BY_ARGUMENT)
def test_the_filter_looks_into_arguments(machine, name):
    arch, column = MACHINES[machine]
    code, number = (seccomp.assemble(arch, column, seccomp.denied_numbers(column, alone=False)), syscalls.BY_ARGUMENT[name][column])  # fmt: skip
    (before, *_), values, rule = RULES[name]
    for value in values:
        assert walk(code, arch, number, (*before, value))[0] == rule(value), value
    for answer, calls in MORE.get(name, {}).items():
        for arguments in calls:
            assert walk(code, arch, number, arguments)[0] == answer, arguments


def test_a_worker_makes_no_sockets_and_nothing_else_changes_for_it(monkeypatch):
    pid = os.fork()
    if pid == 0:
        kernel.no_new_privileges()
        seccomp.build_without_sockets()()
        with pytest.raises(PermissionError):
            socket.socket(socket.AF_UNIX)
        said = kernel.libc.syscall(425, 8, None)
        os.pipe()
        os._exit(0 if said == -1 and os.getppid() else 2)
    assert os.waitpid(pid, 0)[1] == 0
    loaded = []
    monkeypatch.setattr(seccomp, "libc", SimpleNamespace(prctl=lambda *given: loaded.append(given) or len(loaded) - 1))
    for machine, (arch, column) in MACHINES.items():
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        programs = []
        monkeypatch.setattr(seccomp, "_loader", lambda program, kept=programs: kept.append(program))
        seccomp.build_without_sockets()
        for alone in (True, False):
            seccomp.build(alone=alone)
        for number in range(520):
            wanted = DENY if number in {syscalls.DENIED["socket"][column], 425} else ALLOW
            assert walk(programs[0], arch, number)[0] == wanted
            assert walk(programs[0], arch ^ 1, number)[0] == walk(programs[0], arch, number + 0x40000000)[0] == DENY
        assert programs[1:] == [seccomp.assemble(arch, column, seccomp.denied_numbers(column, alone=alone)) for alone in (True, False)]  # fmt: skip
        monkeypatch.undo()
        monkeypatch.setattr(seccomp, "libc", SimpleNamespace(prctl=lambda *given: loaded.append(given) or len(loaded) - 1))  # fmt: skip
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert (seccomp.build(alone=True), seccomp.build_without_sockets()) == (None, None)
    apply = seccomp._loader(b"\x06\0\0\0\0\0\xff\x7f")
    apply()
    with pytest.raises(OSError, match="the system-call filter was refused"):
        apply()
    assert [(given[:2], given[3:], struct.unpack("@H", given[2].raw[:2])) for given in loaded] == [((22, 2), (0, 0), (1,))] * 2  # fmt: skip
