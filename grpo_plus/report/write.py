"""Write runs as one page; no text of a model can break out of its place."""

import base64
import hashlib
import html
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from grpo_plus import __version__
from grpo_plus.record.files import RunError, dump
from grpo_plus.record.reader import Run, open_run
from grpo_plus.report.compare import compared, lines_of, names, table, verdicts
from grpo_plus.report.escape import escape_all, escape_controls
from grpo_plus.report.headline import facts, tiles
from grpo_plus.report.panels import every_metric, single
from grpo_plus.report.shape import shape_group, summary
from grpo_verifiers.files import write_atomic, write_named

NAME = "report.html"
BUDGET = 8 * 2**20
"""Most characters of the packed groups of a page."""


def write_report(runs: Sequence[str | Path], out: str | Path | None = None) -> Path:
    """Write the page of a run, or of several side by side; returns the written file.

    ``runs`` are output folders; runs of one variant of a sweep become one line with a band. Without ``out``, the file
    is ``report.html`` in the first run's folder.

    Raises:
        RunError: there are no runs, a folder has none, a run has no log yet, or the file cannot be written.
    """
    if isinstance(runs, str | Path):
        runs = [runs]
    opened = [open_run(path) for path in runs]
    if not opened:
        raise RunError("no runs to report: name the output_dir of at least one.")
    twice = [run.path for at, run in enumerate(opened) if run.path.resolve() in {o.path.resolve() for o in opened[:at]}]
    if twice:
        raise RunError(f"{twice[0]} appears twice: name each run once.")
    data = page_data(opened)
    target = opened[0].path / NAME
    try:
        target = target if out is None else Path(out).expanduser()
        folder = target.is_dir()
    except (OSError, RuntimeError) as error:
        raise RunError(f"{out} cannot be written: {error}. Name another file with --out.") from error
    if folder:
        raise RunError(f"{target} is a folder: give the file to write, like {target / NAME}.")
    title = opened[0].name if len(opened) == 1 else f"{len(opened)} runs compared"
    try:
        (write_atomic if out is None else write_named)(target, page(escape_controls(title), data))
    except OSError as error:
        raise RunError(f"{target} cannot be written: {error}. Name another file with --out.") from error
    return target


def page_data(runs: Sequence[Run]) -> dict[str, Any]:
    """The data of the page's script."""
    share = BUDGET // len(runs)
    packed = [pack(run.groups(), share) for run in runs]
    empty = [run for run, groups in zip(runs, packed, strict=True) if not run.entries and not groups["index"]]
    if empty:
        raise RunError(
            f"{empty[0].path} has logged nothing yet (status: {empty[0].status}). Wait for its first logging step "
            "(logging_steps), or leave it out."
        )
    lines = lines_of(runs)
    several = len(runs) > 1
    panels = compared(lines) if several else single(runs[0])
    data = {
        "version": __version__,
        "written": time.time(),
        "several": several,
        "runs": [
            {**facts(run), **({"name": name} if several else {}), "damage": run.damage}
            for run, name in zip(runs, names(runs), strict=True)
        ],
        "panels": [asdict(panel) for panel in panels],
        "tiles": [] if several else tiles(runs[0]),
        "table": table(lines) if several else [],
        "verdicts": verdicts(lines) if several else [],
        "metrics": {} if several else {key: line.__dict__ for key, line in every_metric(runs[0]).items()},
    }
    content: dict[str, Any] = escape_all(data)
    for each, groups in zip(content["runs"], packed, strict=True):
        each["groups"] = groups  # their text was made visible when they were packed
    return content


def pack(groups: Iterable[Mapping[str, Any]], budget: int = BUDGET) -> dict[str, Any]:
    """Pack the groups of a record into blocks, one for each step, and summarise each group.

    ``budget`` is the most characters of all blocks; above it every other step is left out, repeatedly.

    Returns:
        ``blocks`` (base64 of deflated JSON: a list of groups), ``index`` (summaries with ``block`` and ``at``), and
        ``recorded``, the number of groups before any was left out.
    """
    steps: dict[tuple[str, int], list[dict[str, Any]]] = {}
    blocks: dict[tuple[str, int], str] = {}
    waiting: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for record in groups:
        shaped = shape_group(record)
        key = shaped["mode"], shaped["step"]
        steps.setdefault(key, []).append(summary(shaped))
        waiting.setdefault(key, []).append(shaped)
        if len(waiting) > 1:  # groups of a step are neighbours: pack a step as soon as the next one begins
            done = next(iter(waiting))
            blocks[done] = blocks.get(done, "") + _block(waiting.pop(done)) + " "
    for key, shaped_groups in waiting.items():
        blocks[key] = blocks.get(key, "") + _block(shaped_groups) + " "
    recorded = sum(map(len, steps.values()))
    chosen = sorted(steps, key=lambda key: (key[1], key[0]))
    while len(chosen) > 1 and sum(len(blocks[key]) for key in chosen) > budget:
        chosen = chosen[::2]
    index = [
        {**each, "block": number, "at": at} for number, key in enumerate(chosen) for at, each in enumerate(steps[key])
    ]
    return {"blocks": [blocks[key].strip() for key in chosen], "index": index, "recorded": recorded}


def _block(groups: list[dict[str, Any]]) -> str:
    return base64.b64encode(zlib.compress(dump(groups).encode("ascii"), 6)).decode("ascii")


STYLES = ("uPlot.min.css", "report.css")
SCRIPTS = (
    "uPlot.iife.min.js",
    "text.js",
    "charts.js",
    "estimators.js",
    "playground.js",
    "inspector.js",
    "findings.js",
    "page.js",
)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page(title: str, data: Any) -> str:
    """The page: ``report.html`` with its fields filled.

    The page's policy allows the one script with this hash and loads nothing: even a completion that got into the markup
    would not run.
    """
    script = "\n".join(asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fields = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        "licence": html.escape(asset("uPlot.LICENSE.txt").strip()),
        "style": "\n".join(asset(name) for name in STYLES),
        "script": script,
        "data": safe_json(data),
    }
    template = asset("report.html")
    parts = template.split("@@")  # literal text and field names take turns
    return "".join(fields[part] if at % 2 else part for at, part in enumerate(parts))


def safe_json(data: Any) -> str:
    """JSON in plain ASCII that cannot end a script element."""
    dumped = dump(data)
    for character, escaped in _UNSAFE.items():
        dumped = dumped.replace(character, escaped)
    return dumped


def asset(name: str) -> str:
    """The text of an asset."""
    return resources.files("grpo_plus.report").joinpath("assets", name).read_text(encoding="utf-8")
