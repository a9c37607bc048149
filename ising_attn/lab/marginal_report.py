"""Samplers measured on the same problems: errors of marginals and pairs, laws, temperature, gradient, time."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ising_attn.lab.tables import Table
from samplers import IsingAttnError, IsingProblem, ProblemTooLargeError, Sampler, Samples, get_sampler
from samplers.diagnostics import empirical_law, kl_divergence, marginal_errors, total_variation
from samplers.enumeration import log_probabilities
from samplers.pseudolikelihood import estimate_beta

# Laws are compared state by state up to this many spins (2^12 states per problem).
MOST_COUNTED_SPINS = 12
LAW_DRAWS = 10_000
# Of the temperature: draws per problem, and spins in all.
TEMPERATURE_DRAWS, MOST_TEMPERATURE_SPINS = 1_000, 400_000


@dataclass(frozen=True)
class Reference:
    """What samplers are held against, and how it was had.

    Args:
        name: "exact", "band", or "gibbs" with the error that is left.
        magnetization: (*batch, n); correlations: (*batch, n, n), None where they cannot be had.
        gradient: ∂(g·⟨s⟩) in the fields and in J, flattened into one vector; None likewise.
        direction: that g, fixed for all samplers.
    """

    name: str
    magnetization: Tensor
    correlations: Tensor | None
    gradient: Tensor | None
    direction: Tensor


@dataclass(frozen=True)
class Measurement:
    """One sampler on one batch of problems; None where the sampler cannot do it or the number does not exist.

    Args:
        mae, rmse, largest: of ⟨s⟩ against the reference over all allowed spins.
        pair_rmse: of ⟨s_j s_k⟩ over pairs.
        total_variation, kl: of the sampler's law against Boltzmann's, mean over problems (nats for KL(sampler ‖
            Boltzmann)); from its own probabilities where it has them, else from counted draws.
        beta: the inverse temperature that its draws show, relative to the one that was asked for.
        gradient_cosine: between its declared gradient and the reference's.
        seconds, backward_seconds: median of one call of `magnetization`, and of forward and backward.
        magnetization: what it returned.
        remark: why something is missing, or that it did not converge.
    """

    label: str
    gradient_kind: str
    mae: float
    rmse: float
    largest: float
    pair_rmse: float | None
    total_variation: float | None
    kl: float | None
    beta: float | None
    gradient_cosine: float | None
    seconds: float
    backward_seconds: float | None
    magnetization: Tensor
    remark: str = ""


def reference_for(problem: IsingProblem, *, width: int | None = None, seed: int = 0) -> Reference:
    """Exact where it is in reach, else `band` for couplings of short range, else a long `gibbs` run."""
    direction = torch.randn(problem.fields.shape, generator=torch.Generator().manual_seed(seed), dtype=problem.dtype)
    for name, sampler in _reference_samplers(width):
        try:
            m, gradient, _ = gradient_of(sampler, problem, direction, seed)
        except ProblemTooLargeError:
            continue
        if name != "gibbs":
            return Reference(name, m, _pairs(sampler, problem, seed), gradient, direction)
        return Reference(f"gibbs (error about {sampler.options()['tolerance']:g})", m, None, None, direction)
    raise ProblemTooLargeError(f"{problem.num_spins} spins are beyond every reference: exact, band and gibbs")


def _reference_samplers(width: int | None) -> list[tuple[str, Sampler]]:
    band = [] if width is None else [("band", get_sampler("band", width=width))]
    return [("exact", get_sampler("exact")), *band, ("gibbs", get_sampler("gibbs", tolerance=0.002))]


def measure(sampler: Sampler, problem: IsingProblem, reference: Reference, *, label: str, seed: int = 0,
            repeats: int = 3) -> Measurement:  # fmt: skip
    """All numbers of one sampler. The sampler is seeded for the measurement; its own state is left alone.

    Raises:
        IsingAttnError: the sampler cannot take these problems at all (too many spins, …).
    """
    with sampler.seeded(seed):
        seconds, backward_seconds, m, gradient = _timed(sampler, problem, reference.direction, seed, repeats)
        errors = marginal_errors(m, reference.magnetization, problem)
        tv, kl, beta, remark = _law(sampler, problem, seed)
        pairs = None if reference.correlations is None else _pairs(sampler, problem, seed)
    converged = sampler.last_info.get("converged")
    if isinstance(converged, Tensor) and not bool(converged.all()):
        remark = f"{int((~converged).sum())} of {converged.numel()} problems did not converge"
    cosine = None
    if gradient is not None and reference.gradient is not None and float(gradient.norm()) > 0:
        cosine = float(torch.cosine_similarity(gradient, reference.gradient, dim=0))
    return Measurement(
        label,
        sampler.capabilities.gradient,
        errors["mae"],
        errors["rmse"],
        errors["max"],
        _pair_error(pairs, reference.correlations, problem),
        tv,
        kl,
        beta,
        cosine,
        seconds,
        backward_seconds,
        m,
        remark,
    )


def tables_of(measurements: Sequence[Measurement], reference: Reference, title: str) -> dict[str, Table]:
    """Three tables that fit 80 columns: errors of the moments, laws, and gradient with time."""
    errors = Table(
        f"Errors of spin marginals: {title}",
        ["sampler", "mean |Δ|", "RMSE", "max |Δ|", "pair RMSE"],
        dict.fromkeys(("mean |Δ|", "RMSE", "max |Δ|", "pair RMSE"), ".4f"),
        f"Δ: ⟨s⟩ minus that of {reference.name}. pair RMSE: of ⟨s_j s_k⟩, with the noise of reads where it is drawn.",
    )
    laws = Table(
        "Laws, and the temperature that draws show",
        ["sampler", "TV", "KL", "β̂/β"],
        {"TV": ".4f", "KL": ".4f", "β̂/β": ".3f"},
        f"TV: total variation, 0 to 1; KL(sampler ‖ Boltzmann) in nats; means over problems without masks of at most "
        f"{MOST_COUNTED_SPINS} spins. {LAW_DRAWS} counted draws put a floor under both. β̂: fitted to draws by "
        "pseudo-likelihood.",
    )
    costs = Table(
        "Gradient and time of one call",
        ["sampler", "gradient", "cosine", "ms", "ms with backward"],
        {"cosine": ".4f", "ms": ".1f", "ms with backward": ".1f"},
        "cosine: of the declared gradient in h and J with the reference's.",
    )
    for one in measurements:
        errors.add(one.label, one.mae, one.rmse, one.largest, one.pair_rmse)
        laws.add(one.label, one.total_variation, one.kl, one.beta)
        backward = None if one.backward_seconds is None else 1e3 * one.backward_seconds
        costs.add(one.label, one.gradient_kind, one.gradient_cosine, 1e3 * one.seconds, backward)
    return {"errors": errors, "laws": laws, "costs": costs}


def _timed(
    sampler: Sampler, problem: IsingProblem, direction: Tensor, seed: int, repeats: int
) -> tuple[float, float | None, Tensor, Tensor | None]:
    with torch.no_grad():
        m = sampler.magnetization(problem, seed=seed)  # also compiles kernels and circuits
        forward = []
        for _ in range(repeats):
            started = time.perf_counter()
            sampler.magnetization(problem, seed=seed)
            forward.append(time.perf_counter() - started)
    if sampler.capabilities.gradient == "none":
        return statistics.median(forward), None, m, None
    _, gradient, _ = gradient_of(sampler, problem, direction, seed)
    both = [gradient_of(sampler, problem, direction, seed)[2] for _ in range(repeats)]
    return statistics.median(forward), statistics.median(both), m, gradient


def gradient_of(sampler: Sampler, problem: IsingProblem, direction: Tensor, seed: int) -> tuple[Tensor, Tensor, float]:
    """⟨s⟩, the gradient of direction·⟨s⟩ in h and J as one vector, and the seconds that took."""
    h = problem.fields.detach().clone().requires_grad_()
    j = problem.couplings.detach().clone().requires_grad_()
    started = time.perf_counter()
    m = sampler.magnetization(IsingProblem(h, j, allowed=problem.allowed, beta=problem.beta), seed=seed)
    found = torch.autograd.grad((m * direction).sum(), [h, j], allow_unused=True)
    seconds = time.perf_counter() - started
    parts = [torch.zeros_like(t) if g is None else g for t, g in zip((h, j), found, strict=True)]
    return m.detach(), torch.cat([part.flatten() for part in parts]), seconds


def _pairs(sampler: Sampler, problem: IsingProblem, seed: int) -> Tensor | None:
    try:
        return sampler.correlations(problem, seed=seed)
    except IsingAttnError:
        return None


def _pair_error(pairs: Tensor | None, exact: Tensor | None, problem: IsingProblem) -> float | None:
    if pairs is None or exact is None or problem.num_spins < 2:
        return None
    above = torch.ones(problem.num_spins, problem.num_spins, dtype=torch.bool).triu(1)
    if (allowed := problem.expanded_allowed()) is not None:
        above = above & allowed.unsqueeze(-1) & allowed.unsqueeze(-2)
    return float((pairs - exact)[above.expand_as(pairs)].pow(2).mean().sqrt())


def _law(sampler: Sampler, problem: IsingProblem, seed: int) -> tuple[float | None, float | None, float | None, str]:
    """Total variation and KL against Boltzmann, the temperature ratio, and a remark."""
    if not sampler.capabilities.can_sample:
        return None, None, None, ""
    law = law_of(sampler, problem)
    counted = law is None and problem.num_spins <= MOST_COUNTED_SPINS
    few = max(20, min(TEMPERATURE_DRAWS, MOST_TEMPERATURE_SPINS // (problem.num_problems * problem.num_spins)))
    samples = sampler.sample(problem, LAW_DRAWS if counted else few, seed=seed)
    first = Samples(samples.spins[..., :few, :], samples.weights[..., :few], samples.energies[..., :few], samples.info)
    beta = float(estimate_beta(problem, first).value) / problem.beta
    if problem.num_spins > MOST_COUNTED_SPINS or problem.allowed is not None:
        return None, None, beta, ""
    boltzmann = log_probabilities(problem)[0].exp()
    law = empirical_law(samples) if law is None else law
    return float(total_variation(law, boltzmann).mean()), float(kl_divergence(law, boltzmann).mean()), beta, ""


def law_of(sampler: Sampler, problem: IsingProblem) -> Float[Tensor, "*batch states"] | None:
    """The sampler's own output probabilities, where it knows them."""
    probabilities = getattr(sampler, "probabilities", None)
    return None if probabilities is None else probabilities(problem).to(problem.dtype)
