"""Sampler names: what each is, what it needs, and how to make one."""

import importlib
import importlib.util
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from samplers.base import Sampler
from samplers.errors import InvalidOptionError, MissingDependencyError, UnknownSamplerError, did_you_mean
from samplers.options import check_names

ENTRY_POINT_GROUP = "ising_attn.samplers"


@dataclass(frozen=True)
class SamplerEntry:
    """A registered name. `target` is "module:Class", imported on first use; `needs` maps packages to the extra."""

    name: str
    target: str
    summary: str
    aliases: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    extra: str = ""

    def missing(self) -> list[str]:
        """Packages that are needed and not installed."""
        return [package for package in self.needs if importlib.util.find_spec(package) is None]

    def load(self) -> type[Sampler]:
        for package in self.missing():
            raise MissingDependencyError(package, self.extra, f"the sampler {self.name!r}")
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


_BUILT_IN = (
    SamplerEntry("exact", "samplers.exact:ExactSampler", "summation over all 2^n states by two halves"),
    SamplerEntry("band", "samplers.band:BandSampler", "exact for couplings of short range (up to 12), any length"),
    SamplerEntry("mean-field", "samplers.variational:MeanFieldSampler", "naive mean field, implicit gradient"),
    SamplerEntry("tap", "samplers.variational:TAPSampler", "mean field with the Onsager reaction term"),
    SamplerEntry("bethe", "samplers.variational:BetheSampler", "belief propagation; exact on trees"),
    SamplerEntry("gibbs", "samplers.gibbs:GibbsSampler", "batched heat bath, parallel tempering; any size"),
    SamplerEntry(
        "annealing",
        "samplers.annealing:AnnealingSampler",
        "dwave-samplers' simulated annealing, ending at the requested β",
        aliases=("sa", "neal"),
        needs=("dimod", "dwave.samplers"),
    ),
    SamplerEntry("dqa", "samplers.dqa:DQASampler", "simulated diabatic quantum anneal (state vector or Qiskit Aer)"),
    SamplerEntry(
        "quantum-mcmc",
        "samplers.dqa.quantum_sampler:QuantumMCMCSampler",
        "simulated quantum-enhanced Markov chains (Boltzmann, up to 16 spins)",
    ),
    SamplerEntry(
        "dimod",
        "samplers.dimod_bridge:DimodSampler",
        "any dimod sampler object: get_sampler('dimod', sampler=…)",
        needs=("dimod",),
    ),
    SamplerEntry(
        "dwave",
        "samplers.dwave:DWaveSampler",
        "D-Wave quantum annealers; needs a configured account",
        needs=("dwave.system",),
        extra="qpu",
    ),
)
_entries: dict[str, SamplerEntry] = {entry.name: entry for entry in _BUILT_IN}
_classes: dict[str, type[Sampler]] = {}


def register_sampler(name: str, sampler_class: type[Sampler], *, summary: str = "") -> None:
    """Make `get_sampler(name)` return a `sampler_class`; installed packages use the entry point group instead."""
    if name in _entries and _classes.get(name) is not sampler_class:
        raise InvalidOptionError(f"the sampler name {name!r} is taken; choose another")
    target = f"{sampler_class.__module__}:{sampler_class.__qualname__}"
    _entries[name] = SamplerEntry(name, target, summary or (sampler_class.__doc__ or "").strip().split("\n")[0])
    _classes[name] = sampler_class


def sampler_entries() -> dict[str, SamplerEntry]:
    """Every registered name with its entry: ours first, then those of installed third-party packages."""
    found = dict(_entries)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(point.name, SamplerEntry(point.name, point.value, f"third party: {point.value}"))
    return found


def sampler_names() -> list[str]:
    """Every name and alias that `get_sampler` takes."""
    entries = sampler_entries().values()
    return [entry.name for entry in entries] + [alias for entry in entries for alias in entry.aliases]


def sampler_class(name: str) -> type[Sampler]:
    """The class behind a name or alias.

    Raises:
        UnknownSamplerError: no such name; the message lists the names and what each needs.
        MissingDependencyError: a package it needs is absent.
    """
    entries = sampler_entries()
    by_alias = {alias: entry for entry in entries.values() for alias in entry.aliases}
    entry = entries.get(name) or by_alias.get(name)
    if entry is None:
        lines = "; ".join(_described(e) for e in entries.values())
        hint = did_you_mean(name, sampler_names()) or "."
        raise UnknownSamplerError(f"no sampler is named {name!r}{hint} Known: {lines}")
    return _classes.get(entry.name) or entry.load()


def get_sampler(name: str, **options: Any) -> Sampler:
    """A sampler by name: get_sampler("exact"), get_sampler("dqa", num_layers=8, seed=1), …

    Raises:
        UnknownSamplerError, MissingDependencyError: see `sampler_class`.
        InvalidOptionError: an option the sampler does not have, or a value outside its range.
    """
    kind = sampler_class(name)
    check_names(kind, options, name)
    return kind(**options)


def _described(entry: SamplerEntry) -> str:
    names = "/".join((entry.name, *entry.aliases))
    missing = entry.missing()
    return f"{names} ({'needs ' + ', '.join(missing) + ', extra ' + entry.extra if missing else entry.summary})"
