"""Speed of the band sampler against dwave-samplers' TreeDecompositionSampler, and of its gradient.

    python benchmarks/band.py [--threads 2] [--repeats 15] [--sizes 64:4 128:8] [--clock wall]

Problems: 1024 of n spins, h ~ N(0, 1), J ~ N(0, 0.3²) within |j − k| ≤ w and shared, β = 1, float32. One step of ours
is what a user does: an IsingProblem and its magnetization; "backward" is the gradient of fields and couplings alone.
The peer gets models that are made beforehand and one read with marginals; it is timed on a few of the problems, one
after the other, and counted up to 1024. All take turns in one process; ratios are of the best times, which is what
each does when nothing else disturbs it, and medians stand beside them. "error" is the largest difference to the same
problems in float64, and "peer" the largest difference between the two methods.

On a machine that others use too, `--clock cpu` times by this process's own processor time (with one thread).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from dimod import BinaryQuadraticModel
from dwave.samplers import TreeDecompositionSampler
from torch import Tensor

from samplers import IsingProblem, get_sampler

PROBLEMS, PEER_PROBLEMS = 1024, 3


def family(n: int, width: int) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(0)
    draw = torch.randn(n, n, generator=make) * 0.3
    upper = draw.triu(1) - draw.triu(width + 1)
    return torch.randn(PROBLEMS, n, generator=make).requires_grad_(), (upper + upper.mT).requires_grad_()


class Peer:
    """The tree decomposition on the first few problems of the family; its signs are the opposite of ours."""

    def __init__(self, fields: Tensor, couplings: Tensor):
        upper = couplings.detach().triu()
        pairs = {(j, k): -float(upper[j, k]) for j, k in upper.nonzero().tolist()}
        rows = fields[:PEER_PROBLEMS].tolist()
        self.models = [BinaryQuadraticModel.from_ising(dict(enumerate(-x for x in row)), pairs) for row in rows]

    def marginals(self) -> list[list[float]]:
        sampler, found = TreeDecompositionSampler(), []
        for model in self.models:
            up = sampler.sample(model, num_reads=1, beta=1.0, marginals=True).info["variable_marginals"]
            found.append([2 * up[j] - 1 for j in range(len(up))])
        return found


def seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return clock() - started


def row(n: int, width: int, repeats: int, clock: Callable[[], float]) -> str:
    fields, couplings = family(n, width)
    sampler, peer, weight = get_sampler("band", width=width), Peer(fields, couplings), torch.randn_like(fields)

    def ours() -> Tensor:
        with torch.no_grad():
            return sampler.magnetization(IsingProblem(fields, couplings))

    times: dict[str, list[float]] = {"ours": [], "backward": [], "peer": []}
    for turn in range(repeats + 1):
        forward = seconds(ours, clock)
        m = sampler.magnetization(IsingProblem(fields, couplings))
        backward = seconds(lambda m=m: m.backward(weight), clock)  # type: ignore[misc]
        # The peer takes a few seconds: a third of the turns is enough.
        peer_time = seconds(peer.marginals, clock) if turn % 3 == 1 else None
        if turn:
            times["ours"].append(forward)
            times["backward"].append(backward)
            times["peer"] += [] if peer_time is None else [peer_time / PEER_PROBLEMS * PROBLEMS]
    double = sampler.magnetization(IsingProblem(fields.detach().double(), couplings.detach().double()))
    error = float((ours() - double).abs().max())
    apart = float((ours()[:PEER_PROBLEMS] - torch.tensor(peer.marginals())).abs().max())
    best = {name: min(own) for name, own in times.items()}
    median = {name: statistics.median(own) for name, own in times.items()}
    return (
        f"{n:5} {width:3}  {1e3 * best['ours']:9.2f} {1e3 * best['backward']:10.2f} {best['peer']:10.2f}  "
        f"{best['peer'] / best['ours']:7.0f} × ({median['peer'] / median['ours']:.0f} ×)  "
        f"{best['backward'] / best['ours']:5.2f} × ({median['backward'] / median['ours']:.2f} ×)  "
        f"{error:8.1e} {apart:8.1e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--sizes", nargs="+", default=["64:4", "128:8"], help="n:w")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    print(
        f"{PROBLEMS} chains, {options.threads} thread(s), torch {torch.__version__}; peer: {PEER_PROBLEMS} problems, "
    )
    print(f"counted for {PROBLEMS}; in brackets: ratios of medians")
    print("    n   w   ours (ms)   backward   peer (s)  peer ÷ ours        backward ÷ ours     error     peer")
    for size in options.sizes:
        n, width = (int(part) for part in size.split(":"))
        print(row(n, width, options.repeats, clock), flush=True)


if __name__ == "__main__":
    main()
