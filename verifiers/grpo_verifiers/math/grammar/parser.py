"""Answers in LaTeX or plain text to a syntax tree: recursive descent with bounded depth.

The grammar takes the whole text or nothing: a text of which only a beginning makes sense is no answer.
"""

import re
from functools import lru_cache

from grpo_verifiers.math.grammar.atoms import Atoms
from grpo_verifiers.math.grammar.cursor import END
from grpo_verifiers.math.grammar.numbers import based_number, plain_number
from grpo_verifiers.math.grammar.relations import joined
from grpo_verifiers.math.grammar.tokens import ParseError, Token, facing_inward, tokenize
from grpo_verifiers.math.tree import STRUCTURES, Node, is_deeper, number, walk
from grpo_verifiers.math.words.units import unit_readings
from grpo_verifiers.math.words.vocabulary import ATOM_COMMANDS, BASES, CONNECTIVES, RELATIONS, is_unit_word

MAX_TREE = 80

_DEGREE = frozenset({("cmd", "circ"), ("word", "o"), ("text", "o")})

_NOT = {"in": Token("cmd", "notin"), "=": Token("op", "!=")}

_LEADS_UP = re.compile(
    r"(?:(?:the|final|only|correct|solution|solutions|answer|value|so|thus|hence) ){0,5}"
    r"(?:is|are|thus|hence|so|therefore)[:,]?",
    re.IGNORECASE,
)


@lru_cache(maxsize=512)
def parse(text: str) -> Node:
    """The syntax tree of an answer.

    Raises:
        ParseError: not an answer of this grammar; the message says why.
    """
    node = based_number(text) or _Parser(facing_inward(tokenize(text))).answer()
    # loops build depth, too: 1/1/1/..., 5!!!...
    if is_deeper(node, MAX_TREE):
        raise ParseError(f"an expression nested deeper than {MAX_TREE} levels")
    return node


class _Parser(Atoms):
    def answer(self) -> Node:
        if not self.tokens:
            raise ParseError("empty")
        if self.tokens[-1][:2] == ("word", "min") and len(self.tokens) > 1:  # minutes: no minimum of nothing
            self.tokens[-1] = Token("text", "min", True)
        while len(self.tokens) > 1 and self.introduces(self.peek()):
            self.at += 1
        node = self.items()
        if self.peek() is not END:
            raise ParseError(f"unexpected {self.peek().text!r}")
        return node

    def introduces(self, token: Token) -> bool:
        """Whether a token only leads up to the answer."""
        if token.kind == "op":
            return token.text in {"~=", "="}
        if token.kind == "cmd":
            return token.text in {"therefore", "implies", "Rightarrow"}
        return token.kind == "text" and bool(_LEADS_UP.fullmatch(token.text.strip()))

    def items(self) -> Node:
        """Statements separated by commas, semicolons, "and", "or"."""
        self.deeper()
        found, joins = [self.statement()], []
        # "1 hour 30 minutes" has no separator
        while (join := self.separator()) or (found[-1][0] == "unit" and self.peek().kind == "num"):
            found.append(self.statement())
            joins.append(join or ",")
        self.depth -= 1
        return joined(found, joins)

    def separator(self) -> str:
        """Take what stands between two statements: ``","``, ``"and"`` or ``"or"``; empty where nothing does."""
        seen = ""
        while self.at < len(self.tokens):
            token = self.peek()
            word = token.text.strip().lower()
            if token.kind == "op" and token.text in {",", ";"}:
                seen = seen or ","
                if self.peek(1).text in {"&", "\\"} or self.peek(1).kind == "end":  # behind a cell of a table
                    self.at += 1
                    return ""
            elif token.kind in {"text", "word", "cmd"} and word in CONNECTIVES:
                seen = "or" if "or" in word else "and" if word.strip(", ") in {"and", "&"} else seen or ","
            elif token.kind == "cmd" and token.text in {"cup", "cap"} and self.relation_follows():
                seen = "or" if token.text == "cup" else "and"
            else:
                break
            self.at += 1
        return seen

    def relation_follows(self) -> bool:
        """Whether a relation stands between the next sign of union or intersection and the one after it."""
        for token in self.tokens[self.at + 1 :]:
            if token.text in {"cup", "cap", ",", ";", ")", "]", "}", "\\}", "("} or token.kind == "text":
                return False
            if token.text in RELATIONS or token.text == "in":
                return True
        return False

    def statement(self) -> Node:
        terms, ops = [self.sets()], []
        while self.at < len(self.tokens):
            self.at += self.defines()
            token = self.peek()
            if token.text == "not" and token.kind == "cmd" and self.peek(1).text in _NOT:
                self.at += 1
                self.tokens[self.at] = token = _NOT[self.peek().text]
            if token.kind == "op" and token.text in RELATIONS:
                op = token.text
            elif token.kind == "cmd" and token.text in {"in", "notin", "equiv", "to", "Rightarrow", "implies"}:
                if token.text not in {"in", "notin", "equiv"}:
                    raise ParseError(f"\\{token.text} in an answer")
                op = token.text
            else:
                break
            self.at += 1
            ops.append(op)
            terms.append(self.sets(related=True))
        if "equiv" in ops and terms[-1][:2] == ("f", "mod"):
            ops = ["=" if op == "equiv" else op for op in ops]
        return ("rel", tuple(terms), " ".join(ops)) if ops else terms[0]

    def defines(self) -> bool:
        """Whether ``:=`` follows."""
        return self.is_op(":") and self.peek(1).text == "="

    def sets(self, *, related: bool = False) -> Node:
        """A union, intersection or difference; behind a relation, another relation ends it."""
        node = self.ratio()
        while self.peek().kind == "cmd" and self.peek().text in {"cup", "cap", "setminus", "backslash"}:
            if related and self.relation_follows():
                break
            op = self.next().text
            right = self.ratio()
            if op in {"cup", "cap"}:
                node = (*node, right) if node[0] == op else (op, node, right)
            else:
                node = ("minus", node, right)
        return node

    def ratio(self) -> Node:
        parts = [self.sum()]
        while not self.bars and not self.defines() and self.take(":"):
            parts = [_no_words(part) for part in (*parts, self.sum())]
        return parts[0] if len(parts) == 1 else ("ratio", *parts)

    def sum(self) -> Node:
        node = self.signed()
        while self.at < len(self.tokens):
            token = self.peek()
            if self.is_op("+", "-"):
                _no_words(node)
            if self.take("+"):
                right = self.term()
                node = (*node, right) if node[0] == "+" else ("+", node, right)
            elif self.take("-"):
                right = ("-", self.term())
                node = (*node, right) if node[0] == "+" else ("+", node, right)
            elif token.kind == "cmd" and token.text in {"pm", "mp"}:
                self.at += 1
                node = ("pm", node, self.product())
            elif token.kind == "cmd" and token.text in {"pmod", "bmod", "mod"}:
                self.at += 1
                node = ("f", "mod", (node, self.argument() if token.text == "pmod" else self.power()))
            elif self.takes_modulus(0):
                self.at += 1
                node = ("f", "mod", (node, self.power()))
            elif self.is_op("(") and self.takes_modulus(1):
                self.at += 2
                node = ("f", "mod", (node, self.sum()))
                self.expect(")")
            else:
                break
        return _measured(node) if node[0] == "+" else node

    def takes_modulus(self, ahead: int) -> bool:
        """Whether the word "mod" stands there."""
        return self.peek(ahead).kind in {"text", "word", "cmd"} and self.peek(ahead).text.strip().lower() == "mod"

    def term(self) -> Node:
        """A product after a plus or minus; it may carry a sign of its own."""
        return ("-", self.product()) if self.take("-") else self.product()

    def signed(self) -> Node:
        token = self.peek()
        if self.take("-"):
            self.deeper()
            node: Node = ("-", self.signed())
            self.depth -= 1
            return node
        if self.take("+"):
            return self.product()
        if token.kind == "cmd" and token.text in {"pm", "mp"}:
            self.at += 1
            return ("pm", None, self.product())
        return self.product()

    def product(self) -> Node:
        factors = [self.power()]
        while not self.product_ends():
            token = self.peek()
            if self.take("*"):
                factors.append(self.factor())
            elif self.take("/"):
                left = factors[0] if len(factors) == 1 else ("*", *factors)
                factors = [("/", left, self.factor())]
            elif token.text == "\\{" or self.takes_modulus(self.is_op("(")):
                break
            elif self.starts_plain_fraction(factors[-1]):
                top, _, bottom = (self.next() for _ in range(3))
                factors[-1] = ("mixed", factors[-1], ("/", plain_number(top.text), plain_number(bottom.text)))
            elif token.kind == "cmd" and token.text == "frac" and self.starts_unit():
                node = factors[0] if len(factors) == 1 else ("*", *factors)
                return ("unit", _no_words(node), self.unit())
            elif self.starts_factor(token):
                adjoining = self.tokens[self.at - 1]
                right = self.power()
                before = factors[-1]
                sign, inner = (right[0], right[1]) if right[0] in {"%", "deg"} else ("", right)
                if _is_mixed(before, inner, self.tokens, self.at):
                    factors[-1] = (sign, ("mixed", before, inner)) if sign else ("mixed", before, inner)
                elif token.kind == "num" and adjoining.text not in {")", "]", "}", "!"}:
                    raise ParseError("a number right after another factor")
                else:
                    factors.append(right)
            elif token.kind == "text" or (token.kind == "word" and is_unit_word(token.text)):
                if token.text.strip().lower() in CONNECTIVES:
                    break
                node = factors[0] if len(factors) == 1 else ("*", *factors)
                return ("unit", _no_words(node), self.unit())
            else:
                break
        return factors[0] if len(factors) == 1 else ("*", *(_no_words(part) for part in factors))

    def starts_plain_fraction(self, before: Node) -> bool:
        """Whether ``4/5`` follows the integer of a mixed number such as ``3 4/5``."""
        if before[0] != "n" or before[2] is not None or self.peek().kind != "num":
            return False
        top, slash, bottom = (self.peek(ahead) for ahead in range(3))
        return (
            bottom.kind == "num" and top.spaced
            and slash.text == "/" and top.text.isdigit() and bottom.text.isdigit() and len(bottom.text) <= 6
            and 0 < int(top.text) < int(bottom.text)
        )  # fmt: skip

    def unit(self) -> str:
        """Words after a value, with exponents, quotients and products of units, as one string."""
        words = []
        while self.starts_unit():
            if self.is_op("*", "/", "(", ")"):
                words.append(self.next().text.replace("*", " "))
                continue
            if self.peek().text == "frac":
                words.append(self.unit_fraction())
                continue
            word = self.next().text.strip()
            if self.take("^"):
                word += "^" + self.exponent_digits()
            words.append(word)
        if self.take("."):
            words.append("")
        return " ".join(words).strip()

    def starts_unit(self) -> bool:
        """Whether the next token goes on with a unit."""
        token, ahead = self.peek(), 0
        if token.kind == "op" and token.text in {"*", "/", "("}:
            ahead, token = 1, self.peek(1)
            if token.kind == "op" and token.text == "(":
                ahead, token = 2, self.peek(2)
        elif token.kind == "op" and token.text == ")":
            return self.open_in_unit()
        if token.kind == "cmd" and token.text == "frac":
            return self.peek(ahead + 1).text == "{" and self.peek(ahead + 2).kind == "text"
        return (token.kind == "text" or (token.kind == "word" and (is_unit_word(token.text) or ahead > 0))) and (
            token.text.strip().lower() not in CONNECTIVES
        )

    def open_in_unit(self) -> bool:
        """Whether a bracket was opened among the words of this unit."""
        at, level = self.at - 1, 1
        while at >= 0 and level and self.tokens[at].kind in {"text", "word", "num", "op"}:
            level += (self.tokens[at].text == ")") - (self.tokens[at].text == "(")
            at -= 1
        return level == 0 and self.tokens[at].text in {"/", "*"}

    def unit_fraction(self) -> str:
        r"""``\\frac{\\text{m}}{\\text{s}^2}`` as ``(m)/(s^2)``."""
        self.at += 1
        parts = []
        for _ in range(2):
            self.expect("{")
            parts.append(f"({self.unit()})")
            self.expect("}")
        return "/".join(parts)

    def exponent_digits(self) -> str:
        sign = ""
        braced = self.take("{")
        if self.take("-"):
            sign = "-"
        token = self.next()
        if token.kind != "num":
            raise ParseError("a unit to a power that is no number")
        if braced:
            self.expect("}")
        return sign + token.text

    def starts_factor(self, token: Token) -> bool:
        if token.kind == "num":
            return True
        if token.kind == "word":
            return token.text.lower() not in CONNECTIVES and not is_unit_word(token.text)
        if token.kind == "cmd":
            return token.text in ATOM_COMMANDS
        if token.kind == "begin":
            return True
        return token.kind == "op" and (token.text in {"(", "[", "{"} or (token.text == "|" and not self.bars))

    def factor(self) -> Node:
        """A factor after an explicit operator: it may carry a sign."""
        if self.take("-"):
            return ("-", self.power())
        if self.take("+"):
            return self.power()
        return self.power()

    def power(self) -> Node:
        node = self.atom()
        while not self.product_ends():
            token = self.peek()
            if self.take("^"):
                node = self.raised(node)
            elif self.is_op("_") and node[0] in {"n", "big"}:
                self.at += 1
                node = self.based(node)
            elif token.kind == "op" and token.text == "!" and not self.followed_by_equals():
                self.at += 1
                if node[0] == "!" and self.tokens[self.at - 2].text == "!":
                    raise ParseError("a double factorial")
                node = ("!", node)
            elif self.take("%"):
                node = _marked("%", node)
            elif token.kind == "cmd" and token.text == "circ":
                self.at += 1
                node = _marked("deg", node)
            elif token.kind in {"text", "word"} and token.text.strip().lower() in {"percent", "pct", "percentage"}:
                self.at += 1
                node = _marked("%", node)
            else:
                break
        return node

    def followed_by_equals(self) -> bool:
        return self.peek(1).kind == "op" and self.peek(1).text == "=" and not self.peek(1).spaced

    def raised(self, node: Node) -> Node:
        token = self.peek()
        if token[:2] in _DEGREE:
            self.at += 1
            return _marked("deg", node)
        if self.is_op("{") and self.peek(1)[:2] in _DEGREE and self.peek(2).text == "}":
            self.at += 3
            return _marked("deg", node)
        if token.text == "prime" or (self.is_op("{") and self.peek(1).text in {"'", "prime"}):
            raise ParseError("a derivative")
        if self.is_op("{") and self.peek(1).text in {"(", "["} and self.peek(3).text in {")", "]"} and node[0] != "n":
            raise ParseError("an exponent in brackets, which may say which derivative it is")
        # x^10 typesets as x to the 1 times 0, but whoever writes it means 10
        exponent = self.atom() if self.peek().kind == "num" else self.argument()
        return ("^", node, exponent)

    def based(self, node: Node) -> Node:
        if self.is_op("{") and self.peek(1).text.strip().lower() == "base":
            self.at += 1
            self.tokens[self.at] = Token("op", "{")
        if self.is_op("{") and self.peek(1).text in BASES and self.peek(2).text == "}":
            self.tokens[self.at + 1] = Token("num", str(BASES[self.peek(1).text]))
        base = self.argument()
        if base[0] == "text" and base[1].lower() in BASES:
            base = number(BASES[base[1].lower()])
        if base[0] != "n" or base[2] is not None or not 2 <= base[1] <= 36:
            raise ParseError("a number with a subscript that is no base")
        if node[0] == "n" and node[2] is not None:
            raise ParseError("a decimal with a base")
        digits = str(node[1].numerator) if node[0] == "n" else node[1]
        if any(int(digit) >= base[1] for digit in digits):
            raise ParseError(f"the digits {digits[:20]} do not exist in base {base[1]}")
        return ("base", digits, int(base[1]))


def _no_words(node: Node) -> Node:
    if node[0] == "text":
        raise ParseError("words among mathematics")
    return node


def _measured(node: Node) -> Node:
    r"""A sum of which only the last term has a unit, as a quantity: ``2\pi - 4 \text{ cm}``."""
    last = node[-1][1] if node[-1][0] == "-" else node[-1]
    if last[0] != "unit" or unit_readings(last[2]) is None:
        return node
    if any(top[0] in {"unit", "currency", "deg", "text"} for part in node[1:-1] for top in walk(part)):
        return node
    return ("unit", (*node[:-1], ("-", last[1]) if node[-1][0] == "-" else last[1]), last[2])


def _marked(kind: str, node: Node) -> Node:
    """A node with a percent or degree sign, which only a value can have."""
    if node[0] in STRUCTURES | {"%", "deg"} or (node[0] == "v" and (node[1][0].isupper() or node[1][:4] == "math")):
        raise ParseError("a percent or degree sign on what is no value")
    return (kind, node)


def _is_mixed(whole: Node, fraction: Node, tokens: list[Token], end: int) -> bool:
    """Whether two neighbours are a mixed number: an integer and a proper fraction of integers."""
    if whole[0] != "n" or whole[2] is not None or fraction[0] != "/":
        return False
    top, bottom = fraction[1], fraction[2]
    following = tokens[end] if end < len(tokens) else END
    if following.kind == "op" and following.text == "^":
        return False
    return all(part[0] == "n" and part[2] is None for part in (top, bottom)) and 0 < top[1] < bottom[1]
