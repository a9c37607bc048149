"""BoltzmannAttention against the paper's equations written out by hand, and what follows from them."""

import copy
import itertools
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from ising_attn import (
    BoltzmannAttention,
    Capabilities,
    InvalidOptionError,
    InvalidProblemError,
    IsingProblem,
    Sampler,
    SigmoidAttention,
    UnknownSamplerError,
    coupling_parameters,
    samplers_of,
    use_sampler,
)
from ising_attn.attention import normalised_over_allowed
from samplers.enumeration import moments

MODES = ("h+J", "h", "J", "K", "h+K", "J+K", "h+J+K")


class Enumeration(Sampler):
    """The readable twin as a sampler: all states, autograd. Counts its calls and keeps the last problem."""

    name = "enumeration"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: list[IsingProblem] = []

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=True, boltzmann=True, gradient="exact", higher_order=True)

    def _magnetization(self, problem: IsingProblem, key: int) -> Tensor:
        self.seen.append(problem)
        return moments(problem)[0]


class Approximate(Enumeration):
    """The same, not trusted as exact."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=False, gradient="straight-through")


def layer_of(mode: str = "h+J", *, heads: int = 2, context: int = 5, seed: int = 0, **options) -> Any:
    torch.manual_seed(seed)
    options = {"sampler": Enumeration(), "coupling_std": 0.7, **options}
    return BoltzmannAttention(4 * heads, heads, context, mode=mode, **options)


def inputs(layer: Any, length: int, *, batch: int = 3, seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(seed)
    dtype = layer.value.weight.dtype
    return 2 * torch.randn(batch, length, layer.embed_dim, generator=generator, dtype=torch.float64).to(dtype)


def by_hand(layer: Any, x: Tensor, allowed: Tensor) -> Tensor:
    """Equations 1 to 10 and appendix C of the paper, one query, one state, one product at a time."""
    heads, width = layer.num_heads, layer.embed_dim // layer.num_heads
    rows = []
    for sequence, mask in zip(x, allowed, strict=True):
        mixed = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            value = (sequence @ layer.value.weight.T + layer.value.bias)[:, part]
            if layer.query_key is not None:
                both = sequence @ layer.query_key.weight.T + layer.query_key.bias
                query, key = both[:, part], both[:, heads * width :][:, part]
            columns = []
            for i in range(len(sequence)):
                keys = [j for j in range(len(sequence)) if mask[i, j]]
                numerator = {j: sequence.new_zeros(()) for j in keys}
                partition = sequence.new_zeros(())
                for spins in itertools.product((1, -1), repeat=len(keys)):
                    s = dict(zip(keys, spins, strict=True))
                    score = sequence.new_zeros(())
                    if layer.query_key is not None:
                        score = score + sum(s[j] * (query[i] @ key[j]) / math.sqrt(width) for j in keys)
                    if layer.couplings is not None:
                        j_head = layer.couplings(len(sequence))[head]
                        score = score + sum(j_head[a, b] * s[a] * s[b] for a, b in itertools.combinations(keys, 2))
                    if layer.triples is not None:
                        k_head = layer.triples(len(sequence))[head]
                        score = score + sum(
                            k_head[a, b, c] * s[a] * s[b] * s[c] for a, b, c in itertools.combinations(keys, 3)
                        )
                    weight = torch.exp(layer.beta * score)
                    partition = partition + weight
                    for j in keys:
                        numerator[j] = numerator[j] + weight * s[j]
                alpha = {j: (1 + numerator[j] / partition) / 2 for j in keys}
                total = sum(alpha.values())
                columns.append(sum((alpha[j] / total * value[j] for j in keys), sequence.new_zeros(width)))
            mixed.append(torch.stack(columns))
        rows.append(torch.cat(mixed, -1) @ layer.out.weight.T + layer.out.bias)
    return torch.stack(rows)


def gradients(loss: Tensor, layer: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
    named = {"x": x, **dict(layer.named_parameters())}
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: g if g is not None else torch.zeros_like(named[name]) for name, g in zip(named, found, strict=True)}


CAUSAL = torch.ones(4, 4, dtype=torch.bool).tril()
HOLES = torch.tensor([[0, 0, 0, 0], [1, 0, 1, 1], [0, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", ["causal", "holes"])
def test_values_and_gradients_are_those_of_the_papers_equations(mode: str, mask: str):
    layer = layer_of(mode, beta=1.3).double()
    x = inputs(layer, 4, batch=2).requires_grad_()
    allowed = (CAUSAL if mask == "causal" else HOLES).expand(2, 4, 4)
    out = layer(x, None if mask == "causal" else HOLES)
    expected = by_hand(layer, x, allowed)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    probe = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(2))
    found, wanted = gradients((out * probe).sum(), layer, x), gradients((expected * probe).sum(), layer, x)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=1e-10, msg=f"gradient of {name}")


def test_float32_is_right_to_1e_5():
    layer = layer_of("h+J+K")
    x = inputs(layer, 5)
    out = layer(x)
    torch.testing.assert_close(out.double(), layer.double()(x.double()), rtol=0, atol=1e-5)


def test_a_wrong_sign_or_a_forgotten_half_would_be_seen():
    # Power of the comparison above: each planted mistake moves the result far beyond its tolerance.
    layer = layer_of("h+J").double()
    x = inputs(layer, 4)
    right = layer(x)
    with torch.no_grad():
        for factor in (-1.0, 0.5, 2.0):
            layer.couplings.values.mul_(factor)
            assert (layer(x) - right).abs().max() > 1e-2
            layer.couplings.values.div_(factor)


def test_the_future_changes_nothing():
    layer = layer_of("h+J+K", bias="distance")
    x = inputs(layer, 5)
    out = layer(x)
    for t in range(1, 5):
        later = x.clone()
        later[:, t:] += 10 * torch.randn(later[:, t:].shape, generator=torch.Generator().manual_seed(t))
        changed = layer(later)
        torch.testing.assert_close(changed[:, :t], out[:, :t], rtol=0, atol=1e-6)
        assert (changed[:, t:] - out[:, t:]).abs().max() > 1e-2


def test_the_future_gets_no_gradient():
    layer = layer_of("h+J")
    x = inputs(layer, 5).requires_grad_()
    layer(x)[:, 2].sum().backward()
    assert x.grad[:, 3:].abs().max() == 0
    assert x.grad[:, :3].abs().min() > 0


@pytest.mark.parametrize("bias", ["none", "scalar", "distance", "position"])
def test_without_couplings_it_is_sigmoid_attention(bias: str):
    torch.manual_seed(0)
    sigmoid = SigmoidAttention(8, 2, 5, bias=bias, bias_init=-0.4)
    options: Any = {"bias": bias, "coupling_std": 0.0}
    x = inputs(sigmoid, 5)
    expected, weights = sigmoid(x, need_weights=True)
    fields = sigmoid.fields(x).masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    alpha = torch.sigmoid(2 * fields)
    torch.testing.assert_close(weights, alpha / alpha.sum(-1, keepdim=True))
    for mode, sampler in (("h", Enumeration()), ("h", Approximate()), ("h+J", Enumeration())):
        layer = layer_of(mode, sampler=sampler, **options)
        layer.load_state_dict(sigmoid.state_dict(), strict=False)
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6)


def test_a_trusted_closed_form_replaces_an_exact_sampler_only():
    trusted, other = Enumeration(), Approximate()
    for sampler, calls in ((trusted, 0), (other, 1)):
        layer = layer_of("h", sampler=sampler)
        layer(inputs(layer, 3))
        assert len(sampler.seen) == calls


def test_couplings_without_fields_average_uniformly_and_never_learn():
    # Spin-flip symmetry: DESIGN's trap, and the reason why the paper's J-only row is a mean.
    layer = layer_of("J", coupling_std=2.0)
    assert layer.query_key is None
    x = inputs(layer, 5)
    out, weights = layer(x, need_weights=True)
    uniform = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    torch.testing.assert_close(weights, uniform.expand_as(weights))
    (out**2).sum().backward()
    assert layer.couplings.values.grad.abs().max() < 1e-5
    assert layer.value.weight.grad.abs().max() > 1e-2


@pytest.mark.parametrize("mode", ["K", "J+K"])
def test_by_default_modes_without_fields_do_not_start_at_a_saddle(mode: str):
    def steepest(**options) -> float:
        torch.manual_seed(0)
        layer = BoltzmannAttention(8, 2, 6, mode=mode, sampler="exact", **options)
        (layer(inputs(layer, 6)) ** 2).sum().backward()
        found: Any = coupling_parameters(layer)
        return max(float(p.grad.abs().max()) for p in found)

    assert steepest(coupling_std=0.0) < 1e-6
    assert steepest() > 1e-3
    assert all(p.abs().max() == 0 for p in coupling_parameters(layer_of("h+J+K", coupling_std=None)))


@pytest.mark.parametrize(("mode", "options"), [("K", {}), ("J", {"bias": "position", "bias_init": 0.3})])
def test_an_odd_term_breaks_the_symmetry(mode: str, options: dict):
    layer = layer_of(mode, **options)
    x = inputs(layer, 5)
    out, weights = layer(x, need_weights=True)
    uniform = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    assert (weights - uniform).abs().max() > 0.05
    (out**2).sum().backward()
    found: Any = coupling_parameters(layer)
    assert all(p.grad.abs().max() > 1e-3 for p in found)


def test_one_position_attends_to_itself():
    layer = layer_of("h+J+K")
    x = inputs(layer, 1)
    out, weights = layer(x, need_weights=True)
    torch.testing.assert_close(weights, torch.ones(3, 2, 1, 1))
    torch.testing.assert_close(out, layer.out(layer.value(x)))


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_shorter_sequence_uses_the_leading_block(length: int):
    layer = layer_of("h+J+K")
    x = inputs(layer, 5)
    # Causal queries never see what a shorter sequence lacks.
    torch.testing.assert_close(layer(x[:, :length]), layer(x)[:, :length], rtol=1e-5, atol=1e-6)


def test_distance_couplings_commute_with_a_shift_and_no_couplings_with_any_permutation():
    everything = torch.ones(5, 5, dtype=torch.bool)
    order = torch.tensor([3, 0, 4, 2, 1])
    layer = layer_of("h")
    x = inputs(layer, 5)
    torch.testing.assert_close(layer(x[:, order], everything), layer(x, everything)[:, order])
    free = layer_of("h+J")
    assert (free(x[:, order], everything) - free(x, everything)[:, order]).abs().max() > 1e-2
    reverse = torch.arange(5).flip(0)
    shifted = layer_of("h+J", couplings="distance")
    torch.testing.assert_close(shifted(x[:, reverse], everything), shifted(x, everything)[:, reverse])


def test_permuting_tokens_with_their_couplings_permutes_the_output():
    everything = torch.ones(5, 5, dtype=torch.bool)
    order = torch.tensor([3, 0, 4, 2, 1])
    layer = layer_of("h+J")
    x = inputs(layer, 5)
    out = layer(x, everything)
    j = layer.couplings(5)[:, order][:, :, order]
    larger, smaller = torch.tril_indices(5, 5, offset=-1)
    with torch.no_grad():
        layer.couplings.values.copy_(j[:, larger, smaller])
    torch.testing.assert_close(layer(x[:, order], everything), out[:, order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", ["one", "keys", "rows", "queries", "batch", "full"])
def test_masks_broadcast(shape: str):
    layer = layer_of("h+J")
    x = inputs(layer, 4)
    generator = torch.Generator().manual_seed(3)
    sizes = {"one": (), "keys": (4,), "rows": (4, 1), "queries": (4, 4), "batch": (3, 1, 4, 4), "full": (3, 2, 4, 4)}
    allowed = torch.rand(sizes[shape], generator=generator) < 0.6
    full = allowed.expand(3, 2, 4, 4)
    out, weights = layer(x, allowed, need_weights=True)
    assert (weights * ~full).abs().max() == 0
    torch.testing.assert_close(weights.sum(-1), full.any(-1).float())
    torch.testing.assert_close(out, layer(x, full))


def test_a_query_without_keys_gives_zeros_in_value_and_gradient():
    layer = layer_of("h+J")
    x = inputs(layer, 4).requires_grad_()
    out, weights = layer(x, HOLES, need_weights=True)
    assert weights[:, :, 0].abs().max() == 0
    torch.testing.assert_close(out[:, 0], layer.out.bias.expand(3, -1))
    out[:, 0].sum().backward()
    assert x.grad.abs().max() == 0
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in layer.parameters())
    nothing = layer(x, torch.zeros(4, 4, dtype=torch.bool))
    torch.testing.assert_close(nothing, layer.out.bias.expand_as(nothing))


def test_rows_whose_weights_vanish_stay_finite_and_fade_to_the_mean():
    allowed = torch.ones(2, 2, dtype=torch.bool)
    m = torch.tensor([[[[-1.0, -1.0], [-1 - 1e-7, 0.5]]]], requires_grad=True)
    weights = normalised_over_allowed((1 + m) / 2, allowed)
    torch.testing.assert_close(weights, torch.tensor([[[[0.5, 0.5], [0.0, 1.0]]]]), rtol=0, atol=1e-6)
    weights[..., 0].sum().backward()
    assert m.grad is not None
    assert bool(torch.isfinite(m.grad).all())


@pytest.mark.parametrize("level", [-3.0, -60.0, -1e3])
def test_independent_keys_are_right_however_negative_all_fields_are(level: float):
    layer = layer_of("h", bias="scalar", bias_init=level)
    x = inputs(layer, 5)
    weights = layer.weights(x)
    torch.testing.assert_close(weights.double(), layer.double().weights(x.double()), rtol=1e-3, atol=1e-4)
    limit = layer.fields(x.double()).masked_fill(~torch.ones(5, 5, dtype=torch.bool).tril(), -torch.inf)
    torch.testing.assert_close(weights.double(), (2 * limit).softmax(-1), rtol=0.1, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_modules_compute_weights_in_float32(dtype: torch.dtype):
    layer = layer_of("h+J").to(dtype)
    x = inputs(layer, 5)
    out, weights = layer(x, need_weights=True)
    assert (out.dtype, weights.dtype) == (dtype, torch.float32)
    assert layer.sampler.seen[-1].dtype == torch.float32
    out.float().sum().backward()
    reference = layer_of("h+J")
    reference.load_state_dict({k: v.float() for k, v in layer.state_dict().items()})
    torch.testing.assert_close(out.float(), reference(x.float()), rtol=0.05, atol=0.05)


def test_inside_autocast_the_sampler_sees_float32():
    layer = layer_of("h+J", couplings="low-rank", rank=2)
    x = inputs(layer, 5)
    plain, weights = layer(x, need_weights=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, rough = layer(x, need_weights=True)
        problem = layer.problem(x)
    assert out.dtype == torch.bfloat16
    assert problem.dtype == problem.couplings.dtype == layer.sampler.seen[-1].dtype == torch.float32
    torch.testing.assert_close(problem.couplings, layer.problem(x).couplings)
    torch.testing.assert_close(rough, weights, rtol=0, atol=0.03)
    torch.testing.assert_close(out.float(), plain, rtol=0.05, atol=0.05)
    out.float().sum().backward()
    assert layer.query_key.weight.grad.dtype == torch.float32


# torch itself looks at the gradient of a tensor that crosses a graph break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_it_runs_compiled(unchecked):
    torch._dynamo.reset()
    layer = layer_of("h+J")
    x = inputs(layer, 5).requires_grad_()
    compiled = torch.compile(layer, backend="eager")
    out = compiled(x)
    torch.testing.assert_close(out, layer(x))
    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, torch.autograd.grad(layer(x).sum(), x)[0])


@pytest.mark.parametrize("mode", ["h+J", "h+J+K"])
@pytest.mark.parametrize("learn_beta", [False, True])
def test_the_problem_is_the_one_that_forward_solves(mode: str, learn_beta: bool):
    layer = layer_of(mode, beta=1.7, learn_beta=learn_beta, bias="scalar", bias_init=0.2)
    x = inputs(layer, 4)
    problem = layer.problem(x)
    assert tuple(problem.fields.shape) == (3, 2, 4, 4)
    assert tuple(problem.couplings.shape) == (2, 1, 4, 4)
    assert problem.is_causal
    weights = layer.weights(x)
    m = layer.sampler.magnetization(problem)
    torch.testing.assert_close(weights, (1 + m) / (1 + m).sum(-1, keepdim=True))


def test_a_learnt_beta_is_per_head_and_starts_as_given():
    fixed, learnt = layer_of(beta=1.7), layer_of(beta=1.7, learn_beta=True)
    x = inputs(fixed, 4)
    torch.testing.assert_close(fixed(x), learnt(x))
    (learnt(x) ** 2).sum().backward()
    assert tuple(learnt.log_beta.grad.shape) == (2,)
    assert learnt.log_beta.grad.abs().min() > 1e-3
    with torch.no_grad():
        learnt.log_beta[1] = math.log(0.4)
    weights = learnt.weights(x)
    torch.testing.assert_close(weights[:, 0], fixed.weights(x)[:, 0])
    torch.testing.assert_close(weights[:, 1], layer_of(beta=0.4).weights(x)[:, 1])


def test_weights_returned_are_those_before_dropout():
    layer = layer_of("h+J", dropout=0.5)
    x = inputs(layer, 5)
    torch.manual_seed(0)
    out, weights = layer(x, need_weights=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5))
    assert (layer(x) - out).abs().max() > 1e-3
    layer.eval()
    torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)


def test_an_empty_batch_trains():
    layer = layer_of("h+J")
    out = layer(torch.zeros(0, 4, 8))
    assert tuple(out.shape) == (0, 4, 8)
    out.sum().backward()


def test_equally_seeded_modes_start_from_equal_projections():
    plain, coupled = layer_of("h", coupling_std=0.0), layer_of("h+J", coupling_std=0.0)
    after_plain = torch.rand(())
    torch.testing.assert_close(plain.out.weight, coupled.out.weight)
    layer_of("h", coupling_std=0.0)
    assert torch.rand(()) == after_plain


def test_samplers_are_swapped_and_come_back():
    first, second = Enumeration(), Approximate()
    model = torch.nn.Sequential(layer_of(sampler=first), torch.nn.ReLU(), layer_of(sampler=first))
    assert samplers_of(model) == [first]
    with pytest.raises(RuntimeError, match="inside"), use_sampler(model, second) as current:
        assert samplers_of(model) == [second] == [current]
        raise RuntimeError("inside")
    assert [layer.sampler for layer in (model[0], model[2])] == [first, first]
    with pytest.raises(InvalidOptionError, match="no layer with a sampler"), use_sampler(torch.nn.ReLU(), second):
        pass


def test_the_state_dict_goes_round_and_holds_parameters_only():
    layer = layer_of("h+J+K", bias="distance", learn_beta=True)
    assert set(layer.state_dict()) == {name for name, _ in layer.named_parameters()}
    other = layer_of("h+J+K", bias="distance", learn_beta=True, seed=5)
    x = inputs(layer, 5)
    assert (other(x) - layer(x)).abs().max() > 1e-2
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other(x), layer(x), rtol=0, atol=0)


def test_a_copy_or_a_pickle_is_independent_and_equal():
    layer = layer_of("h+J", sampler="exact")
    x = inputs(layer, 5)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        torch.testing.assert_close(twin(x), layer(x), rtol=0, atol=0)
        assert twin.sampler is not layer.sampler


def test_coupling_parameters_are_j_and_k_and_nothing_else():
    layer = layer_of("h+J+K", bias="distance", learn_beta=True)
    found = {name for name, p in layer.named_parameters() if any(p is q for q in coupling_parameters(layer))}
    assert found == {"couplings.values", "triples.values"}
    assert coupling_parameters(layer_of("h")) == []
    assert len(coupling_parameters(torch.nn.ModuleList([layer, layer]))) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "h+j"}, "must be one of 'h\\+J'"),
        ({"couplings": "none"}, "drop J from the mode"),
        ({"couplings": "banded"}, "did you mean 'band'"),
        ({"couplings": "band"}, "needs width"),
        ({"width": 2}, "has no width"),
        ({"couplings": "low-rank"}, "needs rank"),
        ({"couplings": "low-rank", "rank": 0}, "at least 1"),
        ({"beta": 0.0}, "above 0"),
        ({"beta": math.nan}, "above 0"),
        ({"bias": "scaler"}, "did you mean 'scalar'"),
        ({"dropout": 1.0}, "below 1"),
        ({"coupling_std": -1.0}, "at least 0"),
    ],
)
def test_options_are_refused_with_advice(options: dict, words: str):
    with pytest.raises(InvalidOptionError, match=words):
        layer_of(**options)


def test_sizes_and_samplers_are_refused_with_advice(unchecked):
    with pytest.raises(InvalidOptionError, match="not a multiple of num_heads=3"):
        BoltzmannAttention(8, 3, 4, sampler=Enumeration())
    with pytest.raises(UnknownSamplerError, match="did you mean"):
        BoltzmannAttention(8, 2, 4, sampler="exakt")
    with pytest.raises(InvalidOptionError, match="get_sampler\\('dimod'"):
        BoltzmannAttention(8, 2, 4, sampler=object())  # type: ignore[arg-type]


def test_inputs_are_refused_with_advice(unchecked):
    layer = layer_of()
    with pytest.raises(InvalidProblemError, match="made for context=5"):
        layer(torch.zeros(1, 6, 8))
    for shape in ((1, 3, 7), (3, 8), (1, 0, 8)):
        with pytest.raises(InvalidProblemError, match="attention takes"):
            layer(torch.zeros(shape))
    for mask in (torch.ones(3, 3), torch.ones(4, 4, dtype=torch.bool), torch.ones(1, 1, 2, 3, 3, dtype=torch.bool)):
        with pytest.raises(InvalidProblemError, match="must be bool"):
            layer(torch.zeros(1, 3, 8), mask)
    with pytest.raises(InvalidProblemError, match="NaN"):
        layer(torch.full((1, 3, 8), math.nan))
