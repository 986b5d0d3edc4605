"""The main figures of a log entry as words."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from grpo_plus.training.step_metrics import PARTS, metric


@dataclass(frozen=True)
class Figures:
    """The figures of a log entry; None for missing ones.

    ``dead`` is the share of groups whose advantages are all 0 (with TRL's estimator: whose rewards are all equal),
    ``cut`` that of completions that ran out of tokens, ``saved`` that of the update's tokens that the engine saved.
    ``length`` is in tokens. ``parts`` are mean seconds of an optimizer step.
    """

    reward: float | None = None
    dead: float | None = None
    length: float | None = None
    cut: float | None = None
    saved: float | None = None
    loss: float | None = None
    kl: float | None = None
    tokens: float | None = None
    parts: Mapping[str, float] | None = None

    @classmethod
    def of(cls, logs: Mapping[str, Any]) -> "Figures":
        """Read a training log."""
        parts = {part: number for part in PARTS if (number := _number(logs.get(metric(part)))) is not None}
        return cls(
            reward=_number(logs.get("reward")),
            dead=_number(logs.get("advantages/dead_group_fraction", logs.get("frac_reward_zero_std"))),
            length=_number(logs.get("completions/mean_length")),
            cut=_number(logs.get("completions/clipped_ratio")),
            saved=_number(logs.get("engine/tokens_saved")),
            loss=_number(logs.get("loss")),
            kl=_number(logs.get("kl")),
            tokens=_number(logs.get("num_tokens")),
            parts=parts if len(parts) == len(PARTS) else None,
        )

    @property
    def seconds(self) -> float | None:
        """Mean seconds of an optimizer step."""
        return sum(self.parts.values()) if self.parts else None

    @property
    def split(self) -> str | None:
        """Share of each part in a step."""
        total = self.seconds
        if not self.parts or not total:
            return None
        return ", ".join(f"{part} {seconds / total:.0%}" for part, seconds in self.parts.items())

    def words(self) -> list[str]:
        """The figures with their names."""
        length = None if self.length is None else f"length {self.length:.0f}"
        if length and self.cut:
            length += f" ({self.cut:.0%} cut off)"
        found = [
            None if self.reward is None else f"reward {self.reward:.3f}",
            None if self.dead is None else f"dead groups {self.dead:.0%}",
            length,
            None if self.loss is None else f"loss {self.loss:.4f}",
            None if self.kl is None else f"kl {self.kl:.4f}",
            None if not self.saved or self.dead == 1 else f"engine saves {self.saved:.0%}",  # of nothing
        ]
        return [word for word in found if word is not None]


def evaluation_words(logs: Mapping[str, Any]) -> list[str]:
    """Rewards of an evaluation, by name."""
    found = []
    for key, value in logs.items():
        name = key.removeprefix("eval_")
        rewarding = name in ("reward", "score") or (name.startswith("rewards/") and name.endswith("/mean"))
        if key.startswith("eval_") and rewarding and (number := _number(value)) is not None:
            found.append(f"{name.removeprefix('rewards/').removesuffix('/mean')} {number:.3f}")
    return found


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        return None
    return float(value)
