"""A conversation with a model: its prompt, its answers as they are drawn, and verdicts on them."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import TextStreamer

from grpo_plus.cli._early import say
from grpo_plus.cli._prompts import maker, placeholders
from grpo_plus.evaluation.sample import Drawing, Sampler, seed_of
from grpo_plus.report.visible import visible
from grpo_verifiers.errors.messages import readable
from grpo_verifiers.reading.messages import content_text
from grpo_verifiers.redaction import redact_text

if TYPE_CHECKING:
    from grpo_plus.evaluation import ToolUse
    from grpo_plus.evaluation.turns import TurnSampler
    from grpo_verifiers import Verifier

SHOWN = 2000
"""Characters of a tool's result that are printed."""


class _Readable(TextStreamer):
    """Prints what is drawn as it comes; control characters of the model stay characters, and move no cursor."""

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Print a piece of the answer."""
        super().on_finalized_text(visible(text), stream_end=stream_end)


class Talk:
    """One conversation after another; a model without a chat template answers each line by itself.

    ``answer`` is the last one, as verifiers read it.
    """

    def __init__(
        self, model: Any, tokenizer: Any, sampler: Sampler, options: argparse.Namespace, turns: "TurnSampler | None"
    ) -> None:
        """Answer with ``sampler``; in turns with calls of tools, where ``turns`` draws them."""
        self._model, self._tokenizer, self._sampler, self._turns = model, tokenizer, sampler, turns
        self._options = options
        self._chat = options.prompt.get("chat", getattr(tokenizer, "chat_template", None) is not None)
        self._make, self._column = _prompts(options.prompt, chat=self._chat)
        self._messages: list[dict[str, Any]] = []
        self._number = 0
        self.answer: Any = ""
        if not self._chat:
            say("The model has no chat template: every line is asked by itself.")

    @classmethod
    @contextmanager
    def begun(
        cls, model: Any, tokenizer: Any, options: argparse.Namespace, tools: "ToolUse | None"
    ) -> Iterator["Talk"]:
        """Talk within the block; at its end nothing of a tool is left."""
        drawing = Drawing(
            max_completion_length=options.max_completion_length,
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
        )
        if tools is None:
            yield cls(model, tokenizer, Sampler(model, tokenizer, drawing, options.template_keywords), options, None)
            return
        rows = [{"prompt": [{"role": "user", "content": ""}]}]
        with tools.drawing(model, tokenizer, drawing, rows) as (sampler, turns):
            yield cls(model, tokenizer, sampler, options, turns)

    def anew(self) -> None:
        """Forget what was said."""
        self._messages = []

    def turn(self, text: str) -> bool:
        """Answer a line, and print the answer while it is drawn; false where there is no room for one."""
        asked = self._asked(text)
        self._number += 1
        if self._turns is not None:
            added = self._call(asked)
        else:
            ids = self._stream(asked)
            if ids is None:
                return False
            said = self._sampler.text(ids)
            self.answer = [{"role": "assistant", "content": said}] if isinstance(asked, list) else said
            added = [{"role": "assistant", "content": said}]
            if self._sampler.is_cut_off(ids):
                say(f"(cut off at {self._sampler.most} tokens: --max-completion-length)")
        if isinstance(asked, list):
            self._messages = [*asked, *added]
        return True

    def _asked(self, text: str) -> Any:
        """The prompt: the run's own for the first line, and later lines as they are behind what was said."""
        if self._messages:
            return [*self._messages, {"role": "user", "content": text}]
        return self._make({self._column: text})

    def _stream(self, asked: Any) -> list[int] | None:
        from transformers import GenerationConfig

        ids = self._sampler.tokenize(asked)
        known = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        room = self._sampler.most if known is None else min(self._sampler.most, known - len(ids))
        if room < 1:
            say(f"The conversation has {len(ids)} tokens, and the model reads {known}: /new begins another one.")
            return None
        o = self._options
        chosen: dict[str, Any] = {"do_sample": o.temperature > 0, "repetition_penalty": o.repetition_penalty}
        if o.temperature > 0:
            chosen |= {"temperature": o.temperature, "top_p": o.top_p, "top_k": o.top_k, "min_p": o.min_p}
        tokenizer = getattr(self._tokenizer, "tokenizer", self._tokenizer)
        stops, pad = self._sampler.stops, tokenizer.pad_token_id
        config = GenerationConfig(
            max_new_tokens=room,
            pad_token_id=pad if pad is not None else next(iter(stops), 0),
            eos_token_id=list(stops) or None,
            **chosen,
        )
        given = torch.tensor([ids], device=next(self._model.parameters()).device)
        torch.manual_seed(seed_of(o.seed, 0, self._number) & 0x7FFF_FFFF)
        with torch.no_grad():
            output = self._model.generate(
                input_ids=given,
                attention_mask=torch.ones_like(given),
                generation_config=config,
                streamer=_Readable(tokenizer, skip_prompt=True, skip_special_tokens=True),
            )
        drawn: list[int] = output[0, len(ids) :].tolist()
        return drawn

    def _call(self, asked: Any) -> list[dict[str, Any]]:
        """An answer with calls of tools; TRL's loop draws it whole."""
        assert self._turns is not None
        done = self._turns.complete([{"prompt": asked}], [(0, self._number)], self._options.seed)
        self.answer = messages = done.texts[0]
        for message in messages:
            for call in message.get("tool_calls") or ():
                made = call.get("function", call)
                print(visible(f"[calls {made.get('name')}({made.get('arguments')})]"[:SHOWN]), flush=True)
            text = content_text(message.get("content")) or ""
            if text:
                told = f"[{message.get('name') or 'tool'}: {text[:SHOWN]}]" if message.get("role") == "tool" else text
                print(visible(told[: 10 * SHOWN]), flush=True)
        return list(messages)

    def verdicts(self, judges: "Sequence[Verifier]", gold: str | None, *, asked: bool) -> Iterator[str]:
        """A line of each verifier on the last answer; where none was ``asked`` for, of those that have their gold."""
        for verifier in judges:
            needed = verifier.required_columns
            if len(needed) > 1:
                if asked:
                    yield f"{verifier.label}: no verdict, for it needs {', '.join(needed)} (see grpo-plus verify)."
                continue
            if needed and gold is None:
                if asked:
                    yield f"{verifier.label}: no verdict without the right answer: /gold TEXT before the question."
                continue
            if gold is None and not asked:
                continue
            columns = dict.fromkeys(needed.values(), gold)
            verdict = verifier.verify(self.answer, self._messages[:-1] or None, **columns)
            score = "no score" if verdict.score is None else f"score {verdict.score:g}"
            reason = redact_text(readable(verdict.detail, SHOWN))
            yield f"{verifier.label}: {verdict.status.value}, {score}{reason and ': ' + reason}"


def _prompts(prompt: Mapping[str, Any], *, chat: bool) -> tuple[Any, str]:
    """The maker of a first prompt, and the column that a typed line stands for."""
    columns = placeholders(prompt["user"]) if "user" in prompt else []
    if len(columns) > 1:
        say(f"The run's prompt is made of {', '.join(columns)}: lines are asked as they are, without its words around.")
        prompt = {key: value for key, value in prompt.items() if key != "user"}
        columns = []
    if "user" in prompt and not columns:
        prompt = {key: value for key, value in prompt.items() if key != "user"}
    column = columns[0] if columns else str(prompt.get("column", "prompt"))
    return maker({**prompt, **({} if columns else {"column": column})}, chat=chat), column
