"""How well Markov chains mix: autocorrelation time, effective sample size, R̂.

Series have shape (*batch, chains, steps): one number per step of each chain, of any quantity (a spin, an energy).
"""

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.errors import InvalidOptionError


def autocorrelation(series: Float[Tensor, "*batch chains steps"]) -> Float[Tensor, "*batch steps"]:
    """ρ_k = Cov(x_t, x_t+k) / Var(x), averaged over chains, around the mean of all chains; ρ_0 = 1.

    A series that never moves has ρ = 1 throughout. Cost: one FFT.
    """
    x = _checked(series)
    steps = x.shape[-1]
    x = x - x.mean((-2, -1), keepdim=True)
    spectrum = torch.fft.rfft(x, 2 * steps)
    lagged = torch.fft.irfft(spectrum.abs() ** 2, 2 * steps)[..., :steps].mean(-2)
    # Divided by the number of terms of each lag: around the common mean this is unbiased up to O(1/(chains·steps)).
    lagged = lagged / torch.arange(steps, 0, -1, device=x.device)
    variance = lagged[..., :1]
    return torch.where(variance > 0, lagged / variance, 1.0).to(series.dtype)


def autocorrelation_time(series: Float[Tensor, "*batch chains steps"]) -> Float[Tensor, "*batch"]:
    """Integrated autocorrelation time τ = 1 + 2 Σ_k ρ_k: steps per independent step; 1 for independent steps.

    Pairs ρ_2k + ρ_2k+1, which are positive for reversible chains, are summed up to the first that is not (Geyer
    1992). Below 1 for chains that alternate. An underestimate where the series is shorter than some 50 τ.
    """
    rho = autocorrelation(series)
    even = rho.shape[-1] // 2 * 2
    pairs = rho[..., :even].unflatten(-1, (-1, 2)).sum(-1)
    counted = (pairs > 0).to(pairs.dtype).cumprod(-1)
    return (2 * (pairs * counted).sum(-1) - 1).clamp_min(1.0 / rho.shape[-1])


def effective_sample_size(series: Float[Tensor, "*batch chains steps"]) -> Float[Tensor, "*batch"]:
    """chains · steps / τ: the number of independent draws whose mean is as accurate."""
    return series.shape[-2] * series.shape[-1] / autocorrelation_time(series)


def split_rhat(series: Float[Tensor, "*batch chains steps"]) -> Float[Tensor, "*batch"]:
    """Split-R̂ (Gelman et al. 2013): each chain cut in two; √(estimated variance ÷ variance within); → 1 when mixed.

    Values above 1.01 say that the chains do not yet agree. 1 where nothing moves and all agree, ∞ where frozen
    chains differ.
    """
    x = _checked(series)
    half = x.shape[-1] // 2
    if half < 2:
        raise InvalidOptionError(f"split-R̂ needs at least 4 steps, got {x.shape[-1]}")
    parts = torch.cat([x[..., :half], x[..., -half:]], -2)
    return _rhat(parts.mean(-1), parts.var(-1).mean(-1), half).to(series.dtype)


def rhat_of_spin_means(means: Float[Tensor, "*batch chains n"], steps: int) -> Float[Tensor, "*batch n"]:
    """R̂ of ±1 spins from the mean of each (half) chain of `steps` steps: the variance within is 1 − m²."""
    x = means.to(torch.float64).transpose(-1, -2)
    return _rhat(x, (1 - x**2).mean(-1), steps).to(means.dtype)


def _rhat(means: Tensor, within: Tensor, steps: int) -> Tensor:
    between = means.var(-1)
    # A spread of the means at rounding level is agreement, also where nothing moves.
    agree = between <= 1e-12 * (1 + means.abs().amax(-1)) ** 2
    ratio = torch.sqrt((steps - 1) / steps + between / within)
    return torch.where(agree & (within <= 1e-12), 1.0, ratio)


def _checked(series: Tensor) -> Tensor:
    if series.ndim < 2 or series.shape[-1] < 2 or series.shape[-2] < 1:
        raise InvalidOptionError(f"series has shape {tuple(series.shape)}; it must be (*batch, chains, steps ≥ 2)")
    return series.to(torch.float64)
