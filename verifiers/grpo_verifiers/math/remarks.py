r"""An answer without the remarks beside it: ``x = 3 \text{ only}``, ``The point (3, -4)``.

Closed lists: a remark that is not on them stays, and makes the answer another one. What is left has to be right as a
whole, and no remark is taken off an answer that denies or corrects itself.

An answer in two forms is read as a chain with every link checked: ``\frac34 \text{ or } 0.75``, ``2/3 (about 0.667)``.
"""

import re

from grpo_verifiers.math.grammar.read import undelimited, without_text_commands
from grpo_verifiers.math.tree import INFINITY, STRUCTURES, Node, names
from grpo_verifiers.math.values.work import is_final
from grpo_verifiers.math.words.nouns import QUANTITY, is_label
from grpo_verifiers.math.words.numerals import is_numeral

MAX_REMARKED = 200
_SPACES = re.compile(r"(?:\s|~|\\[ ,;:!]|\\q?quad(?![a-zA-Z]))+")
_DENIED = re.compile(r"\b(?:not|no|never|but|except|wait)\b|n't\b", re.IGNORECASE)
_ONLY = (
    r"(?:only|unique|sole|(?:double|repeated|triple)(?: root| solution)?|only (?:real )?(?:solution|answer|root|value))"
)
_TAIL = re.compile(
    rf"\s*(?:\((?:the )?{_ONLY}\)|,? only|is the (?:only|unique|sole) (?:real )?(?:solution|answer|root|value)"
    r"|\(since [^()]{1,60}\)|\\(?:blacksquare|square|checkmark|qed)|✓|■)\.?\Z"
)
_HEAD = re.compile(r"(?:only |(?:is )?the (?:point|vector|ordered pair|pair) |point (?=\())", re.IGNORECASE)
_NUMBER = r"(?:(?:\\?\$)?\s*-?[\d.,]*\d(?:/\d+)?|\\[dt]?frac\s*\{?\d+\}?\s*\{?\d+\}?)"
_BESIDE = re.compile(rf"(?P<value>{_NUMBER}(?: (?:dollars|cents|euros))?)(?: (?:in )?profit| o['’]clock)\.?")
_PART_OF = re.compile(rf"(?P<value>{_NUMBER}) of (?:the|a) (?!answer|result|number|value|total|other)[a-z]{{3,20}}\.?")
_UNIT = re.compile(rf"(?P<value>{_NUMBER}) (?:[smgLNJWV]|\\Omega)\.?")  # one letter, set apart from its number
_PART = re.compile(r"[^{}]*\d/\d|\\[dt]?frac")
_BEING = r"(?:There|He|She|It|They|We|You|The (?P<whose>[a-z]{3,15})) (?:are|is|were|was)"
_ACTING = r"(?:He|She|It|They|We|I|You|(?P<who>[A-Z][a-z]{1,15})|The (?P<what>[a-z]{3,15}))"
_VERBS = (
    r"(?:has|have|had|makes?|made|earns?|earned|needs?|needed|gets?|got|pays?|paid|spends?|spent"
    r"|saves?|saved|buys?|bought|sells?|sold|eats?|ate|uses?|used|costs?|weighs?|takes?|drinks?|drank|reads?|runs?|ran"
    r"|(?:will|can|should|must) (?:have|make|earn|need|get|pay|spend|save|buy|sell|eat|use|take))"
)
_SENTENCE = re.compile(
    rf"(?:{_BEING}|{_ACTING} {_VERBS}) (?P<value>\\?\$?\s*\d[\d,]*(?:\.\d+)?)(?: (?P<things>[a-z][a-z -]{{1,60}}?))??"
    r"(?: (?:left|remaining|altogether|in total|in all|every (?:day|week|month|year)"
    r"|each (?:day|week|month|year)|(?:in|on|at) the [a-z]{3,20}))?\.?"
)
_NOBODY = frozenset({"nobody", "nothing", "everyone", "everybody", "everything", "anyone", "anybody", "anything"})
_LABEL = re.compile(
    r"\\?(?:Var|Cov|Corr|SD|max|min|sup|inf|gcd|lcm|hcf|rank|rk|tr|trace|nullity|ord|perimeter|area|volume)"
    r"(?:_\{?[^{}=]{1,12}\}?)?\s*(?:[a-zA-Z]?\([A-Za-z][A-Za-z,_0-9 ]{0,8}\)|[A-Za-z])?\s*=\s*(?P<value>[^=<>,;]+)"
)
_OPERATOR = re.compile(r"\\operatorname\*?\s*\{([^{}]*)\}")
_EVERYWHERE = re.compile(
    r",? (?:for (?:all|every|any)|\\forall) (?:(?:integers? )?[kmn](?: ?\\in ?\\mathbb ?\{[ZN]\})?"
    r"|(?:real )?[a-z](?: ?\\in ?\\mathbb ?\{R\})?)\.?\Z"
)
_INTEGER = re.compile(
    r",? ?(?:for|where|with)(?: any| all| every| some| an)?"
    r" (?:integers? (?P<a>[a-z])|(?P<b>[a-z]) (?:is|being) (?:an|any) integer)\.?\Z"
    r"| ?\((?P<c>[a-z]) ?\\in ?\\mathbb ?\{Z\}\)\Z"
)
_SYSTEM = re.compile(r"(?<=[\w)}])\s*\\q?quad\s*(?=[a-zA-Z]\s*=)")
_Y_OF = re.compile(r"\A\s*([yuvwz])\s*\(\s*([xt])\s*\)\s*=(?=[^=]*\Z)")
_FOR_ALL = re.compile(r"\A(?:for )?all (?:(?:positive |natural )?(?:integers|numbers) )?(?=[kmn] ?(?:[<>]|\\[lg]e))")
_EXPLAINED = re.compile(r"(?P<word>yes|no|true|false)[,.;:] (?P<why>[A-Za-z][A-Za-z ,'’-]{2,100})\.?", re.IGNORECASE)
_UNSURE = "but|except|wait|only|unless|if|when|provided|sometimes|maybe|perhaps|partly|mostly|probably|until"
_YES = re.compile(rf"\b(?:no|not|false|wrong|incorrect|never|{_UNSURE})\b|n['’]t\b", re.IGNORECASE)
_NO = re.compile(rf"\b(?:yes|true|right|correct|always|is it|{_UNSURE})\b", re.IGNORECASE)
_OTHER = {"yes": _YES, "true": _YES, "no": _NO, "false": _NO}
_BOLD_SET = re.compile(r"\\(?:mathbf|bm|boldsymbol|mathrm)\s*\{([RZQN])\}")
_CONSTANT = re.compile(r"\+ ?(?:constant|const\.?)\Z")
_TURNED_I = re.compile(r"(?<=[+-])\s*i\s*(\d+)\Z")


def without_remarks(text: str, gold: Node) -> str | None:
    """The answer without its remarks; None where there are none that may be taken off."""
    if len(text) > MAX_REMARKED:
        return None
    stated = undelimited(text)
    if gold[0] == "rel" and (match := _Y_OF.match(stated)) and (("v", match[1]) == gold[1][0]):
        return f"{match[1]} = {stated[match.end() :]}"
    if gold[0] == "text" and (match := _EXPLAINED.fullmatch(without_text_commands(stated))) is not None:
        return match["word"] if _OTHER[match["word"].lower()].search(match["why"]) is None else None
    if gold[0] in {"span", "cup", "minus"} or INFINITY in gold or (gold[0] == "v" and gold[1].startswith("mathbb")):
        bold, stated = stated, _BOLD_SET.sub(r"\\mathbb{\1}", stated)
        if stated != bold:
            return stated
    base = _SPACES.sub(" ", without_text_commands(stated)).strip()
    found = _TURNED_I.sub(r"\1i", _SYSTEM.sub(", ", stated))
    found = _CONSTANT.sub("+ C", _SPACES.sub(" ", without_text_commands(found)).strip(" `"))
    if _DENIED.search(found):
        return None
    if function := _is_function(gold):
        found = found.replace("\\equiv", "=")
    if (match := _INTEGER.search(found)) is not None:
        return f"{found[: match.start()]}, {match['a'] or match['b'] or match['c']} \\in \\mathbb{{Z}}"
    if function and (match := _EVERYWHERE.search(found)) is not None:
        return found[: match.start()]
    if gold[0] == "rel":
        found = _FOR_ALL.sub("", found)
    found = _HEAD.sub("", _TAIL.sub("", found), count=1)
    if not names(gold) and gold[0] not in STRUCTURES | {"rel", "text"}:
        found = _value_in(found, gold)
    return found if found and found != base else None


def _value_in(text: str, gold: Node) -> str:
    """A number without the words beside it that only say what it is."""
    if (match := _LABEL.fullmatch(_OPERATOR.sub(r"\1", text))) is not None:
        return match["value"]
    if (match := _BESIDE.fullmatch(text)) is not None:
        return match["value"]
    if (match := _PART_OF.fullmatch(text)) is not None and _PART.match(match["value"]):
        return match["value"]
    if (match := _UNIT.fullmatch(text)) is not None and is_final(gold):
        return match["value"]
    if (match := _SENTENCE.fullmatch(text)) is not None:
        subject = (match["who"] or match["what"] or match["whose"] or "").lower()
        things = set((match["things"] or "").split())
        if subject not in _NOBODY and is_label(subject) and not things & QUANTITY and not any(map(is_numeral, things)):
            return f"{match['value']} {match['things'] or ''}".strip()
    return text


def _is_function(gold: Node) -> bool:
    """True if a gold is a function, or several, so that its equation holds for all numbers without saying so."""
    items = gold[1:] if gold[0] == "list" else (gold,)
    return all(item[0] == "rel" and item[2] == "=" and item[1][0][0] == "f" for item in items)


MAX_RESTATED = 300
_JOIN = r"(?:or|or equivalently|equivalently|i\.e\.,?|that is,?|which is|which equals)"
_ABOUT = r"(?P<about>approximately|approx\.?|about|roughly|nearly|\\approx|≈)"
_BRACKETED = re.compile(rf"(?P<first>[^<>,;]*[^<>,;\s])\s*\((?:{_JOIN} )?\s*(?:{_ABOUT}\s*)?(?P<second>[^()=<>,;]+)\)")
_JOINED = re.compile(rf"(?P<first>[^<>,;]*[^<>,;\s]),? {_JOIN} (?:{_ABOUT}\s*)?(?P<second>[^=<>,;]+)")
_GOES_ON = re.compile(r"(?P<first>[^<>,;]+?)\s*(?:=|\\approx|≈)\s*(?P<second>-?\d*\.\d+)\s*(?:\.{3,}|…|\\[lc]?dots)")
_SIDE = re.compile(r"\\(?:lim|i{1,3}nt|oint|sum|prod)(?![a-zA-Z])")
_MAY_BE = re.compile(r"\(|or[ }]|\bi\.e|that is|which|\.{3}|…|dots|^\s*\\[dlimtosupr]")


def restated(text: str, gold: Node) -> str | None:
    """The text as a chain, or its value alone; None where it is no such answer, or the gold is no single value."""
    if len(text) > MAX_RESTATED or _MAY_BE.search(text) is None or gold[0] in STRUCTURES | {"pm"}:
        return None
    text = _SPACES.sub(" ", without_text_commands(text)).strip()
    if _SIDE.match(text) and gold[0] != "rel":
        left, value = _sides(text)
        return value if left and value else None
    if (match := _GOES_ON.fullmatch(text)) is not None:
        return f"{match['first']} \\approx {match['second']}"
    match = _BRACKETED.fullmatch(text) or _JOINED.fullmatch(text)
    if match is None:
        return None
    sign = "\\approx" if match["about"] else "="
    return f"{match['first']} {sign} {match['second']}"


def _sides(text: str) -> tuple[str, str]:
    """The two sides of the only equals sign outside of brackets; empty where there is not exactly one."""
    level, found = 0, []
    for index, char in enumerate(text):
        level += (char in "{([") - (char in "})]")
        if char == "=" and not level:
            found.append(index)
    return (text[: found[0]].strip(), text[found[0] + 1 :].strip()) if len(found) == 1 else ("", "")
