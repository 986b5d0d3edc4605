"""Answers in LaTeX or plain text to a syntax tree: recursive descent with bounded depth.

A text has to be readable from its first to its last token: a readable beginning is no answer.
"""

import re
from fractions import Fraction
from functools import lru_cache

from grpo_verifiers.math.grammar.cursor import END, TokenCursor, subscript_name
from grpo_verifiers.math.grammar.relations import join_statements
from grpo_verifiers.math.grammar.tokens import ParseError, Token, facing_inward, tokenize
from grpo_verifiers.math.tree import OTHERWISE, STRUCTURES, Node, is_deeper, number, walk
from grpo_verifiers.math.words.units import unit_readings
from grpo_verifiers.math.words.vocabulary import (
    ACCENTS,
    ATOM_COMMANDS,
    CONNECTIVES,
    FUNCTIONS,
    GREEK,
    INVERSES,
    LEADS,
    MAX_DEPTH,
    MAX_DIGITS,
    OTHERS,
    RELATIONS,
    SPELLINGS,
    is_unit_word,
    is_word,
)

MAX_TREE = 80
_DEGREE = frozenset({("cmd", "circ"), ("word", "o"), ("text", "o")})
_PERCENT = frozenset({"percent", "pct", "percentage"})
_INFIX = {"over": "/", "choose": "binom"}
_ALIGNED = frozenset({"aligned", "align", "gathered", "gather", "split"})
# Letters before a bracket that multiply it; any other calls a function.
_FACTORS = frozenset({"e", "i", "pi", "x", "y", "z", "n", "k", "a", "b", "c", "m", "r", "t"})
_LEADS_UP = re.compile(
    r"(?:(?:the|final|only|correct|solution|solutions|answer|value|so|thus|hence) ){0,5}"
    r"(?:is|are|thus|hence|so|therefore)[:,]?",
    re.IGNORECASE,
)


@lru_cache(maxsize=512)
def parse(text: str) -> Node:
    """The syntax tree of an answer."""
    node = AnswerParser(tokenize(facing_inward(text))).answer()
    # loops build depth, too: 1/1/1/..., 5!!!...
    if is_deeper(node, MAX_TREE):
        raise ParseError(f"an expression nested deeper than {MAX_TREE} levels")
    return node


class AnswerParser(TokenCursor):
    """The grammar, from a list of statements down to a single number or name.

    ``depth`` counts open constructs, ``bars`` open absolute values: a bar closes one before it opens another.
    """

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self.depth = 0
        self.bars = 0

    def answer(self) -> Node:
        """The tree of all tokens."""
        every = self.tokens
        if not every:
            raise ParseError("empty")
        if every[-1][:2] == ("word", "min") and len(every) > 1:  # minutes: no minimum of nothing
            every[-1] = Token("text", "min", True)
        while len(every) > 1 and _leads_up(self.peek()):
            self.next()
        node = self._infix(self._items())
        if self.peek() is not END:
            raise ParseError(f"unexpected {self.peek().text!r}")
        return node

    def _deeper(self) -> None:
        """Open one more construct."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError(f"nested deeper than {MAX_DEPTH} levels")

    # Statements

    def _items(self) -> Node:
        """Statements separated by commas, semicolons, "and", "or"."""
        self._deeper()
        statements, joins = [self._statement()], []
        # "1 hour 30 minutes" has no separator
        while (join := self.separator()) or (statements[-1][0] == "unit" and self.peek().kind == "num"):
            statements.append(self._statement())
            joins.append(join or ",")
        self.depth -= 1
        return join_statements(statements, joins)

    def _statement(self) -> Node:
        """A chain of relations, or a value alone."""
        terms, ops = [self._sets()], []
        while self.peek() is not END:
            self.at += self.defines()
            token = self.peek()
            if token.kind == "cmd" and token.text in {"to", "Rightarrow", "implies"}:
                raise ParseError(f"\\{token.text} in an answer")
            if not (token.kind == "op" and token.text in RELATIONS) and not (
                token.kind == "cmd" and token.text in {"in", "notin", "equiv"}
            ):
                break
            ops.append(self.next().text)
            terms.append(self._sets(related=True))
        if "equiv" in ops and terms[-1][:2] == ("f", "mod"):
            ops = ["=" if op == "equiv" else op for op in ops]
        return ("rel", tuple(terms), " ".join(ops)) if ops else terms[0]

    def _sets(self, *, related: bool = False) -> Node:
        """A union, intersection or difference; after a relation, another relation ends it."""
        node = self._ratio()
        while (token := self.peek()).kind == "cmd" and token.text in {"cup", "cap", "setminus", "backslash"}:
            if related and self.relation_follows():
                break
            op = self.next().text
            right = self._ratio()
            node = _flat(op, node, right) if op in {"cup", "cap"} else ("minus", node, right)
        return node

    def _ratio(self) -> Node:
        parts = [self._sum()]
        while not self.bars and not self.defines() and self.take(":"):
            parts = [_no_words(part) for part in (*parts, self._sum())]
        return parts[0] if len(parts) == 1 else ("ratio", *parts)

    # Sums and products

    def _sum(self) -> Node:
        node = self._signed()
        while (token := self.peek()) is not END:
            if self.is_op("+", "-"):
                _no_words(node)
            if self.take("+"):
                node = _flat("+", node, self._term())
            elif self.take("-"):
                node = _flat("+", node, ("-", self._term()))
            elif token.kind == "cmd" and token.text in {"pm", "mp"}:
                self.next()
                node = ("pm", node, self._product())
            elif self.is_mod(0) or (token.kind == "cmd" and token.text in {"pmod", "bmod"}):
                self.next()
                node = ("f", "mod", (node, self._argument() if token.text == "pmod" else self._power()))
            elif self.is_op("(") and self.is_mod(1):
                self.at += 2
                node = ("f", "mod", (node, self._sum()))
                self.expect(")")
            else:
                break
        return _sum_with_unit(node) if node[0] == "+" else node

    def _term(self) -> Node:
        """A product after a plus or minus, perhaps with its own sign."""
        return ("-", self._product()) if self.take("-") else self._product()

    def _signed(self) -> Node:
        """The first term of a sum."""
        token = self.peek()
        if self.take("-"):
            self._deeper()
            node: Node = ("-", self._signed())
            self.depth -= 1
            return node
        if token.kind == "cmd" and token.text in {"pm", "mp"}:
            self.next()
            return ("pm", None, self._product())
        self.take("+")
        return self._product()

    def _product(self) -> Node:
        factors = [self._power()]
        while not self.ends_product():
            token = self.peek()
            if self.take("*"):
                factors.append(self._factor())
            elif self.take("/"):
                factors = [("/", _product_of(factors), self._factor())]
            elif token.text == "\\{" or self.is_mod(self.is_op("(")):
                break
            elif self.starts_fraction(factors[-1]):
                top, _, bottom = (self.next() for _ in range(3))
                factors[-1] = ("mixed", factors[-1], ("/", plain_number(top.text), plain_number(bottom.text)))
            elif token.kind == "cmd" and token.text == "frac" and self.starts_unit():
                return ("unit", _no_words(_product_of(factors)), self.unit())
            elif self._starts_factor(token):
                self._attach(factors, token)
            elif token.kind == "text" or (token.kind == "word" and is_unit_word(token.text)):
                if token.text.strip().lower() in CONNECTIVES:
                    break
                return ("unit", _no_words(_product_of(factors)), self.unit())
            else:
                break
        return factors[0] if len(factors) == 1 else ("*", *(_no_words(part) for part in factors))

    def _attach(self, factors: list[Node], token: Token) -> None:
        """Read a factor without a sign before it: one more, or the fraction of a mixed number."""
        adjoining = self.tokens[self.at - 1]
        right = self._power()
        sign, inner = (right[0], right[1]) if right[0] in {"%", "deg"} else ("", right)
        bracketed = token.kind == "op" and token.text in {"(", "["}  # 6(1/2) is a product
        if not bracketed and _is_mixed(factors[-1], inner, self.peek()):
            mixed = ("mixed", factors[-1], inner)
            factors[-1] = (sign, mixed) if sign else mixed
        elif token.kind == "num" and adjoining.text not in {")", "]", "}", "!"}:
            raise ParseError("a number right after another factor")
        else:
            factors.append(right)

    def _starts_factor(self, token: Token) -> bool:
        if token.kind == "word":
            return token.text.lower() not in CONNECTIVES and not is_unit_word(token.text)
        if token.kind == "cmd":
            return token.text in ATOM_COMMANDS
        if token.kind == "op":
            return token.text in {"(", "[", "{"} or (token.text == "|" and not self.bars)
        return token.kind in {"num", "begin"}

    def _factor(self) -> Node:
        """A factor after an explicit operator: it may carry a sign."""
        if self.take("-"):
            return ("-", self._power())
        self.take("+")
        return self._power()

    def _power(self) -> Node:
        """An atom with its exponents, bases, factorials, percent and degree signs."""
        node = self._atom()
        while not self.ends_product():
            token = self.peek()
            if self.take("^"):
                node = self._read_exponent(node)
            elif self.is_op("_") and node[0] in {"n", "big"}:
                self.next()
                node = self._read_base(node)
            elif self.is_op("!") and self.peek(1) != ("op", "=", False):  # no factorial, but "is not"
                self.next()
                if node[0] == "!" and self.tokens[self.at - 2].text == "!":
                    raise ParseError("a double factorial")
                node = ("!", node)
            elif self.take("%"):
                node = _with_mark("%", node)
            elif token.kind == "cmd" and token.text == "circ":
                self.next()
                node = _with_mark("deg", node)
            elif token.kind in {"text", "word"} and token.text.strip().lower() in _PERCENT:
                self.next()
                node = _with_mark("%", node)
            else:
                break
        return node

    def _read_exponent(self, node: Node) -> Node:
        """Read an exponent or a degree sign after ``^``."""
        token = self.peek()
        if token[:2] in _DEGREE:
            self.next()
            return _with_mark("deg", node)
        if self.is_op("{"):
            first = self.peek(1)
            if first[:2] in _DEGREE and self.peek(2).text == "}":
                self.at += 3
                return _with_mark("deg", node)
            if first.text in {"'", "prime"}:
                raise ParseError("a derivative")
            if first.text in {"(", "["} and self.peek(3).text in {")", "]"} and node[0] != "n":
                raise ParseError("an exponent in brackets, which may say which derivative it is")
        if token.text == "prime":
            raise ParseError("a derivative")
        # x^10 typesets as x to the 1 times 0, but 10 is intended
        return ("^", node, self._atom() if token.kind == "num" else self._argument())

    def _read_base(self, node: Node) -> Node:
        """Read the base of a number after ``_``."""
        base = self._argument()
        if base[0] != "n" or base[2] is not None or not 2 <= base[1] <= 36:
            raise ParseError("a number with a subscript that is not a base")
        if node[0] == "n" and node[2] is not None:
            raise ParseError("a decimal with a base")
        digits = str(node[1].numerator) if node[0] == "n" else node[1]
        if any(int(digit) >= base[1] for digit in digits):
            raise ParseError(f"the digits {digits[:20]} do not exist in base {base[1]}")
        return ("base", digits, int(base[1]))

    # Numbers, names, words

    def _argument(self) -> Node:
        """The argument of a command or of ``^``: a group, one digit, one letter or one command."""
        self._deeper()
        token = self.peek()
        if self.take("{"):
            node = self._group()
        elif token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            node = number(int(self.take_character()))
        elif token.kind == "word" and len(token.text) > 1:
            node = ("v", self.take_character())
        elif self.take("-"):
            node = ("-", self._argument())
        else:
            node = self._atom()
        self.depth -= 1
        return node

    def _atom(self) -> Node:
        """A number, a name, something in brackets, or a command."""
        self._deeper()
        node = self._bare_atom()
        self.depth -= 1
        return node

    def _bare_atom(self) -> Node:
        kind, text, _ = token = self.next()
        if kind == "num":
            return self.repeating(text) or plain_number(text)
        if kind == "word":
            return self._word(token)
        if kind == "text":
            return self._quoted(token)
        if kind == "begin":
            return self._matrix(text)
        if kind == "cmd":
            return self._command(text)
        if kind == "op":
            if text == "{":
                return self._group()
            if text in {"(", "["}:
                return self._bracketed(text)
            if text == "\\{":
                return self._system() if self.peek().kind == "begin" else self._braced_set()
            if text == "|":
                return self._absolute()
            if text == "$":
                return ("currency", self._power())
        raise ParseError(f"unexpected {text or 'end'!r}")

    def _word(self, token: Token) -> Node:
        """Bare letters: a function, a word, or variables side by side."""
        text = token.text
        if text.lower() in CONNECTIVES:
            raise ParseError(f"unexpected {text!r}")
        if text in FUNCTIONS or text in {"log", "sqrt"}:
            return self._command(text)
        if text.lower() in {"infinity", "inf", "oo"}:
            return ("v", "inf")
        if text == "pi":
            return ("v", "pi")
        every = self.tokens
        if len(text) >= 4 or (len(every) == 1 and is_word(text)):
            return ("text", text)
        if len(text) > 1:
            every[self.at - 1] = token._replace(text=text[0])
            every.insert(self.at, token._replace(text=text[1:], spaced=False))
        return self._variable(text[0])

    def _quoted(self, token: Token) -> Node:
        """The content of a text command: a letter, a function, or words."""
        text = token.text.strip()
        letter = text.strip("().:*")
        if len(letter) == 1 and letter.isalpha() and (self.at == 1 or len(text) == 1):
            return self._variable(letter)
        if text in FUNCTIONS:
            return self._command(text)
        if text.lower() == "infinity":
            return ("v", "inf")
        words = [text]
        while self.peek().kind in {"text", "word"} and len(words) < 40:
            words.append(self.next().text.strip())
        return ("text", " ".join(word for word in words if word))

    def _variable(self, name: str) -> Node:
        """A name with its subscript, or a call of an unknown function."""
        while True:
            if self.take("_"):
                name += "_" + subscript_name(self.subscript())
            elif primes := self.primes():
                name += "'" * primes
            else:
                break
        if name in _FACTORS or not name[0].isalpha():
            return ("v", name)
        if self.spells("^", "{", "-", "1", "}", "("):
            self.at += 5
            name += "^{-1}"
        if not self.is_op("(") or self.peek().spaced:
            return ("v", name)
        self.next()
        return ("f", name, (self.condition() or self._bracketed("("),))

    # Commands

    def _command(self, name: str) -> Node:
        """A command with its arguments."""
        if name == "frac":
            return ("/", self._argument(), self._argument())
        if name == "sqrt":
            return self._root()
        if name == "underline":
            return self._argument()
        if name == "binom":
            return ("binom", self._argument(), self._argument())
        if name in {"pi", "infty", "top"}:
            return ("v", "inf" if name == "infty" else name)
        if name == "emptyset":
            return ("set",)
        if name in GREEK:
            return self._variable(name)
        if name == "Pr":
            return self._variable("P")
        if name in ACCENTS:
            below = self.accent_argument()
            return ("v", f"{SPELLINGS.get(name, name)} {below}{self.sign_restriction() if name == 'mathbb' else ''}")
        if name in {"log", "lg"}:
            base = number(10) if name == "lg" else None
            if self.take("_"):
                base = self._argument()
            return ("log", base, self._operand())
        if name in {"lfloor", "lceil", "langle"}:
            inner = self._items()
            if self.next().text != "r" + name[1:]:
                raise ParseError(f"\\{name} is not closed")
            return ("paren", *_parts(inner)) if name == "langle" else ("f", name[1:], (inner,))
        if name in {"euro", "pounds", "yen"}:
            return ("currency", self._power(), name)
        if name in {"angle", "triangle"}:
            return ("v", f"{name} {self.accent_argument()}")
        if name in FUNCTIONS:
            return self._call(SPELLINGS.get(name, name))
        raise ParseError(f"\\{name} in an answer")

    def _call(self, name: str) -> Node:
        """A function with its exponent and arguments."""
        power = self._argument() if self.take("^") else None
        if power == ("-", number(1)):
            if name not in INVERSES:
                raise ParseError(f"\\{name}^{{-1}}, which may be an inverse or a reciprocal")
            name, power = INVERSES[name], None
        args = self._operand()
        call: Node = ("f", name, args[1:] if args[0] == "paren" else (args,))
        return call if power is None else ("^", call, power)

    def _root(self) -> Node:
        """A root; round brackets count as braces."""
        degree = number(2)
        if self.take("["):
            degree = self._items()
            self.expect("]")
        return ("root", self._bracketed("(") if self.take("(") else self._argument(), degree)

    def _operand(self) -> Node:
        """The argument of a function: brackets, or a product without them."""
        if self.take("("):
            return self._bracketed("(")
        if self.is_op("{"):
            return self._argument()
        if self.take("-"):
            return ("-", self._operand())
        factors = [self._power()]
        while _is_operand(self.peek()):
            factors.append(self._power())
        return _product_of(factors)

    # Brackets

    def _group(self) -> Node:
        """The rest of a group in braces."""
        node = self._infix(self._items())
        self.expect("}")
        return node

    def _infix(self, top: Node) -> Node:
        r"""The rest of ``{a \over b}`` or ``{n \choose k}``."""
        token = self.peek()
        if token.kind != "cmd" or token.text not in _INFIX:
            return top
        self.next()
        return (_INFIX[token.text], top, self._items())

    def _bracketed(self, opener: str) -> Node:
        """The rest of a group, a tuple or an interval in brackets."""
        if self.is_op(")", "]"):
            raise ParseError("empty brackets")
        bars, self.bars = self.bars, 0
        inner = self._items()
        self.bars = bars
        token = self.next()
        if token.kind != "op" or token.text not in {")", "]"}:
            raise ParseError(f"{opener!r} is not closed")
        parts = _parts(inner)
        round_ones = opener == "(" and token.text == ")"
        if len(parts) == 2 and not round_ones:
            return ("span", opener, parts[0], parts[1], token.text)
        if round_ones or (opener == "[" and token.text == "]"):
            return inner if len(parts) == 1 else ("paren", *parts)
        raise ParseError("an interval needs two ends")

    def _braced_set(self) -> Node:
        """A set by its elements or by its property."""
        if self.take("\\}"):
            return ("set",)
        bars, self.bars = self.bars, 1
        inner = self._items()
        self.bars = bars
        if not (self.take("|") or self.take(":")):
            self.expect("\\}")
            return ("set", *_parts(inner))
        condition = self._items()
        self.expect("\\}")
        if condition[0] == "list":
            condition = ("and", *condition[1:])
        statements = (condition,) if condition[0] == "rel" else (condition, *condition[1:])
        if any(part[0] not in {"rel", "and", "or"} for part in statements) or inner[0] in {"list", "text"}:
            raise ParseError("a set by a property that is not a relation")
        return ("builder", inner, condition)

    def _system(self) -> Node:
        r"""Equations after one brace: ``\left\{ \begin{array}{l} ... \end{array} \right.``."""
        node = self._matrix(self.next().text)
        self.take("\\}")
        return ("cases", *node[1:]) if node[0] == "matrix" else node

    def _absolute(self) -> Node:
        """The rest of an absolute value."""
        self.bars += 1
        if self.bars > 4:
            raise ParseError("too many bars")
        inner = self._sum()
        self.expect("|")
        self.bars -= 1
        return ("abs", inner)

    def _matrix(self, kind: str) -> Node:
        """The rest of an environment."""
        aligned = kind.rstrip("*") in _ALIGNED
        if kind == "array":
            if self.is_op("{"):
                while self.next().text not in {"}", ""}:  # how its columns are set
                    pass
        elif aligned:
            every = self.tokens
            end = next((at for at in range(self.at, len(every)) if every[at].kind == "end"), self.at)
            every[self.at : end] = [token for token in every[self.at : end] if token.text != "&"]
        elif kind != "cases" and not kind.endswith("matrix"):
            raise ParseError(f"the environment {kind}")
        rows: list[list[Node]] = [[]]
        while self.peek()[:2] != ("end", kind):
            rows[-1].append(self._case() if kind == "cases" and rows[-1] else self._items())
            if self.is_op(",", ".", ";"):
                self.next()
            token = self.peek()
            if token.text == "\\":
                rows.append([])
            elif token[:2] == ("end", kind):
                break
            elif token.text != "&":
                raise ParseError("a matrix that is not closed")
            self.next()
        self.next()
        filled = tuple(("row", *row) for row in rows if row)
        if not filled or len({len(row) for row in filled}) != 1:
            raise ParseError("a matrix with ragged rows")
        if kind == "cases" or aligned:
            return ("cases", *filled)
        return ("f", "det", (("matrix", *filled),)) if kind in {"vmatrix", "Vmatrix"} else ("matrix", *filled)

    def _case(self) -> Node:
        """The condition of a case, its "if" left out."""
        while self.peek().kind in {"text", "word"}:
            word = self.peek().text.strip(" ,.").lower()
            if word not in LEADS | OTHERS:
                break
            self.next()
            if word in OTHERS:
                return OTHERWISE
        return self._items()


def plain_number(text: str) -> Node:
    """A number as written, with its decimal places."""
    integer, point, decimals = text.partition(".")
    if len(text) > MAX_DIGITS:
        if point:
            raise ParseError(f"a decimal of more than {MAX_DIGITS} digits")
        return ("big", integer.lstrip("0") or "0")
    if decimals:
        return ("n", Fraction(int(integer + decimals), 10 ** len(decimals)), len(decimals))
    return ("n", Fraction(int(integer)), None)


def _leads_up(token: Token) -> bool:
    """True if a token only leads up to the answer."""
    if token.kind == "op":
        return token.text in {"~=", "="}
    if token.kind == "cmd":
        return token.text in {"therefore", "implies", "Rightarrow"}
    return token.kind == "text" and bool(_LEADS_UP.fullmatch(token.text.strip()))


def _is_operand(token: Token) -> bool:
    """True if a token continues the product that a function applies to."""
    if token.kind == "word":
        return not (token.text in FUNCTIONS or is_unit_word(token.text) or len(token.text) > 3)
    return token.kind == "num" or (token.kind == "cmd" and token.text in {"pi", "frac", "sqrt"} | GREEK)


def _parts(node: Node) -> tuple[Node, ...]:
    """The items of a list; any other node alone."""
    return node[1:] if node[0] == "list" else (node,)


def _flat(kind: str, left: Node, right: Node) -> Node:
    """Two operands of a sum, union or intersection as one node without nesting."""
    return (*left, right) if left[0] == kind else (kind, left, right)


def _product_of(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else ("*", *factors)


def _no_words(node: Node) -> Node:
    if node[0] == "text":
        raise ParseError("words among mathematics")
    return node


def _sum_with_unit(node: Node) -> Node:
    r"""A sum of which only the last term has a unit, as a quantity: ``2\pi - 4 \text{ cm}``."""
    last = node[-1][1] if node[-1][0] == "-" else node[-1]
    if last[0] != "unit" or unit_readings(last[2]) is None:
        return node
    if any(top[0] in {"unit", "currency", "deg", "text"} for part in node[1:-1] for top in walk(part)):
        return node
    return ("unit", (*node[:-1], ("-", last[1]) if node[-1][0] == "-" else last[1]), last[2])


def _with_mark(kind: str, node: Node) -> Node:
    """A node with a percent or degree sign, which only a value can have."""
    if node[0] in STRUCTURES | {"%", "deg"} or (node[0] == "v" and (node[1][0].isupper() or node[1][:4] == "math")):
        raise ParseError("a percent or degree sign on something other than a value")
    return (kind, node)


def _is_mixed(integer: Node, fraction: Node, following: Token) -> bool:
    """True if two neighbours are a mixed number: an integer and a proper fraction of integers."""
    if integer[0] != "n" or integer[2] is not None or fraction[0] != "/" or following[:2] == ("op", "^"):
        return False
    top, bottom = fraction[1], fraction[2]
    return all(part[0] == "n" and part[2] is None for part in (top, bottom)) and 0 < top[1] < bottom[1]
