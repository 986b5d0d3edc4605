"""A position in a list of tokens, and everything that can be read there without the grammar: names, units, signs."""

from fractions import Fraction

from grpo_verifiers.math.grammar.tokens import ParseError, Token
from grpo_verifiers.math.tree import Node, fraction
from grpo_verifiers.math.words.vocabulary import CONNECTIVES, RELATIONS, SIGNED, is_unit_word

END = Token("end", "")
# Signs that end a product; nothing attaches them to a factor.
_STOPS = frozenset({"}", ")", "]", ",", ";", "+", "-", "=", "<", ">", "<=", ">=", "!=", "~=", "\\}", ":", "&"})


class TokenCursor:
    """Reads tokens one after the other and may split or replace one; ``at`` is the index of the next."""

    def __init__(self, tokens: list[Token]) -> None:
        if [token.text[-1:] for token in tokens[-2:]] == [".", "."]:
            raise ParseError("dots that leave a part out")
        while tokens and tokens[-1].kind == "op" and tokens[-1].text in {".", ",", ";", ":"}:
            tokens.pop()
        self.tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or one after it; the position stays."""
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else END

    def next(self) -> Token:
        """Take the next token."""
        token = self.peek()
        self.at += 1
        return token

    def is_op(self, *texts: str) -> bool:
        """True if the next token is one of these signs."""
        if self.at >= len(self.tokens):
            return False
        kind, text, _ = self.tokens[self.at]
        return text in texts and kind == "op"

    def take(self, sign: str) -> bool:
        """Take the next token if it is this sign."""
        if self.at >= len(self.tokens):
            return False
        kind, text, _ = self.tokens[self.at]
        if text != sign or kind != "op":
            return False
        self.at += 1
        return True

    def expect(self, sign: str) -> None:
        """Take this sign, or raise ParseError if another token follows."""
        if not self.take(sign):
            raise ParseError(f"expected {sign!r} before {self.peek().text or 'the end'!r}")

    def take_character(self) -> str:
        """Take the first character of the next token; the rest stays."""
        token = self.peek()
        self.tokens[self.at] = token._replace(text=token.text[1:], spaced=False)
        return token.text[0]

    def spells(self, *texts: str) -> bool:
        """True if the next tokens have these texts."""
        return all(self.peek(ahead).text == text for ahead, text in enumerate(texts))

    # The next tokens

    def ends_product(self) -> bool:
        """True if a sign follows that ends a product; False for all that takes a closer look."""
        if self.at >= len(self.tokens):
            return True
        kind, text, _ = self.tokens[self.at]
        return kind == "op" and text in _STOPS

    def defines(self) -> bool:
        """True if ``:=`` follows."""
        return self.is_op(":") and self.peek(1).text == "="

    def is_mod(self, ahead: int) -> bool:
        """True if the word "mod" is the token so far ahead."""
        token = self.peek(ahead)
        return token.kind in {"text", "word", "cmd"} and token.text.strip().lower() == "mod"

    def relation_follows(self) -> bool:
        """True if a relation is between the next union or intersection sign and the one after it."""
        for token in self.tokens[self.at + 1 :]:
            if token.text in {"cup", "cap", ",", ";", ")", "]", "}", "\\}", "("} or token.kind == "text":
                return False
            if token.text in RELATIONS or token.text == "in":
                return True
        return False

    def separator(self) -> str:
        """Take the separator of two statements: ``","``, ``"and"`` or ``"or"``; empty if none follows."""
        separator = ""
        while self.at < len(self.tokens):
            token = self.peek()
            word = token.text.strip().lower()
            if token.kind == "op" and token.text in {",", ";"}:
                separator = separator or ","
                if self.peek(1).text in {"&", "\\"} or self.peek(1).kind == "end":  # after a cell of a table
                    self.at += 1
                    return ""
            elif token.kind in {"text", "word", "cmd"} and word in CONNECTIVES:
                separator = "or" if "or" in word else "and" if word.strip(", ") in {"and", "&"} else separator or ","
            elif token.kind == "cmd" and token.text in {"cup", "cap"} and self.relation_follows():
                separator = "or" if token.text == "cup" else "and"
            else:
                break
            self.at += 1
        return separator

    # Numbers

    def starts_fraction(self, before: Node) -> bool:
        """True if ``4/5`` follows the integer of a mixed number such as ``3 4/5``."""
        if before[0] != "n" or before[2] is not None or self.peek().kind != "num":
            return False
        top, slash, bottom = (self.peek(ahead) for ahead in range(3))
        return (
            bottom.kind == "num" and top.spaced
            and slash.text == "/" and top.text.isdigit() and bottom.text.isdigit() and len(bottom.text) <= 6
            and 0 < int(top.text) < int(bottom.text)
        )  # fmt: skip

    def repeating(self, text: str) -> Node | None:
        """The fraction for a decimal with a bar over its last digits; None for other numbers."""
        bar, digits = self.peek(), self.peek(2)
        if (
            "." not in text or bar.kind != "cmd" or bar.text not in {"overline", "bar"} or self.peek(1).text != "{"
            or not digits.text.isdigit() or self.peek(3).text != "}" or len(text) + len(digits.text) > 60
        ):  # fmt: skip
            return None
        self.at += 4
        places = len(text.partition(".")[2])
        period = Fraction(int(digits.text), 10**places * (10 ** len(digits.text) - 1))
        return fraction(Fraction(text) + period)

    # Names

    def subscript(self) -> list[Token]:
        """Take a subscript: one character, or all tokens between braces."""
        if not self.take("{"):
            token = self.peek()
            if token.kind in {"num", "word"} and len(token.text) > 1:
                return [token._replace(text=self.take_character())]
            return [self.next()]
        tokens, level = [], 1
        while level:
            token = self.next()
            if token.kind == "end":
                raise ParseError("a subscript is not closed")
            level += (token.text == "{") - (token.text == "}")
            if level:
                tokens.append(token)
        return tokens

    def accent_argument(self) -> str:
        """Take the argument of an accent: one token or a group."""
        return spell(self.subscript() if self.is_op("{") else [self.next()])

    def primes(self) -> int:
        r"""Take the primes of a derivative (``'``, ``^\prime``, ``^{\prime\prime}``) and count them."""
        count = 0
        while True:
            if self.take("'"):
                count += 1
            elif self.spells("^", "prime"):
                self.at += 2
                count += 1
            elif self.is_op("^") and self.peek(1).text == "{" and self.peek(2).text in {"'", "prime"}:
                self.at += 2
                while self.peek().text in {"'", "prime"}:
                    self.at += 1
                    count += 1
                self.expect("}")
            else:
                return count

    def sign_restriction(self) -> str:
        r"""Take the restriction of ``\mathbb{R}`` to a sign (``^+``, ``_{>0}``); empty if none follows."""
        start = self.at
        if self.is_op("^", "_"):
            restriction = self.next().text + spell(self.subscript())
            if restriction in SIGNED:
                return restriction
        self.at = start
        return ""

    def condition(self) -> Node | None:
        """Take the content of the brackets of ``P(A|B)`` as a name; None without a bar."""
        level, end = 1, self.at
        while level and end < len(self.tokens):
            level += (self.tokens[end].text == "(") - (self.tokens[end].text == ")")
            end += 1
        inside = self.tokens[self.at : end - 1]
        if level or sum(token.text == "|" for token in inside) != 1:
            return None
        self.at = end
        return ("v", spell(inside))

    # Units

    def unit(self) -> str:
        """Take the words after a value, with their exponents, quotients and products, as one string."""
        words = []
        while self.starts_unit():
            if self.is_op("*", "/", "(", ")"):
                words.append(self.next().text.replace("*", " "))
            elif self.peek().text == "frac":
                words.append(self._unit_fraction())
            else:
                word = self.next().text.strip()
                words.append(word + "^" + self._exponent_digits() if self.take("^") else word)
        if self.take("."):
            words.append("")
        return " ".join(words).strip()

    def starts_unit(self) -> bool:
        """True if the next token begins or continues a unit."""
        token, ahead = self.peek(), 0
        if token.kind == "op" and token.text in {"*", "/", "("}:
            ahead, token = 1, self.peek(1)
            if token.kind == "op" and token.text == "(":
                ahead, token = 2, self.peek(2)
        elif token.kind == "op" and token.text == ")":
            return self._is_open_in_unit()
        if token.kind == "cmd" and token.text == "frac":
            return self.peek(ahead + 1).text == "{" and self.peek(ahead + 2).kind == "text"
        return (token.kind == "text" or (token.kind == "word" and (is_unit_word(token.text) or ahead > 0))) and (
            token.text.strip().lower() not in CONNECTIVES
        )

    def _is_open_in_unit(self) -> bool:
        """True if a bracket is open among the words of this unit."""
        at, level = self.at - 1, 1
        while at >= 0 and level and self.tokens[at].kind in {"text", "word", "num", "op"}:
            level += (self.tokens[at].text == ")") - (self.tokens[at].text == "(")
            at -= 1
        return level == 0 and self.tokens[at].text in {"/", "*"}

    def _unit_fraction(self) -> str:
        r"""Take ``\\frac{\\text{m}}{\\text{s}^2}`` as ``(m)/(s^2)``."""
        self.at += 1
        parts = []
        for _ in range(2):
            self.expect("{")
            parts.append(f"({self.unit()})")
            self.expect("}")
        return "/".join(parts)

    def _exponent_digits(self) -> str:
        braced = self.take("{")
        sign = "-" if self.take("-") else ""
        token = self.next()
        if token.kind != "num":
            raise ParseError("a unit to a power that is not a number")
        if braced:
            self.expect("}")
        return sign + token.text


def spell(tokens: list[Token]) -> str:
    """Tokens as one string."""
    return "".join(token.text.strip() for token in tokens)


def subscript_name(tokens: list[Token]) -> str:
    """A subscript as a part of a name: in braces if it is longer than a word, the terms of a sum in one order."""
    if len(tokens) == 1:
        return spell(tokens)
    signs = [index for index, token in enumerate(tokens) if token.kind == "op" and token.text in {"+", "-"}]
    if any(token.text in {"(", "{", "^", "_", "/"} for token in tokens) or not signs:
        return f"{{{spell(tokens)}}}"
    starts = sorted({0, *signs})
    terms = [spell(tokens[start:end]) for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True)]
    return "{" + "".join(sorted(term if term[:1] in {"+", "-"} else f"+{term}" for term in terms if term)) + "}"
