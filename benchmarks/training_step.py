"""One training step of each kind of attention, as a multiple of a softmax step, and against plain enumeration.

    python benchmarks/training_step.py [--contexts 8 12 16] [--threads 1] [--repeats 21] [--clock cpu]

The step is that of the text experiment: the paper's one-layer model (embedding 64, one head, feed-forward 128, dropout
0.1) on a batch of 64 windows of random characters; loss, gradients, clipping and a fused AdamW update. The peers are
the same h+J model with enumeration by matrix products and torch's autograd, tables of states made beforehand: "plain"
sums over all 2^T states for every query, in which keys that the query does not see count for nothing; "by prefix" over
the 2^m states of the m keys that it sees. Their losses and gradients are held against ours first.

All run in one process, in turns. Every timed step follows an untimed one of the same model, as in training: else a
model would pay for the memory of another. The table gives medians, and quartiles of the ratios turn by turn.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy, pad  # noqa: E402

from ising_attn.couplings import coupling_parameters  # noqa: E402
from ising_attn.lab.optimisation import TrainingSettings, parameter_groups  # noqa: E402
from models import AttentionConfig, CharLM, CharLMConfig  # noqa: E402
from samplers import Capabilities, IsingProblem, Sampler, option  # noqa: E402
from samplers.enumeration import moments  # noqa: E402
from samplers.states import spin_table  # noqa: E402

VOCABULARY = 61
VARIANTS = {
    "softmax": AttentionConfig(kind="softmax"),
    "h": AttentionConfig(mode="h"),
    "h+J": AttentionConfig(mode="h+J"),
    "h+J, bias": AttentionConfig(mode="h+J", bias="distance"),
    "h+J by distance": AttentionConfig(mode="h+J", couplings="distance"),
    "h+J+K": AttentionConfig(mode="h+J+K"),
}
PEERS = (("plain", False), ("by prefix", True))
GOALS = {12: 2.5, 16: 6.0}


class Enumeration(Sampler):
    """Sums over all states of a causal mask's queries, differentiated by autograd."""

    by_prefix: bool = option(default=True, help="over the states of the keys that a query sees, not over all")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=True, boltzmann=True, gradient="exact")

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        if problem.fields.ndim != 4:  # a few rows that attention asks for once more in float64
            return moments(problem)[0]
        size, rows = problem.num_spins, []
        fields, couplings = problem.fields[:, 0], problem.couplings.reshape(size, size)
        for m in range(1, size + 1):
            table = _table(m, m if self.by_prefix else size)
            k = table.shape[-1]
            shared = ((table @ couplings[:k, :k]) * table).sum(-1) / 2
            p = torch.softmax(torch.addmm(shared, fields[:, m - 1, :k], table.T), -1)
            rows.append(pad(p @ table, (0, size - k), value=-1.0))
        return torch.stack(rows, 1).unsqueeze(1)


_TABLES: dict[tuple[int, int], Tensor] = {}


def _table(seen: int, keys: int) -> Tensor:
    """(2^keys, keys) spins of all states, 0 for those beyond the ones seen."""
    if (seen, keys) not in _TABLES:
        _TABLES[seen, keys] = spin_table(keys, dtype=torch.float32) * (torch.arange(keys) < seen)
    return _TABLES[seen, keys]


class Step:
    """A model with its optimiser, and one step of training."""

    def __init__(self, attention: AttentionConfig, context: int, batch: int, sampler: Sampler | None):
        torch.manual_seed(0)
        config = CharLMConfig(vocabulary=VOCABULARY, context=context, attention=attention)
        self.model = CharLM(config, sampler=sampler)
        with torch.no_grad():
            for values in coupling_parameters(self.model):
                values.normal_(std=0.1)
        settings = TrainingSettings(learning_rate=1e-3, coupling_learning_rate=3e-5, weight_decay=0.01)
        groups = parameter_groups(self.model, settings, coupling_parameters(self.model))
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
        self.tokens = torch.randint(VOCABULARY, (batch, context + 1))

    def gradients(self) -> float:
        """Loss and gradients of the batch."""
        loss = cross_entropy(self.model(self.tokens[:, :-1]).flatten(0, 1), self.tokens[:, 1:].flatten())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        return loss.item()

    def __call__(self) -> None:
        self.gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def check_same(ours: Step, peer: Step) -> None:
    """A benchmark of wrong numbers is none."""
    for step in (ours, peer):
        step.model.eval()
    losses = ours.gradients(), peer.gradients()
    pairs = zip(ours.model.parameters(), peer.model.parameters(), strict=True)
    apart = max(float((a.grad - b.grad).abs().max()) for a, b in pairs if a.grad is not None and b.grad is not None)
    if abs(losses[0] - losses[1]) > 1e-4 or apart > 1e-4:
        raise SystemExit(
            f"enumeration differs from exact: loss by {losses[0] - losses[1]:.1e}, gradients by {apart:.1e}"
        )
    for step in (ours, peer):
        step.model.train()


def measure(steps: dict[str, Step], repeats: int, budget: float, now: Callable[[], float]) -> dict[str, list[float]]:
    """Seconds of each step in turns; fewer turns, at least three, where they exceed the budget."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    started = time.perf_counter()
    for turn in range(repeats):
        for name, step in steps.items():
            step()
            before = now()
            step()
            times[name].append(now() - before)
        if turn >= 2 and time.perf_counter() - started > budget:
            break
    return times


def ratios(times: list[float], base: list[float]) -> tuple[float, float, float]:
    """Ratio of the medians, and the quartiles of the ratios turn by turn."""
    each = sorted(a / b for a, b in zip(times, base, strict=True))
    low, _, high = statistics.quantiles(each, n=4)
    return statistics.median(times) / statistics.median(base), low, high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[8, 12, 16])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--budget", type=float, default=40.0, help="seconds of turns per context")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--most-three-body", type=int, default=12, help="longest context with three-body terms")
    parser.add_argument("--no-peers", action="store_true", help="leave enumeration out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    now = time.process_time if options.clock == "cpu" else time.perf_counter
    print(f"training steps of {options.batch} windows, {options.threads} thread(s), torch {torch.__version__}")
    print(f"{'T':>3}  {'attention':<18}{'ms':>9}{'÷ softmax':>11}{'quartiles':>16}")
    for context in options.contexts:
        named = {k: v for k, v in VARIANTS.items() if "K" not in k or context <= options.most_three_body}
        steps = {name: Step(attention, context, options.batch, None) for name, attention in named.items()}
        for name, by_prefix in () if options.no_peers else PEERS:
            steps[name] = Step(VARIANTS["h+J"], context, options.batch, Enumeration(by_prefix=by_prefix))
            check_same(steps["h+J"], steps[name])
        times = measure(steps, options.repeats, options.budget, now)
        for name, own in times.items():
            ratio, low, high = ratios(own, times["softmax"])
            goal = f"  goal ≤ {GOALS[context]}" if name == "h+J" and context in GOALS else ""
            spread = f"{low:.2f} to {high:.2f}"
            print(
                f"{context:>3}  {name:<18}{1e3 * statistics.median(own):>9.2f}{ratio:>11.2f}{spread:>16}{goal}",
                flush=True,
            )
        for name, _ in () if options.no_peers else PEERS:
            ratio, low, high = ratios(times[name], times["h+J"])
            goal = "  goal ≥ 30" if context == 16 and "plain" in name else ""
            print(f"{context:>3}  {name} ÷ h+J".ljust(32) + f"{ratio:>11.1f}{f'{low:.1f} to {high:.1f}':>16}{goal}")
        _TABLES.clear()


if __name__ == "__main__":
    main()
