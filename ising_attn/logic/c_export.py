"""A circuit as C99: word operations on 64 samples at once, for machines without Python."""

import re

import torch

from ising_attn.logic.circuit import ONE, ZERO, Circuit
from ising_attn.logic.gates import GATES
from ising_attn.logic.heads import GroupSum, LinearHead
from ising_attn.logic.identifiers import check_identifier

# Gates per C function: compile time grows faster than the length of a function.
_PART = 250


def to_c(circuit: Circuit, name: str = "circuit") -> str:
    """C source of a circuit, as it is: prune it before.

    It defines, for rows of in_features bytes whose lowest bit counts:

        int NAME_bits(const uint8_t *rows, size_t samples, uint8_t *bits);      the outputs, a byte each
        int NAME_counts(const uint8_t *rows, size_t samples, int32_t *counts);  with a GroupSum: the sums of the groups
        int NAME_logits(const uint8_t *rows, size_t samples, real *logits);     with a head; real is float or double

    Any number of samples is fine; the result is 0, or 1 where memory is short. Integers are those of `BooleanNetwork`;
    logits of a GroupSum are the same floats, those of a LinearHead, summed in double here as there, the same to one
    unit in the last place. NAME_words(s, out) works on packed words: s has SIGNALS + 2 of them, the inputs first.

    Raises:
        InvalidLogicError: a name that is no identifier, or a keyword of C or Verilog.
    """
    check_identifier(name)
    parts = [_part(circuit, start) for start in range(0, circuit.num_gates, _PART)]
    text = "\n".join([_head_of_file(circuit, name), *parts, _words(circuit, len(parts)), _BATCH, _bits_function()])
    if isinstance(circuit.head, GroupSum):
        text += _counts(circuit.head)
    elif isinstance(circuit.head, LinearHead):
        text += _linear(circuit.head)
    return text.replace("NAME", name)


def gate_expression(number: int, a: str, b: str, true: str, false: str) -> str:
    """A gate of two operands, in the operators that C and Verilog share."""
    text = {"0": false, "~0": true}.get(GATES[number].expression, GATES[number].expression)
    return re.sub(r"\b[ab]\b", lambda found: a if found[0] == "a" else b, text)


def _head_of_file(circuit: Circuit, name: str) -> str:
    head = circuit.head
    dtype = head.tau.dtype if isinstance(head, GroupSum) else head.weight.dtype if head is not None else torch.float32
    return f"""/* {name}: {circuit.in_features} inputs, {circuit.num_gates} gates, {len(circuit.outputs)} outputs. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t word;
typedef {"double" if dtype == torch.float64 else "float"} real;
enum {{
    INPUTS = {circuit.in_features},
    SIGNALS = {circuit.in_features + circuit.num_gates},
    OUTPUTS = {len(circuit.outputs)}
}};
"""


def _part(circuit: Circuit, start: int) -> str:
    lines = []
    for gate in range(start, min(start + _PART, circuit.num_gates)):
        a, b = (f"s[{int(k[gate])}]" for k in (circuit.first, circuit.second))
        expression = gate_expression(int(circuit.numbers[gate]), a, b, "~(word)0", "(word)0")
        lines.append(f"    s[{circuit.in_features + gate}] = {expression};")
    # Not static: a compiler would inline all parts into one function, and take minutes.
    name = f"void NAME_part_{start // _PART}(word *s)"
    return f"{name};\n{name} {{\n" + "\n".join(lines) + "\n}\n"


def _words(circuit: Circuit, parts: int) -> str:
    # The constants stand behind the signals.
    places = {ZERO: circuit.in_features + circuit.num_gates, ONE: circuit.in_features + circuit.num_gates + 1}
    outputs = ", ".join(str(places.get(signal, signal)) for signal in circuit.outputs.tolist())
    calls = "".join(f"    NAME_part_{k}(s);\n" for k in range(parts))
    return f"""static const uint32_t NAME_outputs[OUTPUTS] = {{{outputs}}};

void NAME_words(word *s, word *out) {{
    s[SIGNALS] = 0;
    s[SIGNALS + 1] = ~(word)0;
{calls}    for (size_t k = 0; k < OUTPUTS; k++)
        out[k] = s[NAME_outputs[k]];
}}
"""


# `take` gets the outputs of up to 64 samples; rows beyond the last sample are never read.
_BATCH = """typedef void (*NAME_taker)(const word *out, size_t first, size_t count, void *target);

static int NAME_batches(const uint8_t *rows, size_t samples, NAME_taker take, void *target) {
    word *s = malloc((SIGNALS + 2 + OUTPUTS) * sizeof(word));
    if (s == NULL)
        return 1;
    for (size_t first = 0; first < samples; first += 64) {
        size_t count = samples - first < 64 ? samples - first : 64;
        memset(s, 0, INPUTS * sizeof(word));
        for (size_t k = 0; k < count; k++) {
            const uint8_t *row = rows + (first + k) * INPUTS;
            for (size_t f = 0; f < INPUTS; f++)
                s[f] |= (word)(row[f] & 1) << k;
        }
        NAME_words(s, s + SIGNALS + 2);
        take(s + SIGNALS + 2, first, count, target);
    }
    free(s);
    return 0;
}
"""


def _bits_function() -> str:
    return """static void NAME_take_bits(const word *out, size_t first, size_t count, void *target) {
    uint8_t *bits = (uint8_t *)target + first * OUTPUTS;
    for (size_t k = 0; k < count; k++)
        for (size_t o = 0; o < OUTPUTS; o++)
            bits[k * OUTPUTS + o] = (uint8_t)(out[o] >> k & 1);
}

int NAME_bits(const uint8_t *rows, size_t samples, uint8_t *bits) {
    return NAME_batches(rows, samples, NAME_take_bits, bits);
}
"""


def _counts(head: GroupSum) -> str:
    size, suffix = head.in_features // head.classes, "" if head.tau.dtype == torch.float64 else "f"
    half = float(size / 2 if head.centred else 0).hex() + suffix
    return f"""
enum {{ CLASSES = {head.classes}, GROUP = {size} }};

static void NAME_count(const word *out, size_t c, int32_t *sums) {{
    memset(sums, 0, 64 * sizeof(int32_t));
    for (size_t o = c * GROUP; o < (c + 1) * GROUP; o++)
        for (size_t k = 0; k < 64; k++)
            sums[k] += (int32_t)(out[o] >> k & 1);
}}

static void NAME_take_counts(const word *out, size_t first, size_t count, void *target) {{
    int32_t sums[64], *counts = (int32_t *)target + first * CLASSES;
    for (size_t c = 0; c < CLASSES; c++) {{
        NAME_count(out, c, sums);
        for (size_t k = 0; k < count; k++)
            counts[k * CLASSES + c] = sums[k];
    }}
}}

static void NAME_take_logits(const word *out, size_t first, size_t count, void *target) {{
    int32_t sums[64];
    real *logits = (real *)target + first * CLASSES;
    for (size_t c = 0; c < CLASSES; c++) {{
        NAME_count(out, c, sums);
        for (size_t k = 0; k < count; k++)
            logits[k * CLASSES + c] = ((real)sums[k] - {half}) / {float(head.tau).hex()}{suffix};
    }}
}}

int NAME_counts(const uint8_t *rows, size_t samples, int32_t *counts) {{
    return NAME_batches(rows, samples, NAME_take_counts, counts);
}}

int NAME_logits(const uint8_t *rows, size_t samples, real *logits) {{
    return NAME_batches(rows, samples, NAME_take_logits, logits);
}}
"""


def _linear(head: LinearHead) -> str:
    weights = ",\n".join("    {" + ", ".join(float(w).hex() for w in row) + "}" for row in head.weight.T.tolist())
    bias = [0.0] * head.out_features if head.bias is None else head.bias.tolist()
    return f"""
enum {{ CLASSES = {head.out_features} }};

static const double NAME_weights[OUTPUTS][CLASSES] = {{
{weights}
}};
static const double NAME_bias[CLASSES] = {{{", ".join(float(b).hex() for b in bias)}}};

static void NAME_take_logits(const word *out, size_t first, size_t count, void *target) {{
    real *logits = (real *)target + first * CLASSES;
    for (size_t k = 0; k < count; k++) {{
        double sums[CLASSES];
        memset(sums, 0, sizeof sums);
        for (size_t o = 0; o < OUTPUTS; o++)
            if (out[o] >> k & 1)
                for (size_t c = 0; c < CLASSES; c++)
                    sums[c] += NAME_weights[o][c];
        for (size_t c = 0; c < CLASSES; c++)
            logits[k * CLASSES + c] = (real)(sums[c] + NAME_bias[c]);
    }}
}}

int NAME_logits(const uint8_t *rows, size_t samples, real *logits) {{
    return NAME_batches(rows, samples, NAME_take_logits, logits);
}}
"""
