"""Solutions as token ids behind their prompts: what a warm start trains on.

A prompt has exactly the ids that GRPO gives the model; the ids behind it are what the model would have to sample, with
the token that ends a completion last. A chat template that renders the two otherwise is refused, both texts shown.
"""

import hashlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.warm_start.behind import behind, read
from grpo_verifiers.errors import ConfigError

SHOWN = 600


@dataclass(frozen=True)
class Row:
    """A prompt as text or conversation, and its solution as text or conversation."""

    prompt: Any
    solution: Any


@dataclass(frozen=True)
class Examples:
    """Token ids, each row with the length of its prompt, and what became of the others.

    Attributes:
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

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Tokens of the solutions, those that are trained on."""
        return sum(len(ids) - start for ids, start in zip(self.ids, self.starts, strict=True))

    @property
    def fingerprint(self) -> str:
        """A hash of all ids."""
        digest = hashlib.sha256()
        for ids, start in zip(self.ids, self.starts, strict=True):
            digest.update(array("q", [len(ids), start, *ids]).tobytes())
        return digest.hexdigest()[:16]

    def columns(self) -> dict[str, list[list[int]]]:
        """The columns that TRL's supervised trainer takes as they are."""
        masks = [[0] * start + [1] * (len(ids) - start) for ids, start in zip(self.ids, self.starts, strict=True)]
        return {"input_ids": [list(ids) for ids in self.ids], "completion_mask": masks}

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
) -> Examples:
    """Prompts and solutions as ids.

    Args:
        rows: what is to be learned.
        tokenizer: of the model.
        column: the column of the solutions, for messages.
        keywords: further arguments of the chat template.
        verbatim: a solution follows its prompt as written.
        max_length: most tokens of prompt and solution.
        most: most tokens of a solution where ``max_length`` is unset: those that GRPO draws.
        frames: the frames (`frame_of`) of the run's own prompts; None: anything goes.
        sample: a prompt of the run, to be shown beside one that does not fit.
        held_out: prompts that must not be trained on.

    Raises:
        ConfigError: a solution is no text, does not go with its prompt, or has no ids behind it.
    """
    reads = reader(tokenizer, keywords)
    known = None if frames is None else _Seen(frames)
    hidden = {name for prompt in held_out for name in _names(prompt, reads(prompt))}
    prompts, rests, plain, numbers, held = [], [], [], [], 0
    for number, row in enumerate(rows):
        prompt, rest = _texts(row, number, column, reads, tokenizer, keywords, verbatim=verbatim)
        if known is not None and frame_of(row.prompt) not in known:
            raise ConfigError([_other_frame(number, reads(sample), prompt)])
        if hidden and hidden & _names(row.prompt, prompt):
            held += 1
            continue
        prompts.append(prompt)
        rests.append(_bare(tokenizer, rest))
        plain.append(isinstance(row.prompt, str))
        numbers.append(number)
    asked = _ids(tokenizer, prompts, plain)
    found = behind(tokenizer, prompts, asked, plain, rests)
    for number, prompt, rest, each in zip(numbers, prompts, rests, found, strict=True):
        if each.ids is None:
            raise ConfigError([_not_behind(number, prompt + rest, each.wrong)])
    endings = [[*(each.ids or ()), tokenizer.eos_token_id] for each in found]
    changed = sum(each.changed for each in found)
    return _cut(asked, endings, max_length=max_length, most=most, held_out=held, changed=changed)


def reader(tokenizer: Any, keywords: Mapping[str, Any] | None = None) -> Callable[[Any], str]:
    """The function from a prompt to the text that the model reads."""

    def reads(prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        return str(
            tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **(keywords or {}))
        )

    return reads


def frame_of(prompt: Any) -> tuple[str, ...] | None:
    """What prompts of one template share: None for plain text, the system messages of a conversation."""
    if isinstance(prompt, str):
        return None
    return tuple(str(turn["content"]) for turn in prompt if turn.get("role") in ("system", "developer"))


def earlier_turns(solution: Any) -> list[Any]:
    """The turns before the answer, where a solution is a whole conversation."""
    return list(solution[:-1]) if isinstance(solution, list) else []


def side_by_side(left: tuple[str, str], right: tuple[str, str]) -> str:
    """Two titled texts, a block each; long ones lose their middle."""
    return "\n".join(line for title, text in (left, right) for line in (f"{title}:", *_block(text)))


def _block(text: str) -> list[str]:
    if len(text) > SHOWN:
        text = f"{text[: SHOWN // 2]}\n[… {len(text) - SHOWN} characters …]\n{text[-SHOWN // 2 :]}"
    return [f"  | {line}" for line in text.split("\n")]


def _texts(  # noqa: PLR0917
    row: Row,
    number: int,
    column: str,
    reads: Callable[[Any], str],
    tokenizer: Any,
    keywords: Mapping[str, Any] | None,
    *,
    verbatim: bool,
) -> tuple[str, str]:
    """The prompt as the model reads it, and the text behind it."""
    said = f"warm_start: row {number} of the solutions"
    prompt, own = reads(row.prompt), earlier_turns(row.solution)
    answer = _answer(row.solution, said, column)
    if own and (tokenizer.chat_template is None or reads(own) != prompt):
        carried = reads(own) if tokenizer.chat_template is not None else repr(own)
        raise ConfigError(
            [
                f"{said} carries a prompt of its own in {column!r}, and it is not the one that GRPO's model reads.\n"
                + side_by_side(("the prompt as GRPO's model reads it", prompt), (f"the turns in {column!r}", carried))
                + "\nMake both alike by prompt: (template, system, user), or leave only the assistant's turn there."
            ]
        )
    if isinstance(row.prompt, str) or verbatim:
        return prompt, answer
    turn = row.solution[-1] if isinstance(row.solution, list) else {"role": "assistant", "content": answer}
    whole = str(tokenizer.apply_chat_template([*row.prompt, turn], tokenize=False, **(keywords or {})))
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
    rest = whole[len(prompt) :]
    if _dense(answer) not in _dense(rest):
        raise ConfigError(
            [
                f"{said} is changed by the chat template, which drops a part of it.\n"
                + side_by_side(("the solution", answer), ("what the template makes of it", rest))
                + "\nSet warm_start: {verbatim: true} to train on solutions as they are written."
            ]
        )
    return prompt, rest


def _answer(solution: Any, said: str, column: str) -> str:
    expected = "expected text, or messages whose last turn is the assistant's"
    if isinstance(solution, list):
        last = solution[-1] if solution else None
        if not isinstance(last, Mapping) or last.get("role") != "assistant":
            raise ConfigError([f"{said}: the column {column!r} holds {solution!r:.120}, {expected}."])
        solution = last.get("content")
    if not isinstance(solution, str):
        raise ConfigError([f"{said}: the column {column!r} holds {solution!r:.120}, {expected}."])
    if not solution.strip():
        raise ConfigError([f"{said}: the column {column!r} is empty: give each row a solution, or remove the row."])
    return solution


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
    prompts: Sequence[list[int]],
    endings: Sequence[list[int]],
    *,
    max_length: int | None,
    most: int | None,
    held_out: int,
    changed: int,
) -> Examples:
    kept, starts, cut, too_long = [], [], 0, 0
    for prompt, ending in zip(prompts, endings, strict=True):
        room = max_length - len(prompt) if max_length is not None else most
        if room is not None and room <= 0:
            too_long += 1
            continue
        cut += room is not None and len(ending) > room
        kept.append([*prompt, *ending[:room]])
        starts.append(len(prompt))
    if not kept:
        why = f"all of {held_out:,} are held out" if held_out else "the dataset is empty"
        if too_long:
            why = f"the prompts alone are longer than max_length ({max_length}) in {too_long:,} rows"
        raise ConfigError([f"warm_start: no solution is left to train on: {why}."])
    return Examples(kept, starts, cut, too_long, held_out, changed)
