"""The 16 gates of two bits: number, name, truth table, relaxation and algebraic normal form, in one table.

A gate's number, written as four binary digits, is its truth table for (a, b) = 00, 01, 10, 11 from left to right, so
that AND is 1 = 0001 and "a" is 3 = 0011: the order of difflogic (Petersen et al., arXiv 2210.08277).
"""

import dataclasses

import torch
from jaxtyping import Float, Int, Num, UInt8
from torch import Tensor

from ising_attn.logic.errors import InvalidLogicError


@dataclasses.dataclass(frozen=True)
class Gate:
    """One gate of two bits.

    Args:
        number: 0 … 15; its binary digits are the truth table.
        name: as in export reports, with "~" for NOT.
        expression: in C and Verilog, of words or wires a and b.
    """

    number: int
    name: str
    expression: str

    @property
    def truth_table(self) -> tuple[int, int, int, int]:
        """Outputs for (a, b) = 00, 01, 10, 11."""
        first, second, third, fourth = (self.number >> shift & 1 for shift in (3, 2, 1, 0))
        return first, second, third, fourth

    @property
    def relaxation(self) -> tuple[int, int, int, int]:
        """(c, c_a, c_b, c_ab) of the multilinear form c + c_a·a + c_b·b + c_ab·ab: the only polynomial of degree 1 in
        each input that is the gate on bits. For independent bits it is the probability of a 1."""
        w00, w01, w10, w11 = self.truth_table
        return w00, w10 - w00, w01 - w00, w11 - w10 - w01 + w00

    @property
    def normal_form(self) -> tuple[int, int, int, int]:
        """(c, c_a, c_b, c_ab) of the algebraic normal form c ⊕ c_a·a ⊕ c_b·b ⊕ c_ab·ab: the relaxation modulo 2."""
        c, a, b, ab = (value & 1 for value in self.relaxation)
        return c, a, b, ab

    @property
    def uses(self) -> tuple[bool, bool]:
        """Whether the gate depends on a, and on b."""
        _, a, b, ab = self.normal_form
        return bool(a or ab), bool(b or ab)


_NAMES = (
    ("0", "0"),
    ("a & b", "a & b"),
    ("a & ~b", "a & ~b"),
    ("a", "a"),
    ("~a & b", "~a & b"),
    ("b", "b"),
    ("a ^ b", "a ^ b"),
    ("a | b", "a | b"),
    ("~(a | b)", "~(a | b)"),
    ("~(a ^ b)", "~(a ^ b)"),
    ("~b", "~b"),
    ("a | ~b", "a | ~b"),
    ("~a", "~a"),
    ("~a | b", "~a | b"),
    ("~(a & b)", "~(a & b)"),
    ("1", "~0"),
)
GATES: tuple[Gate, ...] = tuple(Gate(number, name, text) for number, (name, text) in enumerate(_NAMES))

FALSE, AND, A, B, XOR, OR, XNOR, NOT_B, NOT_A, TRUE = 0, 1, 3, 5, 6, 7, 9, 10, 12, 15


def truth_tables(*, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> Float[Tensor, "16 4"]:
    """The truth tables of all gates, a row per gate, columns (a, b) = 00, 01, 10, 11."""
    return torch.tensor([gate.truth_table for gate in GATES], dtype=dtype, device=device)


def coefficients(tables: Num[Tensor, "*gates 4"]) -> Num[Tensor, "*gates 4"]:
    """(c, c_a, c_b, c_ab) of the multilinear form of truth tables, whose entries may be probabilities."""
    w00, w01, w10, w11 = tables.unbind(-1)
    return torch.stack([w00, w10 - w00, w01 - w00, (w11 - w10) - (w01 - w00)], -1)


def numbers_of(tables: Num[Tensor, "*gates 4"]) -> UInt8[Tensor, "*gates"]:
    """The gates of truth tables: each entry is a 1 where it is above ½."""
    bits = (tables > 0.5).to(torch.uint8)
    return (bits[..., 0] << 3) | (bits[..., 1] << 2) | (bits[..., 2] << 1) | bits[..., 3]


def tables_of(numbers: Int[Tensor, "*gates"] | UInt8[Tensor, "*gates"]) -> UInt8[Tensor, "*gates 4"]:
    """The truth tables of gate numbers.

    Raises:
        InvalidLogicError: a number outside 0 … 15.
    """
    if numbers.numel() and not (int(numbers.min()) >= 0 and int(numbers.max()) <= 15):
        raise InvalidLogicError(f"gates are numbered 0 to 15; {int(numbers.min())} … {int(numbers.max())} was given")
    shifts = torch.tensor([3, 2, 1, 0], device=numbers.device)
    return (numbers.long()[..., None] >> shifts & 1).to(torch.uint8)


def normal_forms(numbers: UInt8[Tensor, "*gates"]) -> UInt8[Tensor, "*gates 4"]:
    """(c, c_a, c_b, c_ab) of the algebraic normal forms of gate numbers."""
    return (coefficients(tables_of(numbers).to(torch.int64)) & 1).to(torch.uint8)
