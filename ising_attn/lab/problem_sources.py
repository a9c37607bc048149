"""Ising problems to compare samplers on: random families, files of (h, J), and those inside a trained model."""

import json
from pathlib import Path

import torch
from torch import nn

from ising_attn.array_files import ArrayFileError, read_arrays
from ising_attn.boltzmann import use_sampler
from ising_attn.lab.errors import ProblemFileError
from samplers import Capabilities, IsingProblem, Sampler

FORMATS = ".npz (arrays h and J, optionally allowed), .coo or .txt (dimod's COO), .json (dimod's serialised model)"


def random_problems(
    num_problems: int,
    num_spins: int,
    *,
    fields: float,
    couplings: float,
    beta: float = 1.0,
    seed: int = 0,
    own_couplings: bool = True,
    width: int | None = None,
    dtype: torch.dtype = torch.float64,
) -> IsingProblem:
    """Gaussian problems: h_j ~ N(0, fields²), J_jk ~ N(0, couplings²), (num_problems, num_spins).

    Args:
        own_couplings: a J for each problem; False shares one, as attention does.
        width: only couplings with |j − k| ≤ width; None couples all pairs.
    """
    generator = torch.Generator().manual_seed(seed)
    h = fields * torch.randn(num_problems, num_spins, generator=generator, dtype=torch.float64)
    lead = (num_problems,) if own_couplings else ()
    a = couplings * torch.randn(*lead, num_spins, num_spins, generator=generator, dtype=torch.float64).tril(-1)
    if width is not None:
        a = a.triu(-width)
    return IsingProblem(h.to(dtype), (a + a.mT).to(dtype), beta=beta)


def load_problems(path: Path, *, beta: float = 1.0) -> IsingProblem:
    """Problems from a file; data only, nothing in it is run.

    .npz holds `h` (*batch, n) and `J` that broadcasts to (*batch, n, n) in our sign (a larger h makes +1 likelier),
    optionally `allowed`. dimod's formats hold one model each and are read in dimod's sign, which is the opposite.

    Raises:
        ProblemFileError: a missing, unreadable or unknown file.
        InvalidProblemError: numbers or shapes that are no Ising problem.
    """
    if not path.is_file():
        raise ProblemFileError(f"there is no file of problems {path}; formats are {FORMATS}")
    readers = {".npz": _read_npz, ".coo": _read_coo, ".txt": _read_coo, ".json": _read_json}
    if path.suffix not in readers:
        raise ProblemFileError(f"{path} ends in {path.suffix or 'nothing'}; formats are {FORMATS}")
    problem = readers[path.suffix](path)
    return problem if beta == 1.0 else IsingProblem(
        problem.fields, problem.couplings, allowed=problem.allowed, beta=beta
    )  # fmt: skip


def recorded_problems(model: nn.Module, tokens: torch.Tensor) -> list[IsingProblem]:
    """The problems that `model(tokens)` hands to its sampler, one per layer and call, detached, in float64."""
    recorder = _Recorder()
    with torch.no_grad(), use_sampler(model, recorder):
        model(tokens)
    return recorder.problems


class _Recorder(Sampler):
    """Notes every problem and answers with the spins' own fields, tanh βh."""

    name = "recorder"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.problems: list[IsingProblem] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=False, gradient="none", can_sample=False, higher_order=True)

    def _magnetization(self, problem: IsingProblem, key: int) -> torch.Tensor:
        self.problems.append(problem.detach().to(dtype=torch.float64, device="cpu"))
        return torch.tanh(problem.beta * problem.fields)


def _read_npz(path: Path) -> IsingProblem:
    try:
        found = read_arrays(path)
    except ArrayFileError as error:
        raise ProblemFileError(f"{path} cannot be read as NPZ: {error}") from None
    if "h" not in found or not set(found) <= {"h", "J", "allowed"}:
        raise ProblemFileError(f"{path} holds {', '.join(sorted(found)) or 'nothing'}; it needs h, and J or allowed")
    h, j, allowed = (None if found.get(k) is None else torch.from_numpy(found[k]) for k in ("h", "J", "allowed"))
    if h is None or h.is_complex():
        raise ProblemFileError(f"{path}: h must be real numbers of shape (*batch, n)")
    return IsingProblem(h.double(), None if j is None else j.double(), allowed=allowed)


def _read_coo(path: Path) -> IsingProblem:
    import dimod
    from dimod.serialization import coo

    try:
        model = coo.loads(path.read_text(encoding="utf-8"), vartype=dimod.SPIN)
    except (ValueError, OverflowError) as error:
        raise ProblemFileError(f"{path} cannot be read as COO text: {_brief(error)}") from None
    return _of_dimod(model, path)


def _read_json(path: Path) -> IsingProblem:
    import dimod

    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        model = dimod.BinaryQuadraticModel.from_serializable(values)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ProblemFileError(f"{path} is no serialised binary quadratic model: {_brief(error)}") from None
    return _of_dimod(model, path)


def _brief(error: Exception) -> str:
    """An error without the content of the file, which some quote whole."""
    reason = error.reason if isinstance(error, UnicodeDecodeError) else str(error)
    return f"{type(error).__name__}, {reason[:200]}"


def _of_dimod(model, path: Path) -> IsingProblem:
    from samplers.dimod_bridge.convert import problem_of_bqm

    if not model.num_variables:
        raise ProblemFileError(f"{path} holds a model without variables")
    one, _, _ = problem_of_bqm(model)
    return IsingProblem(one.fields.unsqueeze(0), one.couplings)
