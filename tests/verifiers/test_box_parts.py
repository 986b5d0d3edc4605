"""Parts of the box away from the box: numbers of system calls, the filter as a program, messages, the environment."""

import errno
import re
import struct
import sys
from itertools import product
from pathlib import Path

import pytest

from grpo_verifiers import Verdict
from grpo_verifiers.code import _grade
from grpo_verifiers.code.guest import program, records
from grpo_verifiers.exec.wire import to_rows
from grpo_verifiers.sandbox import confine
from grpo_verifiers.sandbox.inside import seccomp, syscalls

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the box is Linux's")
LISTED = {**syscalls.DENIED, **syscalls.SHARED, **syscalls.LOOKED_INTO, "clone3": syscalls.CLONE3}
HEADERS = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h"]
DENY, ALLOW, UNKNOWN = errno.EPERM, None, errno.ENOSYS


@pytest.mark.parametrize("column", [0, 1])
def test_numbers_of_system_calls_are_those_of_the_kernels_headers(column):
    path = Path(HEADERS[column])
    if not path.exists():
        pytest.skip("the kernel's headers are not here")
    found = {name: int(number) for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())}
    for name, numbers in LISTED.items():
        known = found.get("prlimit64" if name == "prlimit" else name, -1)
        assert numbers[column] == known or (known == -1 and numbers[column] > 450), (name, numbers[column], known)


def verdict(code, arch, number, arguments=()):
    """What a filter answers: the error, None where the call is let through; by the rules of classic BPF."""
    data = struct.pack("=IIQ", number, arch, 0) + struct.pack("=6Q", *(*arguments, *[0] * 6)[:6])
    lines, at, taken = [struct.unpack_from("=HBBI", code, place) for place in range(0, len(code), 8)], 0, 0
    while True:
        operation, yes, no, value = lines[at]
        at += 1
        if operation == 0x20:
            taken = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x54:
            taken &= value
        elif operation == 0x05:
            at += value
        elif operation == 0x06:
            return None if value == 0x7FFF0000 else value & 0xFFFF if value >> 16 == 5 else f"{value:x}"
        else:
            at += yes if {0x15: taken == value, 0x35: taken >= value, 0x45: bool(taken & value)}[operation] else no


@pytest.mark.parametrize(
    ("arch", "column", "alone"), [(0xC000003E, 0, True), (0xC000003E, 0, False), (0xC00000B7, 1, False)]
)
def test_the_filter_lets_through_what_is_on_no_list(arch, column, alone):
    code = seccomp.assemble(arch, column, seccomp.denied(column, alone=alone))
    listed = {
        numbers[column] for numbers in (syscalls.DENIED if alone else {**syscalls.DENIED, **syscalls.SHARED}).values()
    }
    by_argument = {numbers[column] for numbers in syscalls.LOOKED_INTO.values()} | {syscalls.CLONE3[column]}
    for number in range(520):
        expected = DENY if number in listed else UNKNOWN if number > syscalls.NEWEST else ALLOW
        if number not in by_argument:
            assert verdict(code, arch, number) == expected, number
        assert verdict(code, arch, number + 0x40000000) == verdict(code, arch ^ 1, number) == DENY
    assert verdict(code, arch, syscalls.CLONE3[column]) == UNKNOWN
    assert syscalls.NEWEST == 462


CALLS = {
    "clone": {ALLOW: [[0x11], [0x1200011]], DENY: [[0x10000000], [0x20000], [0x80], [0x02000000]]},
    "socketpair": {ALLOW: [[1, 1], [1, 5], [1, 0x80801]], DENY: [[1, 2], [2, 1], [1, 3], [1, 0x80802]]},
    "fcntl": {ALLOW: [[9, 0], [9, 7], [9, 9], [9, 11], [9, 14], [9, 17], [9, 36], [9, 1030], [9, 1033]], DENY: [[9, 8], [9, 10], [9, 15], [9, 18], [9, 1024], [9, 1026], [9, 1031], [9, 2000]]},
    "prctl": {ALLOW: [[1], [3], [15], [23], [63]], DENY: [[4], [22], [35], [62], [0x59616D61]]},
    "setrlimit": {ALLOW: [[0], [3], [5]], DENY: [[4]]},
    "prlimit": {ALLOW: [[0, 3, 9], [0, 4, 0]], DENY: [[7, 3, 0], [0, 4, 5], [0, 4, 1 << 40]]},
    "setsockopt": {ALLOW: [[3, 1, 2], [3, 1, 9], [3, 1, 20], [3, 1, 67]], DENY: [[3, 6, 2], [3, 1, 26], [3, 1, 3], [3, 1, 22]], 0: [[3, 1, 7], [3, 1, 8], [3, 1, 33]]},
    "fallocate": {ALLOW: [[3, 0]], errno.EOPNOTSUPP: [[3, 1], [3, 3]]},
    "ioctl": {ALLOW: [[0, 0x5401], [0, 0x5413], [0, 0x541B], [0, 0x5451], [0, 0xC020660B]], errno.ENOTTY: [[0, 0x5412], [0, 0x5405], [0, 0x5452], [0, 0x80045201]]},
}  # fmt: skip


@pytest.mark.parametrize("name", syscalls.LOOKED_INTO)
def test_the_filter_looks_into_arguments(name):
    for arch, column in seccomp._ARCHES.values():
        code = seccomp.assemble(arch, column, seccomp.denied(column, alone=False))
        for answer, calls in CALLS[name].items():
            for arguments in calls:
                assert verdict(code, arch, syscalls.LOOKED_INTO[name][column], arguments) == answer, arguments


def test_the_environment_of_a_worker_has_no_secrets_no_gpu_and_one_thread():
    given = {
        "PATH": "/bin",
        "HF_TOKEN": "t",
        "MY_API_KEY": "k",
        "PYTHONSTARTUP": "x",
        "PYTHONINSPECT": "1",
        "PYTHONBREAKPOINT": "0",
        "OMP_NUM_THREADS": "8",
    }
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    devices = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
    expected = {"PATH": "/bin", **threads, **devices, "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
    assert confine.clean_environment(given) == expected
    assert confine.clean_environment(given, keep=["HF_TOKEN"]) == {**expected, "HF_TOKEN": "t"}


def test_a_batch_has_one_result_for_each_completion():
    right = ["correct", "", []]
    assert to_rows([1, True, None, Verdict(0.5)], 4) == [
        [1.0, *right],
        [1.0, *right],
        [None, "not_applicable", "", []],
        [0.5, "partial", "", []],
    ]
    assert to_rows(1, None) == to_rows((1.0,), 1) == to_rows([1], 1)
    texts = [isinstance(row, str) for row in to_rows([1, "a", float("nan"), "", [1]], 5)]
    assert texts == [False, True, True, True, True]
    for wrong in (1, "ab", b"ab", {"a": 1, "b": 2}, None, (item for item in "ab"), len):
        with pytest.raises(TypeError, match="one result for each of 2"):
            to_rows(wrong, 2)
    for wrong, rows in (([1], 2), ([1, 1, 1], 2), ([], 1), ((), 3)):
        with pytest.raises(ValueError, match=f"{len(wrong)} results for {rows} completions"):
            to_rows(wrong, rows)
    with pytest.raises(TypeError):
        to_rows(["a", "b"], 2)


@pytest.mark.parametrize("reply", [
    None, [], {}, "value", [1], ["value"], ["value", 1, 2], ["odd", 1], ["missing", 1], ["refused"], ["refused", 1], ["refused", "a", 1], ["raised"],
    ["raised", 1], ["raised", "a", 1], ["raised", "a", "", None, [], None, 1], [["value"], 1], ["value ", 1],
])  # fmt: skip
def test_a_reply_that_no_honest_program_gives_is_malformed(reply):
    assert _grade._value(reply) == (None, "gave a malformed answer", [])


def test_a_reply_is_a_value_an_exception_or_what_is_missing():
    assert _grade._value(["value", 1]) == (1, "", [])
    assert _grade._value(["value", ["?", 1]])[:2] == (None, "answered with a malformed value")
    assert _grade._value(["missing"])[1:] == (
        "is not defined",
        ["the program does not define it", "NameError", None, [], None],
    )
    assert _grade._value(["refused", "<x>"])[2] == []
    assert _grade._value(["raised", "E: no", "ValueError", 1, ["E", 3], ["d"]])[2] == [
        "E: no",
        "ValueError",
        1,
        ["E"],
        ["d"],
    ]
    assert _grade._value(["raised", "a" * 2000, "b" * 200, ["?"], "E", ["?"]])[2] == [
        "a" * 1000,
        "b" * 100,
        None,
        [],
        None,
    ]


def test_only_heads_that_describe_an_object_are_taken():
    names, bad = ["A", "b1"], ["", "1a", "__a__", "for", "a b", "a" * 101, "x_names_", "x_by_fields_", None, 1]
    assert all(map(records.is_name, [*names, "a" * 100, "__a", "a__"]))
    assert not any(map(records.is_name, bad))
    for head in (["A", ["b", "c"]], ["A", []]):
        assert [records.is_head("m", head, count) for count in (len(head[1]), 9)] == [True, False]
    for head in (["A", ["_b"]], ["A", ["b", "b"]], ["A", "b"], ["for", ["b"]], ["A", ["1"]]):
        assert not records.is_head("m", head, len(head[1]))
    for name, bases, flag in product(["A", "1a"], [["A"], ["A", "A"], "A", ["for"], []], [True, 0]):
        good = name == "A" and bases in (["A"], []) and flag is True
        assert [
            records.is_head("e", [name, bases, third, flag], count) for third, count in (("b", 1), ("b", 2), ("1", 1))
        ] == [good, False, False]
        fields = ((["b", "c"], 2), (["b"], 2), (["b", "b"], 2), ([], 0), ("b", 1))
        assert [records.is_head("o", [name, bases, third, flag], count) for third, count in fields] == [
            good,
            False,
            False,
            good,
            False,
        ]


def test_what_is_printed_is_kept_up_to_a_number_of_characters():
    printed = program._Printed(5)
    assert printed.writable()
    assert [printed.write(text) for text in ("abc", "", "de")] == [3, 0, 2]
    assert (printed.text, printed.cut) == ("abcde", False)
    assert printed.write("f") == 1
    print("g", file=printed)
    assert (printed.text, printed.cut) == ("abcde", True)
