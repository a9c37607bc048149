"""`ising-attn doctor`: what is installed, which devices there are, what is missing and how to get it."""

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Console

from ising_attn.lab.config import parse_settings
from ising_attn.lab.tables import Table
from samplers.errors import IsingAttnError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """What is looked at."""

    markdown: bool = False
    """Print tables as Markdown, to paste into an issue."""
    debug: bool = False
    """Show the traceback of an error."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line.

    Args:
        subject: what was looked for.
        state: "ok", "missing" (something optional is) or "broken" (nothing will run).
        found: what there is.
        advice: how to get what is missing.
    """

    subject: str
    state: str
    found: str
    advice: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the findings; 1 where something that everything needs is missing."""
    settings = parse_settings(DoctorSettings, arguments, prog="doctor", description=__doc__ or "")
    console = Console(highlight=False, markup=False)
    findings = all_findings()
    table = Table("ising-attn", ["what", "state", "found"])
    for one in findings:
        table.add(one.subject, one.state, one.found)
    console.print(table.markdown() if settings.markdown else table.rich(), soft_wrap=settings.markdown)
    advice = [f"{one.subject}: {one.advice}" for one in findings if one.advice]
    for line in advice or ["nothing is missing"]:
        console.print(line)
    return int(any(one.state == "broken" for one in findings))


def all_findings() -> list[Finding]:
    """Everything that is looked at; nothing leaves this machine and nothing is downloaded."""
    checks: list[Callable[[], Finding]] = [_python, _torch, _threads, _gpu, _aer, _aer_gpu, _corpus, _dwave, _compiler]
    return [*_packages(), *(check() for check in checks)]


_REQUIRED = ("ising-attn", "numpy", "scipy", "numba", "dimod", "dwave-samplers", "qiskit", "safetensors")
_OPTIONAL = (("matplotlib", "plots", "plots"), ("ray", "cluster", "sweeps on a cluster"))


def _packages() -> list[Finding]:
    found = []
    for package in _REQUIRED:
        version = _version(package)
        if version is not None:
            found.append(Finding(package, "ok", version))
        elif package == "ising-attn":
            found.append(Finding(package, "ok", "a checkout that is not installed"))
        else:
            found.append(Finding(package, "broken", "not installed", f"pip install {package}"))
    for package, extra, what in _OPTIONAL:
        version = _version(package)
        advice = "" if version else f"pip install 'ising-attn[{extra}]' for {what}"
        found.append(Finding(package, "ok" if version else "missing", version or "not installed", advice))
    return found


def _python() -> Finding:
    enough = sys.version_info >= (3, 11)
    advice = "" if enough else "Python 3.11 or newer is needed"
    return Finding("Python", "ok" if enough else "broken", f"{platform.python_version()}, {platform.system()}", advice)


def _torch() -> Finding:
    return Finding("torch", "ok", str(torch.__version__))


def _threads() -> Finding:
    waits = os.environ.get("OMP_WAIT_POLICY", "")
    found = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    if waits.upper() == "PASSIVE":
        return Finding("threads", "ok", found)
    advice = "on a busy machine set OMP_WAIT_POLICY=PASSIVE before Python starts (the experiments' scripts do)"
    return Finding("threads", "ok", found, advice)


def _gpu() -> Finding:
    if torch.cuda.is_available():
        names = {torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())}
        return Finding("GPU", "ok", f"{torch.cuda.device_count()} × {', '.join(sorted(names))}")
    advice = "everything runs on CPUs; for CUDA install a CUDA build of torch"
    return Finding("GPU", "missing", "torch sees none", advice)


def _aer() -> Finding:
    if importlib.util.find_spec("qiskit_aer") is None:
        return Finding("Qiskit Aer", "missing", "not installed", "pip install 'ising-attn[aer]' for simulated circuits")
    from qiskit_aer import AerSimulator

    simulator = AerSimulator()
    version = _version("qiskit-aer") or _version("qiskit-aer-gpu") or "unknown version"
    methods = [name for name in simulator.available_methods() if name != "automatic"]
    return Finding("Qiskit Aer", "ok", f"{version}; {', '.join(methods)}")


def _aer_gpu() -> Finding:
    if importlib.util.find_spec("qiskit_aer") is None:
        return Finding("Aer devices", "missing", "none")
    from qiskit_aer import AerSimulator

    devices = AerSimulator().available_devices()
    advice = "" if "GPU" in devices else "for GPU circuits install 'ising-attn[aer-gpu]' instead of [aer], never both"
    return Finding("Aer devices", "ok", ", ".join(devices), advice)


def _corpus() -> Finding:
    from ising_attn.lab.text import CORPUS_VARIABLE, cached_corpus

    named = os.environ.get(CORPUS_VARIABLE)
    path = Path(named) if named else cached_corpus()
    if path.is_file():
        return Finding("Tiny Shakespeare", "ok", str(path))
    if named:
        return Finding("Tiny Shakespeare", "missing", f"{CORPUS_VARIABLE} names {path}, which is no file", "correct it")
    advice = f"it is downloaded on first use; offline, give --data=PATH or set {CORPUS_VARIABLE}"
    return Finding("Tiny Shakespeare", "missing", "not downloaded yet", advice)


def _dwave() -> Finding:
    if importlib.util.find_spec("dwave") is None or importlib.util.find_spec("dwave.system") is None:
        return Finding("D-Wave", "missing", "dwave-system is not installed", "pip install 'ising-attn[qpu]' for QPUs")
    from samplers.dwave.machine import has_token

    try:
        if has_token():
            return Finding("D-Wave", "ok", "a token is configured (not tried)")
    except IsingAttnError as error:
        return Finding("D-Wave", "missing", str(error))
    return Finding("D-Wave", "missing", "no token is configured", "run `dwave config create`")


def _compiler() -> Finding:
    tools = [tool for tool in ("cc", "gcc", "clang") if shutil.which(tool)]
    simulator = "iverilog" if shutil.which("iverilog") else None
    found = ", ".join([*tools[:1], *([simulator] if simulator else [])]) or "none"
    return Finding("C compiler, Verilog simulator", "ok", f"{found} (only to check exported gate networks)")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
