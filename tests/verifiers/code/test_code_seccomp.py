"""The system-call filter, walked as the kernel walks it: every number, every argument that it looks at."""

import errno
import struct
import sys

import pytest

from grpo_verifiers.code._inside import seccomp

ALLOW, DENY, UNKNOWN = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
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
        else:
            true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            at += yes if true else no


def build(machine, alone):
    arch, column = MACHINES[machine]
    table = seccomp._DENIED if alone else {**seccomp._DENIED, **seccomp._SHARED}
    numbers = {name: pair[column] for name, pair in table.items() if pair[column] >= 0}
    return arch, column, numbers, seccomp._assemble(arch, column, list(numbers.values()))


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_gets_the_answer_of_its_list(machine, alone):
    arch, column, numbers, program = build(machine, alone)
    looked = {pair[column] for pair in seccomp._LOOKED_INTO.values()}
    longest = 0
    for number in range(600):
        if number in looked:
            continue
        wanted = DENY if number in numbers.values() else ALLOW
        if number > 462 or number == 435:  # newer than the list, and clone3
            wanted = UNKNOWN
        found, steps = walk(program, arch, number)
        assert found == wanted, number
        longest = max(longest, steps)
    assert longest < 40, "the kernel walks it for every call there is whenever a program starts"
    assert {numbers[name] for name in ("ptrace", "mount", "unshare", "kexec_load")} <= set(numbers.values())


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
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), DENY),
        ("ioctl", (0, 0x8901), DENY),
        ("fcntl", (0, 3), ALLOW),
        ("fcntl", (0, 8), DENY),
        ("fcntl", (0, 15), DENY),
    ],
)
def test_arguments_are_looked_into(machine, name, arguments, wanted):
    arch, column, _, program = build(machine, alone=True)
    assert walk(program, arch, seccomp._LOOKED_INTO[name][column], arguments)[0] == wanted
