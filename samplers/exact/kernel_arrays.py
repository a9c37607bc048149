"""What the kernels of `samplers.exact` are given: numpy views of a grouped problem."""

import numpy as np
from torch import Tensor

from samplers.exact.halves import smallest_sum


class KernelArrays:
    """Views of a grouped problem's tensors; one that is absent becomes an array of one element per axis.

    Fields are (G, B, P, n): position p of the third axis has the first n − P + 1 + p spins. P = n is a causal layer,
    P = 1 a batch in which every query has all spins.
    """

    def __init__(self, fields: Tensor, couplings: Tensor | None, triples: Tensor | None, allowed, beta: float, causal):
        groups, queries, n = fields.shape
        shape = (groups, queries // n, n, n) if causal else (groups, queries, 1, n)
        self.h = h = array(fields).reshape(shape)
        self.num_spins, self.beta = n, float(beta)
        self.masked, self.has_triples = allowed is not None, triples is not None
        self.j = np.zeros((groups, n, n), h.dtype) if couplings is None else array(couplings).reshape(groups, n, n)
        self.k = np.zeros((1,) * 4, h.dtype) if triples is None else array(triples).reshape(groups, n, n, n)
        self.mask = np.zeros((1,) * 4, np.bool_) if allowed is None else array(allowed).reshape(shape)
        self.floor = smallest_sum(n, fields.dtype)

    @property
    def arguments(self) -> tuple:
        return (self.h, self.mask, self.masked, self.j, self.k, self.has_triples, self.beta, self.floor)

    def results(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Room for m, log Z and lost."""
        shape = self.h.shape[:3]
        return np.zeros(self.h.shape, self.h.dtype), np.empty(shape, self.h.dtype), np.empty(shape, np.bool_)

    def slopes(self, g_mean: Tensor | None, g_log_z: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
        """The incoming gradients of m and log Z."""
        shape, dtype = self.h.shape, self.h.dtype
        return (
            np.zeros(shape, dtype) if g_mean is None else array(g_mean).reshape(shape),
            np.zeros(shape[:3], dtype) if g_log_z is None else array(g_log_z).reshape(shape[:3]),
        )


def array(tensor: Tensor) -> np.ndarray:
    """A contiguous numpy view, or a copy where the tensor is not contiguous."""
    return tensor.detach().contiguous().numpy()
