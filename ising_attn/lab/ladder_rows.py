"""The rungs of the Boolean ladder: what is run with which flags, and what was published and logged for each.

Every row spells its flags out, so that its command is the same whatever the defaults of the experiments become. The
part "repository" is the protocol of karumaru-kakikukekodoumei/boolean-attention, "tuned" our own; both are trained for
the steps of a budget. All numbers of budgets stand in `BUDGETS`.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

from ising_attn.lab.sweep import Job
from samplers import InvalidOptionError
from samplers.errors import did_you_mean

EXPERIMENT = "boolean-lm"
PARTS = ("repository", "tuned")
Family = Literal["attention", "wide attention", "logic", "coded logic"]
FAMILIES: tuple[Family, ...] = get_args(Family)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedRung:
    """Perplexities on the held-out tenth of the first 80,000 characters, one seed each.

    Args:
        parameters: of the model in the repository.
        soft, hard: as its README or article says; None where it says nothing.
        logged_soft, logged_hard: as its log files say (of the best checkpoint, where the log has both).
    """

    parameters: int
    soft: float | None = None
    hard: float | None = None
    logged_soft: float | None = None
    logged_hard: float | None = None


_TRANSFORMER = PublishedRung(parameters=108_861, soft=4.86, logged_soft=4.86)
_DLGN = PublishedRung(parameters=1_362_813, soft=11.83, hard=15.16, logged_soft=11.83, logged_hard=15.16)
_LOOPED = PublishedRung(parameters=370_237, soft=11.05, logged_soft=18.07, logged_hard=754.31)
_HBA_V1 = PublishedRung(parameters=92_365, logged_soft=5.40, logged_hard=37.47)
_HBA_V2 = PublishedRung(parameters=296_269, logged_soft=5.3206, logged_hard=6.5440)
_DISTILLED = PublishedRung(parameters=296_269, soft=4.73, hard=6.31, logged_soft=4.7287, logged_hard=6.7518)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rung:
    """A model and how it is trained, whatever the protocol.

    Args:
        name: unique within a part.
        label: for tables.
        flags: of experiments/boolean_lm.py.
        family: decides steps, batch and rates.
        teacher: the rung whose run of the same seed teaches this one.
        published: in the part "repository".
        parts: where it is run.
    """

    name: str
    label: str
    flags: tuple[str, ...]
    family: Family = "attention"
    teacher: str | None = None
    published: PublishedRung | None = None
    parts: tuple[str, ...] = PARTS


def _attention(kind: str, heads: int, *flags: str, ffn: int = 256) -> tuple[str, ...]:
    sizes = ("--embed-dim=64", "--layers=2", "--ffn=mlp", f"--ffn-dim={ffn}", "--dropout=0.0")
    return ("--model=decoder", f"--attention={kind}", f"--heads={heads}", *sizes, *flags)


def _hba(width: int, layers: int, heads: int, ffn: int, *flags: str) -> tuple[str, ...]:
    sizes = (f"--embed-dim={width}", f"--layers={layers}", f"--heads={heads}", "--ffn=mlp", f"--ffn-dim={ffn}")
    return ("--model=hba", "--attention=scalar-router", *sizes, "--positions=sinusoidal", "--dropout=0.0", *flags)


# The weight that its code comes to, not the one that it names; see `EntropyTask`.
_UNDECIDED = "--entropy-weight=2.56"
_COOLED = ("--final-temperature=0.1",)
_STABLE = ("--warm=0.2", "--hold=0.3", "--hold-temperature=0.5", *_COOLED, "--patience=4", "--calibrate")
_V2 = (96, 3, 8, 384)
_AS_CODED_GATES = ("--gates=raw", "--gate-mode=soft", "--residual=None", "--reach=None", "--logic-head=linear")
_GATES = (
    "--gates=light", "--gate-mode=hard", "--residual=0.9", "--reach=3.0", "--logic-head=linear", "--warm=0.5",
    "--final-temperature=0.02",
)  # fmt: skip
_ROUTER = ("--routing=straight-through", "--router-temperature=0.2", "--score-bias=offset")
# One hidden unit fewer than the teacher pays for the bias: 109,375 parameters against 109,505 for 65 characters.
_STUDENT = _attention(
    "router", 4, "--mode=h", "--sampler=exact", *_ROUTER, "--alpha=0.5", "--softening=2.0", ffn=255
)  # fmt: skip
_BAND = ("--mode=h+J", "--couplings=band", "--coupling-width=4", "--sampler=band", "--sampler.width=4")

RUNGS = (
    Rung(
        name="transformer",
        label="Transformer (teacher)",
        flags=_attention("softmax", 2, "--score-bias=none"),
        published=_TRANSFORMER,
    ),
    Rung(
        name="transformer-offset",
        label="Transformer, biased",
        flags=_attention("softmax", 4, "--score-bias=offset"),
        parts=("tuned",),
    ),
    Rung(
        name="dlgn-as-coded",
        label="DLGN, gates as coded",
        flags=("--model=logic", "--widths=512,256,128,64", *_AS_CODED_GATES),
        family="coded logic",
        published=_DLGN,
        parts=("repository",),
    ),
    Rung(name="dlgn", label="DLGN, ours", flags=("--model=logic", "--widths=4096,4096", *_GATES), family="logic"),
    Rung(
        name="looped-as-coded",
        label="Looped, as coded",
        flags=(
            "--model=looped",
            "--loop=as-coded",
            "--iterations=8",
            "--state=128",
            "--widths=256,256,128",
            *_AS_CODED_GATES,
        ),
        family="coded logic",
        published=_LOOPED,
        parts=("repository",),
    ),  # fmt: skip
    Rung(
        name="looped",
        label="Looped, bits only",
        flags=("--model=looped", "--loop=bits", "--iterations=8", "--state=2048", "--widths=2048", *_GATES),
        family="logic",
        parts=("repository",),
    ),
    Rung(
        name="hba-v1",
        label="HBA v1",
        flags=_hba(64, 2, 4, 256, "--routing=soft", _UNDECIDED, *_COOLED),
        published=_HBA_V1,
        parts=("repository",),
    ),
    Rung(
        name="hba-v1-mended",
        label="HBA v1, mended",
        flags=_hba(64, 2, 4, 256, "--routing=straight-through", "--router-temperature=0.2"),
        parts=("repository",),
    ),
    Rung(
        name="hba-v2",
        label="HBA v2",
        flags=_hba(*_V2, "--routing=soft", _UNDECIDED, *_STABLE),
        family="wide attention",
        published=_HBA_V2,
        parts=("repository",),
    ),
    Rung(
        name="hba-v2-distilled",
        label="HBA v2, distilled",
        flags=_hba(*_V2, "--routing=soft", _UNDECIDED, *_STABLE, "--alpha=0.5", "--softening=4.0"),
        family="wide attention",
        teacher="transformer",
        published=_DISTILLED,
        parts=("repository",),
    ),
    Rung(
        name="router",
        label="Router, J = 0",
        flags=_attention("router", 4, "--mode=h", "--sampler=exact", *_ROUTER, ffn=255),
        parts=("tuned",),
    ),
    Rung(
        name="router-coupled",
        label="Router, J ≠ 0",
        flags=_attention("router", 4, *_BAND, *_ROUTER, ffn=255),
        parts=("tuned",),
    ),
    Rung(
        name="router-distilled",
        label="Router, distilled",
        flags=_STUDENT,
        teacher="transformer",
    ),
    Rung(
        name="router-born-again",
        label="Router, born again",
        flags=_STUDENT,
        teacher="router-distilled",
        parts=("tuned",),
    ),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How a family is trained."""

    steps: int
    batch_size: int
    learning_rate: float = 3e-3
    weight_decay: float = 0.01
    warmup: int = 50
    evaluations: int = 5
    dense: bool = False
    seconds: float = 45.0

    def flags(self) -> list[str]:
        every = max(1, self.steps // self.evaluations)
        return [
            f"--steps={self.steps}", f"--batch-size={self.batch_size}", f"--learning-rate={self.learning_rate}",
            "--coupling-learning-rate=0.01", f"--weight-decay={self.weight_decay}", f"--warmup={self.warmup}",
            "--schedule=cosine", f"--eval-every={every}", "--clip=1.0", "--monitor=loss", "--monitor-mode=min",
            "--no-plots",
        ]  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """Training of each family in each part, and how many characters are evaluated."""

    training: dict[tuple[str, Family], Training]
    validation_characters: int | None = None
    test_characters: int | None = None
    seeds: int = 3


def _budget(
    steps: dict[Family, int], *, batch: int, rate: float, dense: bool, evaluations: int = 5, **options: Any
) -> Budget:
    """The same for both parts.

    Args:
        steps: of each family.
        dense: in the repository's part train at all positions of a window; elsewhere that is always so. Logic rows
            then read 16 positions of 16 windows, and 256 windows at the last position otherwise.
    """
    found: dict[tuple[str, Family], Training] = {}
    for part in PARTS:
        last = part == "repository" and not dense
        common: dict[str, Any] = {
            "dense": dense,
            "evaluations": evaluations,
            "warmup": max(1, min(100, steps["attention"] // 20)),
        }
        gates = Training(
            steps=steps["logic"], batch_size=256 if last else 16, learning_rate=1e-2, weight_decay=0.0, **common
        )
        found |= {
            (part, "attention"): Training(steps=steps["attention"], batch_size=batch, learning_rate=rate, **common),
            (part, "wide attention"): Training(
                steps=steps["wide attention"], batch_size=batch, learning_rate=rate, **common
            ),
            (part, "logic"): gates,
            # Without the start that passes inputs on, gates need many more steps before they say anything.
            (part, "coded logic"): dataclasses.replace(gates, steps=steps["coded logic"], learning_rate=3e-2),
        }
    return Budget(training=found, **options)


BUDGETS = {
    "medium": _budget(
        {"attention": 600, "wide attention": 400, "logic": 300, "coded logic": 1200},
        batch=64,
        rate=6e-3,
        dense=True,
        evaluations=3,
        validation_characters=4_001,
        test_characters=20_001,
    ),
    # The repository's 40 epochs, and ten passes over the whole text.
    "long": _budget(dict.fromkeys(FAMILIES, 11_250), batch=256, rate=3e-3, dense=False, evaluations=40),
    "quick": _budget(
        dict.fromkeys(FAMILIES, 20),
        batch=16,
        rate=6e-3,
        dense=True,
        evaluations=2,
        validation_characters=321,
        test_characters=321,
        seeds=1,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A rung in one part.

    Args:
        name: unique; also of its folder.
        part: the protocol.
        rung: what is trained.
        arguments: of experiments/boolean_lm.py, without seed and folder.
        seeds: how many by default.
        seconds: about how long one seed takes.
    """

    name: str
    part: str
    rung: Rung
    arguments: tuple[str, ...]
    seeds: int
    seconds: float

    def jobs(self, seeds: Sequence[int] = ()) -> list[Job]:
        """One for each seed; for its own number of seeds where none is given."""
        return [
            Job(row=self.name, seed=seed, experiment=EXPERIMENT, arguments=self.arguments, seconds=self.seconds)
            for seed in (seeds or range(self.seeds))
        ]


def rows(budget: str = "medium", parts: Iterable[str] = PARTS) -> list[Row]:
    """The rows of the parts, teachers before their students.

    Raises:
        InvalidOptionError: an unknown part or budget.
    """
    if budget not in BUDGETS:
        raise InvalidOptionError(
            f"--budget is {budget!r}; it must be one of {', '.join(BUDGETS)}{did_you_mean(budget, BUDGETS)}"
        )
    found = []
    for part in parts:
        if part not in PARTS:
            raise InvalidOptionError(
                f"there is no part {part!r}{did_you_mean(part, PARTS)}; the parts are {', '.join(PARTS)}"
            )
        found += [_row(part, rung, BUDGETS[budget]) for rung in RUNGS if part in rung.parts]
    return found


def _row(part: str, rung: Rung, budget: Budget) -> Row:
    training = budget.training[part, rung.family]
    flags = [f"--protocol={part}", "--context=16", *rung.flags]
    flags += [] if rung.teacher is None else [f"--teacher-row={part}-{rung.teacher}"]
    if part == "repository":
        flags.append(f"--loss-at={'all' if training.dense else 'last'}")
    # Of the repository's few windows all are reported, but for a quick look.
    whole = part == "repository" and (budget.test_characters or 0) > 10_000
    sizes = {"validation": budget.validation_characters, "test": None if whole else budget.test_characters}
    flags += [f"--{name}-characters={size}" for name, size in sizes.items() if size is not None]
    return Row(
        name=f"{part}-{rung.name}",
        part=part,
        rung=rung,
        arguments=(*flags, *training.flags()),
        seeds=budget.seeds,
        seconds=training.seconds,
    )
