r"""The ``prompt`` mapping of a config: column, wording and answer format.

- ``column``: the column with the question or the conversation (default ``prompt``).
- ``user``: text with ``{column}`` placeholders instead of one column; ``{{``, ``}}`` and the
  braces of LaTeX commands such as ``\boxed{}`` are literal.
- ``system``: a system message.
- ``template``: the name of an answer format; its instructions follow the system message.
- ``chat``: true makes the prompt a conversation. Unset, it is one if the model has a chat template; otherwise system
  message and question become one text.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from grpo_plus.cli import UserError
from grpo_plus.recipe.values import checked_mapping
from grpo_plus.trl.fields import prompt_problem
from grpo_verifiers.errors.messages import unknown, without_middle
from grpo_verifiers.options import Matches

_Text = Annotated[str, Matches(r"(?s).*\S.*", "a string")]


class PromptSettings(TypedDict, total=False):
    """Keys of ``prompt`` and the types of their values."""

    column: _Text
    system: _Text
    user: _Text
    template: _Text
    chat: bool


KEYS = tuple(PromptSettings.__annotations__)


@dataclass(frozen=True)
class AnswerFormat:
    """Instructions on the form of an answer; ``checked_by`` is the YAML entry of the matching verifier."""

    text: str
    checked_by: str


_THINK = "First think the problem through between <think> and </think>."
FORMATS = {
    "boxed": AnswerFormat("Reason step by step, then give the final answer in \\boxed{}.", "math"),
    "think": AnswerFormat(f"{_THINK} After </think>, answer.", "think_format"),
    "think_boxed": AnswerFormat(
        f"{_THINK} After </think>, give the final answer in \\boxed{{}}.", "think_format, math"
    ),
    "think_answer": AnswerFormat(
        f"{_THINK} Then give the final answer between <answer> and </answer>, and nothing after it.",
        "{name: think_format, answer: answer}",
    ),
}

_PIECE = re.compile(r"(?P<latex>\\[A-Za-z]+\{[^{}]*\})|(?P<open>\{\{)|(?P<close>\}\})|\{(?P<column>[^{}]+)\}")


def prompt_problems(value: Any) -> list[str]:
    """Return the problems of the mapping."""
    prompt, problems = checked_mapping("prompt", value, PromptSettings, "{column: question, system: Think first.}")
    template = prompt.get("template")
    if isinstance(template, str) and template.strip() and template not in FORMATS:
        problems.append(
            f"prompt: {unknown('template', template, FORMATS)} Your own words go into prompt: {{system: …}}."
        )
    if "column" in prompt and "user" in prompt:
        problems.append(
            f"prompt has both column ({prompt['column']!r}) and user ({prompt['user']!r}), which both set the "
            "question: keep user, and write the column's name in braces where its text goes."
        )
    return problems


def placeholders(text: str) -> list[str]:
    """Return the columns named in a ``user`` text."""
    return list(dict.fromkeys(match["column"] for match in _PIECE.finditer(text) if match["column"]))


def filled(text: str, row: Mapping[str, Any]) -> str:
    """Fill a ``user`` text with the values of a row."""

    def piece(match: "re.Match[str]") -> str:
        if match["column"]:
            value = row[match["column"]]
            if value is None or isinstance(value, list | dict):
                raise UserError(
                    f"prompt: a row's {match['column']!r} is {value!r}, expected text for the placeholder in user."
                )
            return str(value)
        return "{" if match["open"] else "}" if match["close"] else match[0]

    return _PIECE.sub(piece, text)


_IN_A_FILE = {"column": "prompt: {column: …}", "user": "prompt: {user: …}"}


def check_columns(rows: Any, prompt: Mapping[str, Any], field: str, options: Mapping[str, str] = _IN_A_FILE) -> None:
    """Raise `UserError` if a column of the prompt does not exist; ``options`` spell column and user."""
    columns = rows.column_names or []
    if not columns:  # a stream without a list of columns
        return
    for column in placeholders(prompt["user"]) if "user" in prompt else [prompt.get("column", "prompt")]:
        if column in columns:
            continue
        if "user" in prompt:
            hint = f"The {{{column}}} in {options['user']} names a column; write a literal brace twice."
        else:
            hint = f"Set {options['column']} to the right one."
        raise UserError(f"prompt: {unknown('column', column, columns)} ({field}) {hint}")


def with_prompts(rows: Any, prompt: Mapping[str, Any], *, chat: bool) -> Any:
    """Add the column ``prompt``, built from other columns; return the rows unchanged if the mapping is empty.

    ``chat`` is true if the model's tokenizer has a chat template.
    """
    if not prompt:
        return rows
    make = maker(prompt, chat=chat)
    drop = [name for name in ("prompt",) if name in (rows.column_names or ())]  # its type may change
    return rows.map(lambda row: {"prompt": make(row)}, remove_columns=drop)


def maker(prompt: Mapping[str, Any], *, chat: bool) -> Callable[[Mapping[str, Any]], Any]:
    """Return the function from a row to its prompt."""
    chat = prompt.get("chat", chat)
    template = prompt.get("template")
    instructions = [prompt.get("system"), FORMATS[template].text if template else None]
    system = "\n\n".join(text for text in instructions if text)

    def make(row: Mapping[str, Any]) -> Any:
        question = filled(prompt["user"], row) if "user" in prompt else row[prompt.get("column", "prompt")]
        if not isinstance(question, str):
            if problem := prompt_problem(question, f"prompt: a row of column {prompt.get('column', 'prompt')!r}"):
                raise UserError(problem)
            if system and question[0].get("role") == "system":
                raise UserError(
                    "prompt: a system message is set (by system or template), but the dataset's conversations begin "
                    f"with one already ({question[0].get('content')!r:.80}): keep one of the two."
                )
            return [{"role": "system", "content": system}, *question] if system else question
        if not chat:
            return f"{system}\n\n{question}" if system else question
        return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": question}]

    return make


def sample(prompt: Any, tokenizer: Any, keywords: Mapping[str, Any] | None = None, limit: int = 1200) -> str:
    """Return a prompt as the model reads it; a long one loses its middle."""
    more = {"tokenize": False, "add_generation_prompt": True, **(keywords or {})}
    text = prompt if isinstance(prompt, str) else tokenizer.apply_chat_template(prompt, **more)
    return "\n".join(f"  {line}" for line in without_middle(text, limit).splitlines())
