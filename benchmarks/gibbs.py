"""Speed of the heat bath against dwave-samplers' annealer, OpenJij where installed, and the same bath in plain torch.

    python benchmarks/gibbs.py [--threads 2] [--repeats 7] [--sizes 16 64 256] [--clock wall]

Problems: 256 of n spins, h ~ N(0, 1), J ~ N(0, 0.5²/n) shared, β = 1, 64 chains each; every method does heat-bath
sweeps at β. All run in one process, interleaved; ratios are those of the best of the repeats, which is what each
does when nothing else disturbs it, and medians stand beside them.

  kernel      spin updates per second, one thread each: one long call of the peer (its set-up is below 1 %) against
              one call of our engine on prepared problems
  end to end  one `sample` of the whole batch on all threads, 64 reads of 100 sweeps, against a loop of the peer over
              problems (timed on 4 problems, counted for 256) and the same loop in a pool of threads
  torch       the same chains as rows of a tensor, a matrix-vector product per site
  accuracy    time for a root-mean-square error of 0.01 of the marginals, n = 16, against exact ones: whole calls of
              ours for all problems, of the peers for 8 of them, counted up by (error ÷ 0.01)²; and what
              `tolerance=0.01` takes, which makes sure that every problem is that good

On a machine that others use too, `--clock cpu` times one-threaded rows by this process's own processor time.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from dwave.samplers import SimulatedAnnealingSampler
from torch import Tensor

from samplers import IsingProblem, get_sampler
from samplers.gibbs.chains import Chains, Plan, ladder, ramp
from samplers.gibbs.engine import Schedule, advance

PROBLEMS, CHAINS, SWEEPS = 256, 64, 100


def family(n: int, count: int) -> tuple[Tensor, Tensor]:
    make = torch.Generator().manual_seed(0)
    upper = torch.triu(torch.randn(n, n, generator=make) * 0.5 / n**0.5, 1)
    return torch.randn(count, n, generator=make), upper + upper.mT


class Peer:
    """dwave-samplers on problems of the family, at a fixed β by heat bath."""

    def __init__(self, fields: Tensor, couplings: Tensor):
        n = fields.shape[-1]
        self.fields = [{j: -float(x) for j, x in enumerate(row)} for row in fields]
        self.couplings = {(j, k): -float(couplings[j, k]) for j in range(n) for k in range(j)}

    def sample(self, index: int, reads: int, sweeps: int):
        return SimulatedAnnealingSampler().sample_ising(
            self.fields[index],
            self.couplings,
            num_reads=reads,
            num_sweeps=sweeps,
            beta_schedule_type="custom",
            beta_schedule=[1.0] * sweeps,
            proposal_acceptance_criteria="Gibbs",
            seed=index + 1,
        )


class TorchBath:
    """Heat bath on a (problems × chains, n) tensor: the vectorised code one writes first."""

    def __init__(self, fields: Tensor, couplings: Tensor):
        self.fields = fields.repeat_interleave(CHAINS, 0).T.contiguous()
        self.couplings = couplings
        self.spins = torch.ones_like(self.fields)

    def sweep(self) -> None:
        for j in range(len(self.spins)):
            local = self.fields[j] + self.couplings[j] @ self.spins
            up = torch.sigmoid(2 * local)
            self.spins[j] = torch.where(torch.rand_like(up) < up, 1.0, -1.0)


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    work()
    return clock() - started


class Contest:
    """Timings of several methods, taken in turn."""

    def __init__(self, repeats: int, methods: dict[str, Callable[[], float]]):
        self.times: dict[str, list[float]] = {name: [] for name in methods}
        for method in methods.values():
            method()
        for _ in range(repeats):
            for name, method in methods.items():
                self.times[name].append(method())

    def best(self, name: str) -> float:
        return min(self.times[name])

    def ratio(self, slow: str, fast: str) -> str:
        median = statistics.median(self.times[slow]) / statistics.median(self.times[fast])
        return f"{self.best(slow) / self.best(fast):.1f} × (medians {median:.1f} ×)"


def per_update(n: int, repeats: int, clock: Callable[[], float]) -> None:
    """Seconds per spin update, one thread."""
    torch.set_num_threads(1)
    fields, couplings = family(n, PROBLEMS)
    plan, peer, bath = (
        Plan.of(IsingProblem(fields, couplings)),
        Peer(fields[:1], couplings),
        TorchBath(fields, couplings),
    )
    chains, sweeps, steps = Chains.fresh(plan, CHAINS, 1, key=1), max(4, 1024 // n), max(64, 16384 // n)
    schedule = Schedule(ladder(1, 1.0), ramp(sweeps, anneal=False))
    rows = PROBLEMS * CHAINS
    contest = Contest(
        repeats,
        {
            "ours": lambda: seconds(lambda: advance(plan, chains, schedule), clock) / (rows * n * sweeps),
            "dwave": lambda: seconds(lambda: peer.sample(0, 16, steps), clock) / (16 * n * steps),
            "torch": lambda: seconds(bath.sweep, clock) / (rows * n),
        },
    )
    speeds = {name: 1e-6 / contest.best(name) for name in contest.times}
    print(f"n={n:4d}  kernel      " + ", ".join(f"{name} {speed:.0f} M/s" for name, speed in speeds.items()))
    print(f"n={n:4d}  kernel      ÷ dwave-samplers {contest.ratio('dwave', 'ours')}, one thread each")
    print(f"n={n:4d}  torch       ÷ vectorised torch {contest.ratio('torch', 'ours')}, one thread each")


def end_to_end(n: int, repeats: int, threads: int) -> None:
    torch.set_num_threads(threads)
    fields, couplings = family(n, PROBLEMS)
    problem, peer, few = IsingProblem(fields, couplings), Peer(fields, couplings), 4
    sampler = get_sampler("gibbs", burn_in=SWEEPS, anneal=False)
    # Long problems: fewer reads of the peer, counted up; its cost is linear in reads.
    reads = CHAINS if n <= 64 else 8
    share = few / PROBLEMS * reads / CHAINS
    pool = ThreadPoolExecutor(threads)

    def loop() -> None:
        for index in range(few):
            peer.sample(index, reads, SWEEPS)

    contest = Contest(
        max(3, repeats // 2),
        {
            "ours": lambda: seconds(lambda: sampler.sample(problem, CHAINS)),
            "loop": lambda: seconds(loop) / share,
            "pool": lambda: (
                seconds(lambda: list(pool.map(lambda i: peer.sample(i, reads, SWEEPS), range(few)))) / share
            ),
        },
    )
    pool.shutdown()
    print(f"n={n:4d}  end to end  ours {contest.best('ours'):.3f} s, dwave-samplers {contest.best('loop'):.2f} s")
    print(f"n={n:4d}  end to end  ÷ its loop {contest.ratio('loop', 'ours')}, on {threads} threads")
    print(f"n={n:4d}  end to end  ÷ its loop in {threads} threads {contest.ratio('pool', 'ours')}")


def to_accuracy(repeats: int, threads: int, target: float = 0.01, n: int = 16) -> None:
    """Time to a root-mean-square error, per problem."""
    torch.set_num_threads(threads)
    fields, couplings = family(n, PROBLEMS)
    problem, peer, few, reads, sweeps = IsingProblem(fields, couplings), Peer(fields, couplings), 8, 512, 32
    truth = get_sampler("exact").magnetization(problem)
    errors: dict[str, list[float]] = {}

    def record(name: str, difference: Tensor) -> float:
        errors.setdefault(name, []).append(float(difference.double().pow(2).mean().sqrt()))
        return errors[name][-1]

    def ours(name: str, **options) -> Callable[[], float]:
        sampler = get_sampler("gibbs", burn_in=sweeps, **options)

        def call() -> float:
            found: list[Tensor] = []
            spent = seconds(lambda: found.append(sampler.magnetization(problem))) / PROBLEMS
            error = record(name, found[0] - truth)
            return spent if "tolerance" in options else spent * (error / target) ** 2

        return call

    def theirs(name: str, draw: Callable[[int], list[float]]) -> Callable[[], float]:
        def call() -> float:
            means: list[list[float]] = []
            spent = seconds(lambda: means.extend(draw(i) for i in range(few))) / few
            return spent * (record(name, torch.tensor(means) - truth[:few]) / target) ** 2

        return call

    def dwave(index: int) -> list[float]:
        return peer.sample(index, reads, sweeps).record.sample.mean(0).tolist()

    fixed, asked = "32 sweeps", f"tolerance={target}"
    methods = {
        fixed: ours(fixed, num_sweeps=32),
        asked: ours(asked, num_sweeps=16, tolerance=target),
        "dwave-samplers": theirs("dwave-samplers", dwave),
    }
    openjij = openjij_draw(peer, reads, sweeps)
    if openjij is not None:
        methods["OpenJij"] = theirs("OpenJij", openjij)
    contest = Contest(repeats, methods)
    for name in methods:
        error = statistics.median(errors[name])
        print(f"n={n:4d}  accuracy    {name}: {contest.best(name) * 1e6:.0f} µs a problem (error {error:.4f})")
    for name in list(methods)[2:]:
        print(f"n={n:4d}  accuracy    ÷ {name} {contest.ratio(name, fixed)} for RMSE {target}, {threads} threads")


def openjij_draw(peer: Peer, reads: int, sweeps: int) -> Callable[[int], list[float]] | None:
    """OpenJij's annealer; without a seed, since with one all its reads are equal. None where it is not installed."""
    try:
        import openjij
    except ImportError:
        print("OpenJij is not installed; its row is left out")
        return None

    def draw(index: int) -> list[float]:
        sampler, fields = openjij.SASampler(), peer.fields[index]
        found = sampler.sample_ising(fields, peer.couplings, num_reads=reads, schedule=[(1.0, sweeps)])
        order = [list(found.variables).index(j) for j in range(len(fields))]
        return found.record.sample[:, order].mean(0).tolist()

    return draw


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    clock = time.process_time if options.clock == "cpu" else time.perf_counter
    for n in options.sizes:
        per_update(n, options.repeats, clock)
        end_to_end(n, options.repeats, options.threads)
    to_accuracy(options.repeats, options.threads)


if __name__ == "__main__":
    main()
