"""The checks that the other tests run under are on, can be turned off, and reach what they should."""

import importlib

import pytest
import torch
from jaxtyping import Float, TypeCheckError, jaxtyped
from torch import Tensor

from samplers.states import spins_of_index
from samplers.streams import derive_key, uniforms_like

# By name: type checkers do not look for modules beside the tests.
check = importlib.import_module("shape_checker").check


@jaxtyped(typechecker=check)
def product(a: Float[Tensor, "n k"], b: Float[Tensor, "k m"], scale: float = 1.0) -> Float[Tensor, "n m"]:
    return scale * (a @ b.new_ones(b.shape[0], 1 if scale < 0 else b.shape[1]))


def test_shapes_dtypes_and_results_are_checked():
    assert product(torch.ones(2, 3), torch.ones(3, 4), 2).shape == (2, 4)
    for b in (torch.ones(2, 4), torch.ones(3, 4, dtype=torch.int64)):
        with pytest.raises(TypeCheckError, match="checking the parameters"):
            product(torch.ones(2, 3), b)
    with pytest.raises(TypeCheckError, match="checking the return value"):
        product(torch.ones(2, 3), torch.ones(3, 4), -1.0)


def test_the_packages_are_checked():
    with pytest.raises(TypeCheckError, match="spins_of_index"):
        spins_of_index("three", 2)  # type: ignore[arg-type]
    with pytest.raises(TypeCheckError, match="uniforms_like"):
        uniforms_like(torch.ones(2, 3), derive_key(0), torch.zeros(2), "many")  # type: ignore[arg-type]


def test_the_check_can_be_turned_off(unchecked):
    with pytest.raises(TypeError, match="string") as caught:
        spins_of_index("three", 2)  # type: ignore[arg-type]
    assert not isinstance(caught.value, TypeCheckError)


def outer(a: int) -> int:
    return a


def test_functions_within_functions_are_left_alone():
    def inner(a: int) -> int:
        return a

    assert check(inner) is inner and check(outer) is not outer
