"""Role marks of a chat template, which the result of a tool must not contain."""

import re
from collections.abc import Callable, Sequence
from typing import Any

_SENTINEL = "GRPOPLUSRESULT"
_MARK = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{2,32}\]|^#{2,4} ?\w[^\n]{0,40}:", re.MULTILINE)
"""Marks in a template: ``<|im_start|>``, ``</tool_response>``, ``[INST]``, ``### Response:``."""
_OPENING = ("<", "[", "{", "|", "#")
"""First characters of added tokens that are marks; others are spaces or words."""
_ESCAPE = "\\"


class Markers:
    """The marks of a tokenizer and its template, and texts without them."""

    def __init__(self, tokenizer: Any, marks: Sequence[str]) -> None:
        self._encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(text, add_special_tokens=False)
        special = set(tokenizer.all_special_tokens)
        self._ids = {number for text, number in tokenizer.get_added_vocab().items() if text in marks or text in special}
        self._marks = sorted({*marks, *filter(None, tokenizer.all_special_tokens)}, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._marks))) if self._marks else None

    def without(self, text: str) -> str:
        """The text with a backslash after the first character of each mark.

        If a normaliser still produces a mark from the text, all punctuation of marks is removed.
        """
        if self._pattern is not None:
            while self._pattern.search(text):
                text = self._pattern.sub(lambda mark: mark.group()[0] + _ESCAPE + mark.group()[1:], text)
        if self._ids and not self._ids.isdisjoint(self._encode(text)):
            text = re.sub(r"[^\w\s.,;:+*/=-]", " ", text)
            while not self._ids.isdisjoint(self._encode(text)):
                text = re.sub(r"\S(?=\S)", r"\g<0> ", text) if " " not in text else ""
        return text


def markers_of(tokenizer: Any, template: str | None = None, **keywords: Any) -> Markers:
    """The marks that a template writes around the messages of a conversation with a tool, and all special tokens.

    Special tokens include added ones such as ``<|eom_id|>``, which a template writes in other conversations.
    """
    inner = getattr(tokenizer, "tokenizer", tokenizer)
    call = {"type": "function", "function": {"name": _SENTINEL, "arguments": {}}}
    chat = [
        {"role": "system", "content": _SENTINEL},
        {"role": "user", "content": _SENTINEL},
        {"role": "assistant", "content": _SENTINEL, "tool_calls": [call]},
        {"role": "tool", "name": _SENTINEL, "content": _SENTINEL},
        {"role": "assistant", "content": _SENTINEL},
    ]
    rendered = ""
    for messages in (chat, chat[1:], chat[1:2], [chat[1], chat[4]]):  # a template may refuse some roles
        try:
            rendered += inner.apply_chat_template(
                messages, chat_template=template, tokenize=False, add_generation_prompt=True, **keywords
            )
        except Exception:  # noqa: BLE001, S112 - a template may raise any error about unknown roles
            continue
    special = {str(token) for token in inner.added_tokens_decoder.values() if token.special}
    added = [
        text
        for text in inner.get_added_vocab()
        if text.strip() and (text in rendered or text in special or text.startswith(_OPENING))
    ]
    return Markers(inner, [*_MARK.findall(rendered.replace(_SENTINEL, "\n")), *added])
