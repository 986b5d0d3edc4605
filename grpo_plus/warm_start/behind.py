"""Token ids of a text behind a prompt: those that a model would have to sample there.

Many tokenizers begin each text with a space of their own (SentencePiece's, byte-level ones with `add_prefix_space`),
which no sampled completion has. So a text is read by itself, then behind its prompt, then behind a character of ours,
and the first ids count that add exactly the text to what the prompt's ids decode to.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_BATCH = 1000
_NEAR = 16
"""Ids of a prompt's end that are decoded with those behind it."""
_ANCHORS = ("\n", "a", "1", ".")
"""What a text is read behind where its prompt's last characters would merge with it."""

Ids = list[int]


@dataclass(frozen=True)
class Behind:
    """The ids of a text behind its prompt.

    Attributes:
        ids: None where all that the tokenizer can write there adds or drops something between the two.
        wrong: the text that the tokenizer makes of both then.
        changed: the tokenizer writes the text otherwise wherever it stands: unknown characters, another normal form.
    """

    ids: Ids | None
    wrong: str = ""
    changed: bool = False


def read(tokenizer: Any, texts: Sequence[str], *, specials: bool) -> list[Ids]:
    """The ids of each text, with the special tokens that go around a whole one or without."""
    found: list[Ids] = []
    for first in range(0, len(texts), _BATCH):
        found += tokenizer(text=list(texts[first : first + _BATCH]), add_special_tokens=specials)["input_ids"]
    return [list(ids) for ids in found]


def behind(
    tokenizer: Any, prompts: Sequence[str], asked: Sequence[Ids], plain: Sequence[bool], texts: Sequence[str]
) -> list[Behind]:
    """The ids of ``texts`` behind ``prompts``, whose ids are ``asked``; ``plain`` ones have special tokens around."""
    tried: list[list[Ids]] = [[] for _ in texts]
    found: list[Behind | None] = [None] * len(texts)
    for reading in _readings(tokenizer, prompts, asked, plain, texts):
        left = [place for place, known in enumerate(found) if known is None]
        if not left:
            break
        for place, ids in zip(left, reading(left), strict=True):
            if ids is None:
                continue
            tried[place].append(ids)
            if _added(tokenizer, asked[place], ids) == texts[place]:
                found[place] = Behind(ids)
    return [known or _other(tokenizer, asked[place], texts[place], tried[place]) for place, known in enumerate(found)]


def _readings(
    tokenizer: Any, prompts: Sequence[str], asked: Sequence[Ids], plain: Sequence[bool], texts: Sequence[str]
) -> Iterator[Callable[[list[int]], list[Ids | None]]]:
    """Ways to read the texts at some places, in the order in which they are tried."""

    def apart(places: list[int]) -> list[Ids | None]:
        return list(read(tokenizer, [texts[place] for place in places], specials=False))

    def together(places: list[int]) -> list[Ids | None]:
        found: dict[int, Ids | None] = {}
        for specials in (False, True):
            mine = [place for place in places if plain[place] is specials]
            wholes = read(tokenizer, [prompts[place] + texts[place] for place in mine], specials=specials)
            found |= {place: _after(asked[place], ids) for place, ids in zip(mine, wholes, strict=True)}
        return [found[place] for place in places]

    def anchored(anchor: str, places: list[int]) -> list[Ids | None]:
        alone, *wholes = read(tokenizer, [anchor, *(anchor + texts[place] for place in places)], specials=False)
        return [_after(alone, ids) for ids in wholes]

    yield apart
    yield together
    for anchor in _ANCHORS:
        yield lambda places, anchor=anchor: anchored(anchor, places)  # type: ignore[misc]


def _after(first: Ids, whole: Ids) -> Ids | None:
    return whole[len(first) :] if whole[: len(first)] == first else None


def _other(tokenizer: Any, asked: Ids, text: str, tried: Sequence[Ids]) -> Behind:
    """The ids for a text that none gives back: the tokenizer changes it anywhere, or only behind this prompt."""
    alone, most = _text(tokenizer, tried[0]).lstrip(), _space(text)
    for ids in tried:
        added = _added(tokenizer, asked, ids)
        if added is not None and added.lstrip() == alone and min(most, 1) <= _space(added) <= most:
            return Behind(ids, changed=True)
    return Behind(None, wrong=_text(tokenizer, [*asked, *tried[0]]))


def _space(text: str) -> int:
    """White space that a text begins with."""
    return len(text) - len(text.lstrip())


def _added(tokenizer: Any, asked: Ids, ids: Ids) -> str | None:
    """The text that ids add behind those of a prompt; None: they change the prompt's."""
    near = asked[-_NEAR:]
    before, whole = _text(tokenizer, near), _text(tokenizer, [*near, *ids])
    return whole[len(before) :] if whole.startswith(before) else None


def _text(tokenizer: Any, ids: Ids) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))
