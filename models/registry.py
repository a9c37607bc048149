"""Models by the name that their configuration carries."""

from typing import Any

from ising_attn import Sampler
from models.bracket_matcher import BracketMatcher
from models.char_lm import CharLM
from models.decoder import Decoder
from samplers.errors import InvalidOptionError, did_you_mean

MODELS: dict[str, type[Decoder]] = {kind.Config.model: kind for kind in (BracketMatcher, CharLM)}


def model_from_config(config: dict[str, Any], *, sampler: str | Sampler | None = None) -> Decoder:
    """A new model from `model.config.to_dict()` (JSON values), with fresh weights.

    Raises:
        InvalidOptionError: a model that is not known, a field that it does not have, a value out of range.
    """
    name = config.get("model")
    if name not in MODELS:
        raise InvalidOptionError(
            f"no model is named {name!r}{did_you_mean(str(name), MODELS)}; known: {', '.join(MODELS)}"
        )
    kind = MODELS[name]
    return kind(kind.Config.from_dict(config), sampler=sampler)
