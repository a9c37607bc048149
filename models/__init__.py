"""Assemblies: whole models built from ising_attn."""

from models.block import DecoderBlock
from models.bracket_matcher import BracketMatcher, BracketMatcherConfig
from models.char_lm import CharLM, CharLMConfig
from models.config import AttentionConfig, DecoderConfig, FeedForwardConfig
from models.decoder import Decoder
from models.hba import HBA, HBAConfig
from models.logic_config import LogicConfig, LogicLMConfig, LoopedLogicLMConfig
from models.logic_lm import LogicLM
from models.looped_logic_lm import LoopedLogicLM
from models.pretrained import Pretrained, from_pretrained
from models.registry import MODELS, model_from_config
from models.task_lm import TaskLM, TaskLMConfig

# `models` is a common name: `ising_attn.require_own_package` looks for this mark.
ISING_ATTN_PACKAGE = True

__all__ = [
    "MODELS",
    "AttentionConfig",
    "BracketMatcher",
    "BracketMatcherConfig",
    "CharLM",
    "CharLMConfig",
    "Decoder",
    "DecoderBlock",
    "DecoderConfig",
    "FeedForwardConfig",
    "HBA",
    "HBAConfig",
    "LogicConfig",
    "LogicLM",
    "LogicLMConfig",
    "LoopedLogicLM",
    "LoopedLogicLMConfig",
    "Pretrained",
    "TaskLM",
    "TaskLMConfig",
    "from_pretrained",
    "model_from_config",
]
