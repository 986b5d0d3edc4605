"""Names of secrets: keywords, headers, options and environment variables, in any spelling."""

import re
from functools import lru_cache
from typing import Literal

Kind = Literal["", "random", "text", "all"]
"""The values hidden under a name: none, text that looks random, any text, or all."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Anywhere in the letters of a name, without its separators.
_ALL = re.compile(
    "password|passwd|passphrase|passcode|secret(?!ar)|credential|apikey|accesskey|privatekey|signingkey|encryptionkey|authkey"
    "|appkey|sshkey|masterkey|rootkey|sharedkey|subscriptionkey|seedphrase|mnemonic|onetimepass|recoverycode|activationcode"
    "|basicauth|sessionid|webhook|authorization|bearer|cookie|connectionstring|connstr|privatepem"
)
_ALL_WORDS = _words("""
    pwd pwds pswd psw passw passwrd userpwd pgpass htpasswd psk dsn dsns jwt jwts jwks creds cred totp hmac netrc
    conninfo pkcs pem
""")
_TEXT_WORDS = _words("auth auths authz oauth sas otp csrf xsrf session sessions sessid signature")
_POINTERS = _words("env var variable file path name type column field")
_OWNERS = _words("""
    access api auth bearer bot client deploy gh github gitlab hf hub id identity login npm oauth personal pypi
    refresh secret security service session slack user wandb
""")
_OF_MODELS = _words("""
    added audio begin boi bos class cls decoder delimiter end eoi eos eot extra fake first forced image last
    mask modal next new no pad padding per prefix response sep separator sequence special start stop suffix
    think thinking tool unk video vision
""")
_OF_DATA = _words("""
    answer batch cache column completion config data dataset dict dtype expected field filter foreign gold group
    grouping header id image index input join json label lookup map message messages metric name order output
    partition primary prompt question reference response result reward row score solution sort sorting state
    step target task test tests text value num n per query past cross attention linear rope k
""")
_STORES = _words("broker amqp database db index jdbc mongo mongodb mysql postgres redis sqlalchemy")
# Removed from workers, too, which see model text; a worker that needs such a variable lists it in `env`.
_VARIABLE = re.compile(
    r"TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_KEY|PRIVATE_KEY|AUTH\Z|COOKIE|\A(AWS|AZURE|GOOGLE|GCP)_|_KEY\Z"
    r"|\ASSH_A",
    re.IGNORECASE,
)


_SHORT = {"tok": "token", "toks": "tokens", "tkn": "token"}


def secret_kind(name: str) -> Kind:
    """The values to hide under this name.

    >>> [secret_kind(name) for name in ("apiKey", "hub_token", "max_tokens", "answer_key", "api_key_env")]
    ['all', 'text', '', '', '']
    """
    return _kind(name[-200:])


@lru_cache(maxsize=8192)
def _kind(name: str) -> Kind:
    words = [_SHORT.get(word.lower(), word.lower()) for word in _WORDS.findall(name)]
    if not words or (len(words) > 1 and words[-1] in _POINTERS):
        return ""
    last, rest = words[-1], set(words[:-1])
    if _ALL.search("".join(words)) or not _ALL_WORDS.isdisjoint(words):
        return "all"
    if last == "pin":
        return "all"
    if not _TEXT_WORDS.isdisjoint(words) or (last in {"pat", "pass"} and "per" not in rest):
        return "text"
    if len(words) == 2 and words[0] in {"token", "key", "keys"} and last in _OWNERS - {"id", "user", "client"}:
        return "text"
    stored = re.fullmatch(r"(.+)ur[il]", last)
    if (last in {"url", "uri"} and rest & (_STORES | {"hook"})) or (stored and stored[1] in _STORES):
        return "text"
    if last == "token" or (last in {"value", "string", "str"} and "token" in rest):
        return "" if rest & _OF_MODELS else "text"
    if last == "tokens":
        return "text" if not rest or rest & _OWNERS else ""
    if last in {"key", "keys"}:
        return "random" if not rest else "" if rest & _OF_DATA else "text"
    if words[0] in {"key", "token"} and words[1:2] in (["for"], ["of"]):
        return "random"
    owned = re.fullmatch(r"(.+)(?:token|key)s?", last)
    return "text" if owned and owned[1] in _OWNERS | {"vllm", "openai", "anthropic", "secret", "csrf", "xsrf"} else ""


def is_secret_variable(name: str) -> bool:
    """True for an environment variable that may have a secret or its location."""
    return _kind(name) != "" or _VARIABLE.search(name) is not None
