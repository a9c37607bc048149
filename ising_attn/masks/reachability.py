"""Which positions a prediction depends on after a number of layers.

A layer with mask M mixes along A = M ∨ 1, the diagonal being its residual connection; position-wise parts (norms,
feed-forward) add no path. After L layers position i depends on the inputs of {j : (A^L)_ij}, a Boolean power that
grows to the reflexive-transitive closure R (Li & Guo, arXiv 2606.09951). Rows attend to columns throughout.
"""

import numpy as np
import torch
from jaxtyping import Bool, Int32
from torch import Tensor

from ising_attn.masks.bits import boolean_product, packed
from ising_attn.masks.checks import checked_layers, checked_mask, checked_size
from ising_attn.masks.errors import InvalidMaskError


def distances(allowed: Bool[Tensor, "n n"]) -> Int32[Tensor, "n n"]:
    """The fewest layers after which row i depends on the input of column j: 0 on the diagonal, −1 for never.

    Cost: at most n³/64 word operations, whatever the depth; 4096 positions take about a second.

    Raises:
        InvalidMaskError: a mask that is not square or not bool.
    """
    from ising_attn.masks.bit_kernels import fill_distances
    from samplers.kernels import in_threads

    rows = packed(checked_mask(allowed))
    spans = _spans(rows)
    out = np.empty((len(rows), len(rows)), dtype=np.int32)
    in_threads(lambda start, stop: fill_distances(rows, spans, start, stop, out), len(rows), smallest=64)
    return torch.from_numpy(out).to(allowed.device)


def reachability(allowed: Bool[Tensor, "*layers n n"], layers: int | None = None) -> Bool[Tensor, "n n"]:
    """R^(L): True where row i depends on the input of column j after L layers.

    Args:
        allowed: (n, n), the mask of every layer; or (L, n, n), one per layer, the one next to the inputs first.
        layers: L for a mask (n, n); None is the limit of many layers. For (L, n, n) it is L already.

    Raises:
        InvalidMaskError: a wrong shape or dtype, fewer than 0 layers, or another number of layers than masks.
    """
    mask = checked_layers(allowed)
    if layers is not None:
        checked_size("layers", layers, minimum=0)
    if mask.ndim == 2:
        steps = distances(mask)
        return (steps >= 0) if layers is None else (steps >= 0) & (steps <= layers)
    if layers not in (None, len(mask)):
        raise InvalidMaskError(f"layers={layers}, but {len(mask)} masks were given; leave layers out")
    unit = torch.eye(mask.shape[-1], dtype=torch.bool, device=mask.device)
    reach = unit
    for one in mask:
        reach = boolean_product(one | unit, reach)
    return reach


def _spans(rows: np.ndarray) -> np.ndarray:
    """The first word of each row that is not 0, and the one after the last; an empty range where all are."""
    filled = rows != 0
    first = np.where(filled.any(1), filled.argmax(1), rows.shape[1])
    return np.stack([first, np.where(filled.any(1), rows.shape[1] - filled[:, ::-1].argmax(1), 0)], axis=1)
