"""Files and links that the documents name are there."""

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").exists():
    pytest.skip("the sources are not here", allow_module_level=True)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "verifiers" / "README.md", ROOT / "examples" / "README.md"]
FOLDERS = [ROOT, ROOT / "grpo_plus", ROOT / "verifiers" / "grpo_verifiers", ROOT / "verifiers"]


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page):
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield f"{page.relative_to(ROOT)}: {target}"


def test_links_lead_somewhere_and_the_readme_is_read_in_two_minutes():
    assert [link for page in PAGES for link in broken_links(page)] == []
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_every_page_is_in_the_list_of_the_site():
    """Those that a merge brought are missing from it with a line to add; the strict build says the same."""
    listed = set(re.findall(r"([\w/*]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    fitting = {page for page in pages for pattern in listed if fnmatch(page, pattern)}
    assert pages - fitting == set(), "add each to nav in mkdocs.yml"
    assert {page for page in listed - pages if not page.startswith("outside/") and "*" not in page} == set()


def test_the_map_names_files_that_exist_and_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", text):
        candidates = [folder / name for folder in FOLDERS]
        candidates += [path for folder in FOLDERS[1:3] for path in folder.glob(f"*/{name}")]
        assert any(path.exists() for path in candidates), name
    rooms = [path.parent.name for package in FOLDERS[1:3] for path in package.glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}/`" not in text] == []
