"""The words and commands of the grammar."""

MAX_DEPTH = 30
MAX_DIGITS = 300
LEADS = frozenset({"if", "when", "for", "where", "whenever", "provided", "as", "iff", "on", "for all"})
OTHERS = frozenset({"otherwise", "else", "elsewhere", "if otherwise", "in all other cases", "everywhere else"})
RELATIONS = frozenset({"=", "<", ">", "<=", ">=", "!=", "~="})
_FUNCTIONS_LIST = """
sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth arcsinh arccosh arctanh arsinh
arcosh artanh asin acos atan exp ln lg min max arg det gcd lcm Re Im deg dim floor ceil sgn
"""
FUNCTIONS = frozenset(_FUNCTIONS_LIST.split())
INVERSES = {name: f"arc{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")}
SPELLINGS = {"arsinh": "arcsinh", "arcosh": "arccosh", "artanh": "arctanh",
             "asin": "arcsin", "acos": "arccos", "atan": "arctan", "overline": "bar",
             "widehat": "hat", "overrightarrow": "vec"}  # fmt: skip
_GREEK_LIST = """
alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon
phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar
"""
GREEK = frozenset(_GREEK_LIST.split())
_ACCENTS_LIST = """
overline bar vec hat widehat tilde overrightarrow dot mathbb
"""
SIGNED = frozenset({"^+", "^-", "^*", "_+", "_-", "_>0", "_<0", "_>=0", "_<=0", "_0"})
ACCENTS = frozenset(_ACCENTS_LIST.split())
CONNECTIVES = frozenset({"and", "or", ",", "&", ", and", ", or", "and/or", ";"})
_SHORT_WORDS = """
yes no odd one two six ten red all any tie win dne jan feb mar apr may jun jul aug sep oct nov dec mon tue wed thu fri
sat sun
"""
SHORT_WORDS = frozenset(_SHORT_WORDS.split())
ATOM_COMMANDS = (
    FUNCTIONS | GREEK | ACCENTS
    | {"underline", "frac", "sqrt", "binom", "pi", "infty", "log", "lfloor", "lceil", "langle", "angle", "triangle"}
    | {"emptyset", "Pr"}
)  # fmt: skip
_BASE_NAMES = "two three four five six seven eight nine ten eleven twelve"
BASES = {name: value for value, name in enumerate(_BASE_NAMES.split(), start=2)}
_UNITS_LIST = """
mol Hz kHz MHz GHz Pa kPa kW MW kWh kJ MJ kN mL mA mV kV eV MeV keV MB GB TB KB kB rad psi atm cm mm km kg mg ml cc ft
sq lb lbs oz hr hrs min sec mph kmh kph rpm deg degree degrees unit units dollar dollars cent cents inch inches foot
feet yard yards mile miles meter meters metre metres liter liters litre litres gram grams hour hours minute minutes
second seconds day days week weeks month months year years percent usd eur
"""
_UNITS = frozenset(_UNITS_LIST.split())


def is_word(text: str) -> bool:
    """Whether two or three letters that are a whole answer are a word, a name or a sequence and no product."""
    return text.lower() in SHORT_WORDS or (len(text) == 3 and text.istitle()) or (len(text) > 1 and text.isupper())


def is_unit_word(text: str) -> bool:
    """Whether a bare word after a value is a unit: a known one, or too long for a product of variables."""
    if text in FUNCTIONS or text.lower() in {"and", "or", "inf", "infinity", "percent", "pct", "percentage"}:
        return False
    return text in _UNITS or text.lower() in _UNITS or (len(text) >= 4 and text != "sqrt")
