"""A page of runs as one HTML file, for wide and narrow screens, light and dark: styles and pictures are in it."""

import base64
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ising_attn.lab.plots import DOTS_PER_INCH
from ising_attn.lab.run_page import Results, RunOnPage, caption, comparison

# Pixels of a page in an inch.
_PAGE_DOTS = 96
# Wider pictures scroll on a narrow screen, where their text would be too small to read.
_SHRINKS = 580


def html_page(runs: Sequence[RunOnPage], title: str) -> str:
    """The whole page."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    if len(runs) > 1:
        body.append(_html_of(comparison(runs).markdown()))
        links = "".join(f'<li><a href="#run-{k}">{html.escape(run.name)}</a></li>' for k, run in enumerate(runs))
        body.append(f"<nav><ul>{links}</ul></nav>")
    body += [_section(number, run) for number, run in enumerate(runs)]
    return _PAGE.format(title=html.escape(title), style=_STYLE, body="\n".join(body))


def _section(number: int, run: RunOnPage) -> str:
    """One run: the numbers of all seeds, those of the first seed, and the others' folded."""
    parts = [f'<section id="run-{number}"><h2>{html.escape(run.name)}</h2>']
    if run.command:
        words = " ".join(f"<span>{html.escape(word)}</span>" for word in run.command.split())
        parts.append(f"<pre>{words}</pre>")
    parts += [f'<p class="note">Note: {html.escape(note)}</p>' for note in run.notes()]
    parts += [_html_of(run.whole.tables), _plots(run.whole.plots)]
    for one in run.seeds[:1]:
        parts += [
            f"<h3>{_spoken(one)}</h3>",
            _plots(one.plots),
            _folded(f"Tables of {_spoken(one)}", _html_of(one.tables)),
        ]
    for one in run.seeds[1:]:
        curve = [plot for plot in one.plots if plot.stem == "learning_curve"]
        parts.append(_folded(_spoken(one).capitalize(), _plots(curve) + _html_of(one.tables)))
    facts = "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in run.facts())
    settings = f"<pre>{html.escape(settings_text(run.config))}</pre>" if run.config else ""
    parts.append(_folded("Settings and environment", f"<dl>{facts}</dl>{settings}"))
    return "\n".join([*parts, "</section>"])


def _spoken(one: Results) -> str:
    return html.escape(one.name.replace("-", " "))


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>{content}</details>" if content else ""


def _html_of(markdown: str) -> str:
    """Tables and headings of our own Markdown; anything that is HTML in it is shown, not interpreted."""
    from markdown_it import MarkdownIt

    made = (
        MarkdownIt("commonmark", {"html": False})
        .enable("table")
        .disable(["image", "link", "autolink"])
        .render(markdown)
    )
    return re.sub(r"(<table>.*?</table>)", r'<div class="wide">\1</div>', made, flags=re.DOTALL)


def _plots(plots: Sequence[Path]) -> str:
    return f'<div class="plots">{"".join(map(_figure, plots))}</div>' if plots else ""


def _figure(plot: Path) -> str:
    picture = plot.read_bytes()
    data, words = base64.b64encode(picture).decode("ascii"), html.escape(caption(plot))
    # The size at which its text is as large as the page's. PNG: the width is in bytes 16 to 20.
    width = round(int.from_bytes(picture[16:20], "big") * _PAGE_DOTS / DOTS_PER_INCH)
    kind = ' class="broad"' if width > _SHRINKS else ""
    image = f'<img alt="{words}" width="{width}" src="data:image/png;base64,{data}">'
    return f"<figure{kind}><div>{image}</div><figcaption>{words}</figcaption></figure>"


def settings_text(values: Mapping[str, Any], prefix: str = "") -> str:
    """Settings as lines `name = value`, those of tables with dots."""
    lines = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        nested = isinstance(value, Mapping) and value
        lines.append(settings_text(value, f"{name}.") if nested else f"{name} = {value}")
    return "\n".join(lines)


_STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8882; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 3rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; } h3::first-letter { text-transform: uppercase; }
p { margin: .5rem 0; } .note { border-left: 4px solid #d9622b; padding-left: .7rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: Canvas; padding-left: 0; }
pre { white-space: pre-wrap; background: var(--soft); padding: .7rem; border-radius: 6px; font-size: .8rem; }
pre span { display: inline-block; } /* no line ends within a flag */
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start; margin: 1rem 0; }
figure { margin: 0; max-width: 100%; } figure div { overflow-x: auto; }
figcaption { font-size: .85rem; opacity: .75; }
img { display: block; max-width: 100%; height: auto; background: white; border-radius: 6px; }
.broad img { min-width: 35rem; }
details { margin: .7rem 0; } summary { cursor: pointer; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .85rem; } dd { margin: 0; }
@media (prefers-color-scheme: dark) { img { filter: brightness(.88); } }
"""
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
