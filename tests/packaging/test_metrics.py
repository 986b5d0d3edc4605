"""The page of metrics names those that are logged, all of them and no others."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
if not PAGE.exists():
    pytest.skip("the sources are not here", allow_module_level=True)
SOURCES = [*(ROOT / "grpo_plus").rglob("*.py"), ROOT / "verifiers" / "grpo_verifiers" / "verdict.py"]
NO_METRICS = r"""
memory/memory[.]\w+  # files of a control group
tools/x  # each count by its name is on the page
    n/a
    application/json
    (beat|name|said)/.*             # keys of processes that look for each other
    coins/.*                        # seeds
    .*\.(metadata|py|json|yaml)\b.*      # files
    (grpo_plus|runs|estimator_package)/.*
    metrics/x                       # the logs of stock TRL, read back
    completions/x_xlength           # patterns of metrics that may be the best one
    status/correct
    verifiers/x/latency_x
    x/run                           # a folder
    x/x                             # nothing but names
    x/x/x
"""
"""Strings with slashes that are none, a pattern each."""


def documented():
    """The metrics of the page, by section; placeholders in capitals."""
    found, section = {}, ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| `"):
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", line.split("|")[1]), section)
    return found


@cache
def in_source(path):
    """What looks like a metric in a file, with x for what is filled in."""
    return set(metrics_in(path))


def metrics_in(path):
    source = path.read_text(encoding="utf-8")
    for logged in re.findall(
        r"\b_?log(?:_training)?(?:_metrics)?\([^{}()]*(?:\(\w+\)|[^{}()])*(\{.*?\})", source
    ):  # without a slash, too
        yield from re.findall(r"[{,] *\"(\w+)\":", logged)
    yield from re.findall(r"log_metric\(\"(\w+)\"", source)
    if not re.search(r"[\w}]/[\w{]", source):
        return
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            text = node.value
        else:
            continue
        if re.fullmatch(r"\w[\w.]*(/\w[\w.]*)+", text):
            yield re.sub(r"^x?eval_", "", re.sub(r"^x(?=verifiers/)", "", text))


def fits(name, other):
    """Whether one may be the other; x and capitals are filled in."""
    pattern = re.sub(r"(?<![a-z])x(?![a-z])|[A-Z]+", "\0", name.replace("/METRIC", "/\1"))
    return re.fullmatch(re.escape(pattern).replace("\0", r"[\w.]+").replace("\1", ".+"), other) is not None


def test_every_metric_of_the_source_is_on_the_page():
    none = re.compile("|".join(line.split("#")[0].strip() for line in NO_METRICS.strip().splitlines()))
    page = documented()
    missing = {
        f"{name} ({path.relative_to(ROOT)})"
        for path in SOURCES
        for name in in_source(path)
        if not none.fullmatch(name) and not any(fits(each, name) for each in page)
    }
    assert not missing, f"add them to docs/metrics.md, or to NO_METRICS if they are none: {sorted(missing)}"


def test_the_page_has_no_metric_that_nothing_logs():
    trainer = Path(importlib.util.find_spec("trl").origin).parent / "trainer" / "grpo_trainer.py"
    ours = {name for path in SOURCES if path.parent.name not in ("report", "cli") for name in in_source(path)}
    host = set(re.findall(r"_metrics\[mode\]\[f?\"([^\"]+)\"\]", trainer.read_text(encoding="utf-8")))
    host = {re.sub(r"\{.*?\}", "x", name) for name in host}
    own = {"loss", "grad_norm", "learning_rate", "epoch", "step_time"}  # of the training loop
    page = documented()
    known = {*ours, *host, *own}
    unknown = [name for name in page if not any(fits(each, re.sub("[A-Z]+", "x", name)) for each in known)]
    assert not unknown
    assert not {name for name in host if not any(fits(each, name) for each in page)}, "TRL's own"
