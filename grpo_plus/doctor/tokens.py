"""A model's config, its generation config and its tokenizer: files of a few kilobytes, never its weights.

Do they name the same tokens, and do those exist?
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.doctor.finding import Finding, ok, problem
from grpo_plus.memory.shape import largest, read_model_config

MODEL = ok("model", "The model's config and its tokenizer can be read; no weights were loaded.")
UNREADABLE = problem(
    "model-unreadable",
    "The model's config cannot be read, so the model cannot be loaded.",
    "Correct model_name_or_path; offline, the model has to be in the cache or in a folder.",
)
NO_TOKENIZER = problem(
    "tokenizer-unreadable",
    "The tokenizer cannot be loaded.",
    "Put tokenizer.json and tokenizer_config.json beside the model's config.json, or name the model that has them.",
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
class TokenFacts:
    """Names and ids of the tokens that end texts, by each of the files that say so.

    Attributes:
        name: the model.
        kind: its model_type, and what else is worth a word.
        context: the most positions of the model; None where it has no limit.
        vocabulary: rows of its embeddings.
        largest_id: of the tokenizer's tokens.
        eos: the tokenizer's token that ends a text, with its id.
        generation_eos: ids that the generation config ends at; empty where it says nothing.
        names: tokens of the ids, for people.
    """

    name: str
    kind: str
    context: int | None
    vocabulary: int
    largest_id: int
    eos: tuple[str, int] | None
    generation_eos: tuple[int, ...] = ()
    names: Sequence[tuple[int, str]] = ()

    @property
    def ends(self) -> frozenset[int]:
        """Ids that a run ends completions at: those of the generation config, and the tokenizer's."""
        return frozenset([*self.generation_eos, *([self.eos[1]] if self.eos else [])])

    def shown(self, ids: Sequence[int]) -> str:
        """Ids with their tokens."""
        names = dict(self.names)
        return ", ".join(f"{names[one]} ({one})" if one in names else str(one) for one in ids)


def token_findings(facts: TokenFacts) -> Iterator[Finding]:
    """The model, and the tokens that end texts."""
    yield MODEL.at(facts.name, f"{facts.kind}, context {facts.context or 'without a limit'}, EOS {_named(facts.eos)}")
    if facts.largest_id >= facts.vocabulary:
        yield OUTSIDE.at("tokenizer", f"largest id {facts.largest_id}, the model has {facts.vocabulary} embeddings")
    if facts.eos is None:
        yield NO_EOS.at("tokenizer", f"eos_token is unset; generation_config ends at {list(facts.generation_eos)}")


def _named(token: tuple[str, int] | None) -> str:
    return "none" if token is None else f"{token[0]} ({token[1]})"


@dataclass(frozen=True)
class Files:
    """What could be read of a model; a finding for each of the files that could not."""

    config: Any = None
    tokenizer: Any = None
    facts: TokenFacts | None = None
    failed: tuple[Finding, ...] = ()


def model_files(name: str, keywords: Mapping[str, Any]) -> Files:
    """Read the small files of a model; ``keywords`` are revision and trust_remote_code, where they are set."""
    from transformers import AutoConfig, AutoTokenizer

    failed: list[Finding] = []
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
    facts = token_facts(name, config, tokenizer, _generation_eos(name, config, keywords)) if not failed else None
    return Files(config, tokenizer, facts, tuple(failed))


def _generation_eos(name: str, config: Any, keywords: Mapping[str, Any]) -> Any:
    """The ids that generation ends at: of the generation config, or where there is none of the model's config."""
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(name, **keywords).eos_token_id
    except (OSError, ValueError):
        return getattr(config, "eos_token_id", None) if config is not None else None


def token_facts(name: str, config: Any, tokenizer: Any, generation_eos: Any) -> TokenFacts:
    """What the files say about tokens."""
    text = config.get_text_config()
    ends = generation_eos if isinstance(generation_eos, list) else [generation_eos]
    ends = [one for one in ends if isinstance(one, int)]
    ids, end = tokenizer.get_vocab().values(), tokenizer.eos_token_id
    known = {one: tokenizer.convert_ids_to_tokens(one) for one in (*ends, end) if one is not None}
    return TokenFacts(
        name=name,
        kind=str(getattr(config, "model_type", "unknown")),
        context=largest(text, "max_position_embeddings", "n_positions"),
        vocabulary=largest(text, "vocab_size") or 0,
        largest_id=max(ids, default=0),
        eos=None if end is None else (str(tokenizer.eos_token), int(end)),
        generation_eos=tuple(ends),
        names=tuple((one, str(word)) for one, word in known.items()),
    )
