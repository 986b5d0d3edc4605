"""Numbers of system calls are those of the kernel, on both machines."""

import re
from pathlib import Path

import pytest

from grpo_verifiers.sandbox.inside import syscalls

LISTED = {**syscalls.DENIED, **syscalls.SHARED, **syscalls.BY_ARGUMENT, "clone3": syscalls.CLONE3}
HEADERS = ["/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm-generic/unistd.h"]
# Newer than many headers, and the same everywhere.
NEW = {"memfd_secret": 447, "process_mrelease": 448, "cachestat": 451, "fchmodat2": 452, "statmount": 457, "listmount": 458, "lsm_get_self_attr": 459, "lsm_set_self_attr": 460, "lsm_list_modules": 461}  # fmt: skip


@pytest.mark.parametrize("column", [0, 1])
def test_numbers_of_system_calls_are_those_of_the_kernels_headers(column):
    path = Path(HEADERS[column])
    if not path.exists():
        pytest.skip("the kernel's headers are not here")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text())
    numbers = {name.replace("prlimit64", "prlimit"): int(number) for name, number in found} | NEW
    assert {name: pair[column] for name, pair in LISTED.items()} == {name: numbers.get(name, -1) for name in LISTED}
