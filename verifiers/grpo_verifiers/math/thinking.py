"""The part of a completion that is meant for the reader: thinking sections and hidden comments left out."""

import re

_TAG = re.compile(
    r"[<◁](/?)\s*(?:\w{1,20}:)?(?:think|thinking|thought|thoughts|reasoning|scratchpad|reflection)\s*[>▷]",
    re.IGNORECASE,
)
_PIPES = re.compile(r"<\|(begin|end)_of_thought\|>|\[(/?)THINK\]")
_NAMES = ("think", "thought", "reasoning", "scratchpad", "reflection")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)


def visible(completion: str) -> str:
    """The completion without its thinking sections.

    A section that is never closed reaches to the end; one that was opened in the prompt reaches from the start, so a
    closing tag without an opening one hides everything before it.
    """
    if "<!--" in completion:
        completion = _COMMENT.sub("", completion)
    if "<|channel|>final<|message|>" in completion:
        completion = completion.rpartition("<|channel|>final<|message|>")[2]
    lower = completion.lower()
    if not any(name in lower for name in _NAMES):  # far cheaper than the patterns, and most often so
        return completion
    for pattern in (_TAG, _PIPES):
        completion = _without_sections(completion, pattern)
    return completion


def _without_sections(text: str, pattern: re.Pattern[str]) -> str:
    kept: list[str] = []
    at, depth = 0, 0
    found = False
    for match in pattern.finditer(text):
        found = True
        closing = match.group(1) in {"/", "end"} or (match.lastindex == 2 and match.group(2) == "/")
        if closing and depth:
            depth -= 1
            at = match.end()
        elif closing:
            kept.clear()
            at = match.end()
        else:
            if not depth:
                kept.append(text[at : match.start()])
            depth += 1
    if not found:
        return text
    if not depth:
        kept.append(text[at:])
    return "\n".join(kept)
