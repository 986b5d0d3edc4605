"""Texts without secrets: keys by their looks, addresses with passwords, ``name=value``, options, headers, sentences.

The value of a secret's name is remembered, so that it is also hidden in later texts without the name.
"""

import os
import re
import threading
from collections.abc import Hashable
from functools import lru_cache

from grpo_verifiers.redaction.names import Kind, secret_kind

HIDDEN = "(hidden)"
_MIXED = r"(?=[^\sA-Z]*[A-Z])(?=[^\sa-z]*[a-z])(?=(?:[^\s\d]*\d){2})"
_RANDOM = re.compile(rf"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_+/=~-]{{16,}}|{_MIXED}[A-Za-z0-9_+/=~-]{{10,}}")

_TOKENS = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"(?:sk|rk|pk|hf|api_org|whsec|gsk|r8|pplx|xai|nvapi|tvly|jina|fw|lsv2|dop_v1|dckr_pat|lin_api|shpat|glsa)"
    r"[-_](?=[A-Za-z_-]*[A-Z0-9])[A-Za-z0-9_-]{5,}"
    r"|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|gl[a-z]{2,5}-[\w-]{10,}|npm_[A-Za-z0-9]{10,}|pypi-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{6,}|xapp-[\w-]{8,}|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{10,}|AIza[\w-]{16,}|ya29\.[\w-]{8,}|SG\.[\w-]{8,}[\w.-]*"
    r"|(?:hf_|sk-)[A-Za-z0-9]{20,}|(?:pscale_[a-z]+|secret|ntn|csk|[a-z]{2,9}_v1)[-_](?=[a-z]*[A-Z0-9])[A-Za-z0-9_-]{12,}"
    r"|ATATT[\w=-]{10,}|(?:SK|AC|dapi)[0-9a-f]{32}|\d{8,10}:[A-Za-z0-9_-]{30,}|1//[\w-]{20,}"
    r"|(?=(?:[A-Za-z]*\d){2})(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{30,}"  # of any service
    r"|hv[sbr]\.[\w-]{8,}|eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?)"
)
_SCHEME = re.compile(
    r"\b((?i:Bearer))(\s+|%20)(?=\S*[A-Z0-9=])([\w.~+/=-]{4,})"
    r"|\b((?i:Basic|Digest|Negotiate)|(?i:Token)(?=\s\S*\d\S*\d))(\s+|%20)(?=\S*(?:=|[a-z]\d*[A-Z]|\d\S*\d))([\w.~+/=-]{8,})"
)
_USER = re.compile(r"(?:(?<=://)|(?<=%3A%2F%2F)|(?<=%3a%2f%2f))[^\s/?#'\"<>]{1,300}?(?=%40|@(?![^\s/?#'\"<>]{0,300}@))")
_LOGIN = re.compile(
    r"((?<![\w:/])[\w.%+-]{1,60}:)[^\s/@:'\"]{3,60}(?=@[\w.-]{1,80}(?::\d|/))|((?<![\w-])(?:-u|--user)[\s=,'\"]{1,9}[^\s:'\"]{1,60}:)[^\s'\"]+"
)
_HOOK = re.compile(r"(?<=/)((?:services|webhooks?|workflows)/)[\w/-]{8,}")
_QUERY = re.compile(r"(?<=[?&;])((?:sig|key|code|token|pass|x-amz-[a-z-]+|x-goog-[a-z-]+)=)[^&\s#'\"]+", re.IGNORECASE)
_HEADER = re.compile(
    r"((?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token)"
    r"(\\?[\"']?\s{0,3}[:=,]\s{0,3}\\?[\"']?)([^\"'\n\\]+)", re.IGNORECASE,
)  # fmt: skip
_SPOKEN = re.compile(
    r"\b((?:api|access|secret|private)[ _-]?key|pass(?:word|wd|phrase|code)|token|secret|credentials?|key)\b"
    r"((?:[ \t]+(?:provided|is|was|are|of|given|value|my|the|a|an)){0,3}[ \t]{0,3}[:=]?[ \t]{0,3}[\"'`]?)"
    r"([A-Za-z0-9_+/=~!@#$%^&*-]{8,200})",
    re.IGNORECASE,
)
_STRONG = re.compile(rf"{_MIXED}\S{{10,}}")
_NAMED = re.compile(r"(?<![\w.])(-{0,2}[A-Za-z_][\w.-]{0,99})(\\{0,9}[\"']?)(\s{0,3}(?::=|=>|=|:)\s{0,3})")
_VALUE = re.compile(
    r"\\{1,9}\"[^\"\n]*\\\"|(?:[bB][rR]?|[rR][bB]?|[fFuU])(?:\"[^\"\n]*\"?|'[^'\n]*'?)|\[[^\]\n]*\]?|\{[^}\n]*\}?|\([^)\n]*\)?"
    r"|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?|[^\s,;&)\]}'\"]+"
)
_OPTION = re.compile(r"(?<!\S)(--?[A-Za-z][\w.-]{0,99})(\s+)(?!-)('[^'\n]*'|\"[^\"\n]*\"|\S+)")

_NO_VALUE = frozenset({"none", "null", "true", "false", "yes", "no", "~"})

_secrets: set[str] = set()
_lock = threading.Lock()


def secret_count() -> int:
    """The number of remembered secrets."""
    return len(_secrets)


def is_random(text: str) -> bool:
    """True for a text that looks like random characters."""
    return _RANDOM.fullmatch(text) is not None


def remember(text: str) -> None:
    """Hide this text from now on in every message; short words are too common for that."""
    if len(text) >= 8 and not (text.isalpha() and text.islower() and len(text) < 16) and text != HIDDEN:
        with _lock:
            _secrets.add(text)


def redact_text(text: str) -> str:
    """A text without secrets: those recognised by their looks and the remembered ones.

    >>> redact_text("unknown keyword api_key='sk-1', eos_token='</s>'")
    "unknown keyword api_key='(hidden)', eos_token='</s>'"
    """
    if len(text) < 4:
        return text
    variables = frozenset(os.environ._data.items())  # type: ignore[attr-defined]  # noqa: SLF001 - undecoded
    for secret in sorted(_secrets | _of_variables(variables), key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, HIDDEN)
    text = _TOKENS.sub(HIDDEN, text)
    if "@" in text or "%40" in text:
        text = _USER.sub(HIDDEN, text)
    if "@" in text or "-u" in text:
        text = _LOGIN.sub(lambda match: f"{match[1] or match[2]}{HIDDEN}", text)
    text = _HOOK.sub(rf"\1{HIDDEN}", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _SCHEME.sub(lambda match: f"{match[1] or match[4]}{match[2] or match[5]}{HIDDEN}", text)
    text = _hide_assigned(text)
    text = _SPOKEN.sub(lambda match: f"{match[1]}{match[2]}{HIDDEN}" if _STRONG.fullmatch(match[3]) else match[0], text)
    return _OPTION.sub(_option, text)


def _hide_assigned(text: str) -> str:
    """Hide the values of ``name=value`` and ``"name": value``."""
    pieces, at = [], 0
    for name in _NAMED.finditer(text):
        kind = secret_kind(name[1])
        value = _VALUE.match(text, name.end()) if kind and name.start() >= at else None
        if value is not None and _is_secret_value(kind, name, value[0]):
            edge = value[0][0] if value[0][0] in "\"'" else ""
            pieces += [text[at : name.end()], edge, HIDDEN, edge if value[0][-1] == edge else ""]
            at = value.end()
    return "".join([*pieces, text[at:]])


def _is_secret_value(kind: Kind, name: re.Match[str], value: str) -> bool:
    bare = value.strip("\"'")
    if not bare or bare.startswith(HIDDEN[:-1]) or bare.lower() in _NO_VALUE:
        return False
    if _RANDOM.fullmatch(bare) or kind == "all":
        return True
    prose = name[3].strip() == ":" and not name[2] and bare == value and name[1][:2] not in {"--", "X-", "x-"}
    prose = prose and not _is_line(name, value)
    return kind == "text" and not prose and not _is_plain(bare)


def _is_line(name: re.Match[str], value: str) -> bool:
    """True for a line with only a name and one word, as in YAML."""
    first, last = name.start(), name.end() + len(value)
    before, after = name.string[:first].rpartition("\n")[2], name.string[last:].partition("\n")[0]
    return not before.strip(" -") and not after.strip() and value[0] not in "([{<"


def _option(match: re.Match[str]) -> str:
    kind = secret_kind(match[1])
    hidden = kind in {"text", "all"} and not (kind == "text" and _is_plain(match[3]))
    return f"{match[1]}{match[2]}{HIDDEN}" if hidden else match[0]


def _is_plain(value: str) -> bool:
    """True for a number, a placeholder and a word for no value."""
    return re.fullmatch(r"[+-]?[\d.]+|<[^<>]+>", value) is not None or value.lower() in _NO_VALUE


@lru_cache(maxsize=1)
def _of_variables(_variables: Hashable) -> frozenset[str]:
    """The secrets of the environment, cached until a variable changes."""
    return frozenset(
        value
        for name, value in os.environ.items()
        if secret_kind(name) in {"text", "all"}
        and len(value) >= 8
        and not value.startswith("/")
        and not value.isdigit()
    )
