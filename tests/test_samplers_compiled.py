"""Without numba, and without anything but torch and numpy, every sampler of its own still answers, by torch."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samplers.compiled import has_kernels

ROOT = Path(__file__).resolve().parent.parent

# The bare machine: only what torch and numpy need can be imported, and nothing else can be found.
_BARE = """
import importlib.util, runpy, sys

ABSENT = {"numba", "llvmlite", "jaxtyping", "qiskit", "qiskit_aer", "dimod", "dwave", "scipy", "rich", "tyro",
          "safetensors", "matplotlib", "networkx", "pytest", "hypothesis"}

class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Bare())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in ABSENT else find(name, package)
"""

_SAMPLERS = """
import torch
sys.path.insert(0, "benchmarks")
import device_check as check

for case in check.cases():
    if case.num_spins == 8 and not case.label.startswith("gibbs"):
        for dtype in (torch.float32, torch.float64):
            value, gradient = check.checked(case, dtype, "cpu")
            assert value <= case.allowed and gradient <= case.allowed, (case.label, dtype, value, gradient)
            print(case.label)
from samplers import get_sampler
small = check.causal_problem(2, 4, torch.float32, "cpu")
quick = get_sampler("gibbs", num_chains=256, num_sweeps=32, burn_in=8)
found = check.forward_backward(lambda p: quick.magnetization(p, seed=0), small)
twin = check.forward_backward(check.boltzmann, check.causal_problem(2, 4, torch.float64, "cpu"))
assert all((a - b).abs().max() < 0.1 for a, b in zip(found, twin)), found
assert not ABSENT & {name.split(".")[0] for name in sys.modules} - {"jaxtyping"}
print("done")
"""


def bare(code: str) -> str:
    """What a fresh process prints that has torch and numpy alone."""
    run = subprocess.run([sys.executable, "-c", _BARE + code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout


def test_kernels_are_for_cpus():
    assert has_kernels(torch.device("cpu"))
    assert not has_kernels(torch.device("cuda"))


def test_samplers_need_torch_and_numpy_alone():
    assert bare(_SAMPLERS).split("\n")[-2] == "done"


@pytest.mark.slow
def test_the_device_check_runs_on_a_bare_machine():
    arguments = "sys.argv = ['benchmarks/device_check.py', '--device=cpu', '--batch=1']\n"
    whole = bare(arguments + "runpy.run_path('benchmarks/device_check.py', run_name='__main__')\n")
    assert "torch (numba is missing)" in whole
    assert "all within what is allowed" in whole
