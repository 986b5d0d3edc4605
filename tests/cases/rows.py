"""Rows of a text file in this folder, by the heading above them."""

from pathlib import Path


def sections(name):
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    parts = text.removesuffix("\n").removeprefix("## ").split("\n## ")
    return {heading: rows.split("\n") for heading, _, rows in (part.partition("\n") for part in parts)}
