"""Every public torch module keeps its values, outputs and dtypes through a state dict; a new one is found by itself."""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from default_dtype import default_dtype
from torch import Tensor, nn

import ising_attn
import models
from ising_attn import learned_schedule
from samplers.dqa.schedules import linear_ramp

X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
BITS = (torch.rand(3, 12, generator=torch.Generator().manual_seed(2)) < 0.5).float()
TOKENS = torch.tensor([[0, 3, 5, 1], [2, 2, 4, 0]])
TEXT: dict[str, Any] = {"vocabulary": 6, "context": 4}
SMALL: dict[str, Any] = {**TEXT, "embed_dim": 8}


def public_modules() -> dict[str, type[nn.Module]]:
    """The concrete nn.Module classes with a public name that ising_attn and models define, wherever they do."""
    found: dict[str, type[nn.Module]] = {}
    for package in (ising_attn, models):
        for part in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if part.name.rpartition(".")[2].startswith("_"):
                continue
            module = importlib.import_module(part.name)
            for name, kind in inspect.getmembers(module, inspect.isclass):
                own = kind.__module__ == module.__name__ and not name.startswith("_")
                if own and issubclass(kind, nn.Module) and not inspect.isabstract(kind):
                    found[f"{module.__name__}.{name}"] = kind
    return found


FOUND = public_modules()


def test_modules_are_found_where_they_are():
    assert len(FOUND) > 25
    assert {
        "ising_attn.boltzmann.BoltzmannAttention",
        "models.char_lm.CharLM",
        "ising_attn.logic.layer.LogicLayer",
    } <= set(FOUND)


def angles() -> Any:
    return linear_ramp(num_layers=3).layers()


def of_x(module: nn.Module) -> Any:
    return module(X.to(torch.get_default_dtype()))


def of_three(module: nn.Module) -> Any:
    x = X.to(torch.get_default_dtype())
    return module(x, x, x)


def of_schedule(module: nn.Module) -> Any:
    run = module.schedule().layers()  # type: ignore[operator]
    return torch.stack([run.fields, run.couplings, run.mixer])


def of_bits(module: nn.Module) -> Any:
    return module(BITS.to(torch.get_default_dtype()))


def of_tokens(module: nn.Module) -> Any:
    return module(TOKENS)


def of_length(module: nn.Module) -> Any:
    return module(4)


def made_model(kind: str, **options: Any) -> Callable[[], nn.Module]:
    return lambda: models.model_from_config({"model": kind, **options})


def logic_layers(count: int, widths: tuple[int, ...] = (16, 8)) -> list[Any]:
    from ising_attn.logic import LogicNetwork

    return LogicNetwork(12, widths).harden().boolean_layers()[:count]


Case = tuple[Callable[[], nn.Module], Callable[[nn.Module], Any] | None]


def cases() -> dict[str, Case]:
    """How each module is made, with weights that are drawn, and what is computed with it; None: only what it holds."""
    from ising_attn import BoltzmannAttention, bias, bilinear, couplings, multihead, routers
    from ising_attn.logic import LogicLayer, encoding, feed_forward, heads, modes, network, parametrisation, wiring

    gates: dict[str, Any] = {"residual": 0.9, "noise": 0.25}
    return {
        "ising_attn.baselines.SigmoidAttention": (lambda: ising_attn.SigmoidAttention(8, 2, 6, bias="scalar"), of_x),
        "ising_attn.baselines.SoftmaxAttention": (lambda: ising_attn.SoftmaxAttention(8, 2, 6, bias="distance"), of_x),
        "ising_attn.bias.ScoreBias": (lambda: bias.ScoreBias("distance", 2, 6, initial=warmth()), of_length),
        "ising_attn.bilinear.FullBilinear": (lambda: bilinear.FullBilinear(8, 6), of_x),
        "ising_attn.bilinear.LowRankBilinear": (lambda: bilinear.LowRankBilinear(8, 6, rank=2), of_x),
        "ising_attn.bilinear.MLP": (lambda: bilinear.MLP(8, 6), of_x),
        "ising_attn.boltzmann.BoltzmannAttention": (
            lambda: BoltzmannAttention(8, 2, 6, mode="h+J+K", coupling_std=0.3, learn_beta=True, bias="position"), of_x
        ),
        "ising_attn.couplings.DistanceCouplings": (lambda: couplings.DistanceCouplings(2, width=3, std=1.0), of_length),
        "ising_attn.couplings.DistanceTriples": (lambda: couplings.DistanceTriples(2, width=3, std=1.0), of_length),
        "ising_attn.couplings.FreeCouplings": (lambda: couplings.FreeCouplings(2, 6, std=1.0), of_length),
        "ising_attn.couplings.LowRankCouplings": (lambda: couplings.LowRankCouplings(2, 6, rank=2, std=1.0), of_length),
        "ising_attn.couplings.TripleCouplings": (lambda: couplings.TripleCouplings(2, 6, std=1.0), of_length),
        "ising_attn.learned_schedule.LearnedSchedule": (
            lambda: moved(learned_schedule.LearnedSchedule(angles())),
            of_schedule,
        ),
        "ising_attn.logic.encoding.BitEncoder": (lambda: moved(encoding.BitEncoder(8, bits=3)), of_x),
        "ising_attn.logic.feed_forward.LogicFeedForward": (lambda: feed_forward.LogicFeedForward(8, 16), of_x),
        "ising_attn.logic.heads.GroupSum": (lambda: heads.GroupSum(12, 3, tau=1 + torch.rand(()).item()), of_bits),
        "ising_attn.logic.heads.LinearHead": (lambda: heads.LinearHead(12, 3), of_bits),
        "ising_attn.logic.layer.BooleanLayer": (lambda: logic_layers(1)[0], of_bits),
        "ising_attn.logic.layer.LogicLayer": (lambda: LogicLayer(12, 9, wiring="learnable", candidates=3), of_bits),
        "ising_attn.logic.modes.Relaxed": (lambda: modes.Relaxed(temperature=1 + torch.rand(()).item()), None),
        "ising_attn.logic.network.BooleanNetwork": (lambda: network.BooleanNetwork(logic_layers(2)), of_bits),
        "ising_attn.logic.network.LogicNetwork": (
            lambda: network.LogicNetwork(12, [16, 6], head=heads.LinearHead(6, 3), parametrisation="walsh"), of_bits,
        ),
        "ising_attn.logic.parametrisation.LightGates": (lambda: parametrisation.LightGates(6, **gates), None),
        "ising_attn.logic.parametrisation.RawGates": (lambda: parametrisation.RawGates(6, **gates), None),
        "ising_attn.logic.parametrisation.WalshGates": (lambda: parametrisation.WalshGates(6, **gates), None),
        "ising_attn.logic.wiring.FixedWiring": (lambda: wiring.FixedWiring(12, 9), None),
        "ising_attn.logic.wiring.LearnableWiring": (lambda: wiring.LearnableWiring(12, 9, candidates=3), None),
        "ising_attn.multihead.MultiheadAttention": (
            lambda: multihead.MultiheadAttention(8, 2, context=6, coupling_std=0.3, batch_first=True), of_three
        ),
        "ising_attn.routers.article.ArticleRouter": (lambda: routers.ArticleRouter(8, 2, 6, threshold=0.5), of_x),
        "ising_attn.routers.ising.RouterAttention": (
            lambda: routers.RouterAttention(8, 2, 6, coupling_std=0.3, temperature=warmth(), threshold=warmth()), of_x
        ),
        "ising_attn.routers.scalar.ScalarRouter": (lambda: routers.ScalarRouter(8, 2, 6, temperature=warmth()), of_x),
        "models.block.DecoderBlock": (
            lambda: models.DecoderBlock(BoltzmannAttention(8, 2, 6), bilinear.MLP(8, 6), 8), of_x
        ),
        "models.bracket_matcher.BracketMatcher": (made_model("bracket-matcher", **SMALL), of_tokens),
        "models.char_lm.CharLM": (made_model("char-lm", **SMALL, num_layers=2), of_tokens),
        "models.hba.HBA": (made_model("hba", **SMALL, num_heads=2), of_tokens),
        "models.logic_lm.LogicLM": (made_model("logic-lm", **TEXT, widths=[16]), of_tokens),
        "models.looped_logic_lm.LoopedLogicLM": (
            made_model("looped-logic-lm", **TEXT, widths=[32], state=32, iterations=2), of_tokens
        ),
        "models.task_lm.TaskLM": (made_model("task-lm", **SMALL, task="butterfly"), of_tokens),
    }  # fmt: skip


def warmth() -> float:
    return 1 + torch.rand(()).item()


def moved(module: nn.Module) -> nn.Module:
    """A module whose parameters do not start at random."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def made(make: Callable[[], nn.Module], seed: int, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(seed)
    return make().to(dtype).eval()


def results(run: Callable[[nn.Module], Any], module: nn.Module, dtype: torch.dtype) -> list[Tensor]:
    with torch.no_grad(), default_dtype(dtype):
        out = run(module)
    return list(out) if isinstance(out, tuple) else [out]


def test_every_module_has_its_case():
    assert FOUND.keys() == cases().keys(), "a public module needs a case in this file"


@pytest.mark.filterwarnings("ignore:.* gates read at most")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", FOUND)
def test_values_outputs_and_dtypes_come_back(name, dtype):
    make, run = cases()[name]
    module, other = made(make, 0, dtype), made(make, 1, dtype)
    assert type(module) is FOUND[name]
    state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    assert any(not torch.equal(tensor, other.state_dict()[key]) for key, tensor in state.items())  # or nothing is shown
    content = safetensors.torch.save(state)
    assert not other.load_state_dict(safetensors.torch.load(content)).missing_keys
    for key, tensor in other.state_dict().items():
        assert torch.equal(tensor, state[key]) and tensor.dtype == state[key].dtype, key
    if run is not None:
        for ours, theirs in zip(results(run, other, dtype), results(run, module, dtype), strict=True):
            assert torch.equal(ours, theirs) and ours.dtype == theirs.dtype
