"""A topology as text and as a picture."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ._topology import Link, Topology

_SIZE: Final = 420
_RADIUS: Final = 150
_DOT: Final = 34
_COLOURS: Final = {"nvlink": "#5a9e1b", "pcie": "#3b78b5", "memory": "#8a63b8", "host": "#b9b9b9"}
_WIDTHS: Final = {"nvlink": 5.0, "pcie": 2.5, "memory": 2.5, "host": 1.0}


def text_of(topology: Topology) -> str:
    """A table: from the device of a row to that of a column."""
    names = topology.devices
    rows = [["", *names]]
    for source in names:
        cells = (
            "-" if source == target else _cell(topology.link(source, target)) for target in names
        )
        rows.append([source, *cells])
    widths = [max(len(row[at]) for row in rows) for at in range(len(names) + 1)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    islands = "; ".join(" ".join(island) for island in topology.islands)
    return "\n".join([*lines, f"islands: {islands}"])


def _cell(link: Link) -> str:
    if link.bandwidth is None:
        return link.kind
    return f"{link.kind} {link.bandwidth / 1e9:.1f} GB/s"


def svg_of(topology: Topology) -> str:
    """Devices on a circle, and a line for each pair of them."""
    names = topology.devices
    at = {name: _place(number, len(names)) for number, name in enumerate(names)}
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {_SIZE}" '
        f'width="{_SIZE}" font-family="sans-serif" font-size="12" text-anchor="middle">'
    )
    parts = [head]
    for number, one in enumerate(names):
        for other in names[number + 1 :]:
            there, back = topology.link(one, other), topology.link(other, one)
            (x1, y1), (x2, y2) = at[one], at[other]
            title = f"{one} to {other}: {_cell(there)}; back: {_cell(back)}"
            parts.append(
                f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" '
                f'stroke="{_COLOURS[there.kind]}" stroke-width="{_WIDTHS[there.kind]}">'
                f"<title>{escape(title)}</title></line>"
            )
    for name, (x, y) in at.items():
        parts.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{_DOT}" fill="white" stroke="#444"/>'
            f'<text x="{x:.0f}" y="{y + 4:.0f}">{escape(name)}</text>'
        )
    kinds = sorted({link.kind for link in topology.links})
    for row, kind in enumerate(kinds):
        y = _SIZE - 8 - 16 * row
        parts.append(
            f'<text x="8" y="{y}" text-anchor="start" fill="{_COLOURS[kind]}">{kind}</text>'
        )
    return "".join([*parts, "</svg>"])


def _place(number: int, count: int) -> tuple[float, float]:
    angle = 2 * math.pi * number / count - math.pi / 2
    middle = _SIZE / 2
    return middle + _RADIUS * math.cos(angle), middle + _RADIUS * math.sin(angle)
