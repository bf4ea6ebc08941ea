"""Parts of an HTML page that fetches nothing: tables, pictures within it, sections."""

import base64
import io
from functools import partial
from html import escape

import numpy as np

STYLE = """
:root { color-scheme: light dark; --line: #c8c8c8; --soft: #f4f4f2; }
@media (prefers-color-scheme: dark) { :root { --line: #555; --soft: #262626; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } .result { font-size: 1.4rem; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; background: #fff; }
@media (prefers-color-scheme: dark) { .plot img { filter: invert(.93) hue-rotate(180deg); } }
.row { display: flex; flex-wrap: wrap; gap: .5rem; }
.row p { margin: 0; font-size: .8rem; } .row p img { display: block; width: 5.5rem;
  image-rendering: pixelated; }
figcaption, caption { font-size: .9rem; text-align: left; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .15rem .8rem .15rem 0; text-align: left;
         white-space: nowrap; }
td:not(.n) { white-space: normal; overflow-wrap: break-word; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; font-size: .85rem; }
mark { background: none; color: inherit; font-weight: bold; text-decoration: underline wavy #c0392b;
       outline: 1px solid #c0392b; }
@media print { body { max-width: none; } h2, figure, tr { break-inside: avoid; } }
"""


def figures(pairs, caption):
    """Return pairs of a Matplotlib figure and its description as HTML, side by side where there
    is room.  A dark page inverts their lightness."""
    pictures = "".join(picture(partial(fig.savefig, format="png", dpi=110), alt)
                       for fig, alt in pairs)
    return (f'<figure class="plot"><div class="row">{pictures}</div>'
            f"<figcaption>{escape(caption)}</figcaption></figure>")


def images(arrays, titles):
    """Return small images, (height, width) or with colours, with a line below each, as HTML."""
    from matplotlib.image import imsave
    parts = []
    for array, title in zip(arrays, titles, strict=True):
        scaled = (array - array.min()) / (np.ptp(array) or 1)
        save = partial(imsave, arr=scaled, cmap="gray_r", vmin=0, vmax=1)
        parts.append(f"<p>{picture(save, title)}{escape(title)}</p>")
    return f'<div class="row">{"".join(parts)}</div>'


def picture(save, alt):
    """Return the PNG that ``save(file)`` writes as an element of HTML."""
    raw = io.BytesIO()
    save(raw)
    data = base64.b64encode(raw.getvalue()).decode()
    return f'<img alt="{escape(alt)}" src="data:image/png;base64,{data}">'


def table(rows, head=(), caption=""):
    """Return an HTML table; a column whose first cell is a number is set to the right."""
    kinds = ["" if isinstance(cell, str) else ' class="n"' for cell in rows[0]]
    names = "".join(f'<th scope="col"{kind}>{escape(name)}</th>'
                    for name, kind in zip(head, kinds, strict=False))
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td{kind}>{escape(number(cell))}</td>"
                        for cell, kind in zip(rest, kinds[1:], strict=True))
        lines.append(f'<tr><th scope="row">{escape(number(first))}</th>{cells}</tr>')
    body = "\n".join(lines)
    return (f'<div class="wide"><table><caption>{escape(caption)}</caption>\n'
            f"<thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>")


def number(cell):
    """Return a cell as text."""
    if isinstance(cell, (int, np.integer)) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, (float, np.floating)) else str(cell)


def paragraph(text):
    """Return a text as HTML."""
    return f"<p>{escape(text)}</p>"


def page(title, sections):
    """Return the whole page; ``sections`` is {heading: HTML}."""
    ids = {heading: heading.lower().replace(" ", "-") for heading in sections}
    links = " · ".join(f'<a href="#{i}">{escape(h)}</a>' for h, i in ids.items())
    body = "\n".join(f'<section aria-labelledby="{ids[h]}"><h2 id="{ids[h]}">{escape(h)}</h2>\n'
                     f"{html}\n</section>" for h, html in sections.items())
    return (f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
            f"<h1>{escape(title)}</h1>\n<nav>{links}</nav>\n{body}\n</main>\n</body>\n</html>\n")
