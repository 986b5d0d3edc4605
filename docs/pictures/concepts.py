"""Draw the pictures of docs/concepts.md: PYTHONPATH=. python docs/pictures/concepts.py.

The advantages are computed by the estimators themselves.
"""

import math
from html import escape
from pathlib import Path

import torch

from benchmarks.studies import picture
from grpo_plus.advantages import RewardTable, compute_advantages

HERE = Path(__file__).parent
REWARDS = (1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0)
FACE = 'font-family="system-ui, sans-serif" font-size="13" fill="#1c1e21"'
BOXES = (
    ("prompt", "a row of the dataset"),
    ("completions", "a group of G, drawn by the policy"),
    ("rewards", "verifiers, in workers"),
    ("advantages", "an estimator, group by group"),
    ("loss", "an objective, token by token"),
    ("policy", "one optimizer step"),
)
COLUMN, HEIGHT = 178, 150


def loop() -> str:
    """A step of GRPO, as boxes from the prompt to the policy and back."""
    width = COLUMN * len(BOXES)
    size = f'width="{width}" height="{HEIGHT}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" {size} {FACE}>']
    parts.append(f'<title>A step: from prompts to the policy and back</title><rect {size} fill="#ffffff"/>')
    for at, (name, text) in enumerate(BOXES):
        left = at * COLUMN + 8
        parts.append(
            f'<rect x="{left}" y="26" width="{COLUMN - 34}" height="58" rx="6" fill="#eaf2f9" stroke="#0b63a5"/>'
        )
        middle = left + (COLUMN - 34) / 2
        parts.append(f'<text x="{middle}" y="50" text-anchor="middle" font-weight="600">{escape(name)}</text>')
        words = text.split(", ")
        parts += [
            f'<text x="{middle}" y="{66 + 13 * line}" text-anchor="middle" font-size="10">{escape(part)}</text>'
            for line, part in enumerate(words)
        ]
        if at < len(BOXES) - 1:
            parts.append(arrow(f"M {left + COLUMN - 34} 55 h 24"))
    last, first = COLUMN * (len(BOXES) - 1) + 8 + (COLUMN - 34) / 2, COLUMN + 8 + (COLUMN - 34) / 2
    parts.append(arrow(f"M {last} 84 V 124 H {first} V 94"))
    parts.append(
        f'<text x="{(first + last) / 2}" y="142" text-anchor="middle" font-size="11">draws the next ones</text>'
    )
    head = '<marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    parts.insert(1, f'<defs>{head}<path d="M0 0L8 4L0 8z" fill="#3f4a58"/></marker></defs>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def arrow(path: str) -> str:
    """A line with a head."""
    return f'<path d="{path}" fill="none" stroke="#3f4a58" marker-end="url(#a)"/>'


def point(x: float, y: float) -> picture.Point:
    """A point without an error bar."""
    return picture.Point(x, y, y, y)


def estimators() -> list[picture.Panel]:
    """The advantages that estimators give for the same eight rewards."""
    table = RewardTable.of(REWARDS)
    lines = [picture.Series("rewards", [point(at + 1, reward) for at, reward in enumerate(REWARDS)], dashed=True)]
    for name in ("zscore", "center", "sign", "maxrl"):
        values = compute_advantages(name, table).tolist()
        lines.append(picture.Series(name, [point(at + 1, value) for at, value in enumerate(values)]))
    return [picture.Panel("advantages of one group of eight", "completion", "advantage", lines)]


def clips() -> list[picture.Panel]:
    """What is maximised for one token against its ratio, for an advantage of 1 and of -1."""
    ratios = torch.linspace(0.5, 1.6, 45)
    panels = []
    for sign, title in ((1.0, "advantage 1"), (-1.0, "advantage -1")):
        clipped = torch.minimum(ratios * sign, ratios.clamp(0.8, 1.28) * sign)
        plain = [point(ratio, ratio * sign) for ratio in ratios.tolist()]
        lines = [picture.Series("no clip: r·A", plain, dashed=True)]
        pairs = zip(ratios.tolist(), clipped.tolist(), strict=True)
        lines.append(picture.Series("clip, 0.2 and 0.28", [point(*pair) for pair in pairs]))
        panels.append(picture.Panel(title, "ratio r", "what is maximised", lines))
    return panels


def dead() -> list[picture.Panel]:
    """The chance that a group is dead, by the pass rate of its prompt, for several sizes of groups."""
    rates = [at / 50 for at in range(51)]
    lines = [
        picture.Series(f"G = {size}", [point(rate, rate**size + (1 - rate) ** size) for rate in rates])
        for size in (4, 8, 16)
    ]
    assert math.isclose(lines[1].points[25].y, 2 * 0.5**8)
    return [picture.Panel("groups whose rewards are all equal", "pass rate of the prompt", "share", lines)]


def main() -> None:
    """Write all four."""
    HERE.joinpath("step.svg").write_text(loop(), encoding="utf-8")
    picture.write(HERE / "estimators.svg", "Advantages of one group by estimator", estimators())
    picture.write(HERE / "clip.svg", "What is maximised, with and without a clip", clips())
    picture.write(HERE / "dead_groups.svg", "How often a group is dead", dead())


if __name__ == "__main__":
    main()
