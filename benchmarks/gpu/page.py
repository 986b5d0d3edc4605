"""docs/card.md, made from a file of results: what was run on which card, and what was not run yet."""

import shutil
from pathlib import Path

from benchmarks.gpu.catalogue import CHECKS
from benchmarks.gpu.results import ROOT, Result, constants, read, versions_in

PAGE = ROOT / "docs" / "card.md"
KEPT = ROOT / "docs" / "card.jsonl"
"""The results that the page is made of; there is none before the first run on a card."""

HEAD = """\
# Results on a GPU

Everything that a CPU cannot show, as checks in order of importance. Run them on your own card, in the root of a clone.
They need no network, and by estimate 40 minutes for all of them:

```
python -m benchmarks.gpu --minutes 40 --out card.jsonl   # run again to continue with what is missing
```

What it does with time, memory and files: [benchmarks/gpu/README.md](../benchmarks/gpu/README.md).

"""
NOTHING = """\
**Not run yet.** No check has been run on a card so far. On a CPU one of each kind runs at a tiny size in CI, and once
more with a stand-in for a card, which refuses tensors on different devices and counts memory. That shows that the
checks and the code they call work; it says nothing about speed, peak memory or the rounding of a real card.

"""


def write(source: Path) -> Path:
    """Keep a file of results beside the page, and make the page of it."""
    if source.resolve() != KEPT.resolve():
        shutil.copyfile(source, KEPT)
    PAGE.write_text(page(KEPT), encoding="utf-8")
    return PAGE


def page(source: Path) -> str:
    """The page for a file of results; without one it says that there are none yet."""
    found = {result.name: result for _, result in read(source)[0]} if source.exists() else {}
    text = HEAD + (_origin(source) if found else NOTHING)
    text += "| check | what it shows | result |\n|---|---|---|\n"
    text += "".join(f"| `{check.name}` | {check.about} | {_cell(found.get(check.name))} |\n" for check in CHECKS)
    if (line := constants(found)) is not None:
        text += (
            "\nThe planner is off by more than 10% here. Constants as measured, for `grpo_plus/memory/estimate.py`:\n"
            f"\n```python\nASSUMED = {line}\n```\n"
        )
    return text


def _origin(source: Path) -> str:
    """The card, the versions and the code."""
    origin = read(source)[0][-1][0]
    versions = ", ".join(f"{name} {version}" for name, version in versions_in(source).items() if version != "none")
    where = {"cuda": origin.card, "cpu": "a CPU", "stand-in": "a stand-in for a card"}[origin.device]
    size = " (tiny sizes: this shows that the checks work, and measures nothing)" if origin.size == "tiny" else ""
    return f"Run on **{where}**{size}, with {versions}; sources `{origin.commit}`.\n\n"


def _cell(result: Result | None) -> str:
    if result is None:
        return "not run yet"
    text = result.headline if result.status == "passed" else f"**{result.status}**: {result.why}"
    return " ".join(text.split()).replace("|", "\\|") or result.status
