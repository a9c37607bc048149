"""Differentiable logic gate networks: gates that are learned softly and become a Boolean circuit.

    from ising_attn import logic
    network = logic.LogicNetwork(64, [256, 256, 160], head=logic.GroupSum(160, 10), mode="gumbel-hard")
    logits = network(bits)                 # (…, 64) → (…, 10), differentiable
    circuit = network.harden()             # Boolean: index and bit operations alone
    circuit.packed()(bits)                 # the same, 64 samples a word

Petersen et al. (arXiv 2210.08277), with the repairs that came later: truth-table parametrisation (arXiv 2510.03250),
residual initialisation (arXiv 2411.04732), Gumbel noise with a straight-through gradient (arXiv 2506.07500).
"""

from ising_attn.logic.c_export import to_c
from ising_attn.logic.circuit import Circuit, GateReport
from ising_attn.logic.circuit_files import load_circuit, save_circuit
from ising_attn.logic.encoding import BitEncoder
from ising_attn.logic.errors import CircuitFileError, InvalidLogicError, WiringError
from ising_attn.logic.feed_forward import LogicFeedForward
from ising_attn.logic.gates import GATES, Gate
from ising_attn.logic.heads import HEADS, GroupSum, LinearHead
from ising_attn.logic.layer import BooleanLayer, LogicLayer
from ising_attn.logic.modes import MODES, Relaxed, forward_mode, relaxed_modules, set_mode, set_temperature
from ising_attn.logic.network import BooleanNetwork, LogicNetwork
from ising_attn.logic.packed import PackedBits, PackedNetwork
from ising_attn.logic.parametrisation import PARAMETRISATIONS
from ising_attn.logic.verilog_export import to_verilog
from ising_attn.logic.wiring import WIRINGS

__all__ = [
    "GATES",
    "HEADS",
    "MODES",
    "PARAMETRISATIONS",
    "WIRINGS",
    "BitEncoder",
    "BooleanLayer",
    "BooleanNetwork",
    "Circuit",
    "CircuitFileError",
    "Gate",
    "GateReport",
    "GroupSum",
    "InvalidLogicError",
    "LinearHead",
    "LogicFeedForward",
    "LogicLayer",
    "LogicNetwork",
    "PackedBits",
    "PackedNetwork",
    "Relaxed",
    "WiringError",
    "forward_mode",
    "load_circuit",
    "relaxed_modules",
    "save_circuit",
    "set_mode",
    "set_temperature",
    "to_c",
    "to_verilog",
]
