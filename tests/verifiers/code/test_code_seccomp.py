"""The system-call filter, walked as the kernel walks it: every number, every argument that it looks at."""

import errno
import struct
import sys

import pytest

from grpo_verifiers.sandbox.inside import seccomp, syscalls

ALLOW, DENY, UNKNOWN = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
PRETEND, UNSUPPORTED, NO_REQUEST = 0x50000, 0x50000 | errno.EOPNOTSUPP, 0x50000 | errno.ENOTTY
CLONE_NEWUSER, CLONE_THREAD = 0x10000000, 0x00010000

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the words of an argument are in the other order")


def walk(program, arch, number, arguments=()):
    """What a filter says of a call, in how many steps."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, arch, 0, *padded)
    lines = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = held = steps = 0
    while True:
        code, yes, no, value = lines[at]
        steps += 1
        at += 1
        if code == 0x06:
            return value, steps
        if code == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:
            held &= value
        elif code == 0x05:
            at += value
        else:
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += yes if true else no


def build(machine, alone):
    arch, column = MACHINES[machine]
    numbers = seccomp.denied(column, alone=alone)
    return arch, column, numbers, seccomp.assemble(arch, column, numbers)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_gets_the_answer_of_its_list(machine, alone):
    arch, column, numbers, program = build(machine, alone)
    looked = {pair[column] for pair in syscalls.LOOKED_INTO.values()}
    longest = 0
    for number in range(600):
        if number in looked:
            continue
        wanted = DENY if number in numbers else ALLOW
        if number > 462 or number == 435:  # newer than the list, and clone3
            wanted = UNKNOWN
        found, steps = walk(program, arch, number)
        assert found == wanted, number
        longest = max(longest, steps)
    assert longest < 40, "the kernel walks it for every call there is whenever a program starts"
    watching = ("inotify_init1", "inotify_add_watch", "fanotify_init", "fanotify_mark", "cachestat", "statmount")
    for name in ("ptrace", "mount", "unshare", "kexec_load", "seccomp", "landlock_add_rule", *watching):
        assert syscalls.DENIED[name][column] in numbers, name


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_other_architectures_are_denied(machine):
    _, _, _, program = build(machine, alone=True)
    other = next(arch for name, (arch, _) in MACHINES.items() if name != machine)
    for arch, number in ((other, 0), (0x40000003, 1), (MACHINES[machine][0], 0x40000000)):
        assert walk(program, arch, number)[0] == DENY


FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 36, 37, 38, 1025, 1030, 1032, 1033, 1034)
NO_FCNTL = (8, 10, 15, 1024, 1026, 1031, 1036, 1039, 1040, 1050, 1 << 31)
NO_IOCTL = (0x5412, 0x541C, 0x8901, 0x8902, 0x40305828, 0x4030582A)
ANSWERS = {
    "clone": {ALLOW: [(CLONE_THREAD,)], DENY: [(CLONE_NEWUSER,)]},
    "prlimit": {ALLOW: [(0, 7), (0, 4, 0, 1)], DENY: [(1, 7), (0, 4, 1 << 12), (0, 4, 1 << 40)]},  # 4: of core dumps
    "setrlimit": {ALLOW: [(7, 1)], DENY: [(4, 1)]},
    "socketpair": {ALLOW: [(1, 1), (1, 5), (1, 1 | 0o2000000)], DENY: [(1, 2), (2, 1)]},
    "prctl": {ALLOW: [(15, 1), (3, 1), (38, 1)], DENY: [(4, 1), (22, 1), (0x59616D61, 1)]},
    "setsockopt": {
        PRETEND: [(3, 1, option) for option in (7, 8, 32, 33)],
        ALLOW: [(3, 1, 20)],
        DENY: [(3, 6, 1), *((3, 1, option) for option in (26, 50, 60, 1 << 16))],
    },
    "fallocate": {ALLOW: [(3, 0)], UNSUPPORTED: [(3, 1)]},  # past the end of a file, and so past the limit of its size
    "ioctl": {ALLOW: [(0, it) for it in (0x5401, 0x5413, 0x5421, 0x5451)], NO_REQUEST: [(0, it) for it in NO_IOCTL]},
    "fcntl": {ALLOW: [(0, command) for command in FCNTL], DENY: [(0, command) for command in NO_FCNTL]},
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ANSWERS)
def test_arguments_are_looked_into(machine, name):
    arch, column, _, program = build(machine, alone=True)
    for wanted, calls in ANSWERS[name].items():
        for arguments in calls:
            assert walk(program, arch, syscalls.LOOKED_INTO[name][column], arguments)[0] == wanted, arguments
