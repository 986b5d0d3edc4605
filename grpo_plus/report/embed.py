"""Data and scripts in one page; no text of a model can break out of its place."""

import base64
import hashlib
import html
from importlib import resources
from typing import Any

from grpo_plus.record.files import dump

STYLES = ("uPlot.min.css", "report.css")
SCRIPTS = (
    "uPlot.iife.min.js",
    "text.js",
    "charts.js",
    "estimators.js",
    "playground.js",
    "inspector.js",
    "drawn.js",
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
