"""The work of a completion's own process: run tools on a model's arguments, and answer in JSON of bounded size."""

import asyncio
import json
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from grpo_verifiers.exec.failure import as_coroutine
from grpo_verifiers.exec.wire import pack_reply, read_exactly
from grpo_verifiers.exec.worker import silence_again
from grpo_verifiers.sandbox.inside import proc
from grpo_verifiers.tools.part import ToolPart

MAX_TEXT = 64 << 10
"""Characters of a result, and of a state key."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>")
_OF_THE_MODEL = ("call", "reset")
"""Calls with errors for the model; errors of all other calls are for people."""


def converse(sock: socket.socket, loaded: list[tuple[ToolPart, Any]]) -> None:
    """Answer until the connection is closed."""
    objs: dict[int, Any] = {}
    loop = asyncio.new_event_loop()
    me = os.getpid()
    threads = threading.active_count()
    while (head := read_exactly(sock, 4)) is not None:
        body = read_exactly(sock, int.from_bytes(head, "big"))
        if body is None:
            return
        question = json.loads(body)
        reply: dict[str, Any] = {"id": question["id"]}
        started = time.perf_counter()
        try:
            reply |= _answer(question, loaded, objs, loop)
        except MemoryError:
            reply["m"] = True
        except BaseException as error:  # noqa: BLE001 - SystemExit and KeyboardInterrupt of a tool are its failure
            text = error_text(error)
            typed = cut(f"{type(error).__name__}: {text}".removesuffix(": "))
            reply["e"] = text if question["kind"] in _OF_THE_MODEL else typed
        if os.getpid() != me:  # a tool forked, and its child came back here
            os._exit(0)
        if not objs:  # a function: the next call starts clean
            if proc.has_children():
                proc.end_descendants(me)
            reply["again"] = threading.active_count() == threads
        silence_again()
        reply["s"] = time.perf_counter() - started
        sock.sendall(pack_reply(reply))


def _answer(
    question: dict[str, Any], loaded: list[tuple[ToolPart, Any]], objs: dict[int, Any], loop: asyncio.AbstractEventLoop
) -> dict[str, Any]:
    at, kind = question["part"], question["kind"]
    part, target = loaded[at]
    if part.kind == "function":
        value = _run(loop, target, {**part.kwargs, **question["arguments"]})
        return {"text": text_of(value)}
    if at not in objs:
        objs[at] = target(**part.kwargs)
    thing = objs[at]
    if kind == "call":
        method = thing if part.kind == "class" else getattr(thing, question["method"])
        return {"text": text_of(_run(loop, method, question["arguments"]))}
    value = _run(loop, getattr(thing, kind), question["arguments"])
    if kind == "reset":
        return {"text": "" if value is None else text_of(value)}
    if kind == "state_key":
        return {"text": key_text(value)}
    return {"text": "", "number": None if value is None else number_of(kind, value)}


def key_text(key: Any) -> str:
    """``str`` of a key, with mappings and sets in order and arrays as lists; empty for None.

    A longer one ends with a digest of all of it.

    >>> key_text((3, "left")), key_text({"b": 1, "a": 2}) == key_text({"a": 2, "b": 1}), key_text(None)
    ("(3, 'left')", True, '')
    """
    if key is None:
        return ""
    text = str.__str__(key) if isinstance(key, str) else _key_part(key, str)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[: MAX_TEXT - 64]} [{len(text)} characters, {blake2b(text.encode(), digest_size=16).hexdigest()}]"


def _key_part(value: Any, spell: Callable[[Any], str] = repr) -> str:
    if isinstance(value, Mapping):
        pairs = sorted((_key_part(name), _key_part(each)) for name, each in value.items())
        return "{" + ", ".join(f"{name}: {each}" for name, each in pairs) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_key_part, value))) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_key_part, value)) + "]"
    if isinstance(value, tuple):
        return "(" + ", ".join(map(_key_part, value)) + (",)" if len(value) == 1 else ")")
    # The text of an array omits its middle.
    if not isinstance(value, type) and callable(getattr(value, "tolist", None)):
        return _key_part(value.tolist())
    return repr(value) if isinstance(value, str) else _without_address(value, spell(value))


def _without_address(value: Any, text: str) -> str:
    if _ADDRESS.search(text) is None:
        return text
    raise TypeError(
        f"a state key holds a {type(value).__name__}, whose text is its address in memory: give a text, numbers, or "
        "tuples of these."
    )


def number_of(kind: str, value: Any) -> float:
    """A reward as a number.

    >>> number_of("get_reward", True)
    1.0
    >>> number_of("get_reward", "0.5")
    Traceback (most recent call last):
    ...
    ValueError: get_reward returned '0.5' (str), expected a finite number or None
    """
    try:
        number = math.nan if isinstance(value, str | bytes | bytearray) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        text = f"{value!r:.80} ({type(value).__name__})"
        raise ValueError(f"{kind} returned {text}, expected a finite number or None")
    return number


def _run(loop: asyncio.AbstractEventLoop, fn: Any, arguments: dict[str, Any]) -> Any:
    value = fn(**arguments)
    return loop.run_until_complete(as_coroutine(value)) if hasattr(value, "__await__") else value


def text_of(value: Any) -> str:
    """The text of a result for the model.

    >>> text_of(4), text_of(None)
    ('4', 'None')
    >>> text_of([{"type": "text", "text": "a"}])
    Traceback (most recent call last):
    ...
    TypeError: a tool returned a list of content blocks, and only text can be returned
    """
    if isinstance(value, list) and value and all(isinstance(each, dict) and "type" in each for each in value):
        raise TypeError("a tool returned a list of content blocks, and only text can be returned")
    if any(kind.__module__.partition(".")[0] == "PIL" for kind in type(value).__mro__):
        raise TypeError("a tool returned an image, and only text can be returned")
    return cut(str(value))


def cut(text: str, most: int = MAX_TEXT) -> str:
    """The text without lone surrogates, cut at a size, with a note if cut."""
    if type(text) is not str:
        text = str.__str__(text)
    note = f"\n[cut: {len(text)} characters, at most {most} are shown]" if len(text) > most else ""
    return text[:most].encode("utf-8", "replace").decode("utf-8") + note


def error_text(error: BaseException) -> str:
    """An exception as TRL shows it to a model: its message alone."""
    try:
        return cut(str(error))
    except BaseException:  # noqa: BLE001 - a broken __str__ must not hide the failure
        return f"{type(error).__name__} (its message cannot be shown)"
