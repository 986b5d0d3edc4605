r"""Open ends of intervals as brackets that face outward: ``[2, 5[`` for ``[2, 5)``."""

from grpo_verifiers.math.tokens import Token

_JOINERS = frozenset({"cup", "cap", "setminus", "backslash"})


def facing_inward(tokens: list[Token]) -> list[Token]:
    """The tokens with outward brackets replaced by round ones."""
    marks = [index for index, token in enumerate(tokens) if token.kind == "op" and token.text in {"[", "]"}]
    if not marks:
        return tokens
    found = list(tokens)
    opened: list[tuple[str, int]] = []  # brackets that are open, with the separators seen inside
    for index, token in enumerate(tokens):
        if token.kind != "op":
            continue
        if token.text in {",", ";"} and opened:
            opened[-1] = (opened[-1][0], opened[-1][1] + 1)
        elif token.text in {"(", "\\{", "{"}:
            opened.append((token.text, 0))
        elif opened and (token.text in {")", "\\}", "}"} or (token.text == "]" and opened[-1][0] in {"[", "]", "("})):
            opened.pop()
        elif token.text == "]":
            opened.append(("]", 0))
            found[index] = token._replace(text="(")
        elif token.text == "[":
            if opened and opened[-1][0] in {"[", "]"} and opened[-1][1] == 1 and _ends(tokens, index):
                opened.pop()
                found[index] = token._replace(text=")")
            else:
                opened.append(("[", 0))
    return found


def _ends(tokens: list[Token], index: int) -> bool:
    """Whether a bracket follows a value and precedes none."""
    before = tokens[index - 1]
    if before.kind == "op" and before.text in {",", ";", "+", "-", "*", "/", "=", "<", ">", "^", "("}:
        return False
    after = tokens[index + 1] if index + 1 < len(tokens) else None
    if after is None or (after.kind == "cmd" and after.text in _JOINERS) or after.kind in {"text", "end"}:
        return True
    return after.kind == "op" and after.text in {",", ";", ")", "}", "\\}", "]", ".", "&"}
