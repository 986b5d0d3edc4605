"""The checks, in order of importance."""

# ruff: noqa: E501 - a table

from typing import Any

from benchmarks.gpu.check import Check

_FULL, _TIMED = {"full": True}, {"alone": True}
_8B, _1B = {"size": "8B"}, {"size": "1.5B"}
_4BIT: dict[str, Any] = {"options": {"four_bit": True}}

# fmt: off
_ROWS: tuple[tuple[str, str, str, float, float, dict[str, Any]], ...] = (
    # name, function, what it shows, seconds on a card, GiB of it, further fields
    ("card", "card:run", "products in float32 and bf16, copies, NF4 against the dequantised weight", 25, 6, _TIMED),
    ("gradient-qwen3", "gradient:run", "gradient in 15 settings against TRL's", 75, 6, {"options": {"model": "qwen3"}}),
    ("gradient-llama", "gradient:run", "the same for Llama", 75, 6, {"options": {"model": "llama"}}),
    ("gradient-gemma3", "gradient:run", "the same for Gemma 3", 75, 6, {"options": {"model": "gemma3_text"}}),
    ("gradient-gpt2", "gradient:run", "the same for GPT-2", 75, 6, {"options": {"model": "gpt2"}}),
    ("gradient-attention", "gradient:attentions", "every attention that is there; cuDNN's gradient with a mask", 90, 6, {}),
    ("drawing", "drawing:run", "completions of `rollout: auto` and `generate` against exact probabilities", 30, 4, {}),
    ("quickstart", "quickstart:run", "the quickstart, from the YAML to the report", 150, 4, {}),
    ("quickstart-4bit", "quickstart:run", "the same in 4 bits", 180, 4, _4BIT),
    ("resume", "resume:run", "killed and resumed, bit for bit", 100, 4, {}),
    ("resume-4bit", "resume:run", "the same in 4 bits", 100, 4, _4BIT),
    ("fit-8B-12", "fit:run", "peak of an 8B in 4 bits behind a fence of 12 GB", 90, 12, _FULL | {"least": 10.8, "options": _8B | {"card": 12}}),
    ("fit-0.5B-8", "fit:run", "a 0.5B behind 8 GB", 60, 8, {"least": 7.2, "options": {"size": "0.5B", "card": 8}}),
    ("fit-8B-16", "fit:run", "an 8B behind 16 GB", 90, 16, _FULL | {"least": 14.4, "options": _8B | {"card": 16}}),
    ("fit-3B-8", "fit:run", "a 3B behind 8 GB", 80, 8, _FULL | {"least": 7.2, "options": {"size": "3B", "card": 8}}),
    ("fit-1.5B-8", "fit:run", "a 1.5B behind 8 GB", 60, 8, _FULL | {"least": 7.2, "options": _1B | {"card": 8}}),
    ("fit-8B-24", "fit:run", "an 8B behind 24 GB", 90, 24, _FULL | {"least": 21.6, "options": _8B | {"card": 24}}),
    ("speed-1.5B", "speed:run", "seconds in rollout, scoring and update: 1.5B in bf16", 60, 40, _TIMED | {"options": _1B | {"four_bit": False}}),
    ("speed-8B-4bit", "speed:run", "8B in 4 bits", 120, 60, _TIMED | _FULL | {"options": _8B | {"four_bit": True}}),
    ("decoding", "speed:decoding", "tokens a second at 8, 32 and 128 rows", 60, 40, _TIMED),
    ("speed-1.5B-4bit", "speed:run", "1.5B in 4 bits", 70, 40, _TIMED | _FULL | {"options": _1B | {"four_bit": True}}),
    ("accuracy", "accuracy:run", "seconds to 90% held-out accuracy, 30 million weights", 120, 20, _TIMED),
    ("out-of-memory", "out_of_memory:run", "every pass that is split, behind a fence", 60, 20, {}),
    ("unsloth-notebook", "unsloth:notebook", "Unsloth's notebook: Llama 3.1 8B, 256 + 768 tokens", 90, 20, {}),
    ("unsloth-20k", "unsloth:long", "an update at 20k tokens", 60, 40, _FULL | {"options": {"tokens": 20_224}}),
    ("unsloth-longest", "unsloth:long", "the longest completion that fits", 120, 70, _TIMED),
    ("tests", "suite:run", "the tests that train", 120, 20, {"cores": 8}),
)
# fmt: on

CHECKS: tuple[Check, ...] = tuple(
    Check(name, f"benchmarks.gpu.checks.{run}", about, seconds, gib, **more)
    for name, run, about, seconds, gib, more in _ROWS
)
