"""The smallest parts of an answer: numbers, names, brackets, commands with their arguments."""

from fractions import Fraction

from grpo_verifiers.math.grammar.brackets import Brackets, spell, subscript_name
from grpo_verifiers.math.grammar.numbers import plain_number
from grpo_verifiers.math.grammar.tokens import ParseError, Token
from grpo_verifiers.math.tree import Node, number
from grpo_verifiers.math.words.vocabulary import (
    ACCENTS,
    CONNECTIVES,
    FUNCTIONS,
    GREEK,
    INVERSES,
    SIGNED,
    SPELLINGS,
    is_unit_word,
    is_word,
)

# Letters before a bracket that multiply it; any other calls a function.
_FACTORS = frozenset({"e", "i", "pi", "x", "y", "z", "n", "k", "a", "b", "c", "m", "r", "t"})


class Atoms(Brackets):
    """Everything that an operator may stand between; what is inside brackets comes from the subclass."""

    def power(self) -> Node:
        """An atom with what is attached to it."""
        raise NotImplementedError

    def argument(self) -> Node:
        """What a command or ``^`` applies to: a group, one digit, one letter or one command."""
        self.deeper()
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
        """A number, a name, something in brackets, or a command."""
        self.deeper()
        node = self.bare_atom()
        self.depth -= 1
        return node

    def bare_atom(self) -> Node:
        """The atom that the next token begins."""
        token = self.next()
        if token.kind == "num":
            return self.repeating(token.text) or plain_number(token.text)
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
                return self.system() if self.peek().kind == "begin" else self.braced_set()
            if token.text == "|":
                return self.absolute()
            if token.text == "$":
                return ("currency", self.power())
        raise ParseError(f"unexpected {token.text or 'end'!r}")

    def repeating(self, text: str) -> Node | None:
        """A decimal whose last digits stand under a bar, as a fraction; None for other numbers."""
        bar, digits = self.peek(), self.peek(2)
        if (
            "." not in text or bar.kind != "cmd" or bar.text not in {"overline", "bar"} or self.peek(1).text != "{"
            or not digits.text.isdigit() or self.peek(3).text != "}" or len(text) + len(digits.text) > 60
        ):  # fmt: skip
            return None
        self.at += 4
        places = len(text.partition(".")[2])
        period = Fraction(int(digits.text), 10**places * (10 ** len(digits.text) - 1))
        value = Fraction(text if text[-1] != "." else text + "0") + period
        if value.denominator == 1:
            return number(value)
        return ("/", number(value.numerator), number(value.denominator))

    def word(self, token: Token) -> Node:
        """Bare letters: a function, a word, or variables side by side."""
        text = token.text
        if text.lower() in CONNECTIVES:
            raise ParseError(f"unexpected {text!r}")
        if text in FUNCTIONS or text in {"log", "sqrt"}:
            return self.command(text)
        if text.lower() in {"infinity", "inf", "oo"}:
            return ("v", "inf")
        if text == "pi":
            return ("v", "pi")
        if len(text) >= 4 or (len(self.tokens) == 1 and is_word(text)):
            return ("text", text)
        if len(text) > 1 and self.is_prose():
            raise ParseError("words among mathematics")
        if len(text) > 1:
            self.tokens[self.at - 1] = token._replace(text=text[0])
            self.tokens.insert(self.at, token._replace(text=text[1:], spaced=False))
        return self.variable(text[0])

    def is_prose(self) -> bool:
        """Whether another short word follows: "it is" is no product of variables."""
        following = self.peek()
        return (
            following.kind == "word" and following.spaced and len(following.text) > 1
            and following.text not in FUNCTIONS | {"log", "sqrt"} and following.text.lower() not in CONNECTIVES
            and not is_unit_word(following.text)
        )  # fmt: skip

    def quoted(self, token: Token) -> Node:
        """The content of a text command: a letter, a function, or words."""
        text = token.text.strip()
        letter = text.strip("().:*")
        if len(letter) == 1 and letter.isalpha() and (self.at == 1 or len(text) == 1):
            return self.variable(letter)
        if text in FUNCTIONS:
            return self.command(text)
        if text.lower() == "infinity":
            return ("v", "inf")
        words = [text]
        while self.peek().kind in {"text", "word"} and len(words) < 40:
            words.append(self.next().text.strip())
        return ("text", " ".join(word for word in words if word))

    def variable(self, name: str) -> Node:
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
        self.at += 1
        return ("f", name, (self.condition() or self.bracketed("("),))

    def signed_part(self) -> str:
        r"""What ``\mathbb{R}`` says of signs: ``^+``, ``_{>0}``; empty where a power or nothing follows."""
        start = self.at
        if self.is_op("^", "_"):
            found = self.next().text + spell(self.subscript())
            if found in SIGNED:
                return found
        self.at = start
        return ""

    def spells(self, *texts: str) -> bool:
        """Whether the next tokens say this."""
        return all(self.peek(ahead).text == text for ahead, text in enumerate(texts))

    def primes(self) -> int:
        r"""Take the primes of a derivative: ``'``, ``^\prime``, ``^{\prime\prime}``; how many there were."""
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

    def condition(self) -> Node | None:
        """What stands in the brackets of ``P(A|B)``, as a name; None where there is no bar."""
        level, end = 1, self.at
        while level and end < len(self.tokens):
            level += (self.tokens[end].text == "(") - (self.tokens[end].text == ")")
            end += 1
        inside = self.tokens[self.at : end - 1]
        if level or sum(token.text == "|" for token in inside) != 1:
            return None
        self.at = end
        return ("v", spell(inside))

    def command(self, name: str) -> Node:
        """A command with its arguments."""
        if name == "frac":
            return ("/", self.argument(), self.argument())
        if name == "sqrt":
            return self.root()
        if name == "underline":
            return self.argument()
        if name == "binom":
            return ("binom", self.argument(), self.argument())
        if name in {"pi", "infty"}:
            return ("v", {"pi": "pi", "infty": "inf"}[name])
        if name == "emptyset":
            return ("set",)
        if name in GREEK:
            return self.variable(name)
        if name == "Pr":
            return self.variable("P")
        if name in ACCENTS:
            below = spell(self.subscript_like())
            return ("v", f"{SPELLINGS.get(name, name)} {below}" + (self.signed_part() if name == "mathbb" else ""))
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
            return ("v", f"{name} " + spell(self.subscript_like()))
        if name in FUNCTIONS:
            name, power = SPELLINGS.get(name, name), None
            if self.take("^"):
                power = self.argument()
            if power == ("-", number(1)):
                if name not in INVERSES:
                    raise ParseError(f"\\{name}^{{-1}}, which may be an inverse or a reciprocal")
                name, power = INVERSES[name], None
            args = self.operand()
            call: Node = ("f", name, args[1:] if args[0] == "paren" else (args,))
            return call if power is None else ("^", call, power)
        raise ParseError(f"\\{name} in an answer")

    def root(self) -> Node:
        """A root; round brackets are taken for braces."""
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
            if token.kind in {"num", "word"} or (token.kind == "cmd" and token.text in {"pi", "frac", "sqrt"} | GREEK):
                if token.kind == "word" and (
                    token.text in FUNCTIONS or is_unit_word(token.text) or len(token.text) > 3
                ):
                    break
                factors.append(self.power())
            else:
                break
        return factors[0] if len(factors) == 1 else ("*", *factors)
