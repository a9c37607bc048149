"""`ising-attn report RUN…`: one page from run folders alone, as HTML that holds everything, or as Markdown.

Of each run: its numbers, its tables, its plots, its settings and what it depended on. Runs of several seeds show their
mean ± standard deviation, and each seed's own results; several runs are first compared in one table. Nothing is run,
and nothing is fetched.
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    if settings.out.is_dir():
        raise InvalidOptionError(f"--out is {settings.out}, which is a folder; name a file, such as report.html in it")
    if settings.out.suffix == ".html":
        from ising_attn.lab.run_page_html import html_page

        page = html_page(runs, settings.title)
    else:
        page = markdown_page(runs, settings.title, settings.out.parent)
    write_bytes(settings.out, page.encode("utf-8", errors="backslashreplace"))
    Console(highlight=False, markup=False).print(str(settings.out.resolve()), soft_wrap=True)
    return 0


_QUICK = "a --quick run: it shows that everything works, and its numbers mean nothing"
# Key of summary.json, its name for a reader, its format.
_SHOWN = (
    ("test_accuracy", "test accuracy", ".2%"),
    ("test_accuracy_exact", "accuracy through exact", ".2%"),
    ("test_perplexity", "test perplexity", ".3f"),
    ("test_perplexity_soft", "test perplexity, soft", ".3f"),
    ("test_perplexity_hard", "test perplexity, hard", ".3f"),
    ("marginal_mae", "mean |Δ⟨s⟩| to exact", ".4f"),
    ("parameters", "parameters", ",.0f"),
    ("train_seconds", "training time, s", ",.0f"),
)
# In this order; others follow by name.
_CAPTIONS = {
    "learning_curve": "Learning curve",
    "marginals": "Spin marginals ⟨s⟩, the sampler’s over the exact ones",
    "attention_example": "Attention weights of one test sequence, with its tokens",
    "couplings": "Learned couplings J",
    "couplings_by_distance": "Learned couplings J by distance",
}


@dataclasses.dataclass(frozen=True)
class Results:
    """Tables and plots of one folder.

    Args:
        name: of the folder.
        tables: the text of table.md.
        plots: pictures, the learning curve first.
    """

    name: str
    tables: str
    plots: tuple[Path, ...]

    @classmethod
    def read(cls, folder: Path, run: Path) -> "Results":
        """Those in `folder`, which is `run` or lies in it."""
        table = folder / "table.md"
        tables = table.read_text(encoding="utf-8", errors="replace") if table.is_file() else ""
        plots = [one for one in (folder / "plots").glob("*.png") if _is_own_picture(one, run)]
        return cls(folder.resolve().name, tables, tuple(sorted(plots, key=_order)))


@dataclasses.dataclass(frozen=True)
class RunOnPage:
    """What a run folder holds.

    Args:
        path: the folder.
        summary, environment, config: its JSON files; {} where one is absent.
        whole: of the run; where there are several seeds, of all of them.
        seeds: of each seed, where there are several.
    """

    path: Path
    summary: Mapping[str, Any]
    environment: Mapping[str, Any]
    config: Mapping[str, Any]
    whole: Results
    seeds: tuple[Results, ...] = ()

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
        whole = Results.read(path, path)
        if not whole.tables and not found["summary"]:
            raise RunFolderError(f"{path} holds neither summary.json nor table.md: no finished run is there")
        seeds = [Results.read(folder, path) for folder in sorted(path.glob("seed-*"), key=_number)]
        return cls(path, whole=whole, seeds=tuple(one for one in seeds if one.tables or one.plots), **found)

    @property
    def name(self) -> str:
        return self.whole.name

    @property
    def count(self) -> int:
        """Seeds of the run."""
        seeds = self.summary.get("seeds")
        return len(seeds) if isinstance(seeds, Mapping) else 1

    def shown(self, key: str, pattern: str) -> str | float | None:
        """A number of the summary, with its spread over seeds where it has one; one that all seeds share is theirs."""
        value, std = self.summary.get(key), self.summary.get(f"{key}_std")
        if value is None:
            each = [one.get(key) for one in self._seed_summaries()]
            value = each[0] if each and each.count(each[0]) == len(each) else None
        if not _is_number(value):
            return None
        return f"{value:{pattern}} ± {std:{pattern}}" if _is_number(std) else value

    def _seed_summaries(self) -> list[Mapping[str, Any]]:
        seeds = self.summary.get("seeds")
        return [one for one in seeds.values() if isinstance(one, Mapping)] if isinstance(seeds, Mapping) else []

    @property
    def command(self) -> str:
        return str(self.environment.get("command", ""))

    def notes(self) -> list[str]:
        """What a reader of its numbers must know."""
        each = [self.summary, *self._seed_summaries()]
        lists = [found for one in each if isinstance(found := one.get("notes"), list)]
        said = [_QUICK] if any(one.get("quick") is True for one in each) else []
        return list(dict.fromkeys([*said, *(str(note) for notes in lists for note in notes)]))

    def facts(self) -> list[tuple[str, str]]:
        """What it depended on."""
        found = [(key, self.environment.get(key)) for key in ("commit", "started", "python", "platform", "device_name")]
        versions = self.environment.get("versions")
        listed = ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, Mapping) else ""
        return [(key.replace("_", " "), str(value)) for key, value in (*found, ("versions", listed)) if value]


def caption(plot: Path) -> str:
    """What a plot shows, by the name of its file."""
    name, layer, number = plot.stem.partition("_layer_")
    number, rest, more = number.partition("_")
    known = _CAPTIONS.get(name + rest + more)
    if known is None:
        return plot.stem.replace("_", " ").replace("-", " ").capitalize()
    return f"{known}, layer {number}" if layer else known


def _order(plot: Path) -> tuple[int, str]:
    first = re.sub(r"_layer_\d+", "", plot.stem)
    return (list(_CAPTIONS).index(first) if first in _CAPTIONS else len(_CAPTIONS), plot.name)


def _number(folder: Path) -> tuple[int, str]:
    digits = folder.name.rpartition("-")[2]
    return (int(digits) if digits.isdecimal() else 0, folder.name)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def comparison(runs: Sequence[RunOnPage]) -> Table:
    """The numbers that the runs have, one line each."""
    shown = [one for one in _SHOWN if any(run.shown(one[0], one[2]) is not None for run in runs)]
    table = Table("Comparison", ["run", "seeds", *(name for _, name, _ in shown)], {name: p for _, name, p in shown})
    for run in runs:
        name = " ".join(re.sub(r"[#<>`]", "", run.name).split())
        table.add(name, run.count, *(run.shown(key, pattern) for key, _, pattern in shown))
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
        parts += [f"Note: {note}\n" for note in run.notes()]
        parts += [run.whole.tables, *_links(run.whole.plots, folder)]
        for one in run.seeds:
            parts += [f"### {one.name}\n", *_links(one.plots, folder)]
        parts.append("\n".join(f"- {key}: {value}" for key, value in run.facts()) + "\n")
    return "\n".join(parts)


def _links(plots: Sequence[Path], folder: Path) -> list[str]:
    return [f"![{caption(plot)}]({_relative(plot, folder)})\n" for plot in plots]


def _is_own_picture(plot: Path, run: Path) -> bool:
    """A PNG file inside the run folder: a link to a file elsewhere, or another file of that name, is left out."""
    if not plot.is_file() or run.resolve() not in plot.resolve().parents:
        return False
    with plot.open("rb") as file:
        return file.read(len(_PNG)) == _PNG


_PNG = b"\x89PNG\r\n\x1a\n"


def _relative(plot: Path, folder: Path) -> str:
    whole, start = plot.resolve(), folder.resolve()
    path = whole.relative_to(start) if whole.is_relative_to(start) else whole
    return quote(os.fsencode(path.as_posix()))
