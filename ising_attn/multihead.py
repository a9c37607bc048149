"""`MultiheadAttention`: Ising attention in the place of `torch.nn.MultiheadAttention`; `replace_attention`: in a model.

from ising_attn import MultiheadAttention
attention = MultiheadAttention(64, 4, batch_first=True, context=16, sampler="exact")
out, weights = attention(x, x, x, key_padding_mask=padding)
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from ising_attn.boltzmann import as_sampler
from ising_attn.factory import make_attention
from samplers.base import Sampler
from samplers.errors import InvalidOptionError, InvalidProblemError, NotSupportedError


class MultiheadAttention(nn.Module):
    """An attention layer of this package with the call of `torch.nn.MultiheadAttention`.

    Called alike, with masks of torch's meaning: True where a key may NOT be used, or numbers that are added to the
    scores (−∞ and the lowest number of the mask's dtype forbid; any other is a field, and a spin that it turns to −1
    still acts on others by J). Without a mask every query may use every key. Queries may come from another sequence
    than keys and values; couplings J belong to positions of the keys. With kind "softmax" and equal weights it gives
    torch's results, but for two cases: a query without any key gives the bias of the output, not NaN, and the weights
    that are returned are those before dropout.

    It works inside `nn.TransformerEncoderLayer` and its like, which then take no fused path.

    Args:
        embed_dim, num_heads, dropout, batch_first: as torch's. `bias` is that of the linear maps.
        context: the longest sequence of keys.
        kind: one of `ATTENTION_KINDS`.
        sampler: for kinds that use one; "exact" where None.
        score_bias: learnable bias of the scores, see `Attention`.
        options: others of the kind, such as `couplings`; see `attention_options`.

    Raises:
        InvalidOptionError: an option that does not exist.
    """

    # Read by torch's encoder layers, which look for reasons not to take their fused path.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        context: int,
        batch_first: bool = False,
        kind: str = "boltzmann",
        sampler: str | Sampler | None = None,
        score_bias: str = "none",
        score_bias_init: float = 0.0,
        **options: Any,
    ):
        super().__init__()
        own = {"bias": score_bias, "bias_init": score_bias_init, "dropout": dropout, "projection_bias": bias}
        self.attention = make_attention(kind, embed_dim, num_heads, context, sampler=sampler, **own, **options)
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, embed_dim // num_heads
        self.batch_first = batch_first

    @classmethod
    def from_torch(cls, attention: nn.MultiheadAttention, *, context: int, **options: Any) -> "MultiheadAttention":
        """A layer with the weights of a torch one, frozen where they are, on its device and in its dtype and mode.

        What the kind has beside them, such as couplings, is drawn as in any new layer.

        Args:
            context, options: as of the class; `kind` and `sampler` among them.

        Raises:
            NotSupportedError: keys or values of other widths, `add_bias_kv`, `add_zero_attn`; or a kind that has no
                queries and keys to put the weights in.
        """
        if not attention._qkv_same_embed_dim or attention.bias_k is not None or attention.add_zero_attn:
            raise NotSupportedError(
                "kdim, vdim, add_bias_kv and add_zero_attn of torch.nn.MultiheadAttention have no counterpart here; "
                "use keys and values of the width embed_dim"
            )
        weight, biased = attention.in_proj_weight, attention.in_proj_bias is not None
        sizes = (attention.embed_dim, attention.num_heads, attention.dropout, biased)
        made = cls(*sizes, context=context, batch_first=attention.batch_first, **options)
        made.to(device=weight.device, dtype=weight.dtype)
        inner, width = made.attention, 2 * attention.embed_dim
        if inner.query_key is None:
            raise NotSupportedError(
                f"{type(inner).__name__} with these options has no queries and keys; it cannot take torch's weights"
            )
        with torch.no_grad():
            for part, ours in ((slice(width), inner.query_key), (slice(width, None), inner.value)):
                ours.weight.copy_(weight[part]).requires_grad_(weight.requires_grad)
                if biased:
                    ours.bias.copy_(attention.in_proj_bias[part]).requires_grad_(attention.in_proj_bias.requires_grad)
            inner.out.load_state_dict(attention.out_proj.state_dict())
        for name, parameter in attention.out_proj.named_parameters():
            inner.out.get_parameter(name).requires_grad_(parameter.requires_grad)
        return made.train(attention.training)

    def forward(
        self,
        query: Float[Tensor, "..."],
        key: Float[Tensor, "..."],
        value: Float[Tensor, "..."],
        key_padding_mask: Shaped[Tensor, "..."] | None = None,
        need_weights: bool = True,
        attn_mask: Shaped[Tensor, "..."] | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Float[Tensor, "..."], Float[Tensor, "..."] | None]:
        """Output and weights, as torch's.

        Args:
            query: (L, N, E), (N, L, E) with `batch_first`, or (L, E).
            key, value: likewise with S in the place of L.
            key_padding_mask: (N, S), or (S,) for (L, E): True, or −∞, where a key is padding.
            need_weights: also return the weights, averaged over heads or not.
            attn_mask: (L, S), or (N·H, L, S).
            is_causal: with a mask, a hint that it is causal, and not needed; without one, the causal mask.

        Returns:
            The output, shaped as the query, and weights (N, L, S), (N, H, L, S), each without N for (L, E), or None.

        Raises:
            InvalidProblemError: shapes or masks that do not fit.
        """
        axes = query.ndim
        keys_are_queries, values_are_keys = key is query, value is key
        query = self._batch_first("query", query, axes)
        key = query if keys_are_queries else self._batch_first("key", key, axes)
        value = key if values_are_keys else self._batch_first("value", value, axes)
        if key.shape[:2] != value.shape[:2] or len(key) != len(query):
            shapes = ", ".join(str(tuple(t.shape)) for t in (query, key, value))
            raise InvalidProblemError(
                f"query, key and value are {shapes} with the batch first; their batches must agree, and keys and "
                "values be of one length"
            )
        sizes = (len(query), self.num_heads, query.shape[1], key.shape[1])
        allowed, shift = _masks(attn_mask, key_padding_mask, sizes, query.device, is_causal)
        weights = self.attention.weights_between(query, key, allowed, shift)
        out = self.attention.mix(weights, value)
        out = out.squeeze(0) if axes == 2 else out if self.batch_first else out.transpose(0, 1)
        if not need_weights:
            return out, None
        weights = weights.to(out.dtype).mean(1) if average_attn_weights else weights.to(out.dtype)
        return out, weights.squeeze(0) if axes == 2 else weights

    def _batch_first(self, name: str, x: Tensor, axes: int) -> Tensor:
        """(N, length, E)."""
        length_axis = 1 if axes == 3 and self.batch_first else 0
        if x.ndim != axes or axes not in (2, 3) or x.shape[-1] != self.embed_dim or x.shape[length_axis] == 0:
            raise InvalidProblemError(
                f"{name} has shape {tuple(x.shape)}; this layer takes (length, {self.embed_dim}), or three axes with "
                f"the batch {'first' if self.batch_first else 'second'}, the same for query, key and value"
            )
        return x.unsqueeze(0) if axes == 2 else x if self.batch_first else x.transpose(0, 1)


def replace_attention(
    model: nn.Module, *, context: int, kind: str = "boltzmann", sampler: str | Sampler | None = None, **options: Any
) -> list[str]:
    """Put a `MultiheadAttention` in the place of every `nn.MultiheadAttention` of `model`, with its weights.

    Only softmax attention goes on as before; with another kind they are where training starts. All layers share one
    sampler, so that their draws are independent.

    Args:
        context: the longest sequence of keys.
        kind, sampler, options: see `MultiheadAttention`.

    Returns:
        The names of the layers that were replaced.

    Raises:
        InvalidOptionError: the model has none.
        NotSupportedError: see `MultiheadAttention.from_torch`; the model is left as it was.
    """
    named = model.named_modules(remove_duplicate=False)
    found = {name: module for name, module in named if isinstance(module, nn.MultiheadAttention)}
    if not found:
        raise InvalidOptionError(f"{type(model).__name__} has no torch.nn.MultiheadAttention to replace")
    if "" in found:
        raise InvalidOptionError("the model is itself a torch.nn.MultiheadAttention; use MultiheadAttention.from_torch")
    shared = None if sampler is None and kind not in ("boltzmann", "router") else as_sampler(sampler or "exact")
    made = {
        module: MultiheadAttention.from_torch(module, context=context, kind=kind, sampler=shared, **options)
        for module in dict.fromkeys(found.values())
    }
    for name, module in found.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made[module])
    for part in model.modules():
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False  # its fused path would look for torch's own weights
    return list(found)


def _masks(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    sizes: tuple[int, int, int, int],
    device: torch.device,
    is_causal: bool,
) -> tuple[Bool[Tensor, "..."], Float[Tensor, "..."] | None]:
    """What is allowed and what is added to the scores, each broadcastable to (batch, heads, queries, keys)."""
    batch, heads, queries, keys = sizes
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=device)
    shift = None
    if attn_mask is not None:
        if tuple(attn_mask.shape) == (batch * heads, queries, keys):
            attn_mask = attn_mask.unflatten(0, (batch, heads))
        elif tuple(attn_mask.shape) != (queries, keys):
            raise InvalidProblemError(
                f"attn_mask has shape {tuple(attn_mask.shape)}; it must be (L, S) = {(queries, keys)} or (N·H, L, S) = "
                f"{(batch * heads, queries, keys)}"
            )
        allowed, shift = _split("attn_mask", attn_mask)
    elif is_causal:
        allowed = allowed.tril()
    if key_padding_mask is not None:
        padding = key_padding_mask.unsqueeze(0) if key_padding_mask.ndim == 1 else key_padding_mask
        if tuple(padding.shape) != (batch, keys):
            raise InvalidProblemError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}; it must be (N, S) = {(batch, keys)}"
            )
        present, more = _split("key_padding_mask", padding)
        allowed = allowed & present[:, None, None, :]
        if more is not None:
            more = more[:, None, None, :]
            shift = more if shift is None else shift + more
    return allowed, shift


def _split(name: str, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """Where a mask of torch's meaning allows, and what it adds there; None where that is nothing."""
    if mask.dtype == torch.bool:
        return ~mask, None
    if not mask.is_floating_point():
        raise InvalidProblemError(
            f"{name} is {mask.dtype}; it must be bool, True where a key may NOT be used, or floats to add to the scores"
        )
    allowed = ~(mask <= torch.finfo(mask.dtype).min)  # NaN is for the sampler to refuse
    shift = torch.where(allowed, mask, 0.0)
    return allowed, shift if shift.requires_grad or bool(shift.any()) else None
