"""Which two inputs each gate reads: drawn once (random, unique) or learned among candidates.

All of it is in the state dict, sizes included: weights without their wiring mean nothing. Draws are made on the CPU,
so that a seed means one wiring on every device.
"""

import abc
import math
import warnings

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ising_attn.logic.errors import InvalidLogicError, WiringError
from ising_attn.logic.modes import gumbel_like
from samplers.errors import did_you_mean

WIRINGS = ("random", "unique", "learnable")


class Wiring(nn.Module, abc.ABC):
    """Inputs a and b of every gate.

    Args:
        in_features: inputs to choose from, at least 2: no gate reads one input twice.
        gates: how many gates.
    """

    size: Int[Tensor, "2"]

    def __init__(self, in_features: int, gates: int):
        super().__init__()
        for name, value, least in (("in_features", in_features, 2), ("out_features", gates, 1)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise WiringError(f"{name}={value!r}; a logic layer needs an integer of at least {least}")
        self.in_features, self.gates = in_features, gates
        self.register_buffer("size", torch.tensor([in_features, gates]))

    @abc.abstractmethod
    def pairs(self) -> Int[Tensor, "2 gates"]:
        """The inputs a and b of every gate after hardening."""

    def _load_from_state_dict(self, state_dict, prefix, *rest) -> None:
        size = state_dict.get(prefix + "size")
        if size is not None and tuple(size.tolist()) != (self.in_features, self.gates):
            theirs = " to ".join(map(str, size.tolist()))
            raise WiringError(
                f"{prefix}size: the state dict wires {theirs} features, this layer {self.in_features} to {self.gates}; "
                "build the layer with the sizes it was saved with"
            )
        self._check_loaded(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @abc.abstractmethod
    def _check_loaded(self, state_dict, prefix: str) -> None:
        """Refuse entries that do not fit; the sizes do."""


class FixedWiring(Wiring):
    """Pairs drawn at random or given, never changed.

    Args:
        in_features, gates: sizes.
        unique: no two gates read the same two inputs.
        index: (2, gates), the pairs themselves; None: drawn, every input as often as possible.
        generator: of the draw; None is torch's own.

    Raises:
        WiringError: too few inputs for that many pairs, or an index that does not fit.
    """

    index: Int[Tensor, "2 gates"]

    def __init__(
        self,
        in_features: int,
        gates: int,
        *,
        unique: bool = False,
        index: Int[Tensor, "2 gates"] | None = None,
        generator: torch.Generator | None = None,
    ):
        super().__init__(in_features, gates)
        if index is None:
            index = (
                unique_pairs(in_features, gates, generator) if unique else random_pairs(in_features, gates, generator)
            )
            _warn_of_unread(in_features, gates, 2 * gates)
        self.register_buffer("index", check_index(index, in_features, gates).to(torch.get_default_device()))

    def pairs(self) -> Int[Tensor, "2 gates"]:
        return self.index

    def _check_loaded(self, state_dict, prefix: str) -> None:
        index = state_dict.get(prefix + "index")
        if index is None and prefix + "candidates" in state_dict:
            raise WiringError(
                f"{prefix}candidates: the state dict holds a learnable wiring, this layer has a fixed one; build the "
                "layer with wiring='learnable'"
            )
        if index is not None:
            check_index(index, self.in_features, self.gates, name=prefix + "index")


class LearnableWiring(Wiring):
    """Each input of each gate is one of k candidates, the one of the largest logit; the gradient is that of
    softmax(logits/T) over the candidates (straight-through).

    The candidates of a and b are disjoint, so that no gate reads one input twice. Cost: k gathers of (samples, gates)
    in the backward pass, of one each in the forward pass.

    Args:
        in_features, gates: sizes.
        candidates: k; at most in_features / 2. None: 8, or fewer where there are fewer inputs.
        generator: of the candidates and of the initial logits.

    Raises:
        WiringError: more candidates than inputs.
    """

    candidates: Int[Tensor, "2 gates k"]

    def __init__(
        self, in_features: int, gates: int, *, candidates: int | None = None, generator: torch.Generator | None = None
    ):
        super().__init__(in_features, gates)
        most = in_features // 2
        count = min(8, most) if candidates is None else candidates
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= most:
            raise WiringError(
                f"candidates={candidates!r} for each of two inputs that must differ; {in_features} features allow "
                f"1 to {most}"
            )
        _warn_of_unread(in_features, gates, 2 * gates * count)
        drawn = _candidates(in_features, gates, count, generator)
        start = 0.1 * torch.randn(2, gates, count, generator=generator, device="cpu")
        self.register_buffer("candidates", drawn.to(torch.get_default_device()))
        self.logits = nn.Parameter(start.to(torch.get_default_device()))

    def pairs(self) -> Int[Tensor, "2 gates"]:
        return self._picked(self.logits.argmax(-1))

    def choose(
        self, temperature: Float[Tensor, ""] | float, *, noise: bool
    ) -> tuple[Int[Tensor, "2 gates"], Float[Tensor, "2 gates k"]]:
        """The inputs used by this forward pass, and the probabilities that take the gradient."""
        logits = self.logits + gumbel_like(self.logits) if noise else self.logits
        return self._picked(logits.argmax(-1)), torch.softmax(logits / temperature, -1)

    def _picked(self, choice: Int[Tensor, "2 gates"]) -> Int[Tensor, "2 gates"]:
        return self.candidates.gather(-1, choice[..., None]).squeeze(-1)

    def _check_loaded(self, state_dict, prefix: str) -> None:
        given = state_dict.get(prefix + "candidates")
        if given is None and prefix + "index" in state_dict:
            raise WiringError(
                f"{prefix}index: the state dict holds a fixed wiring, this layer has a learnable one; build the layer "
                "with wiring='random'"
            )
        if given is None:
            return
        if given.shape != self.candidates.shape:
            raise WiringError(
                f"{prefix}candidates: the state dict has {given.shape[-1]} for each input, this layer "
                f"{self.candidates.shape[-1]}; build the layer with candidates={given.shape[-1]}"
            )
        for picks in given.flatten(2).unbind(-1):
            check_index(picks, self.in_features, self.gates, name=prefix + "candidates")


def make_wiring(
    kind: str,
    in_features: int,
    gates: int,
    *,
    candidates: int | None = None,
    generator: torch.Generator | None = None,
) -> Wiring:
    """A wiring by name: "random", "unique" or "learnable".

    Raises:
        WiringError: wiring that cannot exist.
        InvalidLogicError: an unknown name, or candidates where nothing is learned.
    """
    if kind not in WIRINGS:
        raise InvalidLogicError(
            f"wiring={kind!r}; it must be one of {', '.join(map(repr, WIRINGS))}{did_you_mean(str(kind), WIRINGS)}"
        )
    if kind == "learnable":
        return LearnableWiring(in_features, gates, candidates=candidates, generator=generator)
    if candidates is not None:
        raise InvalidLogicError(f"wiring={kind!r} has no candidates; only 'learnable' has")
    return FixedWiring(in_features, gates, unique=kind == "unique", generator=generator)


def random_pairs(in_features: int, gates: int, generator: torch.Generator | None = None) -> Int[Tensor, "2 gates"]:
    """Random pairs of different inputs, which are used equally often as first ones, and nearly so as second ones.

    Where 2·gates ≥ in_features, every input is read.
    """
    first, second = _evenly(in_features, 2 * gates, generator).view(2, gates)
    other = (first + torch.randint(1, in_features, (gates,), generator=generator, device="cpu")) % in_features
    return torch.stack([first, torch.where(first == second, other, second)])


def unique_pairs(in_features: int, gates: int, generator: torch.Generator | None = None) -> Int[Tensor, "2 gates"]:
    """Random pairs of different inputs, no two the same in either order.

    Raises:
        WiringError: there are fewer pairs than gates.
    """
    most = math.comb(in_features, 2)
    if gates > most:
        raise WiringError(
            f"{in_features} inputs have {most} pairs, {gates} unique ones were asked for; use fewer gates, more inputs "
            "or wiring='random'"
        )
    pairs = random_pairs(in_features, gates, generator)
    while True:
        code = pairs.amin(0) * in_features + pairs.amax(0)
        repeated = _repeated(code)
        missing = int(repeated.sum())
        if missing == 0:
            return pairs
        pairs[:, repeated] = _fresh_pairs(in_features, code[~repeated], missing, generator)


def _repeated(code: Tensor) -> Tensor:
    """Where a value has stood before."""
    order = code.argsort(stable=True)
    found = torch.zeros_like(code, dtype=torch.bool)
    found[order[1:]] = code[order][1:] == code[order][:-1]
    return found


def _fresh_pairs(in_features: int, used: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """`count` pairs in random orientation: other ones than `used` where most pairs are, else any."""
    if math.comb(in_features, 2) > 4 * (len(used) + count):
        return random_pairs(in_features, count, generator)
    every = torch.combinations(torch.arange(in_features, device="cpu"))
    free = every[~torch.isin(every[:, 0] * in_features + every[:, 1], used)]
    chosen = free[torch.randperm(len(free), generator=generator, device="cpu")[:count]]
    flipped = torch.rand(count, generator=generator, device="cpu") < 0.5
    return torch.where(flipped[:, None], chosen.flip(-1), chosen).T


def _evenly(in_features: int, count: int, generator: torch.Generator | None) -> Tensor:
    rounds = [torch.randperm(in_features, generator=generator, device="cpu") for _ in range(-(-count // in_features))]
    return torch.cat(rounds)[:count]


def _candidates(in_features: int, gates: int, count: int, generator: torch.Generator | None) -> Tensor:
    """(2, gates, count): 2·count different inputs per gate."""
    score = torch.rand(gates, in_features, generator=generator, device="cpu")
    chosen = score.topk(2 * count, dim=-1).indices
    return chosen.view(gates, 2, count).transpose(0, 1).contiguous()


def check_index(index: Tensor, in_features: int, gates: int, *, name: str = "index") -> Tensor:
    """Refuse pairs of another size, outside the inputs, or of one input with itself."""
    if index.dtype != torch.int64 or tuple(index.shape) != (2, gates):
        raise WiringError(f"{name} is {index.dtype} {tuple(index.shape)}; {gates} gates need int64 (2, {gates})")
    if not (int(index.min()) >= 0 and int(index.max()) < in_features):
        raise WiringError(
            f"{name} reads the inputs {int(index.min())} … {int(index.max())}; there are 0 … {in_features - 1}"
        )
    if bool((index[0] == index[1]).any()):
        gate = int((index[0] == index[1]).nonzero()[0])
        raise WiringError(f"{name}: gate {gate} reads input {int(index[0, gate])} twice; its two inputs must differ")
    return index


def _warn_of_unread(in_features: int, gates: int, reads: int) -> None:
    if reads < in_features:
        warnings.warn(
            f"{gates} gates read at most {reads} of {in_features} features; the others have no effect",
            UserWarning,
            stacklevel=4,
        )
