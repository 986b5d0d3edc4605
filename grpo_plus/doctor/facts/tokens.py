"""A model's config, its generation config and its tokenizer: files of a few kilobytes, never its weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_plus.doctor.checks.tokens import NO_TOKENIZER, UNREADABLE, TokenFacts
from grpo_plus.doctor.finding import Finding
from grpo_plus.memory.shape import largest, read_model_config


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
    ids = tokenizer.get_vocab().values()
    known = {one: tokenizer.convert_ids_to_tokens(one) for one in (*ends, tokenizer.eos_token_id) if one is not None}
    return TokenFacts(
        name=name,
        kind=str(getattr(config, "model_type", "unknown")),
        context=largest(text, "max_position_embeddings", "n_positions"),
        vocabulary=largest(text, "vocab_size") or 0,
        largest_id=max(ids, default=0),
        eos=_token(tokenizer, "eos"),
        pad=_token(tokenizer, "pad"),
        generation_eos=tuple(ends),
        names=tuple((one, str(word)) for one, word in known.items()),
    )


def _token(tokenizer: Any, kind: str) -> tuple[str, int] | None:
    number = getattr(tokenizer, f"{kind}_token_id")
    return None if number is None else (str(getattr(tokenizer, f"{kind}_token")), int(number))
