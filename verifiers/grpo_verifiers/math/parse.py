"""Answers in LaTeX or plain text to a syntax tree: recursive descent with bounded depth.

The grammar takes the whole text or nothing: a text of which only a beginning makes sense is no answer.
"""

from fractions import Fraction
from functools import lru_cache

from grpo_verifiers.math.tokens import ParseError, Token, tokenize
from grpo_verifiers.math.tree import Node, number

MAX_DEPTH = 30
MAX_DIGITS = 300
RELATIONS = frozenset({"=", "<", ">", "<=", ">=", "!=", "~="})
FUNCTIONS = frozenset(
    "sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth exp ln lg min max arg det gcd lcm Re Im "
    "deg dim floor ceil sgn".split()
)
_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon "
    "phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar".split()
)
_ACCENTS = frozenset("overline bar vec hat widehat tilde overrightarrow dot underline mathbb".split())
_CONNECTIVES = frozenset({"and", "or", ",", "&", ", and", ", or", "and/or", ";"})
_OPENERS = {"(": ")", "[": "]", "\\{": "\\}", "{": "}"}
_END = Token("end", "")


@lru_cache(maxsize=4096)
def parse(text: str) -> Node:
    """The syntax tree of an answer.

    Raises:
        ParseError: not an answer of this grammar; the message says why.
    """
    return _Parser(tokenize(text)).answer()


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        while tokens and tokens[-1].kind == "op" and tokens[-1].text in {".", ",", ";", ":"}:
            tokens.pop()
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> Token:
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else _END

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def is_op(self, *texts: str) -> bool:
        token = self.peek()
        return token.kind == "op" and token.text in texts

    def take(self, text: str) -> bool:
        if self.is_op(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise ParseError(f"expected {text!r} before {self.peek().text or 'the end'!r}")

    def answer(self) -> Node:
        if not self.tokens:
            raise ParseError("empty")
        node = self.items()
        if self.peek() is not _END:
            raise ParseError(f"unexpected {self.peek().text!r}")
        return node

    def items(self) -> Node:
        """Statements separated by commas, semicolons, "and", "or"."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError(f"nested deeper than {MAX_DEPTH} levels")
        found = [self.statement()]
        while self.separator():
            found.append(self.statement())
        self.depth -= 1
        return found[0] if len(found) == 1 else ("list", *found)

    def separator(self) -> bool:
        seen = False
        while True:
            token = self.peek()
            if (token.kind == "op" and token.text in {",", ";"}) or (
                token.kind in {"text", "word", "cmd"} and token.text.strip().lower() in _CONNECTIVES
            ):
                self.at += 1
                seen = True
            else:
                return seen

    def statement(self) -> Node:
        terms, ops = [self.sets()], []
        while True:
            token = self.peek()
            if token.kind == "op" and token.text in RELATIONS:
                op = token.text
            elif token.kind == "cmd" and token.text in {"in", "to", "Rightarrow", "implies", "equiv"}:
                if token.text != "in":
                    raise ParseError(f"\\{token.text} in an answer")
                op = "in"
            else:
                break
            self.at += 1
            ops.append(op)
            terms.append(self.sets())
        return ("rel", tuple(terms), tuple(ops)) if ops else terms[0]

    def sets(self) -> Node:
        node = self.ratio()
        while self.peek().kind == "cmd" and self.peek().text in {"cup", "cap", "setminus", "backslash"}:
            op = self.next().text
            right = self.ratio()
            if op in {"cup", "cap"}:
                node = (*node, right) if node[0] == op else (op, node, right)
            else:
                node = ("minus", node, right)
        return node

    def ratio(self) -> Node:
        parts = [self.sum()]
        while self.take(":"):
            parts = [_no_words(part) for part in (*parts, self.sum())]
        return parts[0] if len(parts) == 1 else ("ratio", *parts)

    def sum(self) -> Node:
        node = self.signed()
        while True:
            token = self.peek()
            if self.is_op("+", "-"):
                _no_words(node)
            if self.take("+"):
                right = self.product()
                node = (*node, right) if node[0] == "+" else ("+", node, right)
            elif self.take("-"):
                right = ("-", self.product())
                node = (*node, right) if node[0] == "+" else ("+", node, right)
            elif token.kind == "cmd" and token.text in {"pm", "mp"}:
                self.at += 1
                node = ("pm", node, self.product())
            else:
                return node

    def signed(self) -> Node:
        token = self.peek()
        if self.take("-"):
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise ParseError("too many signs")
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
        while True:
            token = self.peek()
            if self.take("*"):
                factors.append(self.factor())
            elif self.take("/"):
                left = factors[0] if len(factors) == 1 else ("*", *factors)
                factors = [("/", left, self.factor())]
            elif token.kind == "op" and token.text == "\\{":
                break
            elif self.starts_plain_fraction(factors[-1]):
                top, _, bottom = (self.next() for _ in range(3))
                factors[-1] = ("mixed", factors[-1], ("/", _number(top.text), _number(bottom.text)))
            elif self.starts_factor(token):
                right = self.power()
                before = factors[-1]
                if _is_mixed(before, right, self.tokens, self.at):
                    factors[-1] = ("mixed", before, right)
                elif right[0] == "n" and before[0] in {"n", "big", "base", "%"}:
                    raise ParseError("two numbers side by side")
                else:
                    factors.append(right)
            elif token.kind == "text" or (token.kind == "word" and _is_unit_word(token)):
                if token.text.strip().lower() in _CONNECTIVES:
                    break
                node = factors[0] if len(factors) == 1 else ("*", *factors)
                return ("unit", _no_words(node), self.unit())
            else:
                break
        return factors[0] if len(factors) == 1 else ("*", *(_no_words(part) for part in factors))

    def starts_plain_fraction(self, before: Node) -> bool:
        """Whether ``4/5`` follows the integer of a mixed number such as ``3 4/5``."""
        top, slash, bottom = (self.peek(ahead) for ahead in range(3))
        return (
            before[0] == "n" and before[2] is None and top.kind == bottom.kind == "num" and top.spaced
            and slash.text == "/" and top.text.isdigit() and bottom.text.isdigit() and len(bottom.text) <= 6
            and 0 < int(top.text) < int(bottom.text)
        )  # fmt: skip

    def unit(self) -> str:
        """Words after a value, exponent included, as one string."""
        words = []
        while self.peek().kind == "text" or (self.peek().kind == "word" and _is_unit_word(self.peek())):
            if self.peek().text.strip().lower() in _CONNECTIVES:
                break
            word = self.next().text.strip()
            if self.take("^"):
                word += "^" + self.exponent_digits()
            words.append(word)
        if self.take("."):
            words.append("")
        return " ".join(words).strip()

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
            return token.text.lower() not in _CONNECTIVES and not _is_unit_word(token)
        if token.kind == "cmd":
            return token.text in _ATOM_COMMANDS
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
        while True:
            token = self.peek()
            if self.take("^"):
                node = self.raised(node)
            elif self.is_op("_") and node[0] in {"n", "big"}:
                self.at += 1
                node = self.based(node)
            elif token.kind == "op" and token.text == "!" and not self.followed_by_equals():
                self.at += 1
                node = ("!", node)
            elif self.take("%"):
                node = ("%", node)
            elif self.is_op("'") and node[0] == "v":
                self.at += 1
                node = ("v", node[1] + "'")
            elif token.kind == "cmd" and token.text == "circ":
                self.at += 1
                node = ("deg", node)
            elif token.kind in {"text", "word"} and token.text.strip().lower() in {"percent", "pct", "percentage"}:
                self.at += 1
                node = ("%", node)
            else:
                return node

    def followed_by_equals(self) -> bool:
        return self.peek(1).kind == "op" and self.peek(1).text == "="

    def raised(self, node: Node) -> Node:
        token = self.peek()
        if token.kind == "cmd" and token.text == "circ":
            self.at += 1
            return ("deg", node)
        if self.is_op("{") and self.peek(1).text == "circ" and self.peek(2).text == "}":
            self.at += 3
            return ("deg", node)
        if self.is_op("{") and self.peek(1).text in {"'", "prime"}:
            raise ParseError("a derivative")
        # x^10 typesets as x to the 1 times 0, but whoever writes it means 10
        exponent = self.atom() if self.peek().kind == "num" else self.argument()
        return ("^", node, exponent)

    def based(self, node: Node) -> Node:
        base = self.argument()
        if base[0] != "n" or base[2] is not None or not 2 <= base[1] <= 36:
            raise ParseError("a number with a subscript that is no base")
        if node[0] == "n" and node[2] is not None:
            raise ParseError("a decimal with a base")
        digits = str(node[1].numerator) if node[0] == "n" else node[1]
        if any(int(digit) >= base[1] for digit in digits):
            raise ParseError(f"the digits {digits[:20]} do not exist in base {base[1]}")
        return ("base", digits, int(base[1]))

    def argument(self) -> Node:
        """What a command or ``^`` applies to: a group, one digit, one letter or one command."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError(f"nested deeper than {MAX_DEPTH} levels")
        token = self.peek()
        if self.take("{"):
            node = self.items()
            self.expect("}")
        elif token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = token._replace(text=token.text[1:], spaced=False)
            node = number(int(token.text[0]))
        elif token.kind == "word" and len(token.text) > 1:
            self.tokens[self.at] = token._replace(text=token.text[1:], spaced=False)
            node = ("v", token.text[0])
        elif self.is_op("-"):
            self.at += 1
            node = ("-", self.argument())
        else:
            node = self.atom()
        self.depth -= 1
        return node

    def atom(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError(f"nested deeper than {MAX_DEPTH} levels")
        node = self.bare_atom()
        self.depth -= 1
        return node

    def bare_atom(self) -> Node:
        token = self.next()
        if token.kind == "num":
            return _number(token.text)
        if token.kind == "word":
            return self.word(token)
        if token.kind == "text":
            return self.quoted(token)
        if token.kind == "begin":
            return self.matrix(token.text)
        if token.kind == "cmd":
            return self.command(token.text)
        if token.kind == "op":
            if token.text == "{":
                node = self.items()
                self.expect("}")
                return node
            if token.text in {"(", "["}:
                return self.bracketed(token.text)
            if token.text == "\\{":
                return self.braced_set()
            if token.text == "|":
                return self.absolute()
            if token.text == "$":
                return ("currency", self.power())
        raise ParseError(f"unexpected {token.text or 'end'!r}")

    def word(self, token: Token) -> Node:
        text = token.text
        if text.lower() in _CONNECTIVES:
            raise ParseError(f"unexpected {text!r}")
        if text in FUNCTIONS or text in {"log", "sqrt"}:
            return self.command(text)
        if text.lower() in {"infinity", "inf", "oo"}:
            return ("v", "inf")
        if text == "pi":
            return ("v", "pi")
        if len(text) >= 4:
            return ("text", text)
        if len(text) > 1:
            self.tokens[self.at - 1] = token._replace(text=text[0])
            self.tokens.insert(self.at, token._replace(text=text[1:], spaced=False))
        return self.variable(text[0])

    def quoted(self, token: Token) -> Node:
        text = token.text.strip()
        letter = text.strip("().:*")
        if len(letter) == 1 and letter.isalpha() and (self.at == 1 or len(text) == 1):
            return self.variable(letter)
        if text in FUNCTIONS:
            return self.command(text)
        words = [text]
        while self.peek().kind in {"text", "word"} and len(words) < 40:
            words.append(self.next().text.strip())
        return ("text", " ".join(word for word in words if word))

    def variable(self, name: str) -> Node:
        if self.is_op("_"):
            self.at += 1
            name += "_" + _spell(self.subscript())
        following = self.peek()
        if (
            name[0].isalpha() and name not in {"e", "i", "pi", "x", "y", "z", "n", "k", "a", "b", "c", "m", "r", "t"}
            and following.kind == "op" and following.text == "(" and not following.spaced
        ):  # fmt: skip
            self.at += 1
            inner = self.bracketed("(")
            return ("f", name, (inner,))
        return ("v", name)

    def subscript(self) -> list[Token]:
        if not self.take("{"):
            token = self.peek()
            if token.kind in {"num", "word"} and len(token.text) > 1:
                self.tokens[self.at] = token._replace(text=token.text[1:], spaced=False)
                return [token._replace(text=token.text[0])]
            return [self.next()]
        taken, level = [], 1
        while level:
            token = self.next()
            if token.kind == "end":
                raise ParseError("a subscript is not closed")
            level += (token.text == "{") - (token.text == "}")
            if level:
                taken.append(token)
        return taken

    def bracketed(self, opener: str) -> Node:
        if self.is_op(")", "]"):
            raise ParseError("empty brackets")
        bars, self.bars = self.bars, 0
        inner = self.items()
        self.bars = bars
        token = self.next()
        if token.kind != "op" or token.text not in {")", "]"}:
            raise ParseError(f"{opener!r} is not closed")
        parts = inner[1:] if inner[0] == "list" else (inner,)
        if opener == "(" and token.text == ")":
            return inner if len(parts) == 1 else ("paren", *parts)
        if len(parts) == 2:
            return ("span", opener, parts[0], parts[1], token.text)
        if opener == "[" and token.text == "]":
            return inner if len(parts) == 1 else ("paren", *parts)
        raise ParseError("an interval needs two ends")

    def braced_set(self) -> Node:
        if self.take("\\}"):
            return ("set",)
        inner = self.items()
        if self.is_op("|", ":"):
            raise ParseError("a set by its property")
        self.expect("\\}")
        return ("set", *(inner[1:] if inner[0] == "list" else (inner,)))

    def absolute(self) -> Node:
        self.bars += 1
        if self.bars > 4:
            raise ParseError("too many bars")
        inner = self.sum()
        self.expect("|")
        self.bars -= 1
        return ("abs", inner)

    def matrix(self, kind: str) -> Node:
        if kind == "array":
            if self.is_op("{"):
                self.subscript_group()
        elif kind == "cases" or not kind.endswith("matrix"):
            raise ParseError(f"the environment {kind}")
        rows: list[list[Node]] = [[]]
        while True:
            if self.peek().kind == "end" and self.peek().text == kind:
                self.at += 1
                break
            rows[-1].append(self.items())
            token = self.next()
            if token.text == "\\":
                rows.append([])
            elif token.kind == "end" and token.text == kind:
                break
            elif token.text != "&":
                raise ParseError("a matrix that is not closed")
        kept = tuple(tuple(row) for row in rows if row)
        if not kept or len({len(row) for row in kept}) != 1:
            raise ParseError("a matrix with ragged rows")
        determinant = kind in {"vmatrix", "Vmatrix"}
        return ("f", "det", (("matrix", *(("row", *row) for row in kept)),)) if determinant else (
            "matrix", *(("row", *row) for row in kept)
        )  # fmt: skip

    def subscript_group(self) -> None:
        while self.next().text not in {"}", ""}:
            pass

    def command(self, name: str) -> Node:
        if name == "frac":
            return ("/", self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name == "binom":
            return ("binom", self.argument(), self.argument())
        if name in {"pi", "infty"}:
            return ("v", {"pi": "pi", "infty": "inf"}[name])
        if name == "emptyset":
            return ("set",)
        if name in _GREEK:
            return self.variable(name)
        if name in _ACCENTS:
            return ("v", f"{name} " + _spell(self.subscript_like()))
        if name in {"log", "lg"}:
            base = number(10) if name == "lg" else None
            if self.take("_"):
                base = self.argument()
            return ("log", base, self.operand())
        if name in {"lfloor", "lceil"}:
            inner = self.items()
            closing = self.next()
            if closing.text != "r" + name[1:]:
                raise ParseError(f"\\{name} is not closed")
            return ("f", {"lfloor": "floor", "lceil": "ceil"}[name], (inner,))
        if name == "langle":
            inner = self.items()
            if self.next().text != "rangle":
                raise ParseError("\\langle is not closed")
            return ("paren", *(inner[1:] if inner[0] == "list" else (inner,)))
        if name in {"euro", "pounds", "yen"}:
            return ("currency", self.power(), name)
        if name in {"angle", "triangle"}:
            return ("v", f"{name} " + _spell(self.subscript_like()))
        if name in FUNCTIONS:
            power = None
            if self.take("^"):
                power = self.argument()
            args = self.operand()
            call: Node = ("f", name, args[1:] if args[0] == "paren" else (args,))
            return call if power is None else ("^", call, power)
        raise ParseError(f"\\{name} in an answer")

    def subscript_like(self) -> list[Token]:
        return self.subscript() if self.is_op("{") else [self.next()]

    def root(self) -> Node:
        degree = number(2)
        if self.take("["):
            degree = self.items()
            self.expect("]")
        if self.is_op("("):
            self.at += 1
            return ("root", self.bracketed("("), degree)
        return ("root", self.argument(), degree)

    def operand(self) -> Node:
        """What a function applies to: brackets, or the product that follows without them."""
        if self.is_op("("):
            self.at += 1
            return self.bracketed("(")
        if self.is_op("{"):
            return self.argument()
        if self.take("-"):
            return ("-", self.operand())
        factors = [self.power()]
        while True:
            token = self.peek()
            if token.kind in {"num", "word"} or (token.kind == "cmd" and token.text in {"pi", "frac", "sqrt"} | _GREEK):
                if token.kind == "word" and (token.text in FUNCTIONS or _is_unit_word(token) or len(token.text) > 3):
                    break
                factors.append(self.power())
            else:
                break
        return factors[0] if len(factors) == 1 else ("*", *factors)


_ATOM_COMMANDS = (
    FUNCTIONS | _GREEK | _ACCENTS
    | {"frac", "sqrt", "binom", "pi", "infty", "log", "lfloor", "lceil", "langle", "angle", "triangle", "emptyset"}
)  # fmt: skip
_UNITS = frozenset(
    "cm mm km kg mg ml cc ft sq lb lbs oz hr hrs min sec mph kmh kph rpm deg degree degrees unit units dollar dollars "
    "cent cents inch inches foot feet yard yards mile miles meter meters metre metres liter liters litre litres gram "
    "grams hour hours minute minutes second seconds day days week weeks month months year years percent usd eur".split()
)


def _is_unit_word(token: Token) -> bool:
    """Whether a bare word after a value is a unit: a known one, or too long for a product of variables."""
    text = token.text
    if text in FUNCTIONS or text.lower() in {"and", "or", "inf", "infinity", "percent", "pct", "percentage"}:
        return False
    return text.lower() in _UNITS or (len(text) >= 4 and text not in {"sqrt"})


def _no_words(node: Node) -> Node:
    if node[0] == "text":
        raise ParseError("words among mathematics")
    return node


def _spell(tokens: list[Token]) -> str:
    return "".join(token.text for token in tokens)


def _number(text: str) -> Node:
    whole, point, decimals = text.partition(".")
    if len(text) > MAX_DIGITS:
        if point:
            raise ParseError(f"a decimal of more than {MAX_DIGITS} digits")
        return ("big", whole.lstrip("0") or "0")
    if point and decimals:
        return ("n", Fraction(int(whole or "0") * 10 ** len(decimals) + int(decimals), 10 ** len(decimals)), len(decimals))
    return ("n", Fraction(int(whole)), None)


def _is_mixed(whole: Node, fraction: Node, tokens: list[Token], end: int) -> bool:
    """Whether two neighbours are a mixed number: an integer and a proper fraction of integers."""
    if whole[0] != "n" or whole[2] is not None or fraction[0] != "/":
        return False
    top, bottom = fraction[1], fraction[2]
    following = tokens[end] if end < len(tokens) else _END
    if following.kind == "op" and following.text == "^":
        return False
    return all(part[0] == "n" and part[2] is None for part in (top, bottom)) and 0 < top[1] < bottom[1]
