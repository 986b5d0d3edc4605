"""Data and scripts into one page, so that no text of a model can leave the place it is put in."""

import base64
import hashlib
import json
from importlib import resources
from typing import Any

from grpo_plus.record.files import plain

STYLES = ("uPlot.min.css", "report.css")
SCRIPTS = ("uPlot.iife.min.js", "text.js", "charts.js", "inspector.js", "page.js")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def page(title: str, data: Any) -> str:
    """The whole page.

    Scripts run only with the hash that the page's own policy names, and nothing is loaded from anywhere: a completion
    that found a way into the page's markup would find nothing there that runs it.
    """
    script = "\n".join(asset(name) for name in SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    fields = {
        "title": text(title),
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:",
        "licence": text(asset("uPlot.LICENSE.txt").strip()),
        "style": "\n".join(asset(name) for name in STYLES),
        "script": script,
        "data": safe_json(data),
    }
    whole = asset("report.html")
    parts = whole.split("@@")  # literal text and field names take turns
    return "".join(fields[part] if at % 2 else part for at, part in enumerate(parts))


def safe_json(data: Any) -> str:
    """JSON in plain ASCII that can end no script element, whatever is in it."""
    dumped = json.dumps(plain(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for character, escaped in _UNSAFE.items():
        dumped = dumped.replace(character, escaped)
    return dumped


def text(value: str) -> str:
    """Text between tags or in a quoted attribute."""
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        value = value.replace(character, entity)
    return value


def asset(name: str) -> str:
    """One of the files beside this one."""
    return resources.files("grpo_plus.report").joinpath("assets", name).read_text(encoding="utf-8")
