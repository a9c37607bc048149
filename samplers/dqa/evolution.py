"""The state vector of an anneal, batched over problems, with the adjoint gradient. Torch, any device.

With D = diag(1, i) on every qubit, ψ = Dφ turns each mixer exp(i x X) into the real rotation
[[cos x, −sin x], [sin x, cos x]] and leaves every phase alone, so φ is mixed by real matrix products, four
qubits (16 × 16) at a time, and |φ|² = |ψ|². φ has shape (2^n, g, q): problems are innermost, so that one matrix
serves them all, and the phases of the couplings, which q problems share, are computed once per group.

The adjoint gradient carries (φ, λ) backward through the inverse layers, λ being the derivative of the result
with respect to φ. It needs two states whatever the depth. Twin: `samplers.dqa.reference`; on a CPU the kernels of
`samplers.dqa.kernels` do the same faster.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from samplers.states import spin_table

# Wider blocks trade memory passes for arithmetic; 4 was fastest on CPU (6: 1.1-1.5 times slower, 8: 4 times).
_BLOCK = 4


@dataclass(frozen=True)
class Tables:
    """Energies by which phases turn, float64: fields in two halves of the qubits, couplings over all states."""

    low: Float[Tensor, "lows g q"]
    high: Float[Tensor, "highs g q"]
    pairs: Float[Tensor, "states g one"] | None

    def phase(self, field_angle: float, coupling_angle: float, dtype: torch.dtype) -> Tensor:
        """exp(i(f h·z + c ½zᵀJz)) of every state, (2^n, g, q)."""
        low, high = (_unit(field_angle * table).to(dtype) for table in (self.low, self.high))
        phase = (high.unsqueeze(1) * low.unsqueeze(0)).flatten(0, 1)
        if self.pairs is not None:
            phase *= _unit(coupling_angle * self.pairs).to(dtype)
        return phase

    def field_energy(self) -> Tensor:
        return (self.high.unsqueeze(1) + self.low.unsqueeze(0)).flatten(0, 1)


def tables(fields: Float[Tensor, "g q n"], couplings: Float[Tensor, "g one n n"] | None) -> Tables:
    """The phase tables of problems. The pair energies are built by doubling: 2^(n+1) additions per group."""
    h = fields.double().permute(2, 0, 1)
    split = h.shape[0] // 2
    pairs = None if couplings is None else pair_energies(couplings.double().squeeze(1)).mT.unsqueeze(-1)
    return Tables(_field_energies(h[:split]), _field_energies(h[split:]), pairs)


def pair_energies(couplings: Float[Tensor, "g n n"]) -> Float[Tensor, "g states"]:
    """½ zᵀJz of every state: spin k doubles the table, adding ±Σ_{j<k} J_jk z_j, itself a doubled table."""
    energies = couplings.new_zeros(couplings.shape[0], 1)
    for k in range(couplings.shape[-1]):
        field = couplings.new_zeros(couplings.shape[0], 1)
        for j in range(k):
            step = couplings[:, j, k].unsqueeze(-1)
            field = torch.cat([field + step, field - step], 1)
        energies = torch.cat([energies + field, energies - field], 1)
    return energies


def _field_energies(h: Tensor) -> Tensor:
    energies = h.new_zeros(1, *h.shape[1:])
    for row in h:
        energies = torch.cat([energies + row, energies - row])
    return energies


def _unit(angle: Tensor) -> Tensor:
    return torch.polar(torch.ones_like(angle), angle)


def initial_state(num_spins: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The uniform superposition in the rotated frame: (−i)^popcount / √2^n."""
    down = (num_spins - spin_table(num_spins, device=device).sum(-1)) / 2
    state = _unit(-torch.pi / 2 * down) * 2.0 ** (-num_spins / 2)
    return state.to(dtype)[:, None, None].expand(-1, *shape).contiguous()


def mix(state: Tensor, angle: float) -> Tensor:
    """Rotate every qubit by `angle`: real products of up to four qubits at a time."""
    real, size = torch.view_as_real(state), state.shape[0]
    below, left = 1, size.bit_length() - 1
    while left:
        bits = min(_BLOCK, left)
        real = _rotation(bits, angle, real) @ real.reshape(size // (below << bits), 1 << bits, -1)
        below, left = below << bits, left - bits
    return torch.view_as_complex(real.reshape(*state.shape, 2))


def _rotation(bits: int, angle: float, like: Tensor) -> Tensor:
    turn = torch.tensor(angle, dtype=torch.float64)
    one = torch.stack([torch.stack([turn.cos(), -turn.sin()]), torch.stack([turn.sin(), turn.cos()])])
    whole = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(bits):
        whole = torch.kron(whole, one)
    return whole.to(like)


def _mixer_slope(adjoint: Tensor, state: Tensor) -> Tensor:
    """2 Re⟨λ, Σ_q G_q φ⟩ with G = [[0, −1], [1, 0]], the derivative in a mixer angle just after it."""
    a, b = torch.view_as_real(adjoint), torch.view_as_real(state)
    total = a.new_zeros((), dtype=torch.float64)
    for qubit in range(state.shape[0].bit_length() - 1):
        x, y = (t.reshape(state.shape[0] >> (qubit + 1), 2, -1) for t in (a, b))
        total += ((x[:, 1] * y[:, 0]).sum(dtype=torch.float64) - (x[:, 0] * y[:, 1]).sum(dtype=torch.float64)) * 2
    return total


def evolve(table: Tables, angles: list[list[float]], state: Tensor) -> Tensor:
    """φ after every (field, coupling, mixer) layer, starting from `state`."""
    for field_angle, coupling_angle, mixer_angle in angles:
        state = mix(state * table.phase(field_angle, coupling_angle, state.dtype), mixer_angle)
    return state


def evolve_back(
    table: Tables, angles: list[list[float]], state: Tensor, adjoint: Tensor, with_angles: bool
) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor, Tensor]]]:
    """Undo the layers on (φ, λ).

    Returns:
        Σ_l f_l w_l and Σ_l c_l w_l, (2^n, g, q), with w_l = ∂(result)/∂(phase of layer l) = −2 Im(λ̄φ);
        and, if asked for, the derivative in every (f, c, x).
    """
    by_field = torch.zeros_like(state.real)
    by_coupling = torch.zeros_like(state.real)
    slopes = []
    field_energy = table.field_energy() if with_angles else None
    for field_angle, coupling_angle, mixer_angle in reversed(angles):
        slope = _mixer_slope(adjoint, state) if with_angles else None
        both = mix(torch.cat([state, adjoint], -1), -mixer_angle)
        state, adjoint = both.chunk(2, -1)
        weight = 2 * (adjoint.imag * state.real - adjoint.real * state.imag)
        by_field.add_(weight, alpha=field_angle)
        by_coupling.add_(weight, alpha=coupling_angle)
        if slope is not None and field_energy is not None:
            coupling_slope = weight.new_zeros((), dtype=torch.float64)
            if table.pairs is not None:
                coupling_slope = (weight.double() * table.pairs).sum()
            slopes.append(((weight.double() * field_energy).sum(), coupling_slope, slope))
        phase = table.phase(field_angle, coupling_angle, state.dtype).conj()
        state, adjoint = state * phase, adjoint * phase
    return by_field, by_coupling, slopes[::-1]
