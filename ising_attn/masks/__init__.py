"""Masks from partial orders: what a mask lets a model see, which tasks it trains, and whether targets leak.

    from ising_attn import masks
    task = masks.butterfly(16)
    task.check()                                  # no position can see its own target, at any depth
    out = layer(task.input_weights(16) @ x, task.allowed)

Row i of a mask is True in column j where position i may attend to position j (Li & Guo, arXiv 2606.09951).
"""

from ising_attn.masks.adapters import attention_bias, block_mask, mask_mod, multihead_mask, padded
from ising_attn.masks.drawing import save_mask_drawing
from ising_attn.masks.equivalence import node_classes
from ising_attn.masks.errors import InvalidMaskError, InvalidTaskError, LeakError, MaskFileError
from ising_attn.masks.files import load_mask
from ising_attn.masks.integration import Integration, embedding, integrate, same_task
from ising_attn.masks.leaks import Leak, check_no_leaks, leaks
from ising_attn.masks.library import (
    block_causal,
    block_two_stream,
    butterfly,
    causal,
    document,
    prefix,
    two_stream,
    window,
)
from ising_attn.masks.order import Order, order_of
from ising_attn.masks.reachability import distances, reachability
from ising_attn.masks.relations import closure, mask_of_pairs, partial_order, product_order, reduction
from ising_attn.masks.sparse import hub_cover, sparsify
from ising_attn.masks.tasks import Task
from ising_attn.masks.text import hasse_dot, hasse_text, mask_text, position_names

__all__ = [
    "Integration",
    "InvalidMaskError",
    "InvalidTaskError",
    "Leak",
    "LeakError",
    "MaskFileError",
    "Order",
    "Task",
    "attention_bias",
    "block_causal",
    "block_mask",
    "block_two_stream",
    "butterfly",
    "causal",
    "check_no_leaks",
    "closure",
    "distances",
    "document",
    "embedding",
    "hasse_dot",
    "hasse_text",
    "hub_cover",
    "integrate",
    "leaks",
    "load_mask",
    "mask_mod",
    "mask_of_pairs",
    "mask_text",
    "multihead_mask",
    "node_classes",
    "order_of",
    "padded",
    "partial_order",
    "position_names",
    "prefix",
    "product_order",
    "reachability",
    "reduction",
    "same_task",
    "save_mask_drawing",
    "sparsify",
    "two_stream",
    "window",
]
