"""Backward passes that record no graph of their own, and say so where one is asked for."""

import torch

from samplers.errors import NotSupportedError


def refuse_second_derivative(of: str, instead: str = "") -> None:
    """To be called in such a backward pass: without it, `create_graph=True` would give wrong numbers in silence.

    Args:
        of: whose second derivative is not recorded.
        instead: what is differentiable and says as much.

    Raises:
        NotSupportedError: the backward pass runs under `create_graph=True`.
    """
    if torch.is_grad_enabled():
        hint = f"; {instead}" if instead else ""
        raise NotSupportedError(f"create_graph=True asks for second derivatives of {of}, which are not recorded{hint}")
