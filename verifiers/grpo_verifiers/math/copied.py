r"""Answers that copy a formula of the prompt, such as ``(x+1)^2`` for "Expand $(x+1)^2$".

Only values and equations count as copied: a number, a name, a set or an interval may well be in the question and be the
answer. So does a formula that has the gold's own form, in any order of its terms.
"""

import re
from functools import lru_cache

from grpo_verifiers.math.compare.quantities import quantity
from grpo_verifiers.math.grammar.read import read, without_text_commands
from grpo_verifiers.math.grammar.tokens import ParseError, ascii_latex
from grpo_verifiers.math.tree import STRUCTURES, Node, map_children, number
from grpo_verifiers.math.values.work import is_final

MAX_PROMPT = 20_000
MAX_FORMULAS = 64
MAX_ANSWER = 400
_FORMULA = re.compile(
    r"\$\$([^$]{1,600}+)\$\$|\$([^$]{1,600}+)\$|\\\(((?:(?!\\[()]).){1,600}+)\\\)|\\\[((?:(?!\\[\[\]]).){1,600}+)\\\]",
    re.DOTALL,
)
# Outside of delimiters: text without spaces, or with signs between spaces.
_BARE = re.compile(r"[^\s$,;:?]++(?:\s++[-+*/=^]\s++[^\s$,;:?]++)*+")
_SIGN = re.compile(r"[-+*/^=(\\]")
_PIECE = re.compile(r"\w+|\S")
_BEFORE, _AFTER = r"(?<![\w\\^_*/+({\[-])", r"(?!\s*[\^_*/+({\[-])(?!\w)"
_NEUTRAL = {"+": number(0), "*": number(1)}


def is_copied(answer: str, gold: Node, prompt: str) -> bool:
    """True if an answer is a formula of the prompt, and the gold a formula of another form."""
    prompt = prompt[:MAX_PROMPT]
    try:
        node = read(answer)
    except (ParseError, RecursionError):
        return False
    value = node[1][-1] if node[0] == "rel" else node
    if len(answer) > MAX_ANSWER or not _is_formula(node, gold):
        return False
    own = {_form(part) for part in _parts(gold)}
    if not own.isdisjoint(map(_form, _parts(node))):
        return False
    if not {_form(part) for part in (node, value) if _is_formula(part, gold)}.isdisjoint(_forms(prompt)):
        return True
    pieces = r"\s*".join(map(re.escape, _PIECE.findall(without_text_commands(answer).strip(" $"))))
    return re.search(_BEFORE + pieces + _AFTER, prompt) is not None


def _is_formula(node: Node, gold: Node) -> bool:
    """True for an equation, or a value that is neither a number nor a name."""
    if node[0] == "rel":
        return set(node[2].split()) == {"="}
    inner = quantity(node)[0]
    if inner != node and is_final(inner):  # 5 km may be the question, 45 and 45 degrees are one answer
        return inner != quantity(gold)[0]
    return not (is_final(inner) or inner[0] in STRUCTURES | {"v"})


@lru_cache(maxsize=256)
def _forms(prompt: str) -> frozenset[Node]:
    """The forms of all formulas, and of both sides of each equation."""
    prompt = ascii_latex(prompt)
    forms: set[Node] = set()
    bare = filter(_SIGN.search, _BARE.findall(_FORMULA.sub(" ; ", prompt)))
    for text in [*("".join(groups) for groups in _FORMULA.findall(prompt)), *bare][:MAX_FORMULAS]:
        try:
            forms.update(map(_form, _parts(read(text.strip(" .,;:?")))))
        except (ParseError, RecursionError):
            continue
    return frozenset(forms)


def _parts(node: Node) -> list[Node]:
    """A formula, the members of a list and the sides of an equation."""
    inner = node[1] if node[0] == "rel" else node[1:] if node[0] == "list" else ()
    return [node, *(part for each in inner for part in _parts(each))]


def _form(node: Node) -> Node:
    """A tree without the order of its terms, factors and sides, and without zeros added and factors of one."""
    if node[0] == "n":
        return ("n", node[1], None)
    if node[0] == "v":
        return node
    form = map_children(node, _form)
    if form[0] in _NEUTRAL:
        parts = sorted((part for part in form[1:] if part != _NEUTRAL[form[0]]), key=repr)
        return parts[0] if len(parts) == 1 else (form[0], *parts)
    return ("rel", tuple(sorted(form[1], key=repr)), "=") if form[0] == "rel" and form[2] == "=" else form
