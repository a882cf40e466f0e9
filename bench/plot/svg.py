"""Draws line charts and bar charts as SVG text. Uses the Python standard library only."""

import math
from xml.sax.saxutils import escape

FONT = "'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif"
INK, MUTED, GRID, PAPER = "#1f2933", "#61707f", "#e4e8ec", "#ffffff"
# Okabe and Ito's palette: readers with colour-blindness can tell these apart.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8c6d00", "#7a52a3", "#5f6b76"]
OURS, OURS_TOO = "#0072b2", "#56b4e9"
MARKS = ["circle", "square", "diamond", "triangle", "circle", "square", "diamond"]


def colours_of(names):
    """Returns a colour for each name. Names that begin with "crossrank" are blue in every chart."""
    others = iter(COLOURS[1:] * 4) if any(name.startswith("crossrank") for name in names) else iter(COLOURS * 4)
    ours = iter([OURS] + [OURS_TOO] * len(names))
    return {name: next(ours) if name.startswith("crossrank") else next(others) for name in names}


def number(value):
    """Formats a number with three significant digits, without trailing zeros and with thousands separated."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def time_text(microseconds):
    for unit, factor in (("s", 1e6), ("ms", 1e3), ("µs", 1.0)):
        if microseconds >= factor:
            return f"{number(microseconds / factor)} {unit}"
    return f"{number(microseconds * 1e3)} ns"


def size_text(count):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{number(count / factor)} {unit}"
    return f"{number(count)} B"


class Canvas:
    """A picture of fixed size. Coordinates are pixels from the upper left corner."""

    def __init__(self, width, height, title, description):
        self.width, self.height = width, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="{FONT}" font-size="12">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(description)}</desc>",
            f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>',
        ]

    def add(self, text):
        self.parts.append(text)

    def text(self, x, y, text, anchor="start", size=12, colour=INK, bold=False, turn=None):
        weight = ' font-weight="600"' if bold else ""
        turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn is not None else ""
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}"{weight}{turned}>{escape(text)}</text>')

    def line(self, x1, y1, x2, y2, colour=GRID, width=1.0, dash=None):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.add(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"{dashed}/>')

    def mark(self, shape, x, y, colour):
        r = 3.4
        fill = f'fill="{colour}" stroke="{PAPER}" stroke-width="1"'
        if shape == "circle":
            self.add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r}" {fill}/>')
            return
        corners = {
            "square": [(-r, -r), (r, -r), (r, r), (-r, r)],
            "diamond": [(0, -r * 1.4), (r * 1.4, 0), (0, r * 1.4), (-r * 1.4, 0)],
            "triangle": [(0, -r * 1.3), (r * 1.25, r), (-r * 1.25, r)],
        }[shape]
        self.add(f'<polygon points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}" {fill}/>')

    def legend(self, x, y, styles):
        """Draws a legend of marks and names in one row. `styles` maps a name to its colour and mark."""
        for name, (colour, mark) in styles.items():
            self.line(x, y - 4, x + 22, y - 4, colour, 2.2)
            self.mark(mark, x + 11, y - 4, colour)
            self.text(x + 28, y, name)
            x += 28 + 6.9 * len(name) + 20

    def done(self):
        return "\n".join(self.parts) + "\n</svg>\n"


class LogScale:
    """Maps values to pixels by their logarithm."""

    def __init__(self, low, high, at_low, at_high):
        self.low, self.high = math.log10(low), math.log10(high)
        self.at_low, self.at_high = at_low, at_high

    def __call__(self, value):
        part = (math.log10(value) - self.low) / ((self.high - self.low) or 1.0)
        return self.at_low + part * (self.at_high - self.at_low)


def decades(values):
    """Returns the powers of ten that enclose `values`."""
    low, high = min(values), max(values)
    return 10.0 ** math.floor(math.log10(low) + 1e-9), 10.0 ** math.ceil(math.log10(high) - 1e-9)


def line_chart(title, subtitle, panels, y_label, y_ticks=None, y_text=time_text, baseline=None):
    """Draws panels side by side with one logarithmic y axis.

    `panels` is a list of (heading, [(series name, [(bytes, y), ...]), ...]). `y_ticks` lists the values with a grid
    line; the default is every power of ten. `baseline` is (value, text): a dashed line to compare with.
    """
    names = []
    for _, series in panels:
        for name, _ in series:
            if name not in names:
                names.append(name)
    values = [y for _, series in panels for _, points in series for _, y in points]
    low, high = decades(values)
    if y_ticks is None:
        y_ticks = [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    else:
        low, high = min(y_ticks[0], min(values)), max(y_ticks[-1], max(values))
    width, left, right, gap, top, plot_height = 860, 74, 20, 34, 112, 270
    height = top + plot_height + 78
    canvas = Canvas(width, height, title, subtitle)
    canvas.text(20, 30, title, size=16, bold=True)
    canvas.text(20, 50, subtitle, colour=MUTED)
    colours = colours_of(names)
    styles = {name: (colours[name], MARKS[place % len(MARKS)]) for place, name in enumerate(names)}
    canvas.legend(20, 76, styles)
    panel_width = (width - left - right - gap * (len(panels) - 1)) / len(panels)
    y_at = LogScale(low, high, top + plot_height, top)
    canvas.text(18, top + plot_height / 2, y_label, anchor="middle", colour=MUTED, turn=-90)
    for place, (heading, series) in enumerate(panels):
        start = left + place * (panel_width + gap)
        end = start + panel_width
        for tick in y_ticks:
            canvas.line(start, y_at(tick), end, y_at(tick))
            if place == 0:
                canvas.text(start - 8, y_at(tick) + 4, y_text(tick), anchor="end", size=11, colour=MUTED)
        if baseline:
            canvas.line(start, y_at(baseline[0]), end, y_at(baseline[0]), INK, 1.2, "5 4")
            if place == 0:
                canvas.text(end - 4, y_at(baseline[0]) + 14, baseline[1], anchor="end", size=11)
        sizes = sorted({x for _, points in series for x, _ in points})
        x_at = LogScale(sizes[0], sizes[-1], start + 14, end - 14)
        for size in sizes:
            canvas.line(x_at(size), top + plot_height, x_at(size), top + plot_height + 4, MUTED)
            canvas.text(x_at(size) + 4, top + plot_height + 18, size_text(size), anchor="end", size=11, colour=MUTED, turn=-35)
        canvas.line(start, top + plot_height, end, top + plot_height, MUTED)
        canvas.text((start + end) / 2, top - 10, heading, anchor="middle", bold=True)
        for name, points in reversed(series):
            colour, mark = styles[name]
            path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in sorted(points))
            canvas.add(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2" stroke-linejoin="round"/>')
            for x, y in points:
                canvas.mark(mark, x_at(x), y_at(y), colour)
    return canvas.done()


def bar_chart(title, subtitle, groups, logarithmic=True):
    """Draws horizontal bars of times, in groups.

    `groups` is a list of (heading, [(name, microseconds or None, (least, most) or None), ...]). The style of a bar
    depends on its name. None instead of a time means that the contestant fails.
    """
    names = []
    for _, bars in groups:
        for name, _, _ in bars:
            if name not in names:
                names.append(name)
    values = [value for _, bars in groups for _, value, _ in bars if value]
    values += [most for _, bars in groups for _, _, spread in bars if spread for most in spread]
    rows = sum(len(bars) for _, bars in groups)
    width, left, right, top, bar, gap, head = 860, 270, 96, 74, 22, 6, 30
    height = top + rows * (bar + gap) + len(groups) * head + 46
    canvas = Canvas(width, height, title, subtitle)
    canvas.text(20, 30, title, size=16, bold=True)
    canvas.text(20, 50, subtitle, colour=MUTED)
    bottom = height - 40
    if logarithmic:
        low, high = decades(values)
        low /= 1.0 if min(values) > low * 1.3 else 10.0
        x_at = LogScale(low, high, left, width - right)
        ticks = [10.0**power for power in range(round(math.log10(low)), round(math.log10(high)) + 1)]
    else:
        step = 10.0 ** math.floor(math.log10(max(values)))
        step = next(step * part for part in (0.2, 0.5, 1.0, 2.0) if max(values) / (step * part) <= 6)
        count = math.ceil(max(values) / step)
        ticks = [step * at for at in range(count + 1)]
        x_at = lambda value: left + value / ticks[-1] * (width - right - left)
    colours = colours_of(names)
    for tick in ticks:
        canvas.text(x_at(tick), bottom + 18, time_text(tick) if tick else "0", anchor="middle", size=11, colour=MUTED)
    y = top
    for heading, bars in groups:
        canvas.text(20, y + 18, heading, bold=True)
        y += head
        for tick in ticks:
            canvas.line(x_at(tick), y - 3, x_at(tick), y + len(bars) * (bar + gap) - 3, GRID if tick != ticks[0] else MUTED)
        for name, value, spread in bars:
            colour = colours[name]
            canvas.text(left - 10, y + bar / 2 + 4, name, anchor="end")
            if value is None:
                canvas.text(left + 6, y + bar / 2 + 4, "fails", colour=MUTED)
            else:
                end = x_at(value)
                canvas.add(f'<rect x="{left}" y="{y}" width="{max(end - left, 1):.1f}" height="{bar}" rx="2" fill="{colour}"/>')
                label = time_text(value)
                if spread:
                    middle = y + bar / 2
                    least, most = x_at(spread[0]), x_at(spread[1])
                    canvas.line(least, middle, most, middle, INK, 1.4)
                    for edge in (least, most):
                        canvas.line(edge, middle - 4, edge, middle + 4, INK, 1.4)
                    end = max(end, most)
                    if spread[0] != spread[1]:
                        label = f"{number(spread[0] / 1e6)} to {time_text(spread[1])}" if spread[1] >= 1e6 else f"{time_text(spread[0])} to {time_text(spread[1])}"
                canvas.text(end + 8, y + bar / 2 + 4, label, size=11)
            y += bar + gap
    return canvas.done()
