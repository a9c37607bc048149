"""Speed of the exact sampler on a causal attention layer, against plain enumeration of every prefix.

    python benchmarks/exact.py [--threads 1] [--repeats 15] [--sizes 8 12 16 20] [--batches 64 512]

One step is what training does: an IsingProblem of fields (B, 1, T, T), couplings (1, 1, T, T) and a causal mask, its
magnetization, and for "f+b" the gradients of fields and couplings. The peer does the same by batched matrix products
over all 2^m states of each prefix m, with torch's autograd; its tables of states are made beforehand. Both run in one
process, interleaved; the table gives medians. Every timed step follows an untimed one of the same method, as in
training: else a method would pay for the other's memory, which the allocator gives back late. "GEMM" is the share of
this machine's matrix-product rate (measured in the same run), counting the 2·2·2^m operations per query of a prefix
that the two halves need, forward, and three times that with the backward pass.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from samplers import IsingProblem, get_sampler
from samplers.states import spin_table

# Beyond this many states × sequences the peer's tables leave memory.
_PEER_LIMIT = 2**25


class Layer:
    """Fields and couplings of one layer, and a step of each method."""

    def __init__(self, size: int, batch: int, dtype: torch.dtype, now: Callable[[], float]):
        self.now = now
        generator = torch.Generator().manual_seed(0)
        draw = torch.randn(size, size, generator=generator) * 0.3
        self.fields = torch.randn(batch, 1, size, size, generator=generator).to(dtype).requires_grad_()
        self.couplings = (draw.triu(1) + draw.triu(1).mT)[None, None].to(dtype).requires_grad_()
        self.weight = torch.randn(batch, 1, size, size, generator=generator).to(dtype).tril()
        self.allowed = torch.ones(size, size, dtype=torch.bool).tril()
        self.sampler = get_sampler("exact")
        self.tables = [spin_table(m, dtype=dtype) for m in range(1, size + 1)] if self.peer_fits(size, batch) else []

    @staticmethod
    def peer_fits(size: int, batch: int) -> bool:
        return 2**size * batch <= _PEER_LIMIT

    def ours(self) -> Tensor:
        return self.sampler.magnetization(IsingProblem(self.fields, self.couplings, allowed=self.allowed))

    def peer(self) -> Tensor:
        size, rows = self.fields.shape[-1], []
        for m, table in enumerate(self.tables, start=1):
            couplings = self.couplings[0, 0, :m, :m]
            shared = ((table @ couplings) * table).sum(-1) / 2
            p = torch.softmax(torch.addmm(shared, self.fields[:, 0, m - 1, :m], table.T), -1)
            rows.append(torch.nn.functional.pad(p @ table, (0, size - m), value=-1.0))
        return torch.stack(rows, 1).unsqueeze(1)

    def step(self, method: Callable[[], Tensor], backward: bool) -> float:
        started = self.now()
        if backward:
            (method() * self.weight).sum().backward()
            self.fields.grad = self.couplings.grad = None
        else:
            with torch.no_grad():
                method()
        return self.now() - started


def clock(name: str) -> Callable[[], float]:
    """Elapsed time, or (for one thread, on a machine that others use too) this process's own processor time."""
    return time.process_time if name == "cpu" else time.perf_counter


def gemm_rate(dtype: torch.dtype, now: Callable[[], float]) -> float:
    """Operations per second of a large square matrix product, the best of several."""
    a, b = torch.randn(1536, 1536, dtype=dtype), torch.randn(1536, 1536, dtype=dtype)
    times = []
    for _ in range(6):
        started = now()
        a @ b
        times.append(now() - started)
    return 2 * 1536**3 / min(times)


def medians(layer: Layer, backward: bool, repeats: int, budget: float) -> tuple[float, float | None]:
    """Median seconds of ours and of the peer, taken in turns; fewer turns where they exceed the budget."""
    methods = [layer.ours, layer.peer] if layer.tables else [layer.ours]
    times: list[list[float]] = [[] for _ in methods]
    for method in methods:
        layer.step(method, backward)
    started = time.perf_counter()
    for turn in range(repeats):
        for own, method in zip(times, methods, strict=True):
            layer.step(method, backward)
            own.append(layer.step(method, backward))
        if turn >= 2 and time.perf_counter() - started > budget:
            break
    found = [statistics.median(own) for own in times]
    return found[0], found[1] if len(found) > 1 else None


def agreement(layer: Layer) -> float:
    """Largest difference between the two methods on allowed spins: a benchmark of wrong numbers is none."""
    if not layer.tables:
        return float("nan")
    with torch.no_grad():
        return float((layer.ours() - layer.peer()).abs().masked_fill(~layer.allowed, 0.0).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 12, 16, 20])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--budget", type=float, default=0.6, help="seconds of turns per line of the table")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    now = clock(options.clock)
    print(f"exact causal layer, one head, {options.threads} thread(s), torch {torch.__version__}")
    heads = ("ours ms", 10), ("peer ms", 10), ("ratio", 8), ("GEMM", 7), ("max diff", 10)
    print(f"{'dtype':8}{'T':>3}{'batch':>7}{'pass':>6}" + "".join(f"{text:>{width}}" for text, width in heads))
    for dtype in (torch.float32, torch.float64):
        rate = gemm_rate(dtype, now)
        print(f"{str(dtype)[6:]:8}matrix products: {rate / 1e9:.0f} Gop/s")
        for size in options.sizes:
            for batch in options.batches:
                layer = Layer(size, batch, dtype, now)
                difference = agreement(layer)
                for backward in (False, True):
                    ours, peer = medians(layer, backward, options.repeats, options.budget)
                    work = batch * 4 * (2 ** (size + 1) - 2) * (3 if backward else 1)
                    peer_text = "-" if peer is None else f"{peer * 1e3:.2f}"
                    ratio = "-" if peer is None else f"{peer / ours:.1f}"
                    print(
                        f"{str(dtype)[6:]:8}{size:>3}{batch:>7}{'f+b' if backward else 'f':>6}{ours * 1e3:>10.3f}"
                        f"{peer_text:>10}{ratio:>8}{work / ours / rate:>7.2f}{difference:>10.1e}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
