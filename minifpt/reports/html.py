"""Parts of an HTML page that fetches nothing: tables, pictures within it, sections."""

import base64
import io
from html import escape

import numpy as np

STYLE = """
:root { color-scheme: light dark; --line: #c8c8c8; --soft: #f4f4f2; }
@media (prefers-color-scheme: dark) { :root { --line: #555; --soft: #262626; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } .result { font-size: 1.4rem; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; }
figure { margin: 1rem 0; }
img { max-width: max(100%, 40rem); height: auto; background: #fff; padding: 4px; }
figcaption, caption { font-size: .9rem; text-align: left; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .15rem .8rem .15rem 0; text-align: left;
         white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
pre { background: var(--soft); padding: .6rem; overflow-x: auto; font-size: .85rem; }
mark { background: none; color: inherit; font-weight: bold; text-decoration: underline wavy #c0392b;
       outline: 1px solid #c0392b; }
@media print { body { max-width: none; } h2, figure, tr { break-inside: avoid; } }
"""


def figure(fig, alt, caption=""):
    """Return a Matplotlib figure as HTML with a PNG; ``alt`` describes it."""
    raw = io.BytesIO()
    fig.savefig(raw, format="png", dpi=110)
    data = base64.b64encode(raw.getvalue()).decode()
    text = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (f'<figure class="wide"><img alt="{escape(alt)}" src="data:image/png;base64,{data}">'
            f"{text}</figure>")


def table(rows, head=None, caption=""):
    """Return an HTML table; a column whose first cell is a number is set to the right."""
    right = [not isinstance(cell, str) for cell in rows[0]]
    kinds = [' class="n"' if r else "" for r in right]
    parts = ['<div class="wide"><table>', f"<caption>{escape(caption)}</caption>" * bool(caption)]
    if head:
        cells = "".join(f'<th scope="col"{kind}>{escape(h)}</th>'
                        for h, kind in zip(head, kinds, strict=True))
        parts.append(f"<thead><tr>{cells}</tr></thead>")
    parts.append("<tbody>")
    for first, *rest in rows:
        cells = "".join(f"<td{kind}>{escape(number(cell))}</td>"
                        for cell, kind in zip(rest, kinds[1:], strict=True))
        parts.append(f'<tr><th scope="row">{escape(number(first))}</th>{cells}</tr>')
    return "\n".join([*filter(None, parts), "</tbody></table></div>"])


def number(cell):
    """Return a cell as text."""
    if isinstance(cell, (int, np.integer)) and not isinstance(cell, bool):
        return f"{cell:,}"
    return f"{cell:.4g}" if isinstance(cell, (float, np.floating)) else str(cell)


def paragraph(text):
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
