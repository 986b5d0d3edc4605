"""Files and links that the documents name are there."""

import ast
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


def test_the_readme_is_read_in_two_minutes():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_every_page_is_in_the_list_of_the_site():
    """Those that a merge brought are missing from it with a line to add; the strict build says the same."""
    listed = set(re.findall(r"([\w/*]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    fitting = {page for page in pages for pattern in listed if fnmatch(page, pattern)}
    assert pages - fitting == set(), "add each to nav in mkdocs.yml"
    assert {page for page in listed - pages if not page.startswith("outside/") and "*" not in page} == set()


def test_the_map_names_files_that_exist():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", text):
        candidates = [folder / name for folder in FOLDERS]
        candidates += [path for folder in FOLDERS[1:3] for path in folder.glob(f"*/{name}")]
        assert any(path.exists() for path in candidates), name


def test_the_map_shows_every_room():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for package in FOLDERS[1:3]:
        for room in package.iterdir():
            if (room / "__init__.py").exists():
                assert f"`{room.name}/`" in text, room.name


def imported_rooms(path):
    """The rooms of grpo_plus that a file imports, lazily or for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "grpo_plus":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("grpo_plus."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("grpo_plus."))


@pytest.mark.slow
def test_the_arrow_of_the_page_is_that_of_the_imports():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    arrow = re.search(r"```\n(grpo_verifiers →.*?)```", text, re.DOTALL).group(1)
    place = {room.strip(): at for at, rooms in enumerate(arrow.split("→")) for room in rooms.split(",")}
    package = ROOT / "grpo_plus"
    for path in package.rglob("*.py"):
        room = path.relative_to(package).with_suffix("").parts[0]
        for other in imported_rooms(path):
            if other in place and room in place and other != room:
                assert place[other] < place[room], f"{path.relative_to(ROOT)} imports {other}"
    assert "grpo_plus" not in {
        (node.module or "").split(".")[0]
        for path in (ROOT / "verifiers").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
    }
