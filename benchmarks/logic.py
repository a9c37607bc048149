"""Speed of logic networks: packed evaluation against floats and compiled C, training against 16 gates apiece.

    python benchmarks/logic.py [--threads 1] [--repeats 15] [--gates 4096] [--depth 4] [--samples 4096]

Evaluation: a network of random gates is hardened; the peers are the same network on floats (4 multilinear coefficients
a gate, no gradient) by torch's operations and by our compiled loop, its Boolean module on torch's bool tensors, and
our own C export compiled with `gcc -O3` (all gates, and pruned), which packs as well. Input rows are bytes of 0 and 1;
the last step gives the sums of 64 groups. The last columns say how many times as long each takes. All results are
compared: a benchmark of wrong bits is none.

Training: forward and backward pass of one layer of that width on an eighth of the samples, from the 16 logits of each
gate, by the fused form and by the sum over all 16 gates, and the bytes that each keeps for the backward pass.

Everything runs in one process, in turns; the table gives medians.
"""

import argparse
import ctypes
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from ising_attn import logic
from ising_attn.logic.functional import apply_gates, combine, gates_by_definition
from ising_attn.logic.gates import coefficients, truth_tables

CLASSES = 64


def clock(name: str) -> Callable[[], float]:
    """Elapsed time, or (for one thread, on a machine that others use too) this process's own processor time."""
    return time.process_time if name == "cpu" else time.perf_counter


def medians(steps: dict[str, Callable[[], object]], repeats: int, now: Callable[[], float]) -> dict[str, float]:
    """Median milliseconds of each step, taken in turns; those that take long are repeated less."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for turn in range(repeats):
        for name, step in steps.items():
            if turn >= 3 and sum(times[name]) > 2.0:
                continue
            started = now()
            step()
            times[name].append(now() - started)
    return {name: 1e3 * statistics.median(own) for name, own in times.items()}


class CompiledC:
    """Our C export as a shared library."""

    def __init__(self, circuit: logic.Circuit, folder: Path, name: str):
        source, library = folder / f"{name}.c", folder / f"{name}.so"
        source.write_text(logic.to_c(circuit, "net"))
        started = time.perf_counter()
        subprocess.run(["gcc", "-O3", "-shared", "-fPIC", "-o", library, source], check=True)
        self.seconds = time.perf_counter() - started
        self.library = ctypes.CDLL(str(library))

    def logits(self, rows: Tensor) -> Tensor:
        out = torch.empty(len(rows), CLASSES)
        pointers = ctypes.c_void_p(rows.data_ptr()), ctypes.c_size_t(len(rows)), ctypes.c_void_p(out.data_ptr())
        if self.library.net_logits(*pointers):
            raise MemoryError("the C export ran out of memory")
        return out


def torch_floats(network: logic.LogicNetwork, x: Tensor) -> Tensor:
    """The relaxed layers by torch's operations alone."""
    for layer in network.logic_layers():
        first, second = layer.wiring.pairs()
        forms = coefficients(layer.truth_tables()).T.contiguous()
        x = combine(x.index_select(-1, first), x.index_select(-1, second), forms)
    return x


def evaluation(gates: int, depth: int, samples: int, repeats: int, now: Callable[[], float]) -> None:
    network = logic.LogicNetwork(gates, [gates] * depth, residual=None, head=logic.GroupSum(gates, CLASSES)).eval()
    boolean, packed = network.harden(), network.packed()
    x = torch.rand(samples, gates) < 0.5
    floats, rows = x.float(), x.to(torch.uint8)
    words = packed.pack(x)
    outputs = packed.evaluate(words)
    steps: dict[str, Callable[[], object]] = {
        "packing": lambda: packed.pack(x),
        "packed evaluation": lambda: packed.evaluate(words),
        "sums of groups": lambda: packed.logits(outputs),
        "all three": lambda: packed(x),
        "floats, torch": lambda: torch_floats(network, floats),
        "floats, compiled": lambda: network.bits(floats),
        "torch bools": lambda: boolean.bits(x),
    }
    print(f"evaluation: {depth} layers × {gates} gates × {samples} samples")
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        expected = boolean(x)
        assert packed(x).equal(expected)
        assert torch.allclose(torch_floats(network, floats), network.bits(floats), atol=1e-4)
        if shutil.which("gcc"):
            circuit = boolean.circuit()
            for name, own in {"C, all gates": circuit, "C, pruned": circuit.pruned()}.items():
                compiled = CompiledC(own, Path(folder), name.replace(", ", "-").replace(" ", "-"))
                assert compiled.logits(rows).equal(expected)
                steps[name] = lambda compiled=compiled: compiled.logits(rows)  # type: ignore[misc]
                print(f"  {name}: {own.num_gates} gates, {compiled.seconds:.1f} s of compiling")
        found = medians(steps, repeats, now)
    print(f"  {'':20}{'ms':>10}{'÷ packed evaluation':>22}{'÷ all three':>14}")
    for name, own_time in found.items():
        ratios = own_time / found["packed evaluation"], own_time / found["all three"]
        print(f"  {name:20}{own_time:>10.2f}{ratios[0]:>20.1f} ×{ratios[1]:>12.1f} ×", flush=True)


def kept_bytes(forward: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps for the backward pass, each tensor once."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(storages.values())


def training(gates: int, samples: int, repeats: int, now: Callable[[], float]) -> None:
    index = logic.LogicLayer(gates, gates).wiring.pairs()
    x = torch.rand(samples, gates, requires_grad=True)
    logits = torch.randn(gates, 16, requires_grad=True)
    slope = torch.randn(samples, gates)

    def fused() -> Tensor:
        return apply_gates(x, index, coefficients(logits.softmax(-1) @ truth_tables()).T.contiguous())

    def definition() -> Tensor:
        return gates_by_definition(x[:, index[0]], x[:, index[1]], logits.softmax(-1))

    def gradients(forward: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad((forward() * slope).sum(), (x, logits))

    difference = max(
        float(((a - b).abs().max() / b.abs().max()).detach())
        for a, b in zip((fused(), *gradients(fused)), (definition(), *gradients(definition)), strict=True)
    )
    found = medians({"fused": lambda: gradients(fused), "16 gates": lambda: gradients(definition)}, repeats, now)
    kept = {"fused": kept_bytes(fused), "16 gates": kept_bytes(definition)}
    print(f"training: {gates} gates × {samples} samples, forward and backward, largest difference {difference:.0e}")
    for name in found:
        print(
            f"  {name:20}{found[name]:>10.1f} ms ({found[name] / found['fused']:.1f} ×), keeps "
            f"{kept[name] / 2**20:.1f} MiB ({kept[name] / kept['fused']:.1f} ×)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--gates", type=int, default=4096)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    now = clock(options.clock)
    print(f"logic networks, {options.threads} thread(s), torch {torch.__version__}")
    evaluation(options.gates, options.depth, options.samples, options.repeats, now)
    training(options.gates, max(1, options.samples // 8), options.repeats, now)


if __name__ == "__main__":
    main()
