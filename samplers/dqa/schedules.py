"""Anneal schedules as data: continuous tables A(s), B(s) to be Trotterised, or free layer angles.

`named_schedule` knows the shapes below and every JSON file shipped in `samplers/dqa/data`; `load_schedule` reads
a JSON file of the same format, `anneal_from_csv` a table in the column format that D-Wave publishes.
"""

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samplers.dqa.layers import Layers
from samplers.dqa.scaling import ScaleDependence
from samplers.errors import InvalidOptionError, did_you_mean

DATA = Path(__file__).parent / "data"
_LEARNED_DEPTH = 8
FORMAT = "ising-attn schedule 1"


@dataclass(frozen=True)
class AnnealSchedule:
    """H(s) = −A(s) ΣX + B(s) E(Z), linear between the rows of a table, run for a time τ.

    Args:
        s: increasing, from 0 to 1.
        drive: A(s) τ in radians: the mixer angle that the whole anneal would have at that rate.
        problem: B(s) τ in radians.
        order: of the Trotter splitting. 1: problem then mixer in each step. 2: the symmetric splitting, half a
            mixer, problem, half a mixer. The first half mixer acts on its own eigenstate and neighbouring halves
            merge, so that a second-order anneal has the same number of layers.
        num_layers: steps where the caller does not say.
        calibrate: whether its fields and couplings are to be divided by their own β_k.
        about: where it comes from.
    """

    s: tuple[float, ...]
    drive: tuple[float, ...]
    problem: tuple[float, ...]
    name: str = "anneal"
    order: int = 2
    num_layers: int = 20
    calibrate: bool = True
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.s) == len(self.drive) == len(self.problem) >= 2:
            raise InvalidOptionError(
                f"schedule {self.name!r}: s, drive and problem have {len(self.s)}, {len(self.drive)} and "
                f"{len(self.problem)} rows; they need the same number, at least 2"
            )
        _check_finite(self.name, s=self.s, drive=self.drive, problem=self.problem)
        if self.s[0] != 0 or self.s[-1] != 1 or any(b <= a for a, b in zip(self.s[:-1], self.s[1:], strict=True)):
            raise InvalidOptionError(f"schedule {self.name!r}: s must increase strictly from 0 to 1")
        if self.order not in (1, 2):
            raise InvalidOptionError(f"schedule {self.name!r}: order={self.order!r}; it must be 1 or 2")
        _check_depth(self.name, self.num_layers)

    def layers(self, num_layers: int | None = None) -> Layers:
        """P Trotter steps of equal length, each with the mean A and B of its interval (error O(1/P^order))."""
        depth = _check_depth(self.name, self.num_layers if num_layers is None else num_layers)
        edges = np.linspace(0.0, 1.0, depth + 1)
        mixer = torch.from_numpy(np.diff(_integral(self.s, self.drive, edges)))
        phase = torch.from_numpy(np.diff(_integral(self.s, self.problem, edges)))
        if self.order == 2:
            mixer = (mixer + torch.cat([mixer[1:], mixer.new_zeros(1)])) / 2
        return Layers(phase, phase.clone(), mixer)

    def to_json(self) -> dict[str, Any]:
        own = {"order": self.order, "num_layers": self.num_layers, "calibrate": self.calibrate}
        table = {"s": list(self.s), "drive": list(self.drive), "problem": list(self.problem)}
        return {"format": FORMAT, "kind": "anneal", "name": self.name, **own, **table, "about": self.about}


@dataclass(frozen=True)
class AngleSchedule:
    """Free angles, one (field, coupling, mixer) triple per layer: kicks, QAOA, learned schedules.

    Args:
        angles: the layers; tensors that require grad stay in the graph (a schedule trained with its model).
        calibrate: as in `AnnealSchedule`; off, since free angles are usually meant as they stand.
        about: where they come from; for a learned schedule the family it was fitted on.
        scale: how the angles follow a problem's size and strength; None for the same angles whatever the problem.
    """

    angles: Layers
    name: str = "angles"
    calibrate: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    scale: ScaleDependence | None = None

    def __post_init__(self) -> None:
        parts = {"fields": self.angles.fields, "couplings": self.angles.couplings, "mixer": self.angles.mixer}
        shapes = {key: tuple(t.shape) for key, t in parts.items()}
        if len(set(shapes.values())) != 1 or self.angles.mixer.ndim != 1 or self.angles.depth == 0:
            raise InvalidOptionError(f"schedule {self.name!r}: angles have shapes {shapes}; all must be (layers,)")
        _check_finite(self.name, **{key: t.detach().tolist() for key, t in parts.items()})
        if self.scale is not None and self.scale.weights.shape[-1] != self.angles.depth:
            raise InvalidOptionError(
                f"schedule {self.name!r}: its scale weights are those of {self.scale.weights.shape[-1]} layers; the "
                f"angles are those of {self.angles.depth}"
            )

    def layers(self, num_layers: int | None = None) -> Layers:
        if num_layers is not None and num_layers != self.angles.depth:
            raise InvalidOptionError(
                f"the schedule {self.name!r} has {self.angles.depth} layers and cannot be run with {num_layers}; "
                "leave num_layers out, or choose an anneal such as 'ramp', which takes any number"
            )
        return self.angles

    def to_json(self) -> dict[str, Any]:
        a = self.angles
        rows = {"fields": a.fields, "couplings": a.couplings, "mixer": a.mixer}
        table = {key: [float(v) for v in t.detach()] for key, t in rows.items()}
        own = {"name": self.name, "calibrate": self.calibrate}
        scale = {} if self.scale is None else {"scale": self.scale.to_json()}
        return {"format": FORMAT, "kind": "angles", **own, **table, **scale, "about": self.about}


Schedule = AnnealSchedule | AngleSchedule


def linear_ramp(drive: float = 2.863, problem: float = 2.78, **own: Any) -> AnnealSchedule:
    """A₀(1−s), B₀s. The defaults are A₀τ with β₁ = β₂ and B₀τ with β = 1, at first order."""
    return AnnealSchedule((0.0, 1.0), (drive, 0.0), (0.0, problem), **{"name": "ramp", **own})


def constant_drive(drive: float = 1.754, problem: float = 1.068, **own: Any) -> AnnealSchedule:
    """A₀(1−s), B₀: the problem at full strength while the drive is switched off. β₁ = β₂ = 1 as for the ramp."""
    return AnnealSchedule((0.0, 1.0), (drive, 0.0), (problem, problem), **{"name": "constant", **own})


def single_kick(angle: float = 1 / math.sqrt(3), mixer: float = math.pi / 6) -> AngleSchedule:
    """One phase γE, then one mixer. At mixer π/6, β₁ = β₂ = √3 γ (QAOA of depth 1)."""
    return free_angles([angle], [angle], [mixer], name="kick")


def free_angles(
    fields: Sequence[float], couplings: Sequence[float], mixer: Sequence[float], **own: Any
) -> AngleSchedule:
    """QAOA-like angles γ_l for fields and for couplings, and mixers x_l."""
    if not len(fields) == len(couplings) == len(mixer) >= 1:
        raise InvalidOptionError(
            f"{len(fields)} field, {len(couplings)} coupling and {len(mixer)} mixer angles were given; "
            "each layer needs one of each, and there must be at least one layer"
        )
    rows = (torch.tensor(list(row), dtype=torch.float64) for row in (fields, couplings, mixer))
    return AngleSchedule(Layers(*rows), **own)


def fast_anneal(nanoseconds: float = 5.0, **own: Any) -> AnnealSchedule:
    """The shape of a processor's fast anneal: 200 steps in 5 ns, the setting of the Boltzmann attention paper.

    The paper does not print its A(s) and B(s), and tables differ between processors: for one of them use
    `anneal_from_csv`. This is a smooth stand-in of the published magnitude, A = 8 e^{−5s}(1−s) GHz and
    B = 8 (0.05 + 0.95 s²)  GHz, each entering H as πA ΣX and πB E.
    """
    s = np.linspace(0.0, 1.0, 201)
    turn = math.pi * nanoseconds
    drive, problem = turn * 8 * np.exp(-5 * s) * (1 - s), turn * 8 * (0.05 + 0.95 * s**2)
    about = {"nanoseconds": nanoseconds, "source": "analytic stand-in for a fast-anneal table"}
    own = {"name": "fast-anneal", "num_layers": 200, "about": about, **own}
    return AnnealSchedule(tuple(s.tolist()), tuple(drive.tolist()), tuple(problem.tolist()), **own)


def anneal_from_csv(path: str | Path, nanoseconds: float, **own: Any) -> AnnealSchedule:
    """A(s), B(s) from a CSV with D-Wave's columns: `s`, `A(s) (GHz)`, `B(s) (GHz)`; others are ignored.

    Processors run H = −½A ΣX + ½B E with A, B in h·GHz, so a duration t in ns makes the angles π A t and π B t.
    """
    path = Path(path)
    with _opened(path) as stream:
        try:
            rows = list(csv.reader(stream))
        except (ValueError, csv.Error) as error:
            raise InvalidOptionError(f"{path} is not a CSV file ({error})") from None
    header = [cell.strip().lower() for cell in rows[0]] if rows else []
    columns = [next((i for i, cell in enumerate(header) if cell.startswith(key)), -1) for key in ("s", "a(s)", "b(s)")]
    if header and "s" in header:
        columns[0] = header.index("s")
    if -1 in columns:
        shown = ", ".join(header)[:100]
        raise InvalidOptionError(f"{path}: its header is {shown!r}; it needs columns s, A(s) (GHz) and B(s) (GHz)")
    try:
        table = [[float(row[i]) for i in columns] for row in rows[1:] if any(cell.strip() for cell in row)]
    except (ValueError, IndexError) as error:
        raise InvalidOptionError(f"{path}: a row is not numbers in every column ({str(error)[:100]})") from None
    if len(table) < 2 or nanoseconds <= 0:
        raise InvalidOptionError(f"{path}: {len(table)} rows for {nanoseconds} ns; it needs 2 rows and a time > 0")
    s, drive, problem = (tuple(column) for column in zip(*table, strict=True))
    turn = math.pi * nanoseconds
    scaled = tuple(turn * a for a in drive), tuple(turn * b for b in problem)
    about = {"nanoseconds": nanoseconds, "source": path.name}
    return AnnealSchedule(s, *scaled, **{"name": path.stem, "num_layers": 200, "about": about, **own})


_SHAPES: dict[str, Callable[..., Any]] = {
    "ramp": linear_ramp,
    "constant": constant_drive,
    "kick": single_kick,
    "fast-anneal": fast_anneal,
}


def schedule_names() -> list[str]:
    """Every name that `named_schedule` takes."""
    return [*_SHAPES, *sorted(path.stem for path in DATA.glob("*.json"))]


def named_schedule(name: str, num_layers: int | None = None) -> Schedule:
    """A shape of this module, or a schedule shipped as JSON, by name.

    Learned schedules come in several depths, "learned-medium-8" being one. "learned-medium" is the one with
    `num_layers` layers, 8 where that is not given.
    """
    if name in _SHAPES:
        schedule: Schedule = _SHAPES[name]()
        return schedule
    shipped = {path.stem: path for path in DATA.glob("*.json")}
    if name in shipped:
        return load_schedule(shipped[name])
    depths = learned_depths(name)
    if not depths:
        known = schedule_names()
        raise InvalidOptionError(
            f"no schedule is named {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}; or give the path "
            "of a JSON file, or a schedule object"
        )
    depth = _LEARNED_DEPTH if num_layers is None else num_layers
    if depth not in depths:
        raise InvalidOptionError(
            f"the schedule {name!r} was fitted with {', '.join(map(str, depths))} layers, not {depth}; choose one of "
            "these, fit your own with samplers.dqa.learning.fit_schedule, or use an anneal such as 'ramp'"
        )
    return load_schedule(shipped[f"{name}-{depth}"])


def as_schedule(schedule: Any, num_layers: int | None = None) -> Schedule:
    """What may be passed as `schedule=`: a name, the path of a JSON file, a schedule, or None for the default."""
    if schedule is None:
        # Of the shipped schedules the one that stays near tanh up to strong fields, where trained models go.
        depths = learned_depths("learned-strong")
        schedule = "learned-strong" if num_layers is None or num_layers in depths else "ramp"
    if isinstance(schedule, AnnealSchedule | AngleSchedule):
        return schedule
    if isinstance(schedule, Path) or (isinstance(schedule, str) and (schedule.endswith(".json") or os.sep in schedule)):
        return load_schedule(schedule)
    if isinstance(schedule, str):
        return named_schedule(schedule, num_layers)
    raise InvalidOptionError(
        f"schedule is of type {type(schedule).__name__}; it must be a name, the path of a JSON file, "
        "an AnnealSchedule or an AngleSchedule"
    )


def learned_depths(name: str) -> list[int]:
    """The depths in which the learned schedule `name` is shipped."""
    # The name may be anything a user gave, a path too: it is no pattern to search for.
    stems = [path.stem for path in DATA.glob("*.json")]
    tails = [stem.removeprefix(f"{name}-") for stem in stems if stem.startswith(f"{name}-")]
    return sorted(int(tail) for tail in tails if tail.isdigit())


def save_schedule(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule as JSON."""
    Path(path).write_text(json.dumps(schedule.to_json(), indent=1) + "\n", encoding="utf-8")


def load_schedule(path: str | Path) -> Schedule:
    """Read a schedule written by `save_schedule`; every number is checked.

    Raises:
        InvalidOptionError: no such file, no JSON, another format, missing or unusable entries.
    """
    path = Path(path)
    with _opened(path) as stream:
        try:
            data = json.load(stream)
        except (ValueError, RecursionError) as error:
            raise InvalidOptionError(f"{path} is not a JSON file ({error})") from None
    return schedule_from_json(data, path)


def schedule_from_json(data: Any, source: str | Path) -> Schedule:
    """The schedule of a `to_json`; every number is checked.

    Args:
        source: where the data come from, for messages.

    Raises:
        InvalidOptionError: another format, missing or unusable entries.
    """
    path = Path(source)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InvalidOptionError(f"{path} is not a schedule: it must be a JSON object with format {FORMAT!r}")
    kinds = {"anneal": ("s", "drive", "problem"), "angles": ("fields", "couplings", "mixer")}
    kind = data.get("kind")
    keys = kinds.get(kind) if isinstance(kind, str) else None
    if keys is None:
        raise InvalidOptionError(f"{path}: kind is {data.get('kind')!r}; it must be 'anneal' or 'angles'")
    columns = [_numbers(path, data, key) for key in keys]
    about = data.get("about") or {}
    if not isinstance(about, dict):
        raise InvalidOptionError(f"{path}: 'about' must be a JSON object")
    own: dict[str, Any] = {"name": str(data.get("name", path.stem)), "about": about}
    own |= {key: _typed(path, data, key, bool) for key in ("calibrate",) if key in data}
    if data["kind"] == "angles":
        depth = len(columns[0])
        scale = ScaleDependence.from_json(data["scale"], depth, str(path)) if "scale" in data else None
        return free_angles(*columns, scale=scale, **own)
    own |= {key: _typed(path, data, key, int) for key in ("order", "num_layers") if key in data}
    s, drive, problem = (tuple(column) for column in columns)
    return AnnealSchedule(s, drive, problem, **own)


def _opened(path: Path):
    try:
        return path.open(encoding="utf-8-sig", newline="")
    except OSError as error:
        raise InvalidOptionError(f"cannot read the schedule {str(path)!r}: {error.strerror}") from None


def _numbers(path: Path, data: dict, key: str) -> list[float]:
    row = data.get(key)
    good = isinstance(row, list) and all(map(_is_number, row))
    if not good:
        raise InvalidOptionError(f"{path}: {key!r} must be a list of numbers")
    return [float(v) for v in row or ()]


def _is_number(value: Any) -> bool:
    """Integers no larger than a float can be; JSON's have any size."""
    if isinstance(value, float):
        return True
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _typed(path: Path, data: dict, key: str, kind: type) -> Any:
    if type(data[key]) is not kind:
        raise InvalidOptionError(f"{path}: {key!r} is {data[key]!r}; it must be of type {kind.__name__}")
    return data[key]


def _integral(s: Sequence[float], values: Sequence[float], at: np.ndarray) -> np.ndarray:
    """∫₀^at of the piecewise linear table, exact."""
    grid = np.union1d(np.asarray(s), at)
    v = np.interp(grid, s, values)
    total = np.concatenate(([0.0], np.cumsum(np.diff(grid) * (v[1:] + v[:-1]) / 2)))
    return np.interp(at, grid, total)


def _check_finite(name: str, **rows: Sequence[float]) -> None:
    for key, row in rows.items():
        if not all(math.isfinite(v) for v in row):
            raise InvalidOptionError(f"schedule {name!r}: {key} holds NaN or infinite numbers; all must be finite")


def _check_depth(name: str, depth: int) -> int:
    if not isinstance(depth, int) or isinstance(depth, bool) or depth < 1:
        raise InvalidOptionError(f"schedule {name!r}: num_layers={depth!r}; it must be an integer of at least 1")
    return depth
