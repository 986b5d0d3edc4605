r"""An answer without its remarks: ``x = 3 \text{ only}``, ``The point (3, -4)``.

Closed lists: a remark that is not on them stays and makes the answer a different one. The rest of the answer has to be
right. An answer that denies or corrects itself is not changed.

An answer in two forms is read as a chain with every link checked: ``\frac34 \text{ or } 0.75``, ``2/3 (about 0.667)``.
"""

import re

from grpo_verifiers.math.grammar.read import strip_delimiters, without_text_commands
from grpo_verifiers.math.tree import STRUCTURES, Node
from grpo_verifiers.math.values.work import is_final
from grpo_verifiers.math.words.nouns import QUANTITY, is_label
from grpo_verifiers.math.words.numerals import is_numeral

MAX_REMARKED = 200
_SPACES = re.compile(r"(?:\s|~|\\[ ,;:!]|\\q?quad(?![a-zA-Z]))+")
_DENIED = re.compile(r"\b(?:not|no|never|but|except|wait)\b|n't\b", re.IGNORECASE)
_ONLY = r"(?:only|unique|sole|(?:double|repeated)(?: root)?|only (?:real )?(?:solution|answer|root|value))"
_REMARK = re.compile(
    rf"(?:only |(?:is )?the (?:point|vector|ordered pair|pair) |point (?=\())"
    rf"|(?<=\S)\s*(?:\((?:the )?{_ONLY}\)|,? only|is the (?:only|unique) (?:real )?(?:solution|answer|root|value)"
    r"|\(since [^()]{1,60}\)|\\(?:blacksquare|square|checkmark|qed)|✓|■)\.?\Z",
    re.IGNORECASE,
)
_NUMBER = r"(?:(?:\\?\$)?\s*-?[\d.,]*\d(?:/\d+)?|\\[dt]?frac\s*\{?\d+\}?\s*\{?\d+\}?)"
_PART = r"(?:\d+/\d+|\\[dt]?frac\s*\{?\d+\}?\s*\{?\d+\}?)"
_BEING = r"(?:There|He|She|It|They|We|You|The (?P<whose>[a-z]{3,15})) (?:are|is|were|was)"
_ACTING = (
    r"(?:He|She|It|They|We|I|You|(?P<who>[A-Z][a-z]{1,15})|The (?P<whom>[a-z]{3,15})) (?:(?:will|can|should|must) )?"
    r"(?:has|have|had|makes?|made|earns?|earned|needs?|needed|gets?|got|pays?|paid|spends?|spent|saves?|saved|buys?"
    r"|bought|sells?|sold|eats?|ate|uses?|used|costs?|weighs?|takes?|drinks?|drank|reads?|runs?|ran)"
)
_VALUES = [
    re.compile(
        r"\\?(?:Var|Cov|Corr|SD|max|min|sup|inf|gcd|lcm|hcf|rank|rk|tr|trace|nullity|ord|perimeter|area|volume)"
        r"(?:_\{?[^{}=]{1,12}\}?)?\s*(?:[a-zA-Z]?\([A-Za-z][A-Za-z,_0-9 ]{0,8}\)|[A-Za-z])?\s*=\s*(?P<value>[^=<>,;]+)"
    ),
    re.compile(rf"(?P<value>{_NUMBER}) (?:profit|o['’]clock|[smgLNJWV]|\\Omega)\.?"),
    re.compile(rf"(?P<value>{_PART}) of (?:the|a) (?!answer|result|number|value|total|other)[a-z]{{3,20}}\.?"),
    re.compile(
        rf"(?:{_BEING}|{_ACTING}) (?P<value>\\?\$?\s*\d[\d,]*(?:\.\d+)?)(?: (?P<counted>[a-z][a-z -]{{1,60}}?))??"
        r"(?: (?:left|remaining|altogether|in total|in all|(?:every|each) (?:day|week|month|year)"
        r"|(?:in|on|at) the [a-z]{3,20}))?\.?"
    ),
]
_PRONOUNS = frozenset({"nobody", "nothing", "everyone", "everybody", "everything", "anyone", "anybody", "anything"})
_OPERATOR = re.compile(r"\\operatorname\*?\s*\{([^{}]*)\}")
_EVERYWHERE = re.compile(
    r",? (?:for (?:all|every|any)|\\forall) (?:(?:integers? )?[kmn](?: ?\\in ?\\mathbb ?\{[ZN]\})?"
    r"|(?:real )?[a-z](?: ?\\in ?\\mathbb ?\{R\})?)\.?\Z"
)
_SPELLINGS = [
    (re.compile(r"(?<=[\w)}])\s*\\q?quad\s*(?=[a-zA-Z]\s*=)"), ", "),
    (re.compile(r"(?<=[+-])\s*i\s*(\d+)\Z"), r"\1i"),
    (re.compile(r"\A\\math(?:bf|rm)\s*\{([RZQN])\}\Z"), r"\\mathbb{\1}"),
]


def without_remarks(text: str, gold: Node) -> str | None:
    """The answer without its remarks; None if it has no remark of the lists."""
    if len(text) > MAX_REMARKED:
        return None
    stated = strip_delimiters(text)
    if gold[0] == "rel" and gold[1][0][0] == "v":
        stated = re.sub(rf"\A\s*{re.escape(gold[1][0][1])}\s*\(\s*[xt]\s*\)\s*=", f"{gold[1][0][1]} =", stated)
    for pattern, spelling in _SPELLINGS:
        stated = pattern.sub(spelling, stated)
    base, rest = (_SPACES.sub(" ", without_text_commands(one)).strip(" `") for one in (strip_delimiters(text), stated))
    if _DENIED.search(rest):
        return None
    items = gold[1:] if gold[0] == "list" else (gold,)
    if all(item[0] == "rel" and item[2] == "=" and item[1][0][0] == "f" for item in items):  # for all numbers
        rest = _EVERYWHERE.sub("", rest.replace("\\equiv", "="))
    rest = _REMARK.sub("", rest, count=1)
    if is_final(gold):
        rest = _value_in(rest)
    return rest if rest and rest != base else None


def _value_in(text: str) -> str:
    """A number without the words that only describe it."""
    sentence = _OPERATOR.sub(r"\1", text)
    match = next(filter(None, (pattern.fullmatch(sentence) for pattern in _VALUES)), None)
    if match is None:
        return text
    parts = match.groupdict(default="")
    subject = (parts.get("who") or parts.get("whom") or parts.get("whose") or "").lower()
    counted = parts.get("counted", "")
    words = set(counted.split())
    if subject in _PRONOUNS or not is_label(subject) or words & QUANTITY or any(map(is_numeral, words)):
        return text
    return f"{match['value']} {counted}".strip()


MAX_RESTATED = 300
_JOIN = r"(?:or|or equivalently|equivalently|i\.e\.,?|that is,?|which is|which equals)"
_ABOUT = r"(?P<about>approximately|approx\.?|about|roughly|nearly|\\approx|≈)"
_BRACKETED = re.compile(rf"(?P<first>[^<>,;]*[^<>,;\s])\s*\((?:{_JOIN} )?\s*(?:{_ABOUT}\s*)?(?P<second>[^()=<>,;]+)\)")
_JOINED = re.compile(rf"(?P<first>[^<>,;]*[^<>,;\s]),? {_JOIN} (?:{_ABOUT}\s*)?(?P<second>[^=<>,;]+)")
_DOTTED = re.compile(r"(?P<first>[^<>,;]+?)\s*(?:=|\\approx|≈)\s*(?P<second>-?\d*\.\d+)\s*(?:\.{3,}|…|\\[lc]?dots)")
_SIDE = re.compile(r"\\(?:lim|i{1,3}nt|oint|sum|prod)(?![a-zA-Z])")
_MAY_BE = re.compile(r"\(|or[ }]|\bi\.e|that is|which|\.{3}|…|dots|^\s*\\[dlimtosupr]")


def as_chain(text: str, gold: Node) -> str | None:
    """An answer in two forms as a chain, or its value alone; None for any other text or a gold of several values."""
    if len(text) > MAX_RESTATED or _MAY_BE.search(text) is None or gold[0] in STRUCTURES | {"pm"}:
        return None
    text = _SPACES.sub(" ", without_text_commands(text)).strip()
    if _SIDE.match(text) and gold[0] != "rel":
        left, value = _sides(text)
        return value if left and value else None
    if (match := _DOTTED.fullmatch(text)) is not None:
        return f"{match['first']} \\approx {match['second']}"
    match = _BRACKETED.fullmatch(text) or _JOINED.fullmatch(text)
    if match is None:
        return None
    sign = "\\approx" if match["about"] else "="
    return f"{match['first']} {sign} {match['second']}"


def _sides(text: str) -> tuple[str, str]:
    """The two sides of the only equals sign outside of brackets; empty if there is not exactly one."""
    level, places = 0, []
    for index, char in enumerate(text):
        level += (char in "{([") - (char in "})]")
        if char == "=" and not level:
            places.append(index)
    return (text[: places[0]].strip(), text[places[0] + 1 :].strip()) if len(places) == 1 else ("", "")
