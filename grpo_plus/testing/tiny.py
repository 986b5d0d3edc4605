"""A tiny causal model and a character tokenizer, for tests and trial runs without any download."""

import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_verifiers.errors.messages import unknown

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PRINTABLE = "\n" + "".join(sorted(set(string.printable) - set(string.whitespace) | {" "}))
"""The default vocabulary: printable ASCII and the newline."""

_PAD, _UNK, _BOS, _START, _EOS = "<|endoftext|>", "<|unknown|>", "<|startoftext|>", "<|im_start|>", "<|im_end|>"

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% elif message['content'] %}"
    "{% for part in message['content'] %}{{ part['text'] if 'text' in part else '' }}{% endfor %}"
    "{% endif %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
_EXTRA: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8},
    **{name: {} for name in ("gpt2", "llama", "mistral", "olmo2", "phi3", "qwen2")},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8, **_EXPERTS},
}
ARCHITECTURES = tuple(sorted(_EXTRA))
"""The architectures of `make_tiny_model`."""


def make_tiny_tokenizer(vocab: str = PRINTABLE) -> "PreTrainedTokenizerFast":
    """Return a tokenizer with one token a character, special tokens and a ChatML template.

    >>> tokenizer = make_tiny_tokenizer()
    >>> tokenizer.decode(tokenizer("2 + 2 = 4")["input_ids"])
    '2 + 2 = 4'

    ``vocab`` is ASCII; any character outside it becomes the unknown token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    if not vocab or not vocab.isascii():
        raise ValueError(f"vocab is {vocab!r}, expected ASCII characters (other characters are several bytes long).")
    specials = (_PAD, _UNK, _BOS, _START, _EOS)
    ids = {token: at for at, token in enumerate((*specials, *map(_byte_symbol, dict.fromkeys(vocab))))}
    # Byte-level BPE without merges gives one token a character. Plain characters would do too, but AutoTokenizer
    # rebuilds some families' tokenizers (Qwen's) as byte-level BPE from the saved vocabulary, and would then lose
    # spaces and newlines.
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=_UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=_PAD,
        unk_token=_UNK,
        bos_token=_BOS,
        eos_token=_EOS,
        additional_special_tokens=[_START],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=_CHAT_TEMPLATE,
    )


def _byte_symbol(character: str) -> str:
    """An ASCII character as byte-level BPE writes it: unchanged if visible, else moved up by 256."""
    if "!" <= character <= "~":
        return character
    return "\u0121" if character == "\x7f" else chr(256 + ord(character))


def make_tiny_model(
    folder: str | Path | None = None,
    *,
    architecture: str = "qwen2",
    vocab: str = PRINTABLE,
    layers: int = 2,
    hidden: int = 32,
    seed: int = 0,
    **config: Any,
) -> "tuple[PreTrainedModel, PreTrainedTokenizerFast]":
    """Return a randomly initialised model of a real architecture, small enough to train in a test.

    The weights are large enough (standard deviation 0.2) that next-token probabilities differ visibly between
    contexts: a near-uniform model would hide a wrong position or a leaking mask. The global random state is untouched.

    The model is in float32 on the CPU and in evaluation mode. With a ``folder`` both are saved there, for
    ``AutoModelForCausalLM`` and ``AutoTokenizer`` to load. ``architecture`` is one of `ARCHITECTURES`, ``hidden`` a
    multiple of 8. Further keywords are fields of the model's config, and override the values set here.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if architecture not in _EXTRA:
        raise ValueError(unknown("architecture", architecture, ARCHITECTURES))
    if hidden < 8 or hidden % 8:
        raise ValueError(f"hidden is {hidden}, expected a positive multiple of 8 (heads are 8 wide).")
    if layers < 1:
        raise ValueError(f"layers is {layers}, expected at least 1.")
    tokenizer = make_tiny_tokenizer(vocab)
    heads = hidden // 8
    values: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        "max_position_embeddings": 2048,
        "initializer_range": 0.2,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if architecture == "gpt2":  # has its own names, and no grouped keys
        del values["num_key_value_heads"], values["intermediate_size"]
        values |= {"n_inner": 2 * hidden, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model_config = AutoConfig.for_model(architecture, **(values | _EXTRA[architecture] | config))
        model = AutoModelForCausalLM.from_config(model_config, dtype=torch.float32).eval()
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    if folder is not None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return model, tokenizer
