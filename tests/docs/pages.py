"""The pages of the project and their fenced blocks."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "verifiers/README.md", "examples/README.md", "tests/README.md")
PAGES = [ROOT / name for name in (*READMES, "examples/estimator_package/README.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
REASONS = "the hub, a GPU, a server, several machines, Ray, Docker, ms-swift, prime's verifiers, llama.cpp and Ollama"
REASONS = REASONS.split(", ")
"""What a block may need that no test has; it says so in a comment above its fence: ``<!-- not run: needs the hub -->``."""
FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<note>[^\n]*?) -->\n *)?```(?P<language>\w+)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line that it starts at, and the comment right above it."""

    language: str
    text: str
    line: int
    note: str

    @property
    def needs(self):
        """What it needs that no test has, or nothing."""
        return self.note.removeprefix("not run: needs ") if self.note.startswith("not run: needs ") else ""

    @property
    def file(self):
        """The name of the file that its first line says it is."""
        found = re.match(r"# ([\w/]+\.(?:py|ya?ml))\b", self.text)
        return found[1] if found else ""


def blocks(page, *languages):
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        if found["language"] in languages:
            indent = len(found["indent"])
            inner = "".join(line[indent:] if line.strip() else "\n" for line in found["text"].splitlines(keepends=True))
            yield Block(found["language"], inner, text.count("\n", 0, found.start("text")), found["note"] or "")


def name(page):
    return str(page.relative_to(ROOT))


def commands(block):
    """The lines of a shell, long ones joined, comments taken off; what a here-document holds is left out."""
    text = re.sub(r"<<'?(\w+)'?\n.*?^\1$", "", block.text, flags=re.MULTILINE | re.DOTALL)
    for line in text.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s)#.*$", "", line).strip()
        if command:
            yield from (part.strip() for part in command.split(" && "))
