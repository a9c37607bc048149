"""Bias and spread of declared gradients, against the exact ones of the Boltzmann law and of the anneal's circuit."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ising_attn.lab.marginal_curves import SamplerSpec
from ising_attn.lab.marginal_report import gradient_of
from ising_attn.lab.tables import Table
from samplers import IsingAttnError, IsingProblem, Sampler, get_sampler


@dataclass(frozen=True)
class GradientError:
    """One sampler's gradient of g·⟨s⟩ in h and J over several seeds, relative to the norm of an exact gradient G.

    Args:
        rule: the declared gradient.
        cosine: of the mean gradient with Boltzmann's G.
        bias: ‖mean − G‖ / ‖G‖ for Boltzmann's G; it holds noise of about spread / √seeds.
        circuit_bias: the same for the G of the anneal's own output; None for other samplers.
        spread: √(Σ variance) / ‖G‖ of a single call.
    """

    label: str
    rule: str
    cosine: float
    bias: float
    circuit_bias: float | None
    spread: float


def gradient_errors(
    specs: Sequence[SamplerSpec], problem: IsingProblem, direction: Tensor, *, seeds: int, seed: int = 0
) -> tuple[list[GradientError], list[str]]:
    """Every spec against Boltzmann's gradient, anneals against their own circuit's too; and what was left out, why.

    An anneal is shown once for each way of differentiating it, unless its spec names one.
    """
    boltzmann = gradient_of(get_sampler("exact"), problem, direction, seed)[1]
    errors, notes = [], []
    for spec in (variant for given in specs for variant in _variants(given)):
        try:
            sampler = spec.make()
            if sampler.capabilities.gradient == "none":
                continue
            runs = _runs(sampler, problem, direction, seeds, seed)
            circuit = _circuit_gradient(spec, problem, direction, seed)
        except IsingAttnError as error:
            notes.append(f"gradient of {spec.label} is left out: {error}")
            continue
        errors.append(_error(spec.label, sampler.capabilities.gradient, runs, boltzmann, circuit))
    return errors, notes


def gradient_table(errors: Sequence[GradientError], seeds: int) -> Table:
    table = Table(
        "Gradients in h and J: bias and spread",
        ["sampler", "gradient", "cosine", "bias", "of circuit", "spread"],
        dict.fromkeys(("cosine", "bias", "of circuit", "spread"), ".3f"),
        f"Relative to the norm of the exact Boltzmann gradient, over {seeds} seeds; bias holds about spread/√{seeds} "
        "of noise. of circuit: bias against the exact gradient of the anneal's own output.",
    )
    for one in errors:
        table.add(one.label, one.rule, one.cosine, one.bias, one.circuit_bias, one.spread)
    return table


def _variants(spec: SamplerSpec) -> list[SamplerSpec]:
    if spec.name != "dqa" or "gradient" in spec.options:
        return [spec]
    rules = ["straight-through", "covariance"]
    rules += ["adjoint"] if spec.options.get("engine", "statevector") == "statevector" else ["parameter-shift"]
    return [SamplerSpec(spec.label, spec.name, {**spec.options, "gradient": rule}) for rule in rules]


def _circuit_gradient(spec: SamplerSpec, problem: IsingProblem, direction: Tensor, seed: int) -> Tensor | None:
    if spec.name != "dqa":
        return None
    shared = {k: v for k, v in spec.options.items() if k in ("schedule", "num_layers", "calibrate")}
    ideal = get_sampler("dqa", gradient="adjoint", precision="double", **shared)
    return gradient_of(ideal, problem, direction, seed)[1]


def _runs(sampler: Sampler, problem: IsingProblem, direction: Tensor, seeds: int, seed: int) -> Tensor:
    return torch.stack([gradient_of(sampler, problem, direction, seed + 1 + s)[1] for s in range(seeds)])


def _error(label: str, rule: str, runs: Tensor, exact: Tensor, circuit: Tensor | None) -> GradientError:
    mean, norm = runs.mean(0), float(exact.norm())
    spread = float(runs.var(0).sum().sqrt()) if len(runs) > 1 else 0.0
    cosine = float(torch.cosine_similarity(mean, exact, dim=0))
    of_circuit = None if circuit is None else float((mean - circuit).norm() / circuit.norm())
    return GradientError(label, rule, cosine, float((mean - exact).norm()) / norm, of_circuit, spread / norm)
