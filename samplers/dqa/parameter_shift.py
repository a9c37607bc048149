"""The parameter-shift rule: gradients of an anneal's marginals from the same anneal at shifted angles.

Every gate is exp(−iθG/2) with G² = 1, so an expectation is a sinusoid in each angle and
    ∂⟨s⟩/∂θ = (⟨s⟩(θ + π/2) − ⟨s⟩(θ − π/2)) / 2
without error (Mitarai et al. 2018, eq. 3; Schuld et al. 2019, eq. 14): the exact gradient of the circuit, and an
unbiased one from shots. It holds under noise as well, where the noise does not depend on the angle.
"""

from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from samplers.dqa.angles import GateAngles, Pairs, all_pairs, coupled_pairs, gate_angles
from samplers.dqa.layers import Layers
from samplers.errors import NotSupportedError
from samplers.states import spin_table, spins_of_index
from samplers.streams import derive_key, stream_keys

# Circuits of one request to the engine (which splits it further as it needs).
_CIRCUITS_PER_BLOCK = 2048


class GateEngine(Protocol):
    """An engine that runs anneals whose angles are given gate by gate."""

    exact: bool

    def draw_at(
        self, angles: GateAngles, shots: int, seed: int | Int[Tensor, "problems"]
    ) -> Int[Tensor, "problems shots"]: ...


def shifted_magnetization(
    engine: Any,
    fields: Float[Tensor, "groups queries n"],
    couplings: Float[Tensor, "cgroups 1 n n"] | None,
    layers: Layers,
    *,
    shots: int | None = None,
    seed: int | Int[Tensor, "groups queries"] = 0,
    pairs: Pairs | None = None,
) -> Float[Tensor, "groups queries n"]:
    """⟨s⟩ at the end of the anneal, float64, differentiable in the fields, the couplings and the layers' angles.

    Args:
        engine: a gate-level engine: `AerEngine`, `PrimitiveEngine`, or anything with their `draw_at` (and, for
            shots=None, `probabilities_at`).
        shots: measurements of every circuit, in the forward pass and of each shifted circuit; None for exact.
        seed: of the shots, for the batch or for each problem, as in `AerEngine.draw`. The forward pass and every
            shifted circuit use streams of their own.
        pairs: which pairs get a gate, and with it a gradient. By default every pair where the couplings need a
            gradient (one of coupling zero has a gradient all the same, and under noise its idle gate has
            errors), else those whose coupling is not zero. Give it where couplings are zero for good.

    Cost: forward, one circuit per problem; backward, two per problem and gate whose angle needs a gradient:
    2·P·n for fields alone, P·n·(n − 1) more for couplings, 2·P·n more for the mixer's angles.

    Raises:
        NotSupportedError: the engine takes no gate angles, or gives no exact probabilities and shots is None.
    """
    needed = "draw_at" if shots is not None else "probabilities_at"
    if not hasattr(engine, needed):
        raise NotSupportedError(
            f"{type(engine).__name__} has no {needed}, which the parameter-shift rule needs"
            + ("; set shots=" if hasattr(engine, "draw_at") else "; use engine='aer', or gradient='adjoint'")
        )
    if pairs is None:
        wanted = couplings is not None and couplings.requires_grad and torch.is_grad_enabled()
        pairs = all_pairs(fields.shape[-1]) if wanted else coupled_pairs(couplings)
    angles = gate_angles(fields, couplings, layers, pairs=pairs)
    own = seed if isinstance(seed, int) else seed.flatten()
    measured = _ShiftRule.apply(angles.rz, angles.rzz, angles.rx, angles.pairs, engine, shots, own)
    return measured.reshape(fields.shape)


class _ShiftRule(torch.autograd.Function):
    """⟨s⟩ (problems, n) of gate angles, with the shift rule as its backward."""

    @staticmethod
    def forward(ctx, rz, rzz, rx, pairs, engine, shots, seed):
        ctx.save_for_backward(rz, rzz, rx)
        ctx.pairs, ctx.engine, ctx.shots, ctx.seed = pairs, engine, shots, seed
        return _measured(engine, GateAngles(rz, rzz, rx, pairs), shots, _stream(seed, 0))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grad_outputs: Tensor):
        rz, rzz, rx = ctx.saved_tensors
        angles = GateAngles(rz, rzz, rx, ctx.pairs)
        sizes = [part[0].numel() for part in (rz, rzz, rx)]
        wanted = torch.cat([torch.full((s,), need) for s, need in zip(sizes, ctx.needs_input_grad[:3], strict=True)])
        gates = wanted.nonzero().flatten()
        slopes = torch.zeros(angles.num_problems, len(wanted), dtype=torch.float64)
        step = max(1, _CIRCUITS_PER_BLOCK // (2 * max(1, angles.num_problems)))
        for chosen in gates.split(step):
            slopes[:, chosen] = _slopes(ctx.engine, angles, chosen, grad_outputs[0], ctx.shots, ctx.seed)
        shaped = angles.with_flat(slopes.to(angles.rz.device))
        grads = [
            grad if need else None
            for grad, need in zip((shaped.rz, shaped.rzz, shaped.rx), ctx.needs_input_grad[:3], strict=True)
        ]
        return (*grads, None, None, None, None)


def _slopes(
    engine: Any,
    angles: GateAngles,
    gates: Int[Tensor, "chosen"],
    weights: Float[Tensor, "problems n"],
    shots: int | None,
    seed: int | Int[Tensor, "problems"],
) -> Float[Tensor, "problems chosen"]:
    """∂(weights·⟨s⟩)/∂θ of the chosen gates (columns of `GateAngles.flat`), for every problem."""
    flat = angles.flat()
    rows = flat.repeat(2 * len(gates), 1).reshape(len(gates), 2, *flat.shape)
    for i, gate in enumerate(gates):
        rows[i, 0, :, gate] += torch.pi / 2
        rows[i, 1, :, gate] -= torch.pi / 2
    streams: int | Tensor
    if isinstance(seed, int):
        streams = _stream(seed, 1, int(gates[0]))
    else:
        streams = torch.cat([_stream(seed, 1, gate, sign) for gate in gates.tolist() for sign in (0, 1)])
    measured = _measured(engine, angles.with_flat(rows.flatten(0, 2)), shots, streams)
    up, down = measured.reshape(len(gates), 2, *weights.shape).unbind(1)
    return (((up - down) / 2) * weights).sum(-1).T.cpu()


def _stream(seed: Any, *words: int) -> Any:
    """A fresh seed for another purpose: an integer of an integer, one for each problem of a tensor."""
    if isinstance(seed, int):
        return derive_key(seed, *words)
    return torch.from_numpy(stream_keys(derive_key(0, *words), seed).astype(np.int64))


def _measured(
    engine: Any, angles: GateAngles, shots: int | None, seed: int | Int[Tensor, "problems"]
) -> Float[Tensor, "problems n"]:
    n, device = angles.num_spins, angles.rz.device
    if shots is None:
        probabilities = engine.probabilities_at(angles)
        return (probabilities @ spin_table(n, device=probabilities.device)).to(device)
    index = engine.draw_at(angles, shots, seed)
    return spins_of_index(index, n).to(torch.float64).mean(1).to(device)
