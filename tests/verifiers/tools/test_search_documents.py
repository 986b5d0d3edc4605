"""Search by BM25 in a folder: scores by hand, ties by order, nothing from outside the folder."""

import math

import pytest

from grpo_verifiers import get_tool
from grpo_verifiers.errors import KeywordError
from grpo_verifiers.tools import search
from grpo_verifiers.tools.search import search_documents

TEXTS = {
    "b.md": "apple pear apple",
    "a.txt": "pear plum",
    "sub/c.txt": "plum plum fig grape",
    "d.csv": "apple apple apple",
}


@pytest.fixture
def folder(tmp_path):
    search._index.cache_clear()
    home = tmp_path / "docs"
    for name, text in TEXTS.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def names(said):
    return [line.split(maxsplit=1)[1] for line in said.splitlines() if line.startswith("[")]


def test_scores_are_those_of_the_formula(folder):
    texts = {name: TEXTS[name].split() for name in ("a.txt", "b.md", "sub/c.txt")}
    mean = sum(map(len, texts.values())) / 3

    def score(words, term):
        having = sum(term in each for each in texts.values())
        count, norm = words.count(term), 1.5 * (0.25 + 0.75 * len(words) / mean)
        return math.log(1 + (3 - having + 0.5) / (having + 0.5)) * count / (count + norm)

    found = search._index(str(folder), 150)
    assert [name for name, _ in found.passages] == list(texts)
    for term in ("apple", "pear", "plum", "fig"):
        expected = [score(words, term) for words in texts.values()]
        assert found.scorer.get_scores([term]).tolist() == pytest.approx(expected, abs=1e-6)
    assert names(search_documents("Plum!", folder=str(folder))) == ["sub/c.txt", "a.txt"]
    assert search_documents("PEAR", 1, folder=str(folder)) == "[1] a.txt\npear plum"


def test_what_is_nowhere_is_said_and_odd_numbers_are_refused(folder):
    assert search_documents("cherry ??", folder=str(folder)) == "No passage shares a word with the query."
    assert search_documents("", folder=str(folder)) == "No passage shares a word with the query."
    with pytest.raises(ValueError, match="top_k is 0"):
        search_documents("pear", 0, folder=str(folder))


def test_equal_scores_keep_the_order_of_files_and_long_texts_fall_into_passages(tmp_path):
    for name in ("z.txt", "m.txt", "k.txt"):
        (tmp_path / name).write_text("same words here")
    assert names(search_documents("words", folder=str(tmp_path))) == ["k.txt", "m.txt", "z.txt"]
    (tmp_path / "long.md").write_text(" ".join(f"w{at}" for at in range(45)))
    said = search_documents("w44", folder=str(tmp_path), words=20)
    assert said == "[1] long.md\nw40 w41 w42 w43 w44"


def test_lines_of_jsonl_are_documents(tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        '{"title": "Figs", "text": "a fig tree"}\n\n"a plum tree"\n{"contents": "an oak"}\n'
    )
    assert search_documents("fig", folder=str(tmp_path)) == "[1] rows.jsonl:1 Figs\na fig tree"
    assert names(search_documents("plum oak", folder=str(tmp_path))) == ["rows.jsonl:4", "rows.jsonl:3"]
    (tmp_path / "more").mkdir()
    (tmp_path / "more/bad.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match=r"bad.jsonl:1 has no text"):
        search_documents("fig", folder=str(tmp_path / "more"))


def test_a_link_leads_nowhere_outside_the_folder(folder, tmp_path):
    (tmp_path / "secret.txt").write_text("password apple")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert "password" not in search_documents("apple password", folder=str(folder))


def test_the_folder_is_absolute_and_checked_with_the_config(folder, tmp_path, monkeypatch):
    part = get_tool("search_documents", folder="docs", base=tmp_path)
    assert part.kwargs == {"folder": str(folder.resolve())}
    assert list(part.methods[0].schema["function"]["parameters"]["properties"]) == ["query", "top_k"]
    with pytest.raises(KeywordError, match="expected a folder that exists"):
        get_tool("search_documents", folder="nowhere", base=tmp_path)
    monkeypatch.setattr("grpo_verifiers.tools.registry.installed", lambda package: package != "bm25s")
    with pytest.raises(KeywordError, match=r"pip install 'grpo-plus\[search\]'"):
        get_tool("search_documents", folder="docs", base=tmp_path)


def test_an_empty_folder_says_so(tmp_path):
    with pytest.raises(ValueError, match="holds no text"):
        search_documents("a", folder=str(tmp_path))
