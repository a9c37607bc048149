"""Run by a clean environment that has only the wheel: are the right packages there, and do they work?"""

import importlib.util
import pathlib
import sys

import torch

import ising_attn
import models
import samplers

home = pathlib.Path(sys.prefix).resolve()
for package in (ising_attn, models, samplers):
    place = pathlib.Path(package.__file__).resolve()
    if home not in place.parents:
        sys.exit(f"{package.__name__} comes from {place}, not from the wheel")
    if not (place.parent / "py.typed").exists():
        sys.exit(f"{package.__name__} lacks py.typed")
for name in ("experiments", "tests"):
    if importlib.util.find_spec(name) is not None:
        sys.exit(f"the wheel puts {name!r} among the importable packages")
if importlib.util.find_spec("qiskit_aer") is not None:
    sys.exit("qiskit-aer came along, though it is an extra")

problem = samplers.IsingProblem(torch.tensor([1.0]))
plus = (1 + float(samplers.get_sampler("exact").magnetization(problem))) / 2
if abs(plus - 0.8808) > 1e-4:
    sys.exit(f"P(+1) at h = 1 is {plus}")
attention = ising_attn.BoltzmannAttention(8, 2, 4, sampler="dqa")
if attention(torch.randn(3, 4, 8)).shape != (3, 4, 8):
    sys.exit("attention through dqa has the wrong shape")
try:
    samplers.get_sampler("dqa", engine="aer").magnetization(problem)
except samplers.MissingDependencyError as error:
    if "ising-attn[aer]" not in str(error):
        sys.exit(f"the absence of Aer is not explained: {error}")
else:
    sys.exit("the Aer engine ran without Aer")
sys.stdout.write("the wheel works\n")
