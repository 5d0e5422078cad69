"""Curves as an SVG file: panels side by side over one horizontal axis in powers of two.

Python's standard library only, like the rest of the folder; colours from Okabe and Ito's set, which people who are
colour-blind tell apart.
"""

import math
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, TOP, GAP = 360, 250, 50, 30, 70
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000")
DASHES = ("", "6 3", "2 3", "", "6 3", "2 3", "")


@dataclass
class Panel:
    """A heading and, by name, curves of (x, y)."""

    title: str
    curves: dict
    top: float = None
    log: bool = False

    def ticks(self):
        values = [y for curve in self.curves.values() for _, y in curve]
        if self.log:
            low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
            return [10.0**power for power in range(low, max(high, low + 1) + 1)]
        top = self.top or max(values)
        return [step * 0.2 for step in range(int(top / 0.2) + 1)]

    def height(self, y, ticks):
        """0 at the bottom, 1 at the top."""
        if self.log:
            return math.log(y / ticks[0]) / math.log(ticks[-1] / ticks[0])
        return y / (self.top or ticks[-1])


def draw(path, panels, horizontal):
    """Writes the panels to `path`; `horizontal` names their common axis."""
    first = panels[0].curves
    assert len(first) <= len(COLOURS), "more curves than colours"
    xs = [x for x, _ in next(iter(first.values()))]
    span = math.log2(xs[-1] / xs[0])
    width = LEFT + len(panels) * (WIDTH + GAP)
    height = TOP + HEIGHT + 50 + 18 * len(first)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
           f'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    label = lambda x, y, what, where="middle": out.append(
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{where}">{escape(what)}</text>')
    line = lambda x1, y1, x2, y2, style: out.append(
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>')
    for number, panel in enumerate(panels):
        left, bottom, ticks = LEFT + number * (WIDTH + GAP), TOP + HEIGHT, panel.ticks()
        across = lambda x: left + WIDTH * math.log2(x / xs[0]) / span
        up = lambda y: bottom - HEIGHT * panel.height(y, ticks)
        label(left + WIDTH / 2, TOP - 12, panel.title)
        label(left + WIDTH / 2, bottom + 36, horizontal)
        for tick in ticks:
            line(left, up(tick), left + WIDTH, up(tick), 'stroke="#ddd"')
            label(left - 6, up(tick) + 4, f"{tick:.3g}", "end")
        for x in xs:
            label(across(x), bottom + 18, str(x))
        for (name, curve), colour, dash in zip(panel.curves.items(), COLOURS, DASHES):
            points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in curve)
            out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
                       f'stroke-dasharray="{dash}"/>')
    for at, (name, colour, dash) in enumerate(zip(first, COLOURS, DASHES)):
        y = TOP + HEIGHT + 56 + 18 * at
        line(LEFT, y, LEFT + 40, y, f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"')
        label(LEFT + 48, y + 4, name, "start")
    path.write_text("\n".join([*out, "</svg>"]) + "\n")
