"""A rescale found from data: two factors, of fields and couplings, that bring an anneal nearest to exact marginals.

`samplers.dqa.calibration` divides fields and couplings by temperatures that hold to first order in the energy,
whatever the problem. Here the two factors are found for given problems, such as those inside a trained model:
    min over a, b of mean (⟨s⟩ of layers (a f, b c, x) − ⟨s⟩_exact)²,
by L-BFGS in log a and log b through the adjoint gradient. It finds a local minimum of the squares: the mean absolute
error that is reported may rise where it was small, and strong fields have many minima. These are 2 numbers where
`samplers.dqa.learning` has 3 per layer, so that a few problems suffice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samplers.dqa.layers import Layers
from samplers.dqa.sampler import DQASampler
from samplers.dqa.schedules import AngleSchedule
from samplers.errors import InvalidOptionError
from samplers.problem import IsingProblem


@dataclass(frozen=True)
class Rescaling:
    """What was found.

    Args:
        fields, couplings: the factors a and b of the angles. 1/a and 1/b are the temperatures that they correct.
        before, after: mean |⟨s⟩ − exact| over the allowed spins, without and with them; not what is minimised.
        layers: the rescaled layers.
    """

    fields: float
    couplings: float
    before: float
    after: float
    layers: Layers


def fit_rescaling(layers: Layers, problems: Sequence[IsingProblem], *, iterations: int = 20) -> Rescaling:
    """Find the two factors for these problems. Exact marginals and the state vector are needed: at most 20 spins.

    Args:
        layers: what would run at β = 1, calibrated or not.
        problems: the data; of any sizes, with masks or without. A factor that they do not depend on stays 1.
        iterations: of L-BFGS, each a few forward and backward passes over the data.

    Raises:
        InvalidOptionError: no problems, or not a single spin that is allowed.
        ProblemTooLargeError: more than 20 spins.
    """
    from samplers.registry import get_sampler

    data = [problem.detach().to(torch.float64) for problem in problems]
    kept = [_allowed(problem) for problem in data]
    count = sum(int(mask.sum()) for mask in kept)
    if count == 0:
        raise InvalidOptionError(
            f"{len(data)} problems with {count} spins were given; a rescale needs at least one spin"
        )
    with torch.no_grad():
        targets = [get_sampler("exact").magnetization(problem) for problem in data]
    fixed = Layers(*(row.detach().double() for row in (layers.fields, layers.couplings, layers.mixer)))
    logs = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def differences() -> Tensor:
        a, b = logs.exp()
        schedule = AngleSchedule(Layers(a * fixed.fields, b * fixed.couplings, fixed.mixer))
        sampler = DQASampler(schedule=schedule, precision="double")
        found = [sampler.magnetization(problem) for problem in data]
        return torch.cat([(m - t)[mask] for m, t, mask in zip(found, targets, kept, strict=True)])

    optimiser = torch.optim.LBFGS([logs], max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = differences().square().mean()
        loss.backward()
        return loss

    with torch.no_grad():
        before = float(differences().abs().mean())
    with torch.enable_grad():
        optimiser.step(closure)
    with torch.no_grad():
        after = float(differences().abs().mean())
        a, b = logs.exp()
        found = Layers(a * fixed.fields, b * fixed.couplings, fixed.mixer)
    return Rescaling(float(a), float(b), before, after, found)


def _allowed(problem: IsingProblem) -> Tensor:
    allowed = problem.expanded_allowed()
    return torch.ones_like(problem.fields, dtype=torch.bool) if allowed is None else allowed
