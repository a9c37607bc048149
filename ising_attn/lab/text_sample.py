"""Text from a trained language model, drawn from a seed."""

import contextlib

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ising_attn.boltzmann import samplers_of
from ising_attn.lab.progress import work_progress
from samplers.streams import derive_key

_PART = 100


def sample_text(
    model: nn.Module, prompt: Int[Tensor, "characters"], length: int, *, temperature: float = 1.0, seed: int = 0
) -> Int[Tensor, "longer"]:
    """`prompt` and `length` further characters, each drawn from the model's law given those before it.

    Characters and the model's own sampler are drawn from `seed`; the state of the sampler is left alone.

    Args:
        model: with `generate`, see `models.CharLM`; one sampler or none.
        prompt: on any device.
        temperature: divides the logits; 0 takes the likeliest character.
    """
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(derive_key(seed, -6) % 2**63)
    text, parts = prompt[None].to(device), -(-length // _PART)
    with contextlib.ExitStack() as stack:
        for sampler in samplers_of(model):
            stack.enter_context(sampler.seeded(derive_key(seed, -7)))
        advance = stack.enter_context(work_progress("sample", parts))
        for part in range(parts):
            count = min(_PART, length - part * _PART)
            text = model.generate(text, count, temperature=temperature, generator=generator)  # type: ignore[operator]
            advance(f"{len(text[0]) - len(prompt)} characters")
    return text[0].cpu()
