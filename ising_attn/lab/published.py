"""Numbers that Kim and Park published (Boltzmann Attention, arXiv 2606.12478v1), to stand beside ours."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A published number.

    Args:
        value: the number.
        std: over the seeds; None where none is given.
        seeds: how many.
        table: where it stands.
    """

    value: float
    std: float | None
    seeds: int
    table: str

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.3f}"
        return f"{self.value:.3f}{spread} ({self.seeds} seed{'' if self.seeds == 1 else 's'}, {self.table})"


_CONTEXTS = (4, 6, 8, 10, 12, 14)
# Tiny Shakespeare perplexities, Table 2, with their standard deviations.
_TABLE_2: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "softmax": ((6.775, 6.182, 5.894, 5.750, 5.628, 5.551), (0.031, 0.021, 0.027, 0.030, 0.019, 0.027)),
    "h+J": ((6.776, 6.156, 5.846, 5.697, 5.567, 5.493), (0.034, 0.024, 0.036, 0.031, 0.026, 0.025)),
    "h": ((6.776, 6.179, 6.075, 5.976, 6.030, 5.882), (0.028, 0.024, 0.163, 0.204, 0.124, 0.208)),
    "J": ((6.894, 6.460, 6.318, 6.296, 6.318, 6.368), (0.032, 0.030, 0.015, 0.030, 0.038, 0.029)),
}
# With three-body terms, Table 6.
_TABLE_6: dict[str, tuple[float, ...]] = {
    "K": (6.952, 6.417, 6.168, 6.053, 5.933, 5.847),
    "h+K": (6.840, 6.228, 5.915, 5.733, 5.608, 5.512),
    "J+K": (6.940, 6.400, 6.173, 6.017, 5.928, 5.869),
    "h+J+K": (6.837, 6.225, 5.916, 5.730, 5.603, 5.506),
}
# h+J trained through a simulated anneal, Table 4.
_TABLE_4 = {4: 6.671, 6: 6.182, 8: 6.000}


def text_perplexity(variant: str, context: int, *, sampler: str = "exact") -> Published | None:
    """The published Tiny Shakespeare perplexity; None where there is none.

    Args:
        variant: "softmax", or the mode of Boltzmann attention.
        context: T.
        sampler: what the marginals came from in training, "exact" or "dqa".
    """
    if variant != "softmax" and sampler == "dqa":
        return Published(_TABLE_4[context], None, 1, "Table 4") if variant == "h+J" and context in _TABLE_4 else None
    if context not in _CONTEXTS or (variant != "softmax" and sampler != "exact"):
        return None
    column = _CONTEXTS.index(context)
    if variant in _TABLE_2:
        values, spreads = _TABLE_2[variant]
        return Published(values[column], spreads[column], 10, "Table 2")
    return Published(_TABLE_6[variant][column], None, 10, "Table 6") if variant in _TABLE_6 else None
