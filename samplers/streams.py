"""Random streams: one seed, and an independent stream for every (problem, read).

A stream is a counter-based generator: number c of read r of problem p is a hash of
(key, p, r, c), so how a batch is split or ordered in memory changes nothing, small seeds are
as good as large ones, and no global generator is read or moved. The hash is the SplitMix64
finaliser (Steele, Lea, Flood 2014), applied once per word.
"""

import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ALL = 2**64 - 1


def mix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The SplitMix64 finaliser, a bijection of 64-bit words in which every input bit matters."""
    x = np.asarray(x)  # numpy turns arrays without axes into scalars, whose overflow warns
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def _absorb(state: NDArray[np.uint64], word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        return mix64(np.asarray(state ^ mix64(np.asarray(word + _GOLDEN))))


def derive_key(seed: int, *words: int) -> int:
    """A 64-bit key from a seed (any integer) and further integers, e.g. a call number."""
    state = 0
    for word in (seed, *words):
        while True:
            state = _mix_int(state ^ _mix_int((word + int(_GOLDEN)) & _ALL))
            word >>= 64
            if word in (0, -1):
                break
    return state


def _mix_int(x: int) -> int:
    """`mix64` of one word in plain integers: ten times faster than an array of one."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _ALL
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _ALL
    return x ^ (x >> 31)


def stream_keys(key: int, streams: Int[Tensor, "*batch"]) -> NDArray[np.uint64]:
    """One 64-bit key per problem stream."""
    return _absorb(
        np.full(tuple(streams.shape), key, dtype=np.uint64),
        streams.detach().cpu().numpy().astype(np.uint64),
    )


def words(key: int, streams: Int[Tensor, "*batch"], num_reads: int, counter: int = 0) -> NDArray[np.uint64]:
    """Random 64-bit words, shape (*batch, num_reads), e.g. to start generators from; `counter` picks a fresh set."""
    reads = np.arange(num_reads, dtype=np.uint64)
    state = _absorb(stream_keys(key, streams)[..., None], reads)
    return _absorb(state, np.array([counter], dtype=np.uint64))


def uniforms(key: int, streams: Int[Tensor, "*batch"], num_reads: int, counter: int = 0) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1), shape (*batch, num_reads); never 0 or 1. `counter` picks a fresh set."""
    return ((words(key, streams, num_reads, counter) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def uniforms_like(
    reference: Tensor, key: int, streams: Int[Tensor, "*batch"], num_reads: int, counter: int = 0
) -> Tensor:
    """`uniforms` as a float64 tensor on the device of `reference`."""
    return torch.from_numpy(uniforms(key, streams, num_reads, counter)).to(reference.device)
