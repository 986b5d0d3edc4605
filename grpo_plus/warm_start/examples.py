"""Solutions as token ids behind their prompts: what a warm start trains on.

A prompt has exactly the ids that GRPO gives the model; the ids behind it are what the model would have to sample, with
the token that ends a completion last. A chat template that renders the two otherwise is refused, both texts shown. A
solution may have several turns, with results of tools between them, which are read and not learned (`turns`).
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_plus.warm_start.behind import behind, read
from grpo_plus.warm_start.turns import Message, Schemas, ToolChats, called, own_turns, turns
from grpo_verifiers.errors import ConfigError
from grpo_verifiers.reading.messages import content_text

SHOWN = 600


@dataclass(frozen=True)
class Row:
    """A prompt as text or conversation, its solution as text or conversation, and the tools that the prompt shows."""

    prompt: Any
    solution: Any
    tools: Schemas = ()


@dataclass(frozen=True)
class Examples:
    """Token ids, each row with the length of its prompt, and what became of the others.

    Attributes:
        results: of each row, the places of ids behind the prompt that are not learned: what tools said.
        cut: rows whose solution loses its end.
        too_long: rows left out, as their prompt alone is longer than ``max_length``.
        held_out: rows left out, as their prompt is one that the run measures.
        changed: rows whose solution the tokenizer writes otherwise, as with characters that it does not know.
    """

    ids: Sequence[Sequence[int]]
    starts: Sequence[int]
    cut: int = 0
    too_long: int = 0
    held_out: int = 0
    changed: int = 0
    results: Sequence[Sequence[tuple[int, int]]] = ()

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Tokens of the solutions, those that are trained on."""
        return sum(map(sum, self._masks()))

    @property
    def fingerprint(self) -> str:
        """A hash of all ids."""
        digest = hashlib.sha256()
        for ids, start in zip(self.ids, self.starts, strict=True):
            digest.update(array("q", [len(ids), start, *ids]).tobytes())
        for place, spans in enumerate(self.results):
            for first, last in spans:
                digest.update(array("q", [place, first, last]).tobytes())
        return digest.hexdigest()[:16]

    def columns(self) -> dict[str, list[list[int]]]:
        """The columns that TRL's supervised trainer takes as they are."""
        return {"input_ids": [list(ids) for ids in self.ids], "completion_mask": self._masks()}

    def _masks(self) -> list[list[int]]:
        masks = [[0] * start + [1] * (len(ids) - start) for ids, start in zip(self.ids, self.starts, strict=True)]
        for mask, spans in zip(masks, self.results, strict=False):
            for first, last in spans:
                mask[first:last] = [0] * (last - first)
        return masks

    def told(self) -> list[str]:
        """What became of rows that are not trained on whole."""
        counts = {
            "solutions are cut by max_length (unset: max_completion_length), and do not teach to end": self.cut,
            "rows are left out: the prompt alone fills max_length": self.too_long,
            "rows are left out: their prompts are held out for measure or evaluation": self.held_out,
            "solutions hold characters that the tokenizer does not know or writes otherwise, learned so": self.changed,
        }
        return [f"warm start: {count:,} {text}." for text, count in counts.items() if count]


def encode(
    rows: Sequence[Row],
    tokenizer: Any,
    *,
    column: str,
    keywords: Mapping[str, Any] | None = None,
    verbatim: bool = False,
    max_length: int | None = None,
    most: int | None = None,
    frames: Iterable[Any] | None = None,
    sample: Any = None,
    held_out: Iterable[Any] = (),
    chats: ToolChats | None = None,
) -> Examples:
    """Prompts and solutions as ids.

    ``most`` bounds a solution where ``max_length`` is unset. ``frames`` (`frame_of`) are those of the run's own
    prompts; None: anything goes. An error shows ``sample``, a prompt of the run, beside one that does not fit.
    """
    reads = reader(tokenizer, keywords, None if chats is None else chats.template)
    known = None if frames is None else _Seen(frames)
    hidden = {name for prompt in held_out for name in _names(prompt, reads(prompt))}
    told, held = list[_Told](), 0
    for number, row in enumerate(rows):
        made = _told(row, number, column, reads, tokenizer, verbatim=verbatim)
        if known is not None and frame_of(row.prompt) not in known:
            raise ConfigError([_other_frame(number, reads(sample, row.tools), made.prompt)])
        if hidden and hidden & _names(row.prompt, made.prompt):
            held += 1
            continue
        told.append(made)
    plain = [each.plain for each in told]
    for each, ids in zip(told, _ids(tokenizer, [each.prompt for each in told], plain), strict=True):
        each.ids, each.start = ids, len(ids)
    changed = 0
    for turn in range(max((len(each.said) for each in told), default=0)):
        here = [each for each in told if turn < len(each.said)]
        prompts = [each.prompt if turn == 0 else _decoded(tokenizer, each.ids) for each in here]
        asked, texts = [each.ids for each in here], [each.said[turn] for each in here]
        found = behind(tokenizer, prompts, asked, [each.plain for each in here], texts)
        for each, prompt, text, one in zip(here, prompts, texts, found, strict=True):
            if one.ids is None:
                raise ConfigError([_not_behind(each.number, prompt + text, one.wrong)])
            changed += one.changed
            each.add_turn(turn, [*one.ids, tokenizer.eos_token_id], chats)
    return _cut(told, max_length, most, None if chats is None else chats.most, held_out=held, changed=changed)


@dataclass
class _Told:
    """A row while it becomes ids: its prompt as the model reads it, and the text of each turn behind it."""

    number: int
    prompt: str
    plain: bool
    said: list[str]
    calls: Sequence[Sequence[tuple[str, Any]]] = ((),)
    results: Sequence[Sequence[Message]] = ((),)
    tools: Schemas = ()
    start: int = 0
    ids: list[int] = field(default_factory=list)
    parts: list[tuple[list[int], bool]] = field(default_factory=list)

    def add_turn(self, turn: int, own: list[int], chats: ToolChats | None) -> None:
        """The ids of a turn, and of the results behind it."""
        if chats is not None and not self.plain:
            read_back = chats.read(own, self.ids, self.tools)
            if read_back != list(self.calls[turn]):
                raise ConfigError([_other_calls(self.number, turn, self.said[turn], self.calls[turn], read_back)])
        self._add(own, learned=True)
        if self.results[turn] and chats is not None:
            results = [{**message, "content": chats.clean(message["content"])} for message in self.results[turn]]
            self._add(chats.results(results), learned=False)

    def _add(self, ids: list[int], *, learned: bool) -> None:
        self.parts.append((ids, learned))
        self.ids = [*self.ids, *ids]


def _decoded(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def reader(
    tokenizer: Any, keywords: Mapping[str, Any] | None = None, template: str | None = None
) -> Callable[..., str]:
    """The function from a prompt, and the tools that it shows, to the text that the model reads.

    ``asks`` False renders a conversation that ends with the assistant's turn.
    """

    def reads(prompt: Any, tools: Schemas = (), *, asks: bool = True) -> str:
        if isinstance(prompt, str):
            return prompt
        further: dict[str, Any] = {} if template is None else {"chat_template": template}
        further |= {**({"tools": list(tools)} if tools else {}), **(keywords or {})}
        if asks:
            further["add_generation_prompt"] = True
        return str(tokenizer.apply_chat_template(prompt, tokenize=False, **further))

    return reads


def frame_of(prompt: Any) -> tuple[str, ...] | None:
    """What prompts of one template share: None for plain text, the system messages of a conversation."""
    if isinstance(prompt, str):
        return None
    return tuple(str(turn["content"]) for turn in prompt if turn.get("role") in ("system", "developer"))


def earlier_turns(solution: Any) -> list[Any]:
    """The turns before the solution's own, where it is a whole conversation."""
    return list(solution[: -own_turns(solution)]) if isinstance(solution, list) and solution else []


def side_by_side(left: tuple[str, str], right: tuple[str, str]) -> str:
    """Two titled texts, a block each; long ones lose their middle."""
    return "\n".join(line for title, text in (left, right) for line in (f"{title}:", *_block(text)))


def _block(text: str) -> list[str]:
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}\n[… {len(text) - SHOWN} characters …]\n{text[-SHOWN // 2 :]}"
    return [f"  | {line}" for line in text.split("\n")]


def _told(row: Row, number: int, column: str, reads: Callable[..., str], tokenizer: Any, *, verbatim: bool) -> _Told:
    """The prompt as the model reads it, and the text of each turn behind it."""
    said = f"warm_start: row {number} of the solutions"
    prompt, earlier = reads(row.prompt, row.tools), earlier_turns(row.solution)
    answer = _answer(row.solution, said, column)
    if earlier and (tokenizer.chat_template is None or reads(earlier, row.tools) != prompt):
        carried = reads(earlier, row.tools) if tokenizer.chat_template is not None else repr(earlier)
        raise ConfigError(
            [
                f"{said} carries a prompt of its own in {column!r}, and it is not the one that GRPO's model reads.\n"
                + side_by_side(("the prompt as GRPO's model reads it", prompt), (f"the turns in {column!r}", carried))
                + "\nMake both alike by prompt: (template, system, user), or leave only the assistant's turn there."
            ]
        )
    own = row.solution[len(earlier) :] if isinstance(row.solution, list) else []
    spoken = turns(own or [{"role": "assistant", "content": answer}], row.tools, said)
    if isinstance(row.prompt, str) or verbatim:
        if len(spoken) > 1 or spoken[0][0].get("tool_calls"):
            way = "set verbatim: false" if verbatim else "make the prompts chats (prompt: {chat: true})"
            raise ConfigError([f"{said} calls tools, which only a chat template can write: {way}."])
        return _Told(number, prompt, isinstance(row.prompt, str), [_bare(tokenizer, answer)])
    before = list(row.prompt)
    texts = []
    for message, results in spoken:
        texts.append(_bare(tokenizer, _behind_prompt(before, message, said, reads, row.tools)))
        before += [message, *results]
    calls = [[called(call) for call in message.get("tool_calls", ())] for message, _ in spoken]
    return _Told(number, prompt, False, texts, calls, [results for _, results in spoken], row.tools)


def _behind_prompt(
    before: Sequence[Message], message: Message, said: str, reads: Callable[..., str], tools: Schemas
) -> str:
    """What the chat template writes for a turn behind all that is before it."""
    prompt, whole = reads(before, tools), reads([*before, message], tools, asks=False)
    if not whole.startswith(prompt):
        raise ConfigError(
            [
                f"{said} does not go with its prompt: the chat template renders prompt and solution together otherwise "
                "than the prompt that GRPO's model reads.\n"
                + side_by_side(("the prompt as GRPO's model reads it", prompt), ("prompt and solution together", whole))
                + "\nSet warm_start: {verbatim: true} to have solutions follow the prompt as they are written, or give "
                "the model a chat template whose turns begin like its generation prompt."
            ]
        )
    rest, answer = whole[len(prompt) :], content_text(message.get("content"))
    if _dense(answer) not in _dense(rest):
        raise ConfigError(
            [
                f"{said} is changed by the chat template, which drops a part of it.\n"
                + side_by_side(("the solution", answer), ("what the template makes of it", rest))
                + "\nSet warm_start: {verbatim: true} to train on solutions as they are written."
            ]
        )
    return rest


def _answer(solution: Any, said: str, column: str) -> str:
    """The text of a solution, or of its last turn; each turn says or calls something."""
    expected = "expected text, or messages whose last turn is the assistant's"
    if not isinstance(solution, list):
        if not isinstance(solution, str):
            raise ConfigError([f"{said}: the column {column!r} holds {solution!r:.120}, {expected}."])
        if not solution.strip():
            raise ConfigError([f"{said}: the column {column!r} is empty: give each row a solution, or remove the row."])
        return solution
    last = solution[-1] if solution else None
    if not isinstance(last, Mapping) or last.get("role") != "assistant":
        raise ConfigError([f"{said}: the column {column!r} holds {solution!r:.120}, {expected}."])
    for message in solution[-own_turns(solution) :]:
        if message.get("role") == "tool" or message.get("tool_calls"):
            continue
        _answer(message.get("content"), said, column)
    return str(last.get("content") or "")


def _other_frame(number: int, run: str, own: str) -> str:
    return (
        f"warm_start: row {number} of the solutions has a prompt of another form than the run's prompts.\n"
        + side_by_side(("a prompt as GRPO's model reads it", run), ("the prompt of the solution", own))
        + "\nMake both alike: by prompt: (column, template, system, user, chat), or in the dataset."
    )


def _not_behind(number: int, wanted: str, wrong: str) -> str:
    return (
        f"warm_start: row {number} of the solutions cannot follow its prompt: the tokenizer has no ids for it there "
        "that leave both texts as they are, so no completion of the model could be this solution.\n"
        + side_by_side(("prompt and solution", wanted), ("as the tokenizer writes them", wrong))
        + "\nBegin the solution or end the prompt with other characters, such as a space or a line break."
    )


def _other_calls(number: int, turn: int, text: str, wanted: Any, found: Any) -> str:
    return (
        f"warm_start: turn {turn + 1} of row {number} of the solutions would not be read as it was written: its calls "
        f"are {list(wanted)!r:.200}, and TRL's loop would find {list(found)!r:.200}.\n"
        + side_by_side(("the turn, as the chat template writes it", text), ("calls that are found", repr(found)))
        + "\nThe tokenizer's response_template has to read what its chat_template writes: give the model others."
    )


class _Seen:
    """What an iterable holds, read only as far as it takes to answer: the frames of a large dataset are mostly one."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._rest, self._known = iter(values), set[Any]()

    def __contains__(self, value: Any) -> bool:
        while value not in self._known:
            try:
                self._known.add(next(self._rest))
            except StopIteration:
                return False
        return True


def _dense(text: str) -> str:
    return "".join(text.split())


def _names(prompt: Any, text: str) -> set[Any]:
    """What a prompt is known by: its text as the model reads it, and its words, whatever white space is around them."""
    if isinstance(prompt, str):
        return {text, " ".join(prompt.split())}
    return {text, tuple((turn.get("role"), " ".join(str(turn.get("content")).split())) for turn in prompt)}


def _ids(tokenizer: Any, texts: Sequence[str], plain: Sequence[bool]) -> list[list[int]]:
    """Ids of the prompts: TRL adds special tokens to plain text, while chat templates bring their own."""
    found: list[list[int]] = [[] for _ in texts]
    for specials in (False, True):
        places = [place for place, each in enumerate(plain) if each is specials]
        ids = read(tokenizer, [texts[place] for place in places], specials=specials)
        for place, own in zip(places, ids, strict=True):
            found[place] = own
    return found


def _bare(tokenizer: Any, rest: str) -> str:
    """What follows a prompt, up to the token that ends a completion; templates write a line break behind it."""
    if tokenizer.eos_token_id is None:
        raise ConfigError(["warm_start: the tokenizer has no eos_token, so nothing would end a completion: set one."])
    return rest.rstrip().removesuffix(tokenizer.eos_token) if rest.rstrip().endswith(tokenizer.eos_token) else rest


def _cut(
    told: Sequence[_Told], max_length: int | None, most: int | None, calling: int | None, *, held_out: int, changed: int
) -> Examples:
    """Rows as long as a completion may be, which ends with its call where the results have no room."""
    kept, starts, results, cut, too_long = [], [], [], 0, 0
    for each in told:
        room = max_length - each.start if max_length is not None else most
        if room is not None and room <= 0:
            too_long += 1
            continue
        ids, spans, whole = each.ids[: each.start], list[tuple[int, int]](), True
        for own, learned in each.parts:
            left = None if room is None else room - (len(ids) - each.start)
            fits = left is None or len(own) <= left
            if not learned and (not fits or len(spans) == calling):
                whole = False
                break
            spans += [] if learned else [(len(ids), len(ids) + len(own))]
            ids, whole = [*ids, *own[:left]], fits
        if spans and spans[-1][1] == len(ids):  # nothing is learned behind these
            del ids[spans.pop()[0] :]
        cut += not whole
        kept.append(ids)
        starts.append(each.start)
        results.append(spans)
    if not kept:
        why = f"all of {held_out:,} are held out" if held_out else "the dataset is empty"
        if too_long:
            why = f"the prompts alone are longer than max_length ({max_length}) in {too_long:,} rows"
        raise ConfigError([f"warm_start: no solution is left to train on: {why}."])
    return Examples(kept, starts, cut, too_long, held_out, changed, results if any(results) else ())
