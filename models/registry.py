"""Models by the name that their configuration carries."""

from typing import Any, TypeVar

from ising_attn import Sampler
from models.bracket_matcher import BracketMatcher
from models.char_lm import CharLM
from models.decoder import Decoder
from models.hba import HBA
from models.logic_lm import LogicLM
from models.looped_logic_lm import LoopedLogicLM
from models.task_lm import TaskLM
from samplers.errors import InvalidOptionError, did_you_mean

Model = Decoder | LogicLM | LoopedLogicLM

M = TypeVar("M", bound=Model)

MODELS: dict[str, type[Model]] = {
    kind.Config.model: kind for kind in (BracketMatcher, CharLM, HBA, LogicLM, LoopedLogicLM, TaskLM)
}


def model_from_config(config: dict[str, Any], *, sampler: str | Sampler | None = None) -> Model:
    """A new model from `model.config.to_dict()` (JSON values), with fresh weights.

    Args:
        sampler: for attention that uses one; models without attention do without it.

    Raises:
        InvalidOptionError: a model that is not known, a field that it does not have, a value out of range.
    """
    name = config.get("model")
    if name not in MODELS:
        raise InvalidOptionError(
            f"no model is named {name!r}{did_you_mean(str(name), MODELS)}; known: {', '.join(MODELS)}"
        )
    return make_model(MODELS[name], config, sampler=sampler)


def make_model(kind: type[M], config: dict[str, Any], *, sampler: str | Sampler | None = None) -> M:
    """`model_from_config` for a class, registered or not.

    Raises:
        InvalidOptionError: see `model_from_config`.
    """
    built: Any = kind.Config.from_dict(config)
    return kind(built, sampler=sampler) if issubclass(kind, Decoder) else kind(built)
