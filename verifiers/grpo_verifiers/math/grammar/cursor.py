"""A position in a list of tokens."""

from grpo_verifiers.math.grammar.tokens import ParseError, Token
from grpo_verifiers.math.words.vocabulary import MAX_DEPTH

END = Token("end", "")

_STOPS = frozenset({"}", ")", "]", ",", ";", "+", "-", "=", "<", ">", "<=", ">=", "!=", "~=", "\\}", ":", "&"})
"""Signs that end a product, and that nothing attaches to a factor."""


class Cursor:
    """Reads tokens one after the other.

    Attributes:
        tokens: all tokens; an argument of one digit splits the token it is taken from.
        at: index of the next token.
        depth: how many constructs are open.
        bars: how many absolute values are open; a bar closes one before it opens another.
    """

    def __init__(self, tokens: list[Token]) -> None:
        if [token.text[-1:] for token in tokens[-2:]] == [".", "."]:
            raise ParseError("dots that say that it goes on")
        while tokens and tokens[-1].kind == "op" and tokens[-1].text in {".", ",", ";", ":"}:
            tokens.pop()
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one after it, without taking it."""
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else END

    def next(self) -> Token:
        """Take the next token."""
        token = self.peek()
        self.at += 1
        return token

    def is_op(self, *texts: str) -> bool:
        """Whether the next token is one of these signs."""
        if self.at >= len(self.tokens):
            return False
        kind, said, _ = self.tokens[self.at]
        return said in texts and kind == "op"

    def take(self, text: str) -> bool:
        """Take the next token if it is this sign."""
        if self.at >= len(self.tokens):
            return False
        kind, said, _ = self.tokens[self.at]
        if said != text or kind != "op":
            return False
        self.at += 1
        return True

    def product_ends(self) -> bool:
        """Whether nothing that belongs to a product follows; False where that takes a closer look."""
        if self.at >= len(self.tokens):
            return True
        kind, said, _ = self.tokens[self.at]
        return kind == "op" and said in _STOPS

    def expect(self, text: str) -> None:
        """Take this sign or give up."""
        if not self.take(text):
            raise ParseError(f"expected {text!r} before {self.peek().text or 'the end'!r}")

    def deeper(self) -> None:
        """Open one more construct."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError(f"nested deeper than {MAX_DEPTH} levels")
