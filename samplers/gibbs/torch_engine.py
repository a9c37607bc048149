"""The heat bath in torch: for GPUs, for three-body terms, and as the readable twin of the compiled kernel.

It draws the same random numbers in the same order as the kernel, so both give the same spins, up to the rare case
in which rounding decides (a probability within 1e-7 of the number drawn). Cost: one small matrix product and some
forty elementwise operations per site and sweep.
"""

import numpy as np
import torch
from torch import Tensor

from samplers.gibbs.chains import Chains, Plan
from samplers.gibbs.engine import Advance, Schedule, outputs, present_blocks, shares

_MASK = 0xFFFFFFFF


def advance_torch(plan: Plan, chains: Chains, schedule: Schedule, active: np.ndarray | None = None) -> Advance:
    """`samplers.gibbs.engine.advance` in torch, on the device of the plan."""
    device = plan.fields.device
    up, reads = outputs(plan, chains, schedule)
    total = torch.zeros(up[:, :, 0].shape, device=device)
    # (P, chains, T, …); a word is kept in an int64, of which the lower 32 bits count.
    spins = torch.from_numpy(chains.spins).to(device, torch.float32)
    words = torch.from_numpy(chains.words.astype(np.int64)).to(device)
    steps = torch.from_numpy(schedule.ladder).to(device)
    present = torch.from_numpy(present_blocks(plan)).to(device).repeat_interleave(4, -1)
    swaps = np.zeros((len(schedule.ladder), 2), np.int64)
    for t in range(schedule.sweeps):
        done = t + 1 - len(schedule.ramp)
        beta = steps * float(schedule.ramp[t] if done <= 0 else 1.0)
        for j in range(plan.num_spins):
            chance = _conditional(plan, spins, j, beta)
            words = _draw(plan, spins, words, chance, present, j)
            if done > 0:
                total[..., j] += chance[..., 0]
        # The last block of four draws for sites past the end as well.
        for j in range(plan.num_spins, present.shape[-1]):
            words = torch.where(present[:, j, None, None, None], _next(words), words)
        if len(steps) > 1:
            words = _exchange(plan, spins, words, beta, t % 2, swaps)
        if done > 0 and done % schedule.stride == 0:
            turn = done // schedule.stride - 1
            if schedule.keep:
                reads[:, :, turn] = spins[:, :, 0].to(torch.int8).cpu().numpy()
            if turn + 1 in (schedule.rounds // 2, schedule.rounds):
                up[:, :, int(turn + 1 == schedule.rounds)] = total.cpu().numpy()
                total.zero_()
    moved = np.ones(plan.num_problems, np.bool_) if active is None else active
    chains.spins[moved] = spins.to(torch.int8).cpu().numpy()[moved]
    chains.words[moved] = words.cpu().numpy().astype(np.uint32)[moved]
    return Advance(up, reads, shares(swaps))


def _conditional(plan: Plan, spins: Tensor, j: int, beta: Tensor) -> Tensor:
    """P(s_j = +1 | the others) of every chain and temperature: 1 / (1 + e^{−2βF_j}); 0 where j is absent."""
    local = plan.fields[:, j, None, None] + _interaction(plan, spins, j)
    return torch.sigmoid(2 * beta * local) * plan.allowed[:, j, None, None]


def _interaction(plan: Plan, spins: Tensor, j: int) -> Tensor:
    """Σ_k J_jk s_k + ½ Σ_kl K_jkl s_k s_l."""
    grouped = spins.reshape(plan.num_groups, -1, plan.num_spins)
    local = (grouped @ plan.couplings[:, j, :, None]).squeeze(-1)
    if plan.triples is not None:
        local = local + 0.5 * ((grouped @ plan.triples[:, j]) * grouped).sum(-1)
    return local.reshape(spins.shape[:-1])


def _draw(plan: Plan, spins: Tensor, words: Tensor, chance: Tensor, present: Tensor, j: int) -> Tensor:
    """Set spin j; returns the generators, advanced where the block of j holds a spin."""
    drawn = _uniform(words)
    new = torch.where(drawn < chance, 1.0, -1.0)
    spins[..., j] = torch.where(plan.allowed[:, j, None, None], new, 0.0)
    return torch.where(present[:, j, None, None, None], _next(words), words)


def _uniform(words: Tensor) -> Tensor:
    """A number in (0, 1) from the upper 24 bits of the sum of the first and the last word."""
    top = ((words[..., 0] + words[..., 3]) & _MASK) >> 8
    return top.to(torch.float32) * 2.0**-24 + 2.0**-25


def _next(words: Tensor) -> Tensor:
    """One step of xoshiro128+."""
    a, b, c, d = words.unbind(-1)
    t = (b << 9) & _MASK
    c, d = c ^ a, d ^ b
    b, a = b ^ c, a ^ d
    c = c ^ t
    d = ((d << 11) & _MASK) | (d >> 21)
    return torch.stack([a, b, c, d], -1)


def _exchange(plan: Plan, spins: Tensor, words: Tensor, beta: Tensor, parity: int, swaps: np.ndarray) -> Tensor:
    """Swap neighbouring temperatures with probability min(1, e^{(β_t − β_t+1)(E_t − E_t+1)}), E including β."""
    energy, drawn = _energy(plan, spins), _uniform(words)
    for t in range(parity, len(beta) - 1, 2):
        gain = (beta[t] - beta[t + 1]) * (energy[..., t] - energy[..., t + 1])
        accepted = drawn[..., t].log() < gain
        low, high = spins[..., t, :].clone(), spins[..., t + 1, :].clone()
        spins[..., t, :] = torch.where(accepted[..., None], high, low)
        spins[..., t + 1, :] = torch.where(accepted[..., None], low, high)
        swaps[t] += int(accepted.sum()), accepted.numel()
    return _next(words)


def _energy(plan: Plan, spins: Tensor) -> Tensor:
    grouped = spins.reshape(plan.num_groups, -1, plan.num_spins)
    total = 0.5 * ((grouped @ plan.couplings) * grouped).sum(-1)
    if plan.triples is not None:
        total = total + torch.einsum("gjkl,grj,grk,grl->gr", plan.triples, grouped, grouped, grouped) / 6
    return -(total.reshape(spins.shape[:-1]) + (spins * plan.fields[:, None, None]).sum(-1))
