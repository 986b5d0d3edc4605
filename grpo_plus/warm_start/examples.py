"""Solutions as token ids that continue their prompts: the training data of a warm start.

A prompt has exactly the ids that GRPO gives the model. Prompt and solution are read together; where their ids do not
begin with the prompt's, the row is refused, both texts shown. The token that ends a completion comes last. A solution
may have several turns, with results of tools between them, which are read and not learned (`turns`).
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from grpo_plus.warm_start.turns import Message, Schemas, ToolChats, called, turns
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.errors.messages import counted, without_middle
from grpo_verifiers.reading.messages import content_text

SHOWN = 600
Spoken = list[tuple[dict[str, Any], list[dict[str, Any]]]]


@dataclass(frozen=True)
class SolutionRow:
    """A prompt as text or conversation, its solution as text or messages, and the tools that the prompt shows."""

    prompt: Any
    solution: Any
    tools: Schemas = ()


@dataclass
class Examples:
    """Token ids with a mask of the learned ones, and counts of rows that were cut or left out.

    Attributes:
        cut: rows whose solution loses its end.
        too_long: rows left out, as their prompt alone is longer than ``max_length``.
        measured: rows left out, as their prompt is one that the run measures.
    """

    ids: list[list[int]] = field(default_factory=list)
    masks: list[list[int]] = field(default_factory=list)
    cut: int = 0
    too_long: int = 0
    measured: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Tokens that are trained on."""
        return sum(map(sum, self.masks))

    @property
    def fingerprint(self) -> str:
        """A hash of all ids and masks."""
        digest = hashlib.sha256()
        for ids, mask in zip(self.ids, self.masks, strict=True):
            digest.update(array("q", [len(ids), *ids, *mask]).tobytes())
        return digest.hexdigest()[:16]

    def messages(self) -> list[str]:
        """A sentence for each reason to cut a row or leave it out."""
        counts = {
            "solutions are cut by max_length (unset: max_completion_length), and do not teach to end": self.cut,
            "rows are left out: the prompt alone fills max_length": self.too_long,
            "rows are left out: their prompts are measured or evaluated": self.measured,
        }
        return [f"warm start: {count:,} {text}." for text, count in counts.items() if count]

    def add(self, parts: Sequence[tuple[list[int], bool]], room: int | None, *, complete: bool) -> None:
        """Add a prompt and its continuation, of ``room`` ids at most; it ends with a learned id."""
        ids = list(chain.from_iterable(own for own, _ in parts))[:room]
        mask = [int(learned) for own, learned in parts for _ in own][:room]
        if 1 not in mask:
            self.too_long += 1
            return
        while not mask[-1]:
            del ids[-1], mask[-1]
        self.cut += not complete or len(ids) < sum(len(own) for own, _ in parts)
        self.ids.append(ids)
        self.masks.append(mask)


def encode(
    rows: Sequence[SolutionRow],
    tokenizer: Any,
    *,
    column: str,
    keywords: Mapping[str, Any] | None = None,
    verbatim: bool = False,
    max_length: int | None = None,
    most: int | None = None,
    measured: Iterable[Any] = (),
    chats: ToolChats | None = None,
) -> Examples:
    """Prompts and solutions as ids; ``most`` bounds a solution where ``max_length`` is unset."""
    if tokenizer.eos_token_id is None:
        raise ConfigError(["warm_start: the tokenizer has no eos_token, so nothing would end a completion: set one."])
    render = reader(tokenizer, keywords, None if chats is None else chats.template)
    hidden = {_words(prompt) for prompt in measured}
    examples = Examples()
    for number, row in enumerate(rows):
        if _words(row.prompt) in hidden:
            examples.measured += 1
            continue
        where = f"warm_start: row {number} of the solutions"
        spoken = _spoken(row, where, column, verbatim=verbatim)
        parts = _parts(row, spoken, where, tokenizer, render, chats, verbatim=verbatim)
        last = None if chats is None or chats.most is None else 2 * chats.most + 2
        room = max_length if max_length is not None or most is None else len(parts[0][0]) + most
        examples.add(parts[:last], room, complete=last is None or len(parts) <= last)
    if not examples.ids:
        why = f"all of {examples.measured:,} are measured or evaluated" if examples.measured else "the dataset is empty"
        if examples.too_long:
            why = f"the prompts alone are longer than max_length ({max_length}) in {counted(examples.too_long, 'row')}"
        raise ConfigError([f"warm_start: no solution is left to train on: {why}."])
    return examples


def reader(
    tokenizer: Any, keywords: Mapping[str, Any] | None = None, template: str | None = None
) -> Callable[..., str]:
    """The function from a prompt, and the tools that it shows, to the text that the model reads.

    Without ``generate`` it renders a conversation that ends with the assistant's turn.
    """

    def render(prompt: Any, tools: Schemas = (), *, generate: bool = True) -> str:
        if isinstance(prompt, str):
            return prompt
        further: dict[str, Any] = {} if template is None else {"chat_template": template}
        further |= {**({"tools": list(tools)} if tools else {}), **(keywords or {})}
        if generate:
            further["add_generation_prompt"] = True
        return str(tokenizer.apply_chat_template(prompt, tokenize=False, **further))

    return render


def _spoken(row: SolutionRow, where: str, column: str, *, verbatim: bool) -> Spoken:
    messages = row.solution
    if isinstance(messages, str):
        messages = [{"role": "assistant", "content": messages}]
    roles = [message.get("role") for message in messages] if isinstance(messages, list) else []
    if roles[:1] != ["assistant"] or roles[-1:] != ["assistant"] or not {*roles} <= {"assistant", "tool"}:
        expected = "expected text, or messages of the assistant and of tools, whose last turn is the assistant's"
        raise ConfigError([f"{where}: the column {column!r} holds {row.solution!r:.120}, {expected}."])
    for message in messages:
        speaks = isinstance(message.get("content"), str | list) and content_text(message["content"]).strip()
        if not speaks and not message.get("tool_calls") and message["role"] == "assistant":
            raise ConfigError([f"{where}: the column {column!r} is empty: give the row a solution, or remove it."])
    spoken = turns(messages, row.tools, where)
    if (isinstance(row.prompt, str) or verbatim) and (len(spoken) > 1 or spoken[0][0].get("tool_calls")):
        way = "set verbatim: false" if verbatim else "make the prompts chats (prompt: {chat: true})"
        raise ConfigError([f"{where} calls tools, which only a chat template can write: {way}."])
    return spoken


def _parts(  # noqa: PLR0917 - one caller
    row: SolutionRow,
    spoken: Spoken,
    where: str,
    tokenizer: Any,
    render: Callable[..., str],
    chats: ToolChats | None,
    *,
    verbatim: bool,
) -> list[tuple[list[int], bool]]:
    """The ids of the prompt, of the first turn, of its results and so on, each learned or not."""
    plain = isinstance(row.prompt, str)
    before = [] if plain else list(row.prompt)
    parts: list[tuple[list[int], bool]] = []
    for place, (message, results) in enumerate(spoken):
        prompt = render(row.prompt if plain else before, row.tools)
        if plain or verbatim:
            text = content_text(message["content"])
        else:
            text = _continuation(prompt, render([*before, message], row.tools, generate=False), message, where)
        bare, end = text.rstrip(), tokenizer.eos_token  # templates add a line break after it
        both = prompt + (bare.removesuffix(end) if bare.endswith(end) else text)
        prompt_ids, ids = tokenizer(text=[prompt, both], add_special_tokens=plain)["input_ids"]
        if ids[: len(prompt_ids)] != list(prompt_ids):
            raise _refused(
                f"{where} cannot follow its prompt: read together, their token ids do not begin with those of the "
                "prompt, so no completion of the model could be this solution.",
                ("the prompt", prompt),
                ("the solution", text),
                "Begin the solution or end the prompt with other characters, such as a space or a line break.",
            )
        parts += [] if parts else [(list(prompt_ids), False)]
        own = [*ids[len(prompt_ids) :], tokenizer.eos_token_id]
        if chats is not None and not plain:
            calls = [called(call) for call in message.get("tool_calls", ())]
            so_far = list(chain.from_iterable(ids for ids, _ in parts))
            if (read_back := chats.read(own, so_far, row.tools)) != calls:
                raise _refused(
                    f"{where} would not be read as it was written: the calls of turn {place + 1} are {calls!r:.200}, "
                    f"and TRL's loop would find {read_back!r:.200}.",
                    ("the turn, as the chat template writes it", text),
                    ("calls that it reads", repr(read_back)),
                    "The tokenizer's response_template has to read what its chat_template writes: give the model "
                    "different ones.",
                )
        parts.append((own, True))
        if results and chats is not None:
            cleaned = [{**each, "content": chats.clean(each["content"])} for each in results]
            parts.append((chats.results(cleaned), False))
        before += [message, *results]
    return parts


def _continuation(prompt: str, text: str, message: Message, where: str) -> str:
    """The text of the chat template for a turn after its prompt."""
    if not text.startswith(prompt):
        raise _refused(
            f"{where} does not go with its prompt: the chat template renders prompt and solution together otherwise "
            "than the prompt that GRPO's model reads.",
            ("the prompt as GRPO's model reads it", prompt),
            ("prompt and solution together", text),
            "Set warm_start: {verbatim: true} to have solutions follow the prompt as they are written, or give the "
            "model a chat template whose turns begin like its generation prompt.",
        )
    rest, answer = text[len(prompt) :], content_text(message["content"])
    if "".join(answer.split()) not in "".join(rest.split()):
        raise _refused(
            f"{where} is changed by the chat template, which drops a part of it.",
            ("the solution", answer),
            ("the solution in the template", rest),
            "Set warm_start: {verbatim: true} to train on solutions as they are written.",
        )
    return rest


def _refused(problem: str, left: tuple[str, str], right: tuple[str, str], remedy: str) -> ConfigError:
    """The error that shows two titled texts between a problem and its remedy; long texts lose their middle."""
    lines = [problem]
    for title, text in (left, right):
        lines += [f"{title}:", *(f"  | {line}" for line in without_middle(text, SHOWN).split("\n"))]
    return ConfigError(["\n".join([*lines, remedy])])


def _words(prompt: Any) -> Any:
    if isinstance(prompt, str):
        return " ".join(prompt.split())
    return tuple((turn.get("role"), " ".join(str(turn.get("content")).split())) for turn in prompt)
