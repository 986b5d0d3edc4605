"""What may not stand in the result of a tool: the marks by which a chat template says who speaks."""

import re
from collections.abc import Callable, Sequence
from typing import Any

_SENTINEL = "GRPOPLUSRESULT"
_MARK = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{2,32}\]|^#{2,4} ?\w[^\n]{0,40}:", re.MULTILINE)
"""What a mark looks like in a template: ``<|im_start|>``, ``</tool_response>``, ``[INST]``, ``### Response:``."""
_OPENING = ("<", "[", "{", "|", "#")
"""How added tokens begin that are marks, and no spaces or words."""
_ESCAPE = "\\"


class Markers:
    """The marks of a tokenizer and its template, and texts without them."""

    def __init__(self, tokenizer: Any, marks: Sequence[str]) -> None:
        self._encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(text, add_special_tokens=False)
        special = set(tokenizer.all_special_tokens)
        self._ids = {number for text, number in tokenizer.get_added_vocab().items() if text in marks or text in special}
        self._marks = sorted({*marks, *filter(None, tokenizer.all_special_tokens)}, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, self._marks))) if self._marks else None

    def without(self, text: str) -> str:
        """The text with a backslash behind the first character of each mark; others are returned as they are.

        A normaliser may still make a mark of what looks like none: then whatever a mark is made of goes.
        """
        if self._found is not None:
            while self._found.search(text):
                text = self._found.sub(lambda mark: mark.group()[0] + _ESCAPE + mark.group()[1:], text)
        if self._ids and not self._ids.isdisjoint(self._encode(text)):
            text = re.sub(r"[^\w\s.,;:+*/=-]", " ", text)
            while not self._ids.isdisjoint(self._encode(text)):
                text = re.sub(r"\S(?=\S)", r"\g<0> ", text) if " " not in text else ""
        return text


def markers_of(tokenizer: Any, template: str | None = None, **keywords: Any) -> Markers:
    """The marks that a template writes around the messages of a conversation with a tool, and all special tokens.

    Special are also those that the tokenizer only has among its added tokens, such as ``<|eom_id|>`` and
    ``<|return|>``: a template writes them in other conversations than this one.
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
        except Exception:  # noqa: BLE001, S112 - whatever a template raises about roles that it does not have
            continue
    special = {str(token) for token in inner.added_tokens_decoder.values() if token.special}
    added = [
        text
        for text in inner.get_added_vocab()
        if text.strip() and (text in rendered or text in special or text.startswith(_OPENING))
    ]
    return Markers(inner, [*_MARK.findall(rendered.replace(_SENTINEL, "\n")), *added])
