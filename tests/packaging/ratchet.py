"""Counts that only fall: product lines a room, product files, files that name a field of ours, vague words, test lines.

``python -m tests.packaging.ratchet`` prints the counts above their bounds in bounds.json. With ``--write`` it lowers
the bounds to the counts of today and raises none: do that by hand, and say why in the commit. Without the file it
writes all counts.
"""

import ast
import json
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
BOUNDS = Path(__file__).with_name("bounds.json")
PACKAGES = ("grpo_plus", "verifiers/grpo_verifiers")
NEW = {"product files that name": 4}  # the bound of a new field; of whatever else is new it is 0
VAGUE = {
    "anybody", "apart", "asked", "asks", "begun", "beforehand", "behind", "beside", "drawn", "found", "given", "goes",
    "gone", "heard", "held", "kept", "known", "learnt", "lent", "made", "meant", "nobody", "noted", "others", "ours",
    "said", "says", "seen", "somebody", "spelled", "stand", "stands", "taken", "things", "told", "wanted", "what",
    "whatever", "whoever", "whole", "within",
}  # fmt: skip
"""Words that say too little as a name or in a sentence."""


@cache
def product():
    """The text of each product file by its path."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in paths}


def package_of(path):
    return next(package for package in PACKAGES if path.is_relative_to(package))


def room_of(path):
    """The folder right below the package; the package itself for its own files."""
    package = Path(package_of(path))
    return (package / Path(*path.relative_to(package).parent.parts[:1])).as_posix()


def lines_of_rooms():
    lines = Counter()
    for path, text in product().items():
        lines[room_of(path)] += text.count("\n")
    return lines


def product_files():
    return Counter(package_of(path) for path in product())


def files_that_name_fields():
    """Product files that read a field of `GRPOPlusConfig` off a config, or by its name."""
    config = ast.parse(product()[Path("grpo_plus/config.py")]).body
    (kind,) = [node for node in config if isinstance(node, ast.ClassDef) and node.name == "GRPOPlusConfig"]
    fields = [node.target.id for node in kind.body if isinstance(node, ast.AnnAssign)]
    fields = "|".join(fields)
    by_name = r"(?:getattr|changed_fields|named|read_form)\([\w., ]*"
    named = re.compile(rf"(?:(?<!grpo_plus\.)\b(?:config|args|training|c)\.|{by_name}\")({fields})\b(?!\()")
    return Counter(field for text in product().values() for field in set(named.findall(text)))


def vague_words():
    """Each part of an identifier is a word by itself."""
    words = (word.lower() for text in product().values() for word in re.findall(r"[A-Z]?[a-z]+", text))
    return Counter(word for word in words if word in VAGUE)


def lines_of_tests():
    return Counter({"all": sum(path.read_bytes().count(b"\n") for path in (ROOT / "tests").rglob("*.py"))})


KINDS = {
    "product lines in": lines_of_rooms,
    "product files in": product_files,
    "product files that name": files_that_name_fields,
    "uses of the vague word": vague_words,
    "test lines in": lines_of_tests,
}


def grown(kind, counts, bounds):
    """A sentence for each count above its bound."""
    above = [(name, count, bounds.get(name, NEW.get(kind, 0))) for name, count in sorted(counts.items())]
    return [
        f"{kind} {name}: {count:,}, {count - bound:,} above the bound of {bound:,}"
        for name, count, bound in above
        if count > bound
    ]


def read():
    return json.loads(BOUNDS.read_text(encoding="utf-8"))


def main(words):
    counts = {kind: count() for kind, count in KINDS.items()}
    bounds = read() if BOUNDS.exists() else counts
    problems = [problem for kind in KINDS for problem in grown(kind, counts[kind], bounds[kind])]
    print(*problems, sep="\n", end="\n" * bool(problems))
    if "--write" in words:
        lower = {
            kind: {
                name: min(bound, counts[kind][name])
                for name, bound in sorted(bounds[kind].items())
                if counts[kind][name]
            }
            for kind in KINDS
        }
        BOUNDS.write_text(json.dumps(lower, indent=2) + "\n", encoding="utf-8")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
