"""The threat model says what the table of attacks says, and names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "threat_model.md").read_text(encoding="utf-8")
DETAILS = (ROOT / "verifiers" / "README.md").read_text(encoding="utf-8")
# A row of the page to the rows of the detailed table that it sums up.
ROWS = {
    "the network": ["TCP"],
    "files outside: reading, writing": ["to read files", "to write files", "to change mode"],
    "files outside: whether they exist, sizes, dates": ["to see that a file"],
    "other processes: memory, ptrace": ["ptrace"],
    "signals": ["to signal"],
    "watching what others do with files": ["to watch"],
    "core dumps": ["core dump"],
    "the next program: daemons, files, patched modules": ["to leave a daemon"],
    "number of processes and threads": ["a fork bomb"],
    "memory": ["memory of one process"],
    "disk": ["disk: "],
    "output": ["output without end"],
    "time": ["time: "],
}


def cells(text, heading):
    """First cell to the cells of the levels, of the table with levels after a heading."""
    table = text[text.index(heading) :]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", table.partition("\n#")[0], re.MULTILINE)
    return {name: [re.sub(r"\W*\(\d+\)|\*", "", each).strip() for each in levels] for name, *levels in rows}


def test_no_row_of_either_table_is_forgotten_or_says_something_else():
    page, details = cells(PAGE, "## What each level of the box stops"), cells(DETAILS, "### Level against attack")
    for row, parts in ROWS.items():
        for part in parts:
            (found,) = [levels for name, levels in details.items() if part in name]
            assert page[row] == found, part
    assert set(page) - {"a program and", "---"} == set(ROWS)
    summed = {part for parts in ROWS.values() for part in parts} | {"SysV", "a program tries", "---"}
    assert [name for name in details if not any(part in name for part in summed)] == []
    named = re.findall(r"(?:tests|benchmarks|verifiers|grpo_verifiers)/[\w./]+", PAGE)
    assert len(named) > 15
    missing = [name for name in named if not (ROOT / name).exists() and not (ROOT / "verifiers" / name).exists()]
    assert missing == []
