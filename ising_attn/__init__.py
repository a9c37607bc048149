"""Ising attention: attention weights are the spin marginals of an Ising model.

    from ising_attn import BoltzmannAttention, get_sampler
    layer = BoltzmannAttention(64, 4, context=16, sampler=get_sampler("exact"))
    out, weights = layer(x, need_weights=True)

The sampler API of the package `samplers` is available from here as well.
"""

from ising_attn.packages import ForeignPackageError, require_own_package

require_own_package("samplers")

from ising_attn.attention import Attention  # noqa: E402
from ising_attn.baselines import SigmoidAttention, SoftmaxAttention  # noqa: E402
from ising_attn.boltzmann import BoltzmannAttention, samplers_of, use_sampler  # noqa: E402
from ising_attn.couplings import coupling_parameters  # noqa: E402
from ising_attn.factory import ATTENTION_KINDS, attention_options, make_attention  # noqa: E402
from ising_attn.feed_forward import FEED_FORWARD_KINDS, feed_forward_options, make_feed_forward  # noqa: E402
from ising_attn.multihead import MultiheadAttention, replace_attention  # noqa: E402
from ising_attn.routers import RouterAttention, use_routing  # noqa: E402
from samplers import *  # noqa: E402, F403
from samplers import __all__ as _sampler_names  # noqa: E402

__all__ = [
    *_sampler_names,
    "ATTENTION_KINDS",
    "Attention",
    "BoltzmannAttention",
    "FEED_FORWARD_KINDS",
    "ForeignPackageError",
    "MultiheadAttention",
    "RouterAttention",
    "SigmoidAttention",
    "SoftmaxAttention",
    "attention_options",
    "coupling_parameters",
    "feed_forward_options",
    "make_attention",
    "make_feed_forward",
    "replace_attention",
    "require_own_package",
    "samplers_of",
    "use_routing",
    "use_sampler",
]
