"""Files and links that the documents name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").exists():
    pytest.skip("the sources are not here", allow_module_level=True)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = [ROOT, ROOT / "grpo_plus", ROOT / "verifiers" / "grpo_verifiers", ROOT / "verifiers"]


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


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
