"""The two temperatures of an anneal, to first order in the energy and to all orders in the drive.

With θ(t) = ∫_t^τ A dt', an anneal H = −A ΣX + B E from the uniform superposition ends with
    log p(z) = const − β₁ E₁(z) − β₂ E₂(z) + O(E²),   β_k = 2 ∫₀^τ B(t) sin(2k θ(t)) dt,
E₁ being the field part and E₂ the pair part of E. For layers the same holds with sums: the phase of layer l is
followed by the mixers l, l+1, …, so θ_l = Σ_{m≥l} x_m and β₁ = 2 Σ f_l sin 2θ_l, β₂ = 2 Σ c_l sin 4θ_l.
Fields and couplings thus get different temperatures; `calibrated` divides each by its own.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from samplers.dqa.layers import Layers
from samplers.errors import InvalidOptionError

# Below this, dividing by β_k would turn rounding and higher orders into the signal.
_SMALLEST_BETA = 1e-3


def layer_betas(layers: Layers) -> tuple[Tensor, Tensor]:
    """(β₁, β₂) of Trotterised layers at first order in the energy; differentiable, scalars."""
    theta = layers.mixer.flip(0).cumsum(0).flip(0)
    beta_fields = 2 * (layers.fields * torch.sin(2 * theta)).sum()
    beta_couplings = 2 * (layers.couplings * torch.sin(4 * theta)).sum()
    return beta_fields, beta_couplings


def anneal_betas(times: Any, drive: Any, problem: Any, *, points: int = 20001) -> tuple[float, float]:
    """(β₁, β₂) of a continuous anneal given as tables of A and B (linear between the rows).

    Args:
        times: increasing times of the rows.
        drive: A at these times, in radians per unit of time.
        problem: B at these times.
        points: where the integrals are evaluated (trapezoids on a uniform grid).
    """
    t = np.linspace(times[0], times[-1], points)
    a, b = np.interp(t, times, drive), np.interp(t, times, problem)
    step = t[1] - t[0]
    swept = np.concatenate(([0.0], np.cumsum((a[1:] + a[:-1]) / 2 * step)))
    theta = swept[-1] - swept
    beta_fields, beta_couplings = (float(np.trapezoid(2 * b * np.sin(2 * k * theta), t)) for k in (1, 2))
    return beta_fields, beta_couplings


def calibrated(layers: Layers) -> Layers:
    """The same layers with fields and couplings each divided by their own β_k: β = 1 at first order.

    Raises:
        InvalidOptionError: a β_k so near 0 that the schedule carries no information to divide out.
    """
    beta_fields, beta_couplings = layer_betas(layers)
    for what, value in (("fields", float(beta_fields.detach())), ("couplings", float(beta_couplings.detach()))):
        if abs(value) < _SMALLEST_BETA:
            raise InvalidOptionError(
                f"the schedule gives the {what} an effective beta of {value:.3g}, too near 0 to calibrate; "
                "change its total drive angle or depth, or set calibrate=False"
            )
    return Layers(layers.fields / beta_fields, layers.couplings / beta_couplings, layers.mixer)
