"""Counted things: which words after a number name what is counted and leave the number as it is.

A phrase of at most four words: adjectives and nouns of closed lists, or words of the gold, and a last word that is one
of the nouns or a plural in -s. No word of ``QUANTITY`` is taken anywhere: it would change the number before it.
"""

import re

from grpo_verifiers.math.words.numerals import is_numeral

MAX_PHRASE = 4
_QUANTITY_LIST = """
mil mils mill mills bil
times plus minus less greater modulus modulo mod dozen dozens half halves thirds quarter quarters tens ones percent
percents percentage percentages percentile percentiles permille basis lakh lakhs lac lacs crore crores gross grosses
score grand grands k hundreds thousands millions billions trillions negative negatives opposite opposites inverse
inverses reciprocal reciprocals double doubles twice thrice squared cubed factorial factorials log logs ln exponent
exponents power powers magnitude magnitudes not no non none neither except unless besides excluding without is was has
does always perhaps versus this thus yes plusses pluses minuses various several repeating recurring mantissa conjugate
conjugates complement complements derivative derivatives integral integrals sines cosines tangents sine cosine tangent
absolute thereof nines twos threes fours fives sixes sevens eights across wrongs guess guesses hence as its his hers
ours theirs yours ups downs approximates estimates bases base pi ages exponentials choose chooses dividedness
dividends quotients over under below above beyond at least most exactly nearly almost about around approximately
roughly circa maybe possibly wait but or and nor scores myriads modulos permils megas gigas kilo mega giga tera milli
micro nano centi deci ppm bps wrong incorrect false loss deficit debt ago each googols trebles
reams
"""
QUANTITY = frozenset(_QUANTITY_LIST.split())
_NOUNS_LIST = """
way person people child children man men woman women mouse mice sheep fish deer foot teeth tooth goose geese die dice
vertex vertices axis axes index indices matrix matrices datum data point points student students boy girl adult kid
player team teacher worker employee customer passenger guest friend member voter runner soldier farmer owner family
families group class classes box boxes bag basket bottle can jar cup bowl plate book page chapter word letter digit
card ticket coin stamp note bill marble ball balloon bead block brick tile stick rod rope wire ribbon toy doll car
truck bus buses train boat bike bicycle wheel chair table desk bench seat row column room house floor step stair shelf
shelves apple orange banana pear peach plum grape lemon lime melon cherry cherries berry berries strawberry
strawberries mango egg cookie cake pie pizza slice piece candy candies chocolate donut muffin sandwich burger bread
loaf loaves bun potato potatoes tomato tomatoes carrot onion vegetable fruit nut seed flower rose tulip tree plant
leaf leaves bush dog cat cow horse pig chicken duck bird rabbit fox wolf wolves lion tiger bear monkey elephant ant
bee spider insect animal pet puppy puppies kitten shirt sock shoe hat dress pant trousers glove coat tie pencil pen
crayon marker eraser notebook folder sheet paper poster picture photo painting song video game movie film show race
match round lap trip visit flight task job shift question problem test exam quiz quizzes answer solution root zero
factor divisor multiple prime square cube triangle rectangle circle polygon pentagon hexagon octagon quadrilateral
parallelogram side edge face diagonal angle line segment ray plane curve arc chord region area intersection term
element subset set function polynomial equation pair triple triplet tuple quadruple combination permutation
arrangement sequence subsequence string integer number fraction value outcome case possibility possibilities choice
option path route walk move turn handshake committee partition coloring colouring tiling pattern code password anagram
graph cycle node arrow cell lattice grid symmetry symmetries rotation reflection vote ballot mark grade goal run win
loss losses hit shot pass passes stop bacterium bacteria molecule atom electron proton ion photon particle bulb lamp
battery batteries computer phone tablet screen camera machine tool nail screw bolt bar gold silver rock stone pebble
shell pearl diamond gem ring necklace bracelet candle bucket barrel crate carton container tank pot pan pool pond lake
river island city cities town village country countries state street road lane bridge tower building store shop school
library libraries office bank hotel church farm field garden park zoo beach mountain hill star planet moon space item
object thing unit copy copies kind type sort color colour flavor flavour size shape event meeting lesson session
course night weekend morning evening afternoon semester season lifetime generation revolution beat breath nickel dime
trial toss flip roll draw throw attempt try tries error mistake rule cupcake brownie pancake waffle milkshake juice
water milk coffee tea soda wine beer flour sugar salt butter rice pasta cheese meat beef honey syrup oil gas gasoline
petrol fuel paint ink glue sand soil mulch gravel concrete cement wood lumber fabric cloth yarn land grass hay corn
wheat grain feed food ice snow rain air steam cereal soup salad sauce dough cream lemonade popcorn money cash change
homework work sleep exercise practice tv television music footage storage memory weight mass length width height depth
distance
"""
_ADJECTIVES_LIST = """
red orange yellow green blue purple violet pink brown black white gray grey gold silver colored coloured big small
large tiny little huge tall short long wide old new young distinct different unique separate possible valid ordered
unordered total real imaginary complex rational irrational positive whole natural consecutive odd even prime composite
perfect square cubic round rectangular triangular right acute obtuse equal identical similar congruent common
additional extra favorable favourable good bad correct ripe rotten fresh broken full empty free daily weekly monthly
yearly first-year male female high-school middle-school two-digit three-digit four-digit five-digit six-digit digit
math english science such nonempty non-empty proper simple single regular special plain striped wooden plastic metal
glass paper small-sized unit human wild domestic hot cold sweet sour heavy light dark bright clean dirty happy sad
main major minor local public private interior exterior internal external vertical horizontal parallel perpendicular
critical stationary inflection nonnegative nontrivial trivial lattice seating standing available remaining missing
required needed chocolate vanilla more fewer
"""
_OPERATIONS = frozenset({"square", "cube", "root", "more", "fewer"})
_WORD = re.compile(r"[^\W\d_]+")
_HEADS = frozenset(_NOUNS_LIST.split())
_ADJECTIVES = frozenset(_ADJECTIVES_LIST.split())
_IRREGULAR = {
    "people": "person", "children": "child", "men": "man", "women": "woman", "mice": "mouse", "teeth": "tooth",
    "geese": "goose", "dice": "die", "vertices": "vertex", "indices": "index", "matrices": "matrix", "axes": "axis",
    "leaves": "leaf", "loaves": "loaf", "wolves": "wolf", "shelves": "shelf", "bacteria": "bacterium",
}  # fmt: skip


def singular(word: str) -> str:
    """One spelling for the one and the many of a noun."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches", "shes", "zzes", "oes", "uses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 3 else word


def is_counted(word: str, known: frozenset[str] = frozenset()) -> bool:
    """Whether a word is a noun for what a number counts."""
    if word in known:
        return True
    if word in {"zeros", "zeroes"}:
        return True
    if word in QUANTITY or is_numeral(word) or "illion" in word or word.endswith(("wards", "wise")):
        return False
    if word in _HEADS or singular(word) in _HEADS:
        return True
    return len(word) >= 4 and word.endswith("s") and not word.endswith(("ss", "'s", "us", "is"))


def noun_phrase(
    words: list[str], known: frozenset[str] = frozenset(), *, mass: bool = False
) -> tuple[str, frozenset[str]] | None:
    """Noun and adjectives of a phrase for counted things; None where it may be something else.

    Args:
        words: in lower case.
        known: words of the gold, which are taken as they stand.
        mass: the phrase follows "of": a determiner may come first.
    """
    if words == ["times"]:
        return "time", frozenset()
    if mass and words[:1] in (["the"], ["a"], ["an"]):
        words = words[1:]
    if "of" in words[1:]:  # slices of pizza, values of n
        cut = words.index("of")
        if len(words) == cut + 2 and len(words[-1]) == 1:
            return noun_phrase(words[:cut], known)
        before, after = noun_phrase(words[:cut], known), noun_phrase(words[cut + 1 :], known, mass=True)
        return None if before is None or after is None else before
    if not words or len(words) > MAX_PHRASE or not is_counted(words[-1], known):
        return None
    first = words[:-1]
    if singular(words[-1]) == "root" and {"square", "cube"} & set(first):
        return None
    if any(
        word not in known and (word in QUANTITY or is_numeral(word) or not (word in _ADJECTIVES or is_counted(word)))
        for word in first
    ):
        return None
    return singular(words[-1]), frozenset(singular(word) for word in first)


def is_label(text: str) -> bool:
    """Whether words left of an equals sign name a value, and do not say what is done to it: ``half of x``."""
    words = _WORD.findall(text.casefold())
    return not any(word in QUANTITY or word in _OPERATIONS or is_numeral(word) for word in words)


def is_adjective(word: str) -> bool:
    """Whether a word of the closed list may stand between a number and its noun."""
    return word in _ADJECTIVES
