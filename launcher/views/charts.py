"""Charts of numbers as inline SVG, for pages without a network: lines, bars, spans of time. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT, ROW = 860, 250, 24
LEFT, RIGHT, TOP, BOTTOM = 80, 24, 12, 44  # around the area of the numbers
LEAST: Final = 4  # width of a span that can be seen
MOST_POINTS: Final = 1500  # of one line
COLOURS: Final = 6  # of lines, in the style of the page; further lines are dashed
PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


class Span(NamedTuple):
    """A time in a state, with words shown inside."""

    begin_s: float
    end_s: float
    state: str
    text: str = ""


def find_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` round numbers in a range."""
    rough = (high - low) / (most - 1)
    if not 1e-300 < rough < math.inf:
        return [low]
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * k for k in (1, 2, 2.5, 5, 10) if unit * k >= rough * (1 - 1e-9))
    numbers = range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    return [number * step for number in numbers]


def format_number(value: float) -> str:
    """Show a number briefly: `0.05`, `1,200`, `3.4M`."""
    size, unit = next((u for u in PREFIXES if abs(value) >= u[0]), (1, ""))
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e6 else f"{value / size:.4g}{unit}"


def find_place(value: float, low: float, high: float, begin: float, end: float) -> float:
    """Return the place in begin..end of a value in low..high."""
    return begin + (end - begin) * ((value - low) / (high - low) if high > low else 0.5)


def thin(points: Points) -> Points:
    """Return at most MOST_POINTS of many points, the last one among them."""
    every = math.ceil(len(points) / MOST_POINTS) or 1
    return points[::-every][::-1]


def draw_lines(lines: Mapping[str, Points], x_label: str, y_label: str) -> str:
    """Draw one line for each name, with axes and a legend."""
    xs, ys = zip(*(point for points in lines.values() for point in points), strict=True)
    x_low, x_high, y_low, y_high = min(xs), max(xs), min(ys), max(ys)
    x_low, y_low = (0.0 if 0 < low < 0.6 * high else low for low, high in ((x_low, x_high), (y_low, y_high)))
    bottom, right, middle = HEIGHT - BOTTOM, WIDTH - RIGHT, (TOP + HEIGHT - BOTTOM) / 2
    parts = [draw_text(14, middle, y_label, "middle", f' transform="rotate(-90 14 {middle})"')]
    for y in find_ticks(y_low, y_high):
        at = find_place(y, y_low, y_high, bottom, TOP)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
        parts.append(draw_text(LEFT - 6, at + 4, format_number(y), "end"))
    parts += draw_x_axis(x_low, x_high, bottom, x_label)
    classes = {}
    for number, (name, points) in enumerate(lines.items()):
        classes[name] = f"c{number % COLOURS}{' dashed' if number >= COLOURS else ''}"
        places = [
            (find_place(x, x_low, x_high, LEFT, right), find_place(y, y_low, y_high, bottom, TOP))
            for x, y in thin(points)
        ]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        x, y = places[-1]
        parts.append(f'<g class="{classes[name]}"><title>{escape(name)}</title>')
        parts.append(f'<polyline points="{line}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2"/></g>')
    return draw_legend(classes) + wrap(parts, HEIGHT)


def draw_x_axis(low: float, high: float, at: float, label: str) -> list[str]:
    """Return the parts of a horizontal axis at a height."""
    right = WIDTH - RIGHT
    parts = [f'<path class="axis" d="M{LEFT} {at}H{right}"/>']
    for tick in find_ticks(low, high, 9):
        x = find_place(tick, low, high, LEFT, right)
        parts.append(f'<path class="axis" d="M{x:.1f} {at}v5"/>{draw_text(x, at + 18, format_number(tick))}')
    return [*parts, draw_text((LEFT + right) / 2, at + 36, label)]


def draw_bars(values: Mapping[str, float], unit: str) -> str:
    """Draw one horizontal bar for each name."""
    parts, most = [], max(values.values())
    for row, (name, value) in enumerate(values.items()):
        y, width = row * ROW + 2, find_place(value, 0, most, 0, WIDTH - LEFT - 160) if value else 0
        parts.append(f'<rect class="bar" x="{LEFT}" y="{y}" width="{width:.1f}" height="{ROW - 6}"/>')
        parts.append(draw_text(LEFT - 6, y + 14, name, "end"))
        parts.append(draw_text(LEFT + width + 6, y + 14, f"{format_number(value)} {unit}", "start"))
    return wrap(parts, len(values) * ROW)


def draw_spans(rows: Mapping[str, Sequence[Span]], end_s: float, x_label: str) -> str:
    """Draw a bar for each name, in the colours of its states one after the other."""
    parts, bottom = [], len(rows) * ROW
    for row, (name, spans) in enumerate(rows.items()):
        y = row * ROW + 2
        parts.append(draw_text(LEFT - 6, y + 14, name, "end"))
        for s in spans:
            x, end = (find_place(time_s, 0, end_s, LEFT, WIDTH - RIGHT) for time_s in s[:2])
            size = f'x="{x:.1f}" y="{y}" width="{max(end - x, LEAST):.1f}" height="{ROW - 6}"'
            told = escape(f"{name}: {s.state} from {s.begin_s:.1f} to {s.end_s:.1f} s {s.text}")
            parts.append(f'<rect class="s-{s.state}" {size}><title>{told}</title></rect>')
        end = find_place(spans[-1].end_s, 0, end_s, LEFT, WIDTH - RIGHT)
        at, anchor, style = (-5, "end", ' class="in"') if end > WIDTH - 200 else (8, "start", "")
        parts.append(draw_text(end + at, y + 14, spans[-1].text, anchor, style))
    states = dict.fromkeys(s.state for spans in rows.values() for s in spans)
    axis = draw_x_axis(0, end_s, bottom, x_label)
    return draw_legend({state: f"s-{state}" for state in states}) + wrap([*parts, *axis], bottom + BOTTOM)


def draw_legend(classes: Mapping[str, str]) -> str:
    """Return the names of lines or states with their colours."""
    names = (f'<span><i class="{c}"></i>{escape(name)}</span>' for name, c in classes.items())
    return f'<p class="legend">{"".join(names)}</p>'


def draw_text(x: float, y: float, text: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def wrap(parts: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
