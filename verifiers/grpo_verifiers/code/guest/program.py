"""The work of a boxed process: run a program, answer calls of its functions, or run tests against a stub.

The process is untrusted once the program runs. It gets inputs only, and the parent treats its messages as data.
"""

import _thread
import ast
import atexit
import builtins
import contextlib
import gc
import io
import json
import os
import socket
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

from .blocks import program_of
from .conveniences import install
from .names import MissingError, find, unknown_names
from .raised import caught_names, describe, exception
from .records import is_of, rebuild
from .values import NoValueError, ValueTooLargeError, decode, dump, encode, is_iterator

MAX_MESSAGE = 4 << 20
"""Bytes of one message, unless the parent has room for more."""
_MAX_TEXT = 300
_PART, _PART_SECONDS = 500, 0.05
"""Members of an iterator per message, and the seconds to compute them."""
_turn = _thread.allocate_lock()
"""Locked by a thread of a test during its question: answers come in the order of questions."""


def serve(channel: socket.socket) -> None:
    """Receive the first message and execute it."""
    message = _receive(channel)
    if message is None:
        return
    install()
    mode = message["mode"]
    if mode == "main":
        _run_main(channel, _source(message))
    elif mode == "calls":
        _answer_calls(channel, _source(message), message.get("room", MAX_MESSAGE))
    elif mode == "tests":
        _run_tests(channel, message["tests"])
    elif mode == "turns":
        _take_turns(channel, message["output"])


def _source(message: dict[str, Any]) -> str:
    """The program of a message: its source, or the program of several blocks."""
    if isinstance(message["source"], str):
        return message["source"]
    return program_of(message["source"], message["names"], bare=message["bare"])


def _run_main(channel: socket.socket, source: str) -> None:
    """Run a program as ``__main__`` with the standard streams of this process."""
    try:
        code = compile(source, "<program>", "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001 - SyntaxError, ValueError, RecursionError, MemoryError
        _send(channel, ["syntax", _text_of(error)])
        return
    space = _module("__main__").__dict__
    try:
        exec(code, space)  # noqa: S102 - the purpose of the box
    except SystemExit:
        pass
    except BaseException as error:  # noqa: BLE001 - reported, not judged: the output decides
        _send(channel, ["raised", _text_of(error)])
    # The end of a program without the cost of tearing down the interpreter.
    steps = (_join, atexit._run_exitfuncs, _flush, space.clear, gc.collect, _flush)  # noqa: SLF001 - as the interpreter does at its end
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - the next step still has to run
            _send(channel, ["raised", _text_of(error)])


def _join() -> None:
    """Wait for threads; where the module is in the zygote already, every fork pays for it."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # noqa: SLF001 - as above


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            with contextlib.suppress(ValueError):  # closed
                stream.flush()


def _answer_calls(channel: socket.socket, source: str, room: int) -> None:
    module = _module("program")
    try:
        code = compile(source, "<program>", "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001 - as above
        _send(channel, ["syntax", _text_of(error)])
        return
    try:
        exec(code, module.__dict__)  # noqa: S102 - the purpose of the box
    except BaseException as error:  # noqa: BLE001 - SystemExit too: the program is not there to be called
        _send(channel, ["raised", type(error).__name__, _text_of(error)])
        return
    _send(channel, ["loaded"])
    left: list[Iterator[Any]] = []
    while (message := _receive(channel)) is not None:
        if "code" in message:
            reply = _run_inside(module, message["code"])
        else:
            reply = _part(left, message["more"]) if "more" in message else _answer_call(module, message, left)
        _send(channel, reply, room, message.get("id"))


def _take_turns(channel: socket.socket, most: int) -> None:
    """Run pieces of a program as an interpreter does: definitions stay, and the printed text is the answer."""
    space = _module("__main__").__dict__
    while (message := _receive(channel)) is not None:
        printed = _Printed(most)
        sys.stdout = sys.stderr = printed  # again each time: the program may have replaced them
        try:
            tree = ast.parse(message["code"], "<python>")
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<python>", "exec", dont_inherit=True), space)  # noqa: S102 - the purpose of the box
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "<python>", "eval", dont_inherit=True), space)  # noqa: S307 - as above
                if value is not None:
                    printed.write(f"{value!r}\n")
        except BaseException as error:  # noqa: BLE001 - the program's, SystemExit too: the model reads it
            printed.write(_traceback_of(error))
        _send(channel, ["printed", printed.text, printed.cut], number=message.get("id"))


class _Printed(io.TextIOBase):
    """A text stream with a maximum number of characters."""

    def __init__(self, most: int) -> None:
        self.text, self.cut, self._most = "", False, most

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        room = self._most - len(self.text)
        self.text += text[:room]
        self.cut = self.cut or len(text) > room
        return len(text)


def _traceback_of(error: BaseException) -> str:
    """The traceback without the frames above the program's."""
    try:
        import traceback

        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != "<python>":
            trace = trace.tb_next
        return "".join(traceback.format_exception(type(error), error, trace, limit=-12))
    except BaseException:  # noqa: BLE001 - the program's own class
        return _text_of(error) + "\n"


def _answer_call(module: types.ModuleType, message: dict[str, Any], left: list[Iterator[Any]]) -> list[Any]:
    """The answer to a call; of an iterator that a test may leave half used, the beginning."""

    def make(tag: str, head: list[Any], values: list[Any]) -> Any:
        return rebuild(module.__dict__, tag, head, values)

    kind = "value"
    try:
        arguments, keywords = decode(message["args"], make), decode(message["kwargs"], make)
        value = find(module.__dict__, message["name"])(*arguments, **keywords)
        if type(value) is types.CoroutineType:
            import asyncio

            kind, value = "awaited", asyncio.run(value)
    except MissingError:
        return ["missing"]
    except BaseException as error:  # noqa: BLE001 - the program's
        return ["raised", _text_of(error), *describe(error)]
    if message.get("parts") and is_iterator(type(value)):
        left.append(value)
        return _part(left, len(left) - 1)
    return _encode_reply(kind, value)


def _encode_reply(kind: str, value: Any, *more: int) -> list[Any]:
    try:
        return [kind, encode(value), *more]
    except NoValueError as error:
        return ["refused", str(error)]
    except BaseException as error:  # noqa: BLE001 - the program may have patched anything
        return ["refused", _text_of(error)]


def _part(left: list[Iterator[Any]], at: int) -> list[Any]:
    """The next members of an iterator; they are the last ones unless the answer has its place in ``left``."""
    items: list[Any] = []
    until = time.monotonic() + _PART_SECONDS
    try:
        for item in left[at]:
            items.append(item)
            if len(items) == _PART or time.monotonic() > until:
                return _encode_reply("part", items, at)
    except BaseException as error:  # noqa: BLE001 - the program's; sent after the items before it
        if not items:
            return ["raised", _text_of(error), *describe(error)]
        left[at] = _raising(error)
        return _encode_reply("part", items, at)
    return _encode_reply("part", items)


def _raising(error: BaseException) -> Iterator[Any]:
    yield from ()
    raise error


def _run_inside(module: types.ModuleType, code: str) -> list[Any]:
    """Run test code inside the program, which could fake the outcome."""
    space = {**module.__dict__}
    try:
        tree = ast.parse(code, "<test>")
        for name in unknown_names(tree) - space.keys():
            with contextlib.suppress(MissingError):
                space[name] = find(space, name)  # a method that is named alone
        exec(compile(tree, "<test>", "exec", dont_inherit=True), space)  # noqa: S102 - requested by assert_mode
    except BaseException as error:  # noqa: BLE001 - the test's outcome
        return ["raised", type(error).__name__, _text_of(error)]
    return ["pass"]


def _run_tests(channel: socket.socket, tests: list[tuple[int, str]]) -> None:
    """Run trusted test code; names that it uses and does not define call the program through the parent."""
    for at, source in tests:
        outcome = _run_test(channel, source, _Conversation())
        with _turn:  # threads of a test may still run
            _send(channel, ["test", at, *outcome])


def _run_test(channel: socket.socket, source: str, conversation: "_Conversation") -> tuple[str, str]:
    try:
        tree = ast.parse(source, "<test>")
        space: dict[str, Any] = {"__name__": "__test__"}
        unknown = unknown_names(tree)
        caught: dict[str, type] = {name: type(name, (Exception,), {}) for name in caught_names(tree) & unknown}
        space |= {name: caught.get(name) or _Stub(channel, name, conversation, caught) for name in unknown}
        code = compile(tree, "<test>", "exec", dont_inherit=True)
    except Exception as error:  # noqa: BLE001 - the test is broken, not the program
        return conversation.raised, _text_of(error)
    try:
        exec(code, space)  # noqa: S102 - the test, in a box of its own
        kind, why = "pass" if conversation.calls else "idle", ""
    except BaseException as error:  # noqa: BLE001 - an assertion, the program's exception, or one its value caused
        kind, why = conversation.raised, _text_of(error)
    return conversation.uncrossed or (kind, why)  # recorded at once: a test may have swallowed the exception


class _Conversation:
    """The conversation between a test and the program.

    Attributes:
        calls: number of started calls.
        answers: number of answers of the program.
        uncrossed: the first value that could not cross, as an outcome: "uncrossable" where it is the test's doing,
            "refused" where it is the program's.
    """

    def __init__(self) -> None:
        self.calls = self.answers = 0
        self.uncrossed: tuple[str, str] | None = None

    @property
    def raised(self) -> str:
        """The outcome of a test that raised: it is broken only where the program can have had no part in that."""
        return "fail" if self.calls else "broken"

    def refuse(self, why: str) -> BaseException:
        """Record that the program is to blame; the exception to raise."""
        self.uncrossed = self.uncrossed or ("refused", why)
        return _UncrossedError(why)


class _UncrossedError(BaseException):
    """A value that cannot cross; no ``except Exception`` of the test catches it."""


class _Stub:
    """A name of the program in test code: calls go to the program; ``isinstance`` compares the name of a class."""

    def __init__(self, channel: socket.socket, name: str, conversation: _Conversation, caught: dict[str, type]) -> None:
        self.__name__ = self.__qualname__ = name
        self._channel, self._conversation, self._caught = channel, conversation, caught

    def __instancecheck__(self, value: Any) -> bool:
        return is_of(value, self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name, conversation = self.__name__, self._conversation
        try:
            message = dump(["call", name, encode(args), encode(kwargs)])
        except ValueTooLargeError:
            raise  # only values of the program's own making are like that
        except NoValueError as error:
            if conversation.answers and error.data:
                raise conversation.refuse(f"an answer led to {error}, which cannot be passed to {name}") from None
            conversation.uncrossed = conversation.uncrossed or ("uncrossable", f"passes {error} to {name}")
            raise _UncrossedError from None
        if len(message) > MAX_MESSAGE:
            raise ValueTooLargeError(f"arguments of more than {MAX_MESSAGE} bytes")
        conversation.calls += 1
        kind, value, *more = self._ask(message)
        if kind == "awaited":
            return _soon(value)
        return self._members(value, more) if kind == "part" else value

    def _members(self, items: Any, more: list[int]) -> Iterator[Any]:
        """The members of an iterator of the program, fetched as the test consumes them."""
        yield from items
        while more:
            _, items, *more = self._ask(dump(["more", self.__name__, more[0]]))
            yield from items

    def _ask(self, message: bytes) -> list[Any]:
        """The program's answer, its value decoded; the exception that it raised."""
        name, conversation = self.__name__, self._conversation
        try:
            with _turn:
                self._channel.sendall(message)
                reply = _receive(self._channel)
        except OSError:
            reply = None
        if reply is None:
            os._exit(1)
        conversation.answers += 1
        kind, *rest = reply
        if kind == "refused":
            raise conversation.refuse(rest[0])
        try:
            answer = exception(*rest, caught=self._caught) if kind == "raised" else decode(rest[0])
        except Exception as error:  # noqa: BLE001 - no honest program's value is like that
            raise conversation.refuse(f"{name} returned no value ({_text_of(error)})") from None
        if kind == "raised":
            raise answer
        return [kind, answer, *rest[1:]]


async def _soon(value: Any) -> Any:
    return value


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__="program.py")
    sys.modules[name] = module
    return module


def _text_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MAX_TEXT]
    except BaseException:  # noqa: BLE001 - the program's own class
        return "an exception that cannot be shown"


def _send(channel: socket.socket, message: Any, room: int = MAX_MESSAGE, number: str | None = None) -> None:
    """Send a message; the answer to a question that has a number begins with that."""
    wrapped = (lambda reply: reply) if number is None else lambda reply: [number, reply]
    try:
        data = dump(wrapped(message))
    except (ValueError, RecursionError):
        data = dump(wrapped(["refused", "a value that cannot be written down"]))
    if len(data) - 4 - (len(number) + 5 if number else 0) > room:
        data = dump(wrapped(["refused", f"a value of more than {room} bytes"]))
    try:
        channel.sendall(data)
    except OSError:
        os._exit(1)


def _receive(channel: socket.socket) -> Any:
    head = _exactly(channel, 4)
    data = _exactly(channel, int.from_bytes(head, "big")) if head else b""
    return json.loads(data) if data else None


def _exactly(channel: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = channel.recv(min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
