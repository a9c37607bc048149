"""Figures of one Boolean language model: what its last layer attends to, soft and hard."""

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from ising_attn.boltzmann import samplers_of
from ising_attn.boolean import run_as
from ising_attn.lab import figures
from ising_attn.lab.training import evaluating
from ising_attn.routers import routers_of

_MOST_HEADS = 2


def save_attention_maps(
    folder: Path, model: nn.Module, window: Tensor, characters: Sequence[str], title: str, *, seed: int
) -> None:
    """Weights of the last layer for one window (1, T), its first heads, soft and hard; nothing without attention."""
    if not hasattr(model, "decoder_blocks"):
        return
    maps = {}
    for hardness in ("soft", "hard") if routers_of(model) else ("soft",):
        with run_as(model, hardness), evaluating(model, samplers=samplers_of(model), seed=seed):
            weights = model(window, need_weights=True)[1][-1][0].double().cpu().numpy()
        for head in range(min(len(weights), _MOST_HEADS)):
            named = hardness if routers_of(model) else "attention"
            maps[f"{named}, head {head}"] = weights[head]
    figures.save_attention_example(folder, maps, characters, f"Attention of the last layer\n{title}")
