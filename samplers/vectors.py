"""Vectors of float32, float64 and uint32 inside compiled kernels, for loops that a compiler leaves scalar.

A vector has `VECTOR` elements: 16 with AVX-512, else 8. What is wider than the machine's registers, as vectors of
float64 are, the compiler splits. Arithmetic on words stays in 32 bits, where numba would widen scalars to 64. Every
element is computed by the same instructions, so what it holds does not depend on its neighbours.
"""

import inspect
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import PrimitiveModel, register_default
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

from samplers.kernels import kernel

VECTOR = 16 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 8

_I32 = ir.IntType(32)
_FLOATS = ir.VectorType(ir.FloatType(), VECTOR)
_DOUBLES = ir.VectorType(ir.DoubleType(), VECTOR)
_WORDS = ir.VectorType(_I32, VECTOR)


class _Vector(types.Type):
    """The type of a vector inside numba: `VECTOR` float32, float64 or uint32."""

    def __init__(self, element: types.Type):
        super().__init__(f"vector({element}, {VECTOR})")
        self.element = element


_floats, _doubles, _words = _Vector(types.float32), _Vector(types.float64), _Vector(types.uint32)


@register_default(_Vector)
class _VectorModel(PrimitiveModel):
    def __init__(self, manager: Any, vector: _Vector):
        super().__init__(manager, vector, _llvm(vector))


def _llvm(vector: _Vector) -> ir.VectorType:
    return {types.float32: _FLOATS, types.float64: _DOUBLES}.get(vector.element, _WORDS)


def _vector_of(element: types.Type) -> _Vector:
    return {types.float32: _floats, types.float64: _doubles}.get(element, _words)


def _operation(function: Callable) -> Any:
    # Type checkers wrap functions at import; numba needs the function itself.
    return intrinsic(inspect.unwrap(function))


def _elementwise(emit: Callable, result: _Vector | None = None) -> Callable:
    """An operation on one or two vectors; the result is like the first unless said otherwise."""

    def unary(typing_context, x):
        kind = result or x
        return kind(x), lambda context, builder, signature, args: emit(builder, *args)

    def binary(typing_context, x, y):
        kind = result or x
        return kind(x, y), lambda context, builder, signature, args: emit(builder, *args)

    return _operation(unary if len(inspect.signature(emit).parameters) == 2 else binary)


def _address(context: Any, builder: Any, signature: Any, args: Any, kind: ir.VectorType) -> Any:
    array = make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())


@_operation
def load(typing_context, array, index):
    """The vector at array[index : index + VECTOR] of a flat array; bounds are not checked."""
    vector = _vector_of(array.dtype)

    def emit(context, builder, signature, args):
        return builder.load(_address(context, builder, signature, args, _llvm(vector)), align=4)

    return vector(array, types.intp), emit


@_operation
def store(typing_context, array, index, vector):
    """Write a vector to array[index : index + VECTOR]; bounds are not checked."""

    def emit(context, builder, signature, args):
        builder.store(args[2], _address(context, builder, signature, args, _llvm(vector)), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), emit


@_operation
def splat(typing_context, scalar):
    """A vector whose elements are all one float32, float64 or uint32."""
    vector = _vector_of(scalar)

    def emit(context, builder, signature, args):
        kind = _llvm(vector)
        empty = ir.Constant(kind, ir.Undefined)
        first = builder.insert_element(empty, args[0], ir.Constant(_I32, 0))
        return builder.shuffle_vector(first, empty, ir.Constant(_WORDS, [0] * VECTOR))

    return vector(scalar), emit


@_operation
def multiply_add(typing_context, x, y, z):
    """x · y + z, in one rounding where the machine can."""

    def emit(context, builder, signature, args):
        vector, bits = _llvm(x), 64 if x == _doubles else 32
        kind = ir.FunctionType(vector, [vector] * 3)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{VECTOR}f{bits}")
        return builder.call(function, args)

    return x(x, y, z), emit


@_operation
def where_less(typing_context, x, y, yes, no):
    """`yes` where x < y, else `no`."""

    def emit(context, builder, signature, args):
        return builder.select(builder.fcmp_ordered("<", args[0], args[1]), args[2], args[3])

    return _floats(x, y, yes, no), emit


add = _elementwise(lambda b, x, y: b.fadd(x, y))
subtract = _elementwise(lambda b, x, y: b.fsub(x, y))
multiply = _elementwise(lambda b, x, y: b.fmul(x, y))
divide = _elementwise(lambda b, x, y: b.fdiv(x, y))
smaller = _elementwise(lambda b, x, y: b.select(b.fcmp_ordered("<", x, y), x, y))
larger = _elementwise(lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y))

add_words = _elementwise(lambda b, x, y: b.add(x, y))
xor = _elementwise(lambda b, x, y: b.xor(x, y))
either = _elementwise(lambda b, x, y: b.or_(x, y))
shift_left = _elementwise(lambda b, x, y: b.shl(x, y))
shift_right = _elementwise(lambda b, x, y: b.lshr(x, y))

truncated = _elementwise(lambda b, x: b.fptosi(x, _WORDS), _words)
to_floats = _elementwise(lambda b, x: b.sitofp(x, _FLOATS), _floats)
bits_as_floats = _elementwise(lambda b, x: b.bitcast(x, _FLOATS), _floats)


@kernel
def aligned(size, dtype):
    """A flat array of zeros that starts on a cache line, so that no vector straddles two."""
    whole = np.zeros(size + 16, dtype)
    start = (-whole.ctypes.data % 64) // whole.itemsize
    return whole[start : start + size]
