"""`ising-attn report RUN…`: one page from run folders alone, as HTML that holds everything, or as Markdown.

Of each run: its numbers, its tables, its plots, its settings and what it depended on. Runs of several seeds show their
mean ± standard deviation; several runs are first compared in one table. Nothing is run, and nothing is fetched.
"""

import base64
import dataclasses
import html
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ising_attn.lab.config import parse_settings
from ising_attn.lab.errors import RunFolderError
from ising_attn.lab.files import write_bytes
from ising_attn.lab.runs import read_json
from ising_attn.lab.tables import Table
from samplers.errors import InvalidOptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageSettings:
    """The page."""

    runs: tuple[Path, ...] = ()
    """Run folders (--runs=A,B); also before all flags, without this one: `ising-attn report A B`."""
    out: Path = Path("report.html")
    """Where the page goes; a name that ends in .md makes Markdown, with links to the plots."""
    title: str = "Runs"
    """Title of the page."""
    debug: bool = False
    """Show the traceback of an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page; the exit code."""
    given = list(arguments or ())
    folders = list(itertools.takewhile(lambda argument: not argument.startswith("-"), given))
    flags = given[len(folders) :]
    settings = parse_settings(PageSettings, flags, prog="report", description=__doc__ or "")
    runs = [RunOnPage.read(folder) for folder in (*map(Path, folders), *settings.runs)]
    if not runs:
        raise InvalidOptionError("name at least one run folder: ising-attn report runs/brackets-…")
    if settings.out.suffix not in (".html", ".md"):
        raise InvalidOptionError(f"--out is {settings.out}; its name must end in .html or .md")
    if settings.out.suffix == ".html":
        page = html_page(runs, settings.title)
    else:
        page = markdown_page(runs, settings.title, settings.out.parent)
    write_bytes(settings.out, page.encode("utf-8"))
    Console(highlight=False, markup=False).print(str(settings.out.resolve()), soft_wrap=True)
    return 0


_SHOWN = ("test_accuracy", "test_perplexity", "test_perplexity_soft", "test_perplexity_hard", "marginal_mae")


@dataclasses.dataclass(frozen=True)
class RunOnPage:
    """What a run folder holds.

    Args:
        name: of the folder.
        path: the folder.
        summary, environment, config: its JSON files; {} where one is absent.
        tables: the text of table.md.
        plots: pictures, in the order of their names.
    """

    name: str
    path: Path
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    config: Mapping[str, Any]
    tables: str
    plots: tuple[Path, ...]

    @classmethod
    def read(cls, path: Path) -> "RunOnPage":
        """The folder at `path`.

        Raises:
            RunFolderError: no such folder, or nothing of a run in it.
        """
        if not path.is_dir():
            raise RunFolderError(f"{path} is no folder; give run folders")
        files = {name: path / f"{name}.json" for name in ("summary", "environment", "config")}
        found = {name: read_json(file) if file.is_file() else {} for name, file in files.items()}
        for name, values in found.items():
            if not isinstance(values, Mapping):
                raise RunFolderError(f"{files[name]} holds no settings or results: it must be a JSON object")
        table = path / "table.md"
        tables = table.read_text(encoding="utf-8", errors="replace") if table.is_file() else ""
        # Of several seeds, the plots of the first one stand for all.
        pictures = sorted((path / "plots").glob("*.png")) or sorted(path.glob("seed-*/plots/*.png"))
        if not tables and not found["summary"]:
            raise RunFolderError(f"{path} holds neither summary.json nor table.md: no finished run is there")
        first = [one for one in pictures if one.parent == pictures[0].parent and _is_own_picture(one, path)]
        return cls(path.resolve().name, path, tables=tables, plots=tuple(first), **found)

    def shown(self, key: str) -> str:
        """A number of the summary, with its spread over seeds; "" where it is absent."""
        value, std = self.summary.get(key), self.summary.get(f"{key}_std")
        if not _is_number(value):
            return ""
        pattern = ".2%" if "accuracy" in key else ".4g"
        return format(value, pattern) + (f" ± {format(std, pattern)}" if _is_number(std) else "")

    @property
    def command(self) -> str:
        return str(self.environment.get("command", ""))

    def facts(self) -> list[tuple[str, str]]:
        """What it depended on."""
        found = [(key, self.environment.get(key)) for key in ("commit", "started", "python", "platform", "device_name")]
        versions = self.environment.get("versions")
        listed = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else ""
        return [(key, str(value)) for key, value in (*found, ("versions", listed)) if value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def comparison(runs: Sequence[RunOnPage]) -> Table:
    """The numbers that the runs have, one line each."""
    keys = [key for key in _SHOWN if any(run.shown(key) for run in runs)]
    table = Table("Comparison", ["run", "seeds", *(key.replace("_", " ") for key in keys)])
    for run in runs:
        seeds = run.summary.get("seeds")
        count = len(seeds) if isinstance(seeds, Mapping) else 1
        table.add(" ".join(re.sub(r"[#<>`]", "", run.name).split()), count, *(run.shown(key) or None for key in keys))
    table.caption = "Mean ± sample standard deviation where a run has several seeds."
    return table


def markdown_page(runs: Sequence[RunOnPage], title: str, folder: Path) -> str:
    """The page as Markdown; plots are links relative to `folder`."""
    parts = [f"# {title}\n"]
    if len(runs) > 1:
        parts.append(comparison(runs).markdown())
    for run in runs:
        parts.append(f"## {run.name}\n")
        if run.command:
            parts.append(f"    {run.command}\n")
        parts += [run.tables, *(f"![{_caption(plot)}]({_relative(plot, folder)})\n" for plot in run.plots)]
        parts.append("\n".join(f"- {key}: {value}" for key, value in run.facts()) + "\n")
    return "\n".join(parts)


def html_page(runs: Sequence[RunOnPage], title: str) -> str:
    """The page as one HTML file: styles and pictures are in it."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    if len(runs) > 1:
        body.append(_html_of(comparison(runs).markdown()))
        links = "".join(f'<li><a href="#run-{k}">{html.escape(run.name)}</a></li>' for k, run in enumerate(runs))
        body.append(f"<nav><ul>{links}</ul></nav>")
    for number, run in enumerate(runs):
        body.append(f'<section id="run-{number}"><h2>{html.escape(run.name)}</h2>')
        if run.command:
            body.append(f"<pre>{html.escape(run.command)}</pre>")
        body.append(_html_of(run.tables))
        body += [_figure(plot) for plot in run.plots]
        facts = "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in run.facts())
        settings = html.escape(_settings(run.config))
        body.append(
            f"<details><summary>Settings and environment</summary><dl>{facts}</dl><pre>{settings}</pre></details>"
        )
        body.append("</section>")
    return _PAGE.format(title=html.escape(title), style=_STYLE, body="\n".join(body))


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


def _is_own_picture(plot: Path, run: Path) -> bool:
    """A PNG file inside the run folder: a link to a file elsewhere, or another file of that name, is left out."""
    if not plot.is_file() or run.resolve() not in plot.resolve().parents:
        return False
    with plot.open("rb") as file:
        return file.read(len(_PNG)) == _PNG


_PNG = b"\x89PNG\r\n\x1a\n"


def _figure(plot: Path) -> str:
    data, caption = base64.b64encode(plot.read_bytes()).decode("ascii"), html.escape(_caption(plot))
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )


def _caption(plot: Path) -> str:
    return plot.stem.replace("_", " ").replace("-", " ").capitalize()


def _relative(plot: Path, folder: Path) -> str:
    try:
        return plot.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        return plot.resolve().as_posix()


def _settings(values: Mapping[str, Any], prefix: str = "") -> str:
    lines = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        lines.append(_settings(value, f"{name}.") if isinstance(value, Mapping) and value else f"{name} = {value}")
    return "\n".join(lines)


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.3rem; margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
pre { overflow-x: auto; background: var(--soft); padding: .7rem; border-radius: 6px; font-size: .8rem; }
figure { margin: 1.5rem 0; } figcaption { font-size: .85rem; opacity: .75; }
img { max-width: 100%; height: auto; background: white; border-radius: 6px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; font-size: .85rem; }
dd { margin: 0; overflow-wrap: anywhere; }
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
