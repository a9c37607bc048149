"""Settings of an experiment: a dataclass's defaults, overridden by a file, overridden by flags."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import tyro

from samplers import Sampler, get_sampler

T = TypeVar("T", bound="RunSettings")
Flat = tyro.conf.OmitArgPrefixes
SamplerOptions = tyro.conf.Suppress[dict[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What every experiment takes. Subclass it, and nest further dataclasses with `Flat[...]`."""

    config: Path | None = None
    """TOML or JSON file of settings; flags override it. A run's config.json is one."""
    out: Path | None = None
    """Run folder; by default runs/NAME-DATE-ID."""
    resume: bool = False
    """Go on with the run in --out, with its settings, from its last checkpoint."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    sampler: str = "exact"
    """Sampler of the attention's marginals; its own options are listed below as --sampler.NAME."""
    sampler_options: SamplerOptions = dataclasses.field(default_factory=dict)
    """Options of the sampler that were set."""
    debug: bool = False
    """Show the traceback of an error."""

    def make_sampler(self, **more: Any) -> Sampler:
        """A sampler of the chosen name with the options that were set; `more` where they were not."""
        return get_sampler(self.sampler, **{**more, **self.sampler_options})


def parse_settings(kind: type[T], argv: Sequence[str] | None = None, *, prog: str, description: str = "") -> T:
    """Settings from the defaults of `kind`, then a file (--config, or the run's own with --resume), then flags.

    `--sampler NAME` is a setting and `--sampler.KEY=VALUE` an option of that sampler; both are checked here.

    Raises:
        InvalidOptionError: an unknown flag or key (with the nearest one), or a value out of range.
        SystemExit: 0 after --help, 2 where a value cannot be read.
    """
    return tyro.cli(kind, args=sys.argv[1:] if argv is None else argv, prog=prog, description=description)


def settings_to_dict(settings: Any) -> dict[str, Any]:
    """Settings as plain nested values, for config.json; what `--config` reads back."""
    plain = dataclasses.asdict(settings)
    return {key: value for key, value in plain.items() if key not in ("config", "out", "resume", "debug")}
