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


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("clone", (CLONE_THREAD,), ALLOW),
        ("clone", (CLONE_NEWUSER,), DENY),
        ("prlimit", (0, 7), ALLOW),
        ("prlimit", (1, 7), DENY),
        ("socketpair", (1, 1), ALLOW),
        ("socketpair", (1, 5), ALLOW),
        ("socketpair", (1, 1 | 0o2000000), ALLOW),
        ("socketpair", (1, 2), DENY),
        ("socketpair", (2, 1), DENY),
        ("prlimit", (0, 4, 0, 1), ALLOW),  # a look at the limit of core dumps
        ("prlimit", (0, 4, 1 << 12), DENY),
        ("prlimit", (0, 4, 1 << 40), DENY),
        ("setrlimit", (4, 1), DENY),
        ("setrlimit", (7, 1), ALLOW),
        *(
            (("prctl", (option, 1), wanted))
            for option, wanted in ((15, ALLOW), (3, ALLOW), (38, ALLOW), (4, DENY), (22, DENY), (0x59616D61, DENY))
        ),
        *(
            (("setsockopt", (3, 1, option), wanted))
            for option, wanted in (
                (7, PRETEND),
                (8, PRETEND),
                (32, PRETEND),
                (33, PRETEND),
                (20, ALLOW),
                (26, DENY),
                (50, DENY),
                (60, DENY),
                (1 << 16, DENY),
            )
        ),
        ("setsockopt", (3, 6, 1), DENY),
        ("fallocate", (3, 0), ALLOW),
        ("fallocate", (3, 1), UNSUPPORTED),  # past the end of a file, and so past the limit of its size
        *(
            (("ioctl", (0, request), wanted))
            for request, wanted in (
                (0x5401, ALLOW),
                (0x5413, ALLOW),
                (0x5421, ALLOW),
                (0x5451, ALLOW),
                (0x5412, NO_REQUEST),
                (0x541C, NO_REQUEST),
                (0x8901, NO_REQUEST),
                (0x8902, NO_REQUEST),
                (0x40305828, NO_REQUEST),
                (0x4030582A, NO_REQUEST),
            )
        ),
        *(
            (("fcntl", (0, what), ALLOW))
            for what in (0, 1, 2, 3, 4, 5, 6, 7, 12, 13, 14, 36, 37, 38, 1025, 1030, 1032, 1033, 1034)
        ),
        *((("fcntl", (0, what), DENY)) for what in (8, 10, 15, 1024, 1026, 1031, 1036, 1039, 1040, 1050, 1 << 31)),
    ],
)
def test_arguments_are_looked_into(machine, name, arguments, wanted):
    arch, column, _, program = build(machine, alone=True)
    assert walk(program, arch, syscalls.LOOKED_INTO[name][column], arguments)[0] == wanted
