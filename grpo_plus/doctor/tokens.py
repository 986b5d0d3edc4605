"""Config, generation config and tokenizer of a model: small files, never its weights.

The checks compare the tokens named in these files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_plus.doctor.finding import CheckFinding, ok, problem
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
    def context(self) -> int | None:
        """The maximum number of positions of the model; None without a limit."""
        return largest(self.config.get_text_config(), "max_position_embeddings", "n_positions")


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
    return Files(config, tokenizer, () if failed else _generation_ends(name, config, keywords), tuple(failed))


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
    yield MODEL.at(name, f"{kind}, context {files.context or 'without a limit'}, EOS {eos}")
    last, vocabulary = max(tokenizer.get_vocab().values(), default=0), largest(config.get_text_config(), "vocab_size")
    if last >= (vocabulary or 0):
        yield OUTSIDE.at("tokenizer", f"largest id {last}, the model has {vocabulary or 0} embeddings")
    if end is None:
        yield NO_EOS.at("tokenizer", f"eos_token is unset; generation_config ends at {list(files.generation_ends)}")


def tokens_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Format tokens with their ids."""
    return ", ".join(f"{tokenizer.convert_ids_to_tokens(one)} ({one})" for one in ids)
