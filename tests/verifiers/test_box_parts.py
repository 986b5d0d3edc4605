"""Parts of the box away from the box: the environment, results of a batch, heads of objects, what is printed."""

import sys
from itertools import product

import pytest

from grpo_verifiers import Verdict
from grpo_verifiers.code.guest import program, records
from grpo_verifiers.errors import VerifierFailedError
from grpo_verifiers.exec.wire import to_rows
from grpo_verifiers.sandbox import confine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the box is Linux's")


def test_the_environment_of_a_worker_has_no_secrets_no_gpu_and_one_thread():
    given = {"PATH": "/bin", "HF_TOKEN": "t", "MY_API_KEY": "k", "PYTHONSTARTUP": "x", "OMP_NUM_THREADS": "8"}
    given |= {"PYTHONINSPECT": "1", "PYTHONBREAKPOINT": "0"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1")
    devices = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"), "")
    expected = {"PATH": "/bin", **threads, **devices, "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0"}
    assert confine.clean_environment(given) == expected
    assert confine.clean_environment(given, keep=["HF_TOKEN"]) == {**expected, "HF_TOKEN": "t"}


class Sized:
    def __len__(self):
        return 2


def test_a_batch_has_one_result_for_each_completion():
    right = ["correct", "", []]
    others = [[None, "not_applicable", "", []], [0.5, "partial", "", []]]
    assert to_rows([1, True, None, Verdict(0.5)], 4) == [[1.0, *right], [1.0, *right], *others]
    assert to_rows(1, None) == to_rows((1.0,), 1) == to_rows([1], 1)
    texts = [isinstance(row, str) for row in to_rows([1, "a", float("nan"), "", [1]], 5)]
    assert texts == [False, True, True, True, True]
    for wrong in (1, "ab", b"ab", {"a": 1, "b": 2}, None, (item for item in "ab"), Sized()):
        with pytest.raises(VerifierFailedError, match="for 2 completions, expected a list"):
            to_rows(wrong, 2)
    for wrong, rows in (([1], 2), ([1, 1, 1], 2), ([], 1), ((), 3)):
        with pytest.raises(VerifierFailedError, match=f"{len(wrong)} results? for {rows} completions?,"):
            to_rows(wrong, rows)
    with pytest.raises(TypeError):
        to_rows(["a", "b"], 2)


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
        members = {("e", "b", 1): good, ("e", "b", 2): False, ("e", "1", 1): False}
        fields = {("o", "bc", 2): good, ("o", "b", 2): False, ("o", "bb", 2): False, ("o", "", 0): good}
        for (kind, third, count), expected in (members | fields).items():
            head = [name, bases, list(third) if kind == "o" else third, flag]
            assert records.is_head(kind, head, count) is expected
        assert not records.is_head("o", [name, bases, "b", flag], 1)


def test_what_is_printed_is_kept_up_to_a_number_of_characters():
    printed = program._Printed(5)
    assert printed.writable()
    assert [printed.write(text) for text in ("abc", "", "de")] == [3, 0, 2]
    assert (printed.text, printed.cut) == ("abcde", False)
    assert printed.write("f") == 1
    print("g", file=printed)
    assert (printed.text, printed.cut) == ("abcde", True)
