"""The part of ``prm`` that needs PyTorch: loading a checkpoint, and the scores at its separators."""

import functools
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from grpo_verifiers.errors import UnavailableError, VerifierFailedError

_LONGEST_TOKEN = 16
"""Characters that a token has at most, on average."""


class LoadedModel(NamedTuple):
    """A checkpoint in memory."""

    name: str
    model: Any
    tokenizer: Any


class PrmQuestion(NamedTuple):
    """The tokens that the model reads for one completion, the positions of its separators, the number of all steps."""

    ids: list[int]
    at: list[int]
    steps: int


@functools.lru_cache(maxsize=4)
def load(  # noqa: PLR0917 - the identity of a loaded model
    name: str, style: str, device: str, dtype: str, revision: str | None, trust_remote_code: bool
) -> LoadedModel:
    """Load a checkpoint once for this process; the random state of the process does not change."""
    options: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if trust_remote_code:
        _refuse_foreign_code(name)
    options = {key: value for key, value in options.items() if value}
    try:
        kind = _class_of(AutoConfig.from_pretrained(name, **options), style)
        # The initialisation of weights before loading must not consume the random numbers of the run.
        with torch.random.fork_rng(devices=[]):
            model, info = kind.from_pretrained(
                name, use_safetensors=True, dtype=dtype, output_loading_info=True, **options
            )
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise VerifierFailedError(f"prm: the checkpoint {name!r} cannot be loaded: {error}") from error
    if missing := sorted(info["missing_keys"]):
        raise VerifierFailedError(
            f"prm: the checkpoint {name!r} has no weights for {', '.join(missing[:4])}, which would be random: it is "
            f"no {kind.__name__} checkpoint, and the style {style!r} needs one. Styles: qwen, shepherd, concat."
        )
    if device == "auto":
        device = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    if style == "qwen" and not tokenizer.chat_template:
        raise VerifierFailedError(
            f"prm: the tokenizer of {name!r} has no chat template, which the style 'qwen' needs; other styles: "
            "shepherd, concat."
        )
    return LoadedModel(name, model.to(device).eval().requires_grad_(requires_grad=False), tokenizer)


def _class_of(config: Any, style: str) -> Any:
    if style == "shepherd":
        return AutoModelForCausalLM
    # Checkpoints with code of their own say which class reads them; Qwen2.5-Math-PRM names only AutoModel.
    remote = getattr(config, "auto_map", None) or {}
    plain = "AutoModel" in remote and "AutoModelForTokenClassification" not in remote
    return AutoModel if plain else AutoModelForTokenClassification


def _refuse_foreign_code(name: str) -> None:
    """A folder's config may send transformers to another repository for code, which no revision pins."""
    folder = Path(name).expanduser()
    for file in ("config.json", "tokenizer_config.json"):
        path = folder / file
        auto_map = json.loads(path.read_text()).get("auto_map", {}) if path.is_file() else {}
        for reference in re.findall(r"[^\"\[\], ]+--", json.dumps(auto_map)):
            raise VerifierFailedError(
                f"prm: {path} takes code from another repository ({reference[:-2]}). Copy the code into the folder, "
                "and remove that name from auto_map."
            )


class Reader:
    """Completions as one kind of model reads them."""

    def __init__(self, loaded: LoadedModel, style: str, separator: str, positive: int, max_length: int | None) -> None:
        self._model, self._tokenizer = loaded.model, loaded.tokenizer
        self._style, self._separator, self._positive = style, separator, positive
        self._name = loaded.name
        own = getattr(self._model.config, "max_position_embeddings", None)
        limits = [limit for limit in (max_length, own) if isinstance(limit, int)]
        self._longest = min(limits) if limits else 1 << 20
        self._mark = self._marks(separator)
        if style != "concat" and len(self._mark) != 1:
            raise VerifierFailedError(
                f"prm: the separator {separator!r} is {len(self._mark)} tokens of {self._name!r}, expected one. Set "
                "separator to the token that the model was trained with, or style: concat."
            )
        if style == "shepherd":
            self._classes = [self._one("-"), self._one("+")]
        elif not positive < (count := self._model.config.num_labels):
            raise VerifierFailedError(f"prm: positive is {positive}, but {self._name!r} has {count} classes, from 0.")
        words = {separator, *self._tokenizer.all_special_tokens}
        words |= {token.content for token in self._tokenizer.added_tokens_decoder.values()}
        words = {word for word in words if word.strip()}
        self._strange = re.compile("|".join(sorted(map(re.escape, words), key=len, reverse=True)) or r"(?!)")

    def _marks(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        # Sentence-piece tokenizers put a word-boundary token before a lone word; the text's own token is the last.
        return ids[-1:] if self._style == "shepherd" else ids

    def _one(self, text: str) -> int:
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if not ids or self._tokenizer.decode(ids[-1:]).strip() != text:
            raise VerifierFailedError(
                f"prm: {text!r} is not a token of {self._name!r}, and the style 'shepherd' needs it."
            )
        return int(ids[-1])

    def clean(self, text: str) -> str:
        """A piece of text without anything that the tokenizer would take for a separator or another special token."""
        text = text.encode("utf-8", "replace").decode()  # halves of surrogate pairs, which no tokenizer takes
        return self._strange.sub(" ", text).strip()

    def read(self, question: str, steps: Sequence[str]) -> PrmQuestion | None:
        """The ids of a question with its steps, and the positions of the separators; None if their numbers differ."""
        count = len(steps)
        left = _LONGEST_TOKEN * self._longest - len(question)
        # Text beyond the limit is not tokenized: a long completion must not take more time.
        sizes = itertools.accumulate(len(step) + len(self._separator) for step in steps)
        steps = [step for step, size in zip(steps, sizes, strict=True) if size <= left]
        if not steps:
            return PrmQuestion([], [], count)
        if self._style == "concat":
            return self._concatenated(question, steps, count)
        if self._style == "qwen":
            answer = "".join(step + self._separator for step in steps)
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False)
            ids = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            ids = self._tokenizer.encode(f"{question} " + "\n".join(f"{step} {self._separator}" for step in steps))
        at = [place for place, token in enumerate(ids) if token == self._mark[0]]
        return PrmQuestion(ids, at, count) if len(at) == len(steps) else None

    def _concatenated(self, question: str, steps: Sequence[str], count: int) -> PrmQuestion:
        encode = functools.partial(self._tokenizer.encode, add_special_tokens=False)
        bos = self._tokenizer.bos_token_id
        ids = ([] if bos is None else [bos]) + encode(question)
        at = []
        for step in steps:
            ids += [*encode(step), *self._mark]
            at.append(len(ids) - 1)
        return PrmQuestion(ids, at, count)

    @torch.inference_mode()
    def score(self, questions: Sequence[PrmQuestion], batch_size: int) -> list[list[float | None]]:
        """The probability of a good step at each separator; None where the model reads no further."""
        result: list[list[float | None]] = [[None] * question.steps for question in questions]
        order = sorted((at for at, q in enumerate(questions) if q.at), key=lambda at: len(questions[at].ids))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            scores = self._batch([questions[at].ids[: self._longest] for at in chosen])
            for row, at in enumerate(chosen):
                inside = [place for place in questions[at].at if place < self._longest]
                values = scores[row, torch.tensor(inside, dtype=torch.long, device=scores.device)].tolist()
                result[at][: len(inside)] = values
        return result

    def _batch(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """The probability of a good step at every position, (B, T)."""
        width = max(map(len, rows))
        pad = self._tokenizer.pad_token_id or 0
        ids = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self._model.device)
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self._model.device)
        try:
            output = self._model(input_ids=ids, attention_mask=mask, use_cache=False)
        except torch.OutOfMemoryError as error:
            raise UnavailableError(
                f"prm: out of memory with {len(rows)} completions of {width} tokens at a time; lower batch_size"
            ) from error
        logits: torch.Tensor = (output.logits if hasattr(output, "logits") else output[0]).float()
        if self._style == "shepherd":
            return logits[..., self._classes].softmax(dim=-1)[..., 1]
        return logits.sigmoid()[..., 0] if logits.shape[-1] == 1 else logits.softmax(dim=-1)[..., self._positive]
