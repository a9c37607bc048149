"""What positions hold and what they are asked for: inputs as multisets of atoms, labels as sets of tokens."""

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from ising_attn.masks.errors import InvalidTaskError

IGNORED = -100
"""The label that torch's cross-entropy leaves out."""
Atoms = tuple[Hashable, ...]
"""A multiset in sorted order. Integers are numbers of tokens; text and tuples such as ("mask", 3) hold no token."""


def checked_inputs(inputs: Sequence[Any] | Tensor, size: int) -> tuple[Atoms, ...]:
    """One multiset of atoms per position. 3 is the token 3, "mask" a symbol, [2, 4] the two tokens, () nothing."""
    atoms = _plain(inputs)
    _check_length("inputs", atoms, size)
    return tuple(_atoms(position, given) for position, given in enumerate(atoms))


def checked_labels(labels: Sequence[Any] | Tensor, size: int) -> tuple[tuple[int, ...], ...]:
    """One set of tokens per position, sorted; None, () and −100, which torch's losses ignore, ask for nothing."""
    tokens = _plain(labels)
    _check_length("labels", tokens, size)
    return tuple(_tokens(position, given) for position, given in enumerate(tokens))


def _plain(given: Sequence[Any] | Tensor) -> Sequence[Any]:
    """A tensor as a list."""
    return given.tolist() if isinstance(given, Tensor) else given


def _check_length(name: str, given: Sequence[Any], size: int) -> None:
    if len(given) != size:
        raise InvalidTaskError(f"{len(given)} {name} were given for a mask of {size} positions; it needs one for each")


def _atoms(position: int, given: Any) -> Atoms:
    # A tuple that begins with text is one symbol, ("mask", 3); any other tuple, list or set is several atoms.
    single = isinstance(given, int | str) or (isinstance(given, tuple) and given[:1] and isinstance(given[0], str))
    if not single and not isinstance(given, tuple | list | set | frozenset):
        raise InvalidTaskError(
            f"the input of position {position} is {given!r}; it must be a token's number, a symbol (text, or a tuple "
            "that begins with text), or a tuple of these"
        )
    atoms = (given,) if single else tuple(given)
    for atom in atoms:
        if isinstance(atom, bool) or not isinstance(atom, int | str | tuple) or (isinstance(atom, int) and atom < 0):
            raise InvalidTaskError(f"the input of position {position} holds {atom!r}; tokens are numbered from 0")
    return tuple(
        sorted(atoms, key=lambda atom: (type(atom).__name__, atom if isinstance(atom, int) else 0, repr(atom)))
    )


def _tokens(position: int, given: Any) -> tuple[int, ...]:
    several = isinstance(given, tuple | list | set | frozenset)
    if given is None or (not several and given == IGNORED):
        return ()
    tokens = tuple(given) if several else (given,)
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise InvalidTaskError(
                f"the label of position {position} is {given!r}; it must be a token's number from 0, a tuple of such, "
                "or None"
            )
    return tuple(sorted(set(tokens)))
