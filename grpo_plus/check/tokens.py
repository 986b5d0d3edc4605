"""Config, generation config, tokenizer and chat template of a model: small files, never its weights.

The checks compare the tokens named in these files.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.check.finding import CheckFinding, ok, problem, warning
from grpo_plus.memory.shape import largest, read_model_config
from grpo_plus.trl.tools import tool_tokenizer

MODEL = ok("model", "The model's config and its tokenizer can be read; no weights were loaded.")
UNREADABLE = problem(
    "model-unreadable",
    "The model's config cannot be read, so the model cannot be loaded.",
    "Correct model_name_or_path; offline, the model has to be in the cache or in a folder.",
)
NO_TOKENIZER = problem(
    "tokenizer-unreadable",
    "The tokenizer cannot be loaded.",
    "Put tokenizer.json and tokenizer_config.json into the model's folder, or name the model that has them.",
)
NO_EOS = problem(
    "eos-missing",
    "The tokenizer has no token that ends a text: every completion runs to the limit and counts as cut off.",
    "Set eos_token in tokenizer_config.json to the token that ends a turn.",
)
OUTSIDE = problem(
    "vocabulary-small",
    "The tokenizer has ids that the model has no embedding for: the first of them ends the run with an index error.",
    "Take the tokenizer that belongs to the model, or resize the embeddings and save the model again.",
)


@dataclass(frozen=True)
class Files:
    """Small files of a model, and a finding for each unreadable one.

    ``generation_ends`` are the end ids of the generation config, or of the model's config without one.
    """

    name: str = ""
    config: Any = None
    tokenizer: Any = None
    generation_ends: tuple[int, ...] = ()
    failed: tuple[CheckFinding, ...] = ()

    @property
    def ends(self) -> frozenset[int]:
        """Ids that end completions in a run: those of the generation config and of the tokenizer."""
        own = self.tokenizer.eos_token_id
        return frozenset([*self.generation_ends, *([] if own is None else [own])])

    @property
    def template_elsewhere(self) -> bool:
        """True for a vision model without a template in its tokenizer: its processor has it."""
        return hasattr(self.config, "vision_config") and getattr(self.tokenizer, "chat_template", None) is None


def context_of(config: Any) -> int | None:
    """Return the maximum number of positions of a model; None without a limit."""
    return largest(config.get_text_config(), "max_position_embeddings", "n_positions")


def model_files(name: str, keywords: Mapping[str, Any]) -> Files:
    """Read the small files of a model; ``keywords`` are revision and trust_remote_code, if set."""
    from transformers import AutoConfig, AutoTokenizer

    failed: list[CheckFinding] = []
    config: Any = None
    tokenizer: Any = None
    try:
        config = AutoConfig.from_pretrained(name, **keywords) if keywords else read_model_config(name)
    except Exception as error:  # noqa: BLE001 - libraries of the Hub and code of the model raise anything
        failed.append(UNREADABLE.at(name, f"{type(error).__name__}: {error}"))
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, **keywords)
    except Exception as error:  # noqa: BLE001 - same
        failed.append(NO_TOKENIZER.at(name, f"{type(error).__name__}: {error}"))
    tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
    if tokenizer is not None and not tokenizer.get_vocab():  # without its files transformers makes an empty one
        failed.append(NO_TOKENIZER.at(name, "its vocabulary is empty: the files of a tokenizer are missing"))
    ends: tuple[int, ...] = ()
    try:
        ends = () if failed else _generation_ends(name, config, keywords)
    except Exception as error:  # noqa: BLE001 - same
        failed.append(UNREADABLE.at(f"{name}/generation_config.json", f"{type(error).__name__}: {error}"))
    return Files(name, config, tokenizer, ends, tuple(failed))


def _generation_ends(name: str, config: Any, keywords: Mapping[str, Any]) -> tuple[int, ...]:
    from transformers import GenerationConfig

    try:
        ends = GenerationConfig.from_pretrained(name, **keywords).eos_token_id
    except (OSError, ValueError):
        ends = getattr(config, "eos_token_id", None)
    return tuple(one for one in (ends if isinstance(ends, list) else [ends]) if isinstance(one, int))


def token_findings(name: str, files: Files) -> Iterator[CheckFinding]:
    """Report the model, and check the tokens that end texts."""
    config, tokenizer = files.config, files.tokenizer
    end = tokenizer.eos_token_id
    kind = str(getattr(config, "model_type", "unknown"))
    eos = "none" if end is None else f"{tokenizer.eos_token} ({end})"
    yield MODEL.at(name, f"{kind}, context {context_of(config) or 'without a limit'}, EOS {eos}")
    last, vocabulary = max(tokenizer.get_vocab().values(), default=0), largest(config.get_text_config(), "vocab_size")
    if last >= (vocabulary or 0):
        yield OUTSIDE.at("tokenizer", f"largest id {last}, the model has {vocabulary or 0} embeddings")
    if end is None:
        yield NO_EOS.at("tokenizer", f"eos_token is unset; generation_config ends at {list(files.generation_ends)}")


def tokens_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Format tokens with their ids."""
    return ", ".join(f"{tokenizer.convert_ids_to_tokens(one)} ({one})" for one in ids)


_USER = {"role": "user", "content": "SAMPLEQUESTION"}
_ANSWER = "SAMPLEANSWER"

ENDS = ok("turn-ends", "The token that the template writes after a turn ends a completion.")
NEVER = warning(
    "turn-never-ends",
    "The template ends a turn with a token that ends no completion: a model that learned the template writes it and "
    "continues, every completion is cut off at the limit, and mask_truncated_completions leaves none.",
    "Set eos_token in tokenizer_config.json to that token, or add its id to eos_token_id in generation_config.json.",
)
NO_END = warning(
    "turn-without-end",
    "The template writes nothing after a turn of the assistant, and the next turn begins with a token that ends no "
    "completion: the model has no end to learn.",
    "Add the token to the template, after the assistant's content.",
)
MISSING = problem(
    "template-missing",
    "Prompts are conversations, and the tokenizer has no chat template to write them with.",
    "Take an instruct model or its tokenizer, or prompts of plain text (prompt: {chat: false}).",
)
FAILS = problem(
    "template-fails",
    "The chat template raises on a prompt of this data.",
    "Change the prompt (templates often refuse a system message, or two turns of one role), or the template.",
)
CLOSED = warning(
    "thinking-closed",
    "think_format needs a thinking section in the completion, and the prompt has one already, closed and empty.",
    "Set chat_template_kwargs: {enable_thinking: true}, or drop think_format.",
)
PREFILLED = warning(
    "thinking-prefilled",
    "The prompt ends with the opening tag, which no completion repeats: think_format scores all of them 0.",
    "Write {name: think_format, prefilled: true}.",
)
ALIKE = problem(
    "template-drops-prompt",
    "The chat template writes different prompts alike: the model does not see the question.",
    "Correct the template, or the roles of the messages.",
)
NO_TOOLS = problem(
    "tools-unsupported",
    "There are tools, and the chat template cannot write calls and their results: the trainer refuses it.",
    "Choose a model whose template supports tools, such as Qwen3.",
)


def template_findings(
    tokenizer: Any,
    prompt: Any,
    ends: Collection[int],
    *,
    other: Any = None,
    keywords: Mapping[str, Any],
    schemas: Sequence[Mapping[str, Any]] = (),
    think_format: bool = False,
    prefilled: bool = False,
) -> Iterator[CheckFinding]:
    """Check the template on the first prompt with the schemas of its tools, and on a few conversations.

    ``ends`` are the ids that end completions; ``other`` is a different prompt, if there is one. ``think_format``
    requires thinking; ``prefilled`` is its option.
    """
    tools = {}
    if schemas:
        try:
            tool_tokenizer(tokenizer)
            tools = {"tools": list(schemas)}
        except ValueError as error:
            yield NO_TOOLS.at("tools", str(error))
    if isinstance(prompt, str):
        return
    if tokenizer.chat_template is None:
        yield MISSING.at("chat template", "none")
        return
    try:
        written = _written(tokenizer, prompt, **keywords, **tools)
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        yield FAILS.at("chat template", f"{type(error).__name__}: {error}")
        return
    if other is not None and _try_writing(tokenizer, other, **keywords, **tools) == written:
        yield ALIKE.at("chat template", f"two prompts are written as {written[-60:]!r}")
    yield from _end(tokenizer, keywords, ends)
    closed, opened = written.rstrip().endswith("</think>"), written.rstrip().endswith("<think>")
    if closed and think_format:
        yield CLOSED.at("chat template", f"the prompt ends with {written[-40:]!r}")
    if opened and think_format and not prefilled:
        yield PREFILLED.at("think_format", f"the prompt ends with {written[-20:]!r}")


def thinks_by_default(tokenizer: Any) -> bool:
    """Return True if a prompt opens the thinking section, or if enable_thinking is on by default."""
    ways: tuple[dict[str, bool], ...] = ({"enable_thinking": True}, {"enable_thinking": False}, {})
    on, off, default = (_try_writing(tokenizer, [_USER], **way) for way in ways)
    return default.rstrip().endswith("<think>") or (on != off and default == on)


def _end(tokenizer: Any, keywords: Mapping[str, Any], ends: Collection[int]) -> Iterator[CheckFinding]:
    """Check the first token after an assistant's content, spaces aside.

    If the template writes nothing there (GLM), check the first token of the next turn. No finding if the answer is not
    written at all.
    """
    answer = {"role": "assistant", "content": _ANSWER}
    for turns in ([_USER, answer], [_USER, answer, _USER]):
        text = _try_writing(tokenizer, turns, **{**keywords, "add_generation_prompt": False})
        rest = text.rpartition(_ANSWER)[2].strip() if _ANSWER in text else ""
        ids = tokenizer.encode(rest, add_special_tokens=False) if rest else []
        if not ids:
            continue
        token = tokens_text(tokenizer, ids[:1])
        if len(turns) == 3 and ids[0] not in ends:
            begins = f"nothing after the assistant's content; the next turn begins with {token}"
            yield NO_END.at("chat template", begins)
        else:
            kind = ENDS if ids[0] in ends else NEVER
            ended = f"a turn ends with {token}, completions at {tokens_text(tokenizer, sorted(ends))}"
            yield kind.at("chat template", ended)
        return


def _written(tokenizer: Any, messages: Any, **keywords: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, **{"add_generation_prompt": True, **keywords}))


def _try_writing(tokenizer: Any, messages: Any, **keywords: Any) -> str:
    """Return a conversation as written by the template; empty if that fails."""
    try:
        return _written(tokenizer, messages, **keywords)
    except Exception:  # noqa: BLE001 - same
        return ""
