"""A picture of a study: panels with lines, bands or error bars, as one SVG file without a library."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLOURS = ("#0b63a5", "#c8501e", "#0a8066", "#8a4f9e", "#a07a00", "#3f4a58", "#b0417a", "#4d8fd6")
"""Those of the report's lines."""
WIDTH, HEIGHT = 380, 300
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 34, 46
LINE = 18


@dataclass(frozen=True)
class Point:
    """A value with the ends of its error bar; equal ends draw none."""

    x: float
    y: float
    low: float
    high: float

    @property
    def is_finite(self) -> bool:
        """True if it can be drawn."""
        return all(map(math.isfinite, (self.x, self.y, self.low, self.high)))


@dataclass(frozen=True)
class Series:
    """Points of one name, joined by a line; ``dashed`` for what is expected and not measured."""

    name: str
    points: Sequence[Point]
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes. ``ticks`` are the words under whole numbers of x, where x has no numbers."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log: bool = False
    ticks: Sequence[str] = ()


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        """The place of a value."""
        low, high, at = (math.log(part) if self.log else part for part in (self.low, self.high, value))
        return self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start)

    def marks(self) -> list[float]:
        if self.log:
            powers = range(math.floor(math.log2(self.low)), math.ceil(math.log2(self.high)) + 1)
            step = max(1, math.ceil(len(powers) / 8))
            return [2.0**power for power in powers if self.low <= 2.0**power <= self.high][::step]
        rough = (self.high - self.low) / 5 or 1.0
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        first = math.ceil(self.low / step)
        return [step * at for at in range(first, math.floor(self.high / step) + 1)]


def write(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw the panels beside each other, with one legend, as an SVG file."""
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.series))
    width = WIDTH * len(panels)
    height = HEIGHT + LINE * math.ceil(len(names) / max(1, width // 190)) + 12
    size = f'width="{width}" height="{height}"'
    face = 'font-family="system-ui, sans-serif" font-size="11" fill="#1c1e21"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {size} {face}>',
        f'<title>{escape(title)}</title><rect {size} fill="#ffffff"/>',
    ]
    for at, panel in enumerate(panels):
        parts.append(f'<g transform="translate({at * WIDTH} 0)">{_panel(panel, names)}</g>')
    columns = max(1, width // 190)
    for at, name in enumerate(names):
        x, y = 14 + at % columns * 190, HEIGHT + 10 + at // columns * LINE
        dashed = any(line.dashed for panel in panels for line in panel.series if line.name == name)
        parts.append(_stroke([(x, y - 4), (x + 18, y - 4)], _colour(names, name), dashed=dashed))
        parts.append(f'<text x="{x + 24}" y="{y}">{escape(name)}</text>')
    path.write_text("\n".join([*parts, "</svg>"]) + "\n", encoding="utf-8")


def _panel(panel: Panel, names: Sequence[str]) -> str:
    points = [point for line in panel.series for point in line.points if _drawable(point, log=panel.log)]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts = [f'<text x="{middle}" y="18" text-anchor="middle" font-weight="600">{escape(panel.title)}</text>']
    if not points:
        return parts[0] + f'<text x="{middle}" y="{HEIGHT / 2}" text-anchor="middle" fill="#5f646c">no runs</text>'
    xs = [point.x for point in points]
    ys = [end for point in points for end in (point.low, point.high)]
    x = _Scale(*((-0.5, len(panel.ticks) - 0.5) if panel.ticks else _padded(xs, log=panel.log)), LEFT, WIDTH - RIGHT,
               log=panel.log and not panel.ticks)  # fmt: skip
    y = _Scale(*_padded(ys, log=panel.log), HEIGHT - BOTTOM, TOP, log=panel.log)
    for mark in y.marks():
        parts.append(f'<path d="M{LEFT} {y(mark):.1f}H{WIDTH - RIGHT}" stroke="#e4e1da"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{_number(mark)}</text>')
    words = list(enumerate(panel.ticks)) if panel.ticks else [(mark, _number(mark)) for mark in x.marks()]
    for mark, word in words:
        parts.append(f'<text x="{x(mark):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{escape(word)}</text>')
    parts.append(f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#8b8f96"/>')
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle" fill="#5f646c">{escape(panel.x)}</text>')
    parts.append(
        f'<text transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle" '
        f'fill="#5f646c">{escape(panel.y)}</text>'
    )
    parts += [_line(line, x, y, _colour(names, line.name), words=bool(panel.ticks)) for line in panel.series]
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"


def _line(line: Series, x: _Scale, y: _Scale, colour: str, *, words: bool) -> str:
    kept = [point for point in line.points if _drawable(point, log=y.log)]
    parts = []
    if len(kept) > 25:  # a band: so many bars would hide the line
        edge = [(x(p.x), y(p.high)) for p in kept] + [(x(p.x), y(p.low)) for p in reversed(kept)]
        parts.append(f'<path d="{_path(edge)}Z" fill="{colour}" fill-opacity="0.14"/>')
    else:
        for p in kept:
            if p.high > p.low:
                parts.append(f'<path d="M{x(p.x):.1f} {y(p.low):.1f}V{y(p.high):.1f}" stroke="{colour}"/>')
            if not line.dashed:
                parts.append(f'<circle cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="2.6" fill="{colour}"/>')
    if len(kept) > 1 and not words:
        parts.append(_stroke([(x(p.x), y(p.y)) for p in kept], colour, dashed=line.dashed))
    return "".join(parts)


def _stroke(places: Sequence[tuple[float, float]], colour: str, *, dashed: bool) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<path d="{_path(places)}" fill="none" stroke="{colour}" stroke-width="1.6"{dash}/>'


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


def _colour(names: Sequence[str], name: str) -> str:
    return COLOURS[names.index(name) % len(COLOURS)]


def _drawable(point: Point, *, log: bool) -> bool:
    return point.is_finite and (not log or min(point.x, point.y, point.low) > 0)


def _padded(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    low, high = min(values), max(values)
    if log:
        return low / 1.15, high * 1.15
    room = 0.04 * (high - low) or 0.5
    return low - room, high + room
