"""From bits to logits: sums of groups, or a linear map."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from ising_attn.logic.checks import check_features
from ising_attn.logic.errors import InvalidLogicError


class GroupSum(nn.Module):
    """logit_c = (sum of the c-th group of consecutive features) / tau: (…, in_features) → (…, classes).

    Centred sums have half the group's size taken off, which a softmax does not see. On bits the sums are integers,
    exact in float32 up to 2²⁴. tau is in the state dict.

    Args:
        in_features: a multiple of the number of classes.
        classes: how many groups.
        centred: whether half of all bits gives 0.
        tau: divisor; None: √(group size / 4), for which random bits give logits of unit spread.

    Raises:
        InvalidLogicError: groups that do not come out even, a tau that is not positive.
    """

    tau: Float[Tensor, ""]

    def __init__(self, in_features: int, classes: int, *, tau: float | None = None, centred: bool = False):
        super().__init__()
        if classes < 1 or in_features < classes or in_features % classes:
            raise InvalidLogicError(
                f"{in_features} features cannot be split into {classes} equal groups; "
                f"use a multiple of {classes} such as {max(1, round(in_features / max(classes, 1))) * classes}"
            )
        tau = (in_features / classes / 4) ** 0.5 if tau is None else tau
        if not 1e-30 <= tau <= 1e30:
            raise InvalidLogicError(f"tau={tau!r}; it must be a number from 1e-30 to 1e30")
        self.in_features, self.classes, self.centred = in_features, classes, centred
        self.register_buffer("tau", torch.tensor(float(tau)))

    def forward(self, x: Shaped[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        """Logits; bool inputs give the dtype of tau."""
        check_features(x, self.in_features, "GroupSum")
        values = x if x.is_floating_point() else x.to(self.tau.dtype)
        return self.logits(values.unflatten(-1, (self.classes, -1)).sum(-1))

    def logits(self, counts: Shaped[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        """Logits of the sums of the groups."""
        sums = counts if counts.is_floating_point() else counts.to(self.tau.dtype)
        return (sums - self.in_features / self.classes / 2 if self.centred else sums) / self.tau

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.classes}, tau={float(self.tau):g}"


class LinearHead(nn.Linear):
    """A float linear map of bits. It is no logic: what an export counts as gates ends before it.

    On bool inputs, which hardened networks give, sums are made in float64 and rounded once, so that every evaluator,
    whatever its order of summation, gives the same logits to one unit in the last place. Float inputs give logits of
    their own dtype, as logic layers do.
    """

    def forward(self, input: Shaped[Tensor, "*batch features"]) -> Float[Tensor, "*batch classes"]:
        check_features(input, self.in_features, "LinearHead")
        if input.is_floating_point():
            bias = None if self.bias is None else self.bias.to(input.dtype)
            return nn.functional.linear(input, self.weight.to(input.dtype), bias)
        bias = None if self.bias is None else self.bias.double()
        return nn.functional.linear(input.double(), self.weight.double(), bias).to(self.weight.dtype)


HEADS = ("group-sum", "linear")
