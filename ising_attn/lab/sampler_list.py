"""`ising-attn samplers`: every sampler that can be named, what it can do, whether it is installed, and its options."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from ising_attn.lab.config import parse_settings
from ising_attn.lab.tables import Table
from samplers import Sampler
from samplers.errors import IsingAttnError
from samplers.registry import SamplerEntry, sampler_class, sampler_entries


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerListSettings:
    """What is listed."""

    name: str = ""
    """One sampler, with its options and their defaults; all samplers by default."""
    markdown: bool = False
    """Print tables as Markdown."""
    debug: bool = False
    """Show the traceback of an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the exit code."""
    settings = parse_settings(SamplerListSettings, arguments, prog="samplers", description=__doc__ or "")
    console = Console(highlight=False, markup=False)
    table = sampler_table() if not settings.name else option_table(settings.name)
    if settings.markdown:
        console.print(table.markdown(), soft_wrap=True)
    else:
        console.print(table.rich())
    return 0


def sampler_table() -> Table:
    """Every registered sampler with its default options: what it can do, and what is missing."""
    columns = ["sampler", "law", "gradient", "spins", "gives", "installed"]
    table = Table("Samplers", columns)
    for entry in sampler_entries().values():
        table.add(entry.name, *_row(entry))
    table.caption = (
        "law: exact; Boltzmann in the limit of many draws or sweeps; own where it is another law. spins: at most, of "
        "one query. gives: d draws, g ground states (or the lowest found), Z log Z, K three-body terms. "
        "--name=NAME lists the options of one."
    )
    return table


def _row(entry: SamplerEntry) -> tuple[str, str, str | int, str, str]:
    missing = entry.missing()
    if missing:
        extra = f" (pip install 'ising-attn[{entry.extra}]')" if entry.extra else ""
        return ("", "", "", "", f"needs {', '.join(missing)}{extra}")
    try:
        able = sampler_class(entry.name)().capabilities
    except IsingAttnError:
        # A bridge: it is made from an object of the caller's.
        return ("", "", "", "", f"yes: {entry.summary}")
    law = "exact" if able.exact else "Boltzmann" if able.boltzmann else "own"
    gives = [("d", able.can_sample), ("g", able.can_ground_state), ("Z", able.can_log_partition)]
    letters = "".join(letter for letter, can in (*gives, ("K", able.higher_order)) if can)
    return (law, able.gradient, "any" if able.max_spins is None else able.max_spins, letters, "yes")


def option_table(name: str) -> Table:
    """The options of one sampler, with defaults, limits and what they mean.

    Raises:
        UnknownSamplerError, MissingDependencyError: see `samplers.registry.sampler_class`.
    """
    kind = sampler_class(name)
    table = Table(f"Options of {name!r}", ["option", "default", "allowed", "meaning"])
    for field in dataclasses.fields(kind):
        if "help" in field.metadata:
            table.add(f"--sampler.{field.name.replace('_', '-')}", *_described(field))
    table.caption = _first_paragraph(kind)
    return table


def _described(field: "dataclasses.Field[Any]") -> tuple[str, str, str]:
    about = field.metadata
    low, high, choices = (about.get(key) for key in ("minimum", "maximum", "choices"))
    if choices:
        allowed = ", ".join(map(str, choices))
    elif low is not None or high is not None:
        allowed = " ".join(
            part for part in (f"≥ {low}" if low is not None else "", f"≤ {high}" if high is not None else "") if part
        )
    else:
        allowed = ""
    return str(field.default), allowed, about["help"]


def _first_paragraph(kind: type[Sampler]) -> str:
    return " ".join((kind.__doc__ or "").strip().split("\n\n")[0].split())
