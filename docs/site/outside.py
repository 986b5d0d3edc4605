"""A hook of MkDocs: pages of docs/ may link to files beside docs/, as they do when read in the repository.

What such a link names comes into the site below ``outside/``, under its path in the repository: a page of Markdown as a
page with its own links, a folder as a list of its files, any other file as it is.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[2]
PREFIX = "outside"
LINK = re.compile(r"(\]\()(?!https?:|mailto:|#)([^)\s#]+)")
FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2`* *$", re.MULTILINE | re.DOTALL)
FIRST = ("verifiers/README.md", "examples/README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def on_config(config: Any) -> Any:
    """Put a folder's pages where the list of the site has ``Title: folder/*.md``; without any, the line is left out."""
    config.nav = expanded(config.nav)
    return config


def expanded(entries: list[Any]) -> list[Any]:
    """A list of the site with every pattern replaced by the pages that it fits."""
    found: list[Any] = []
    for entry in entries:
        if not isinstance(entry, dict):
            found.append(entry)
            continue
        ((title, below),) = entry.items()
        if isinstance(below, str) and "*" in below:
            below = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob(below))
        elif isinstance(below, list):
            below = expanded(below)
        if below:
            found.append({title: below})
    return found


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside of docs/ that a page names, and those that these name."""
    waiting = list(FIRST)
    for file in files.documentation_pages():
        waiting += outside(f"docs/{file.src_uri}", file.content_string)
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        uri = in_site(path)
        if uri in seen:
            continue
        seen.add(uri)
        text = page_text(path)
        if text is None:
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
            continue
        files.append(File.generated(config, uri, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
        waiting += outside(source_of(uri), text)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between docs/ and what lies beside it into links of the site."""
    uri = page.file.src_uri
    source = source_of(uri)

    def in_prose(text: str) -> str:
        return LINK.sub(lambda found: found[1] + rewritten(found[2], source, uri), text)

    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [in_prose(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, in_prose(markdown[end:])])


def rewritten(target: str, source: str, uri: str) -> str:
    """A link of the file ``source`` of the repository as one of the site's page ``uri``."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    return posixpath.relpath(in_site(path), posixpath.dirname(uri) or ".")


def outside(source: str, text: str) -> Iterator[str]:
    """The files beside docs/ that a text links to, by their paths in the repository."""
    for _, target in LINK.findall(FENCE.sub("", text)):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not f"{path}/".startswith("docs/") and (ROOT / path).exists():
            yield path


def source_of(uri: str) -> str:
    """The path in the repository of a page of the site; of a folder's list, that of a file in it."""
    return uri.removeprefix(f"{PREFIX}/") if uri.startswith(f"{PREFIX}/") else f"docs/{uri}"


def in_site(path: str) -> str:
    """Where a path of the repository stands in the site; a folder with a README is that."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if not (ROOT / path).is_dir():
        return f"{PREFIX}/{path}"
    return f"{PREFIX}/{path}/README.md" if (ROOT / path / "README.md").exists() else f"{PREFIX}/{path}/index.md"


def page_text(path: str) -> str | None:
    """The Markdown of a page or of a folder's list; None: a file that is no page."""
    file = ROOT / path
    if (file / "README.md").exists():
        file /= "README.md"
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if each.is_file() and not each.name.startswith("."))
        return f"# {path}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
    return file.read_text(encoding="utf-8") if file.suffix == ".md" else None
