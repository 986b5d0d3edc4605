"""Round, square and curly brackets, bars, matrices, subscripts."""

from grpo_verifiers.math.grammar.cursor import Cursor
from grpo_verifiers.math.grammar.tokens import ParseError, Token
from grpo_verifiers.math.tree import OTHERWISE, Node
from grpo_verifiers.math.words.vocabulary import LEADS, OTHERS

_ALIGNED = frozenset({"aligned", "align", "gathered", "gather", "split"})


class Brackets(Cursor):
    """Whatever has an opening and a closing sign; what is inside comes from the subclass."""

    def items(self) -> Node:
        """Statements separated by commas."""
        raise NotImplementedError

    def sum(self) -> Node:
        """Products added up."""
        raise NotImplementedError

    def bracketed(self, opener: str) -> Node:
        """What follows an opening bracket: a group, a tuple or an interval."""
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
        """A set by its elements or by its property."""
        if self.take("\\}"):
            return ("set",)
        bars, self.bars = self.bars, 1
        inner = self.items()
        self.bars = bars
        if self.take("|") or self.take(":"):
            condition = self.items()
            self.expect("\\}")
            if condition[0] == "list":
                condition = ("and", *condition[1:])
            if any(
                part[0] not in {"rel", "and", "or"} for part in (condition, *condition[1:]) if condition[0] != "rel"
            ):
                raise ParseError("a set by a property that is no relation")
            if condition[0] not in {"rel", "and", "or"} or inner[0] in {"list", "text"}:
                raise ParseError("a set by a property that is no relation")
            return ("builder", inner, condition)
        self.expect("\\}")
        return ("set", *(inner[1:] if inner[0] == "list" else (inner,)))

    def system(self) -> Node:
        r"""Equations behind one brace: ``\left\{ \begin{array}{l} ... \end{array} \right.``."""
        node = self.matrix(self.next().text)
        self.take("\\}")
        return ("cases", *node[1:]) if node[0] == "matrix" else node

    def absolute(self) -> Node:
        """What follows an opening bar."""
        self.bars += 1
        if self.bars > 4:
            raise ParseError("too many bars")
        inner = self.sum()
        self.expect("|")
        self.bars -= 1
        return ("abs", inner)

    def matrix(self, kind: str) -> Node:
        """What follows the beginning of an environment."""
        if kind == "array":
            if self.is_op("{"):
                self.subscript_group()
        elif kind.rstrip("*") in _ALIGNED:
            end = next((at for at in range(self.at, len(self.tokens)) if self.tokens[at].kind == "end"), self.at)
            self.tokens[self.at : end] = [token for token in self.tokens[self.at : end] if token.text != "&"]
        elif kind != "cases" and not kind.endswith("matrix"):
            raise ParseError(f"the environment {kind}")
        rows: list[list[Node]] = [[]]
        while True:
            if self.peek().kind == "end" and self.peek().text == kind:
                self.at += 1
                break
            rows[-1].append(self.case() if kind == "cases" and rows[-1] else self.items())
            if self.is_op(",", ".", ";"):
                self.at += 1
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
        if kind == "cases" or kind.rstrip("*") in _ALIGNED:
            return ("cases", *(("row", *row) for row in kept))
        determinant = kind in {"vmatrix", "Vmatrix"}
        return ("f", "det", (("matrix", *(("row", *row) for row in kept)),)) if determinant else (
            "matrix", *(("row", *row) for row in kept)
        )  # fmt: skip

    def case(self) -> Node:
        """The condition of a case, its "if" left out."""
        while self.peek().kind in {"text", "word"}:
            word = self.peek().text.strip(" ,.").lower()
            if word in OTHERS:
                self.at += 1
                return OTHERWISE
            if word not in LEADS:
                break
            self.at += 1
        return self.items()

    def subscript_group(self) -> None:
        """Skip a group that says how columns are set."""
        while self.next().text not in {"}", ""}:
            pass

    def subscript(self) -> list[Token]:
        """The tokens of a subscript: one, or all between braces."""
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

    def subscript_like(self) -> list[Token]:
        """What an accent stands over."""
        return self.subscript() if self.is_op("{") else [self.next()]


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
