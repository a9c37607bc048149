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

    def shown(self, form: str) -> str:
        """The number and its standard deviation in a format such as ".2%"."""
        return format(self.value, form) + ("" if self.std is None else f" ± {format(self.std, form)}")

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


_BRACKET_CONTEXTS = (4, 8, 12, 16)
# Accuracy at closing brackets in per cent, with standard deviations: Table 3 with a feed-forward slot, Table 5 without.
_TABLE_3: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "softmax": ((100.0, 99.21, 93.36, 93.08), (0.0, 0.45, 0.72, 1.17)),
    "h+J": ((100.0, 99.00, 94.91, 95.97), (0.0, 0.53, 1.71, 0.96)),
    "h": ((100.0, 99.11, 92.65, 90.06), (0.0, 0.42, 0.47, 0.88)),
    "J": ((100.0, 100.00, 94.61, 87.42), (0.0, 0.01, 4.39, 4.47)),
}
_TABLE_5: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "softmax": ((100.0, 98.83, 91.19, 85.13), (0.0, 0.24, 0.59, 0.49)),
    "h+J": ((100.0, 99.26, 93.29, 89.65), (0.0, 0.41, 0.43, 0.61)),
    "h": ((100.0, 98.61, 90.93, 85.78), (0.0, 0.24, 0.48, 0.47)),
    "J": ((100.0, 93.34, 84.65, 76.65), (0.0, 1.15, 2.38, 0.56)),
}
# With a feed-forward slot and three-body terms, at T = 8, 12, 16.
_TABLE_7: dict[str, tuple[float, ...]] = {
    "K": (100.00, 95.97, 89.91),
    "h+K": (99.37, 99.04, 98.16),
    "J+K": (99.96, 96.24, 91.31),
    "h+J+K": (99.46, 99.84, 98.26),
}
_BRACKET_ANNEALS = {4: 100.0, 8: 100.0}


def bracket_accuracy(variant: str, context: int, *, ffn: bool, sampler: str = "exact") -> Published | None:
    """The published accuracy at closing brackets, 0 to 1; None where there is none.

    Args:
        variant: "softmax", or the mode of Boltzmann attention.
        context: T.
        ffn: whether the model has a feed-forward slot.
        sampler: what the marginals came from in training, "exact" or "dqa".
    """
    if variant != "softmax" and sampler == "dqa":
        known = variant == "h+J" and ffn and context in _BRACKET_ANNEALS
        return Published(_BRACKET_ANNEALS[context] / 100, None, 1, "Table 4") if known else None
    if context not in _BRACKET_CONTEXTS or (variant != "softmax" and sampler != "exact"):
        return None
    column, table = _BRACKET_CONTEXTS.index(context), _TABLE_3 if ffn else _TABLE_5
    if variant in table:
        values, spreads = table[variant]
        return Published(values[column] / 100, spreads[column] / 100, 10, "Table 3" if ffn else "Table 5")
    if ffn and variant in _TABLE_7 and context > 4:
        return Published(_TABLE_7[variant][column - 1] / 100, None, 10, "Table 7")
    return None
