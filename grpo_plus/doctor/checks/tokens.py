"""The model's config and its tokenizer: do they name the same tokens, and do those exist?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_plus.doctor.finding import Finding, info, ok, problem

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
DISAGREE = info(
    "eos-disagrees",
    "The generation config ends completions at other tokens than the tokenizer; a run stops at all of them.",
    "Nothing, if all of them end a turn; otherwise correct generation_config.json.",
)
PAD_IS_EOS = info(
    "pad-is-eos",
    "Padding is the token that ends a text. Training masks by position, so the end of a completion is learned all the "
    "same; code of your own that masks by the pad id would lose it.",
    "Nothing for GRPO; a pad token of its own avoids the trap.",
)
OUTSIDE = problem(
    "vocabulary-small",
    "The tokenizer has ids that the model has no embedding for: the first of them ends the run with an index error.",
    "Take the tokenizer that belongs to the model, or resize the embeddings and save the model again.",
)


@dataclass(frozen=True)
class TokenFacts:
    """Names and ids of the tokens that end and pad texts, by each of the files that say so.

    Attributes:
        name: the model.
        kind: its model_type, and what else is worth a word.
        context: the most positions of the model; None where it has no limit.
        vocabulary: rows of its embeddings.
        largest_id: of the tokenizer's tokens.
        eos: the tokenizer's token that ends a text, with its id.
        pad: its token for padding.
        generation_eos: ids that the generation config ends at; empty where it says nothing.
        names: tokens of the ids, for people.
    """

    name: str
    kind: str
    context: int | None
    vocabulary: int
    largest_id: int
    eos: tuple[str, int] | None
    pad: tuple[str, int] | None
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
    """The model, and the tokens that end and pad."""
    yield MODEL.at(facts.name, f"{facts.kind}, context {facts.context or 'without a limit'}, EOS {_named(facts.eos)}")
    if facts.largest_id >= facts.vocabulary:
        yield OUTSIDE.at("tokenizer", f"largest id {facts.largest_id}, the model has {facts.vocabulary} embeddings")
    if facts.eos is None:
        yield NO_EOS.at("tokenizer", f"eos_token is unset; generation_config ends at {list(facts.generation_eos)}")
    elif facts.generation_eos and set(facts.generation_eos) != {facts.eos[1]}:
        told = f"generation_config {facts.shown(facts.generation_eos)}"
        yield DISAGREE.at("EOS", f"tokenizer {_named(facts.eos)}, {told}")
    if facts.eos is not None and (facts.pad is None or facts.pad[1] == facts.eos[1]):
        value = _named(facts.pad) if facts.pad else f"unset, so TRL takes {_named(facts.eos)}"
        yield PAD_IS_EOS.at("padding", value)


def _named(token: tuple[str, int] | None) -> str:
    return "none" if token is None else f"{token[0]} ({token[1]})"
