"""Secrets in what leaves the process: values under telling names, texts that look like keys, addresses with passwords.

One rule for model cards, records, reports, logs, errors and the environment of workers. A value that was seen under the
name of a secret is remembered, so that it is hidden in later texts that show it without its name.
"""

import dataclasses
import os
import re
import threading
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from grpo_verifiers.secret_names import Kind, secret_kind

HIDDEN = "(hidden)"
MOST_DEEP = 60
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_+/=.~-]{16,}")

_TOKENS = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,40}-----|\Z)"
    r"|(?<![A-Za-z0-9])(?:"
    r"(?:sk|rk|pk|hf|api_org|whsec|gsk|r8|pplx|xai|nvapi|tvly|jina|fw|lsv2|dop_v1|dckr_pat|lin_api|shpat|glsa)"
    r"[-_](?=[A-Za-z_-]*[A-Z0-9])[A-Za-z0-9_-]{5,}"
    r"|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|gl[a-z]{2,5}-[\w-]{10,}|npm_[A-Za-z0-9]{10,}|pypi-[\w-]{16,}"
    r"|xox[a-z]-[\w-]{6,}|xapp-[\w-]{8,}|(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{10,}|AIza[\w-]{16,}|ya29\.[\w-]{8,}|SG\.[\w-]{8,}[\w.-]*"
    r"|hvs\.[\w-]{8,}|eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?)"
)
_SCHEME = re.compile(r"\b((?i:Bearer|Basic|Digest|Negotiate|Token))(\s+|%20)(?=\S*[A-Z0-9=])([\w.~+/=-]{4,})")
_USER = re.compile(r"(?<=://)[^\s/?#'\"<>]+(?=@)")
_HOOK = re.compile(r"(?<=/)((?:services|webhooks?|workflows)/)[\w/-]{8,}")
_QUERY = re.compile(r"(?<=[?&;])((?:sig|key|code|token|pass|x-amz-[a-z-]+|x-goog-[a-z-]+)=)[^&\s#'\"]+", re.IGNORECASE)
_HEADER = re.compile(
    r"((?:proxy-)?authorization|(?:set-)?cookie|x-api-key|x-auth-token)"
    r"(\\?[\"']?\s{0,3}[:=,]\s{0,3}\\?[\"']?)([^\"'\n\\]+)", re.IGNORECASE,
)  # fmt: skip
_NAME = re.compile(r"[\w.-]{1,100}")
_NAMED = re.compile(r"(?<![\w.])(-{0,2}[A-Za-z_][\w.-]{0,99})(\\?[\"']?)(\s{0,3}(?::=|=>|=|:)\s{0,3})")
_VALUE = re.compile(
    r"\\\"[^\"\n]*\\\"|\[[^\]\n]*\]?|\{[^}\n]*\}?|\([^)\n]*\)?"
    r"|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?|[^\s,;&)\]}'\"]+"
)
_OPTION = re.compile(r"(?<!\S)(--?[A-Za-z][\w.-]{0,99})(\s+)(?!-)('[^'\n]*'|\"[^\"\n]*\"|\S+)")

_known: set[str] = set()
_lock = threading.Lock()


def redact(value: Any, name: str = "") -> Any:
    """The same value without secrets, at any depth.

    >>> redact({"api_key": "x", "url": "https://me:pw@host/v1", "max_tokens": 5})
    {'api_key': '(hidden)', 'url': 'https://(hidden)@host/v1', 'max_tokens': 5}

    Args:
        value: plain data, dataclasses and texts; other objects stay as they are.
        name: under which it stands.
    """
    return _redacted(value, secret_kind(name), 0)


def _redacted(value: Any, kind: Kind, depth: int) -> Any:
    if depth > MOST_DEEP:
        return HIDDEN
    if isinstance(value, str):
        return _hidden_text(value, kind)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return HIDDEN if kind == "all" else value
    if isinstance(value, bytes | bytearray):
        return _hidden_text(value.decode("latin-1"), kind).encode("latin-1")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return _mapping(value, kind, depth)
    if isinstance(value, Sequence):
        found = _sequence(value, kind, depth)
        return tuple(found) if isinstance(value, tuple) else found
    if isinstance(value, AbstractSet):
        return [_redacted(item, kind, depth + 1) for item in value]
    return value


def _mapping(values: Mapping[Any, Any], kind: Kind, depth: int) -> dict[Any, Any]:
    named = _named_value(values)
    found = {}
    for key, item in values.items():
        own = named if key == "value" else secret_kind(key) if isinstance(key, str) else ""
        found[redact_text(key) if isinstance(key, str) else key] = _redacted(item, _stronger(kind, own), depth + 1)
    return found


def _sequence(values: Sequence[Any], kind: Kind, depth: int) -> list[Any]:
    """A list; a word that follows the name of a secret (an option before its value, a header's pair) is its value."""
    found = []
    before: Kind = ""
    for at, item in enumerate(values):
        found.append(_redacted(item, _stronger(kind, before), depth + 1))
        before = _kind_of_next(item, pair=len(values) == 2 and at == 0)
    return found


def _kind_of_next(item: Any, *, pair: bool) -> Kind:
    if not isinstance(item, str) or not _NAME.fullmatch(item):
        return ""
    kind = secret_kind(item)
    if item.startswith("-"):
        return kind
    # Of two words, the first may be a name, or a word like any other.
    return kind if pair and kind == "all" else "random" if pair and kind else ""


def _named_value(value: Mapping[Any, Any]) -> Kind:
    """The kind of what stands under "value" beside a name, as headers are written."""
    names = (value.get(key) for key in ("name", "key", "header"))
    return max((secret_kind(name) for name in names if isinstance(name, str)), key=_STRENGTH.index, default="")


_STRENGTH: tuple[Kind, ...] = ("", "random", "text", "all")


def _stronger(one: Kind, other: Kind) -> Kind:
    return max(one, other, key=_STRENGTH.index)


def _hidden_text(text: str, kind: Kind) -> str:
    if not text or kind == "" or (kind == "random" and not _RANDOM.fullmatch(text)):
        return redact_text(text)
    remember(text)
    return HIDDEN


def remember(text: str) -> None:
    """Hide this text from now on wherever it is shown; short words are too common for that."""
    if len(text) >= 8 and not (text.isalpha() and text.islower() and len(text) < 16) and text != HIDDEN:
        with _lock:
            _known.add(text)


def redact_text(text: str) -> str:
    """A text without what looks like a secret, and without those that were seen elsewhere.

    >>> redact_text("unknown keyword api_key='sk-1', eos_token='</s>'")
    "unknown keyword api_key='(hidden)', eos_token='</s>'"
    """
    if len(text) < 4:
        return text
    for secret in sorted(_known | _of_environment(), key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, HIDDEN)
    text = _TOKENS.sub(HIDDEN, text)
    text = _USER.sub(HIDDEN, text)
    text = _HOOK.sub(rf"\1{HIDDEN}", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    text = _HEADER.sub(rf"\1\2{HIDDEN}", text)
    text = _SCHEME.sub(rf"\1\2{HIDDEN}", text)
    text = _without_assigned(text)
    return _OPTION.sub(_option, text)


def _without_assigned(text: str) -> str:
    """Hide the values of ``name=value`` and ``"name": value``."""
    kept, at = [], 0
    for name in _NAMED.finditer(text):
        kind = secret_kind(name[1])
        value = _VALUE.match(text, name.end()) if kind and name.start() >= at else None
        if value is not None and _is_secret_value(kind, name, value[0]):
            edge = value[0][0] if value[0][0] in "\"'" else ""
            kept += [text[at : name.end()], edge, HIDDEN, edge if value[0][-1] == edge else ""]
            at = value.end()
    return "".join([*kept, text[at:]])


def _is_secret_value(kind: Kind, name: re.Match[str], value: str) -> bool:
    bare = value.strip("\"'")
    if not bare or bare.startswith(HIDDEN[:-1]):
        return False
    if _RANDOM.fullmatch(bare) or kind == "all":
        return True
    prose = name[3].strip() == ":" and not name[2] and bare == value and not name[1].startswith("-")
    return kind == "text" and not prose and not _is_plain(bare)


def _option(found: re.Match[str]) -> str:
    kind = secret_kind(found[1])
    hidden = kind in {"text", "all"} and not (kind == "text" and _is_plain(found[3]))
    return f"{found[1]}{found[2]}{HIDDEN}" if hidden else found[0]


def _is_plain(value: str) -> bool:
    """Whether it is a number or one of the words for no value, which are no secrets."""
    return re.fullmatch(r"[+-]?[\d.]+|None|null|True|False|true|false|~", value) is not None


def _of_environment() -> set[str]:
    return {
        value
        for name, value in os.environ.items()
        if secret_kind(name) in {"text", "all"}
        and len(value) >= 8
        and not value.startswith("/")
        and not value.isdigit()
    }


class RedactedError(Exception):
    """An exception whose message shows no secret."""

    def __str__(self) -> str:
        return redact_text(super().__str__())
