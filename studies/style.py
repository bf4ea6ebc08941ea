"""How the pictures of the pages look: one list of colours, sizes, and marks with one meaning.

A colour says where frozen weights are from, a filled mark what was measured.  An open mark with an
arrow is a run that ended at its last step without reaching its goal."""

from minifpt.files import plots

WIDTH = 8.3                                               # inches: 830 pixels at 100 an inch
PRETRAINED, CONTROL, RANDOM = (plots.COLORS[name] for name in ("language", "statistics", "random"))
COLORS = plots.COLORS | {
    "random (0.02)": plots.SMALL, "random (spread 0.55)": plots.SPREAD,
    "masked-t5": plots.COLORS["masked"], "masked-bert": "#1d6f7c", "masked-longformer": "#93c47d",
    "aligned": "#6aa621", "two layers": "#8d4a1f", "linear classifier": "#c9a227",
    "neutral": "0.45", "range": "0.78"}
SHADES = "#d3a4bf", "#a2577f", RANDOM, "#22060f"          # of random weights, from light to dark


def figure(columns=1, rows=1, height=3.2, **options):
    """Return a figure as wide as a page and the list of its axes, each ``height`` inches high."""
    return plots.figure(columns, rows, WIDTH / columns, height, **options)


def save(fig, path, title):
    """Write a picture with a title that says what it shows."""
    fig.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    plots.save(fig, path, dpi=150)


def mark_chance(ax, percent, across=True):
    """Draw a dotted line at the chance accuracy and write it below it, or above an upright one."""
    line = {"color": "0.4", "linestyle": ":", "linewidth": 1}
    text = {"s": f"chance, {percent:g} %", "color": "0.3", "fontsize": 9}
    if across:
        ax.axhline(percent, **line)
        ax.text(0.01, percent, va="top", transform=ax.get_yaxis_transform(), **text)
        ax.set_ylim(percent - 0.14 * (ax.get_ylim()[1] - percent), None)
    else:
        ax.axvline(percent, **line)
        ax.text(percent, 1.01, transform=ax.get_xaxis_transform(), **text)


def mark_limit(ax, x, y, color, marker="o", towards=(0, 20)):
    """Draw an open mark with an arrow, in points ``towards`` where the run would have ended."""
    ax.plot(x, y, marker, color=color, fillstyle="none", markeredgewidth=1.6, markersize=7)
    ax.annotate("", (x, y), towards, textcoords="offset points",
                arrowprops={"arrowstyle": "<-", "color": color, "shrinkB": 5})


def count_steps(axis, ticks):
    """Give an axis of steps a logarithmic scale with ticks in words of people."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.axes.minorticks_off()
    axis.set_ticks(ticks, [f"{tick:,}" for tick in ticks])


def key(ax, rows):
    """Turn an axis into the key of a picture: (marker, colour, words) from top to bottom."""
    for y, (marker, color, words) in enumerate(rows):
        ax.plot(0.05, -y, marker, color=color, markersize=8, markeredgewidth=1.6,
                fillstyle="none" if color == "black" else "full")
        ax.text(0.14, -y, words, va="center", fontsize=10)
    ax.set(xlim=(0, 1), ylim=(-len(rows) + 0.3, 0.7))
    ax.axis("off")


def legend(fig, axes, columns):
    """Write one legend below the axes, each label once."""
    handles = {label: handle for ax in axes for handle, label in
               zip(*ax.get_legend_handles_labels(), strict=True)}
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=columns, frameon=False)
