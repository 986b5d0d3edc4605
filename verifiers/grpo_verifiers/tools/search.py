"""The tool ``search_documents``: a local folder by BM25, in the variant of Lucene, computed by bm25s.

The passages of a folder are indexed once a process. Equal scores keep the order of files and passages.

Use it when the answers are in your own documents, without any network access. It needs
``pip install 'grpo-plus[search]'``.

Paper: Robertson and Zaragoza, 2009, The Probabilistic Relevance Framework: BM25 and Beyond.

Config:
    tools: [{name: search_documents, folder: ./documents}]
"""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from grpo_verifiers.options import FolderPath, Range

MOST = 20
"""Passages of one answer."""
MAX_BYTES = 256 << 20
"""Limit for all documents together: the index is in memory."""
MAX_PASSAGE = 4_000
"""Characters of a passage, however long its words are."""
_WORD = re.compile(r"\w+")
_ENDINGS = (".txt", ".md", ".jsonl")


def search_documents(
    query: str, top_k: int = 3, *, folder: Annotated[str, FolderPath()], words: Annotated[int, Range(20, 2_000)] = 150
) -> str:
    """Search the documents for passages that share words with the query.

    Args:
        query: What to look for, in a few words.
        top_k: How many passages to return, from 1 to 20.
        folder: Where the documents are: .txt, .md, and .jsonl with a text in each line; for the config, not the model.
        words: Words of a passage; for the config, not the model.

    Returns:
        The best passages, each below the name of its document.
    """
    if not 1 <= top_k <= MOST:
        raise ValueError(f"top_k is {top_k}, expected an integer from 1 to {MOST}.")
    matches = _index(folder, words).best(query, top_k)
    if not matches:
        return "No passage shares a word with the query."
    return "\n\n".join(f"[{rank}] {name}\n{text}" for rank, (name, text) in enumerate(matches, 1))


search_documents.needs = {"bm25s": "search"}  # type: ignore[attr-defined]  # read before a run


class _Index:
    def __init__(self, passages: list[tuple[str, str]]) -> None:
        import bm25s

        self.passages = passages
        self.scorer = bm25s.BM25(method="lucene")
        self.scorer.index([_terms(text) for _, text in passages], show_progress=False)

    def best(self, query: str, count: int) -> list[tuple[str, str]]:
        terms = [term for term in _terms(query)[:1_000] if term in self.scorer.vocab_dict]
        if not terms:
            return []
        scores = self.scorer.get_scores(terms).tolist()
        order = sorted((at for at, score in enumerate(scores) if score > 0), key=lambda at: (-scores[at], at))
        return [self.passages[at] for at in order[:count]]


@functools.lru_cache(maxsize=4)
def _index(folder: str, words: int) -> _Index:
    passages = [
        (name, passage)
        for name, text in _documents(Path(folder).expanduser().resolve())
        for passage in _passages(text, words)
        if _terms(passage)
    ]
    if not passages:
        raise ValueError(f"the folder {folder} holds no text in files {', '.join(_ENDINGS)}.")
    return _Index(passages)


def _documents(folder: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each document, in the order of names; links out of the folder are left out."""
    left = MAX_BYTES
    for path in sorted(folder.rglob("*"), key=lambda each: each.relative_to(folder).as_posix()):
        if path.suffix.lower() not in _ENDINGS or not path.is_file() or not path.resolve().is_relative_to(folder):
            continue
        left -= path.stat().st_size
        if left < 0:
            raise ValueError(f"the folder {folder} holds more than {MAX_BYTES >> 20} MiB of text.")
        name, text = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8", errors="replace")
        if path.suffix.lower() != ".jsonl":
            yield name, text
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield _of_line(f"{name}:{number}", line)


def _of_line(name: str, line: str) -> tuple[str, str]:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from error
    if isinstance(row, str):
        return name, row
    keys = [key for key in ("text", "contents", "content") if isinstance(row, dict) and isinstance(row.get(key), str)]
    if not keys:
        raise ValueError(f"{name} has no text: expected a string, or an object with a string under 'text'.")
    title = row.get("title")
    return (f"{name} {title[:200]}" if isinstance(title, str) else name), row[keys[0]]


def _passages(text: str, words: int) -> Iterator[str]:
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    start = 0
    for last in range(words - 1, len(ends) + words - 1, words):
        end = ends[min(last, len(ends) - 1)]
        piece = text[start:end].strip()
        yield from (piece[at : at + MAX_PASSAGE] for at in range(0, len(piece), MAX_PASSAGE))
        start = end


def _terms(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
