"""Every sampler passes the conformance kit, and the kit catches planted faults."""

import dataclasses
from collections.abc import Callable

import pytest
import torch

from samplers import Capabilities, IsingProblem, Sampler, Samples, conformance, get_sampler, option
from samplers.conformance import __main__ as command
from samplers.enumeration import log_probabilities
from samplers.states import spins_of_index
from samplers.streams import uniforms_like


class Reference(Sampler):
    """Independent draws by inverting the cumulative law; every planted fault below is one change to it."""

    num_reads: int = option(default=500, help="reads", minimum=1)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=True, gradient="covariance", can_ground_state=True)

    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        p = log_probabilities(problem.to(dtype=torch.float64))[0].exp()
        u = uniforms_like(problem.fields, key, problem.streams, num_reads)
        index = torch.searchsorted(p.cumsum(-1), u).clamp_max(p.shape[-1] - 1)
        spins = spins_of_index(index, problem.num_spins)
        weights = torch.ones(spins.shape[:-1], dtype=problem.dtype)
        return Samples(spins, weights, problem.energy(spins))


class ColderByATenth(Reference):
    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        samples = super()._sample(problem._rebuilt(beta=1.1 * problem.beta), num_reads, key)
        return dataclasses.replace(samples, energies=problem.energy(samples.spins))


class WrongSign(Reference):
    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        samples = super()._sample(problem._rebuilt(fields=-problem.fields), num_reads, key)
        return dataclasses.replace(samples, energies=problem.energy(samples.spins))


class EqualReads(Reference):
    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        samples = super()._sample(problem, 1, key)
        spins = samples.spins.expand(*problem.batch_shape, num_reads, problem.num_spins).contiguous()
        return Samples(spins, samples.weights.expand(spins.shape[:-1]), problem.energy(spins))


class GlobalGenerator(Reference):
    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        torch.rand(1)
        return super()._sample(problem, num_reads, key)


class SharedStream(Reference):
    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        return super()._sample(problem._rebuilt(streams=torch.zeros_like(problem.streams)), num_reads, key)


class BlindToMasks(Reference):
    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        return super()._sample(problem._rebuilt(allowed=None), num_reads, key)


class SmallSeedsUnmixed(Reference):
    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        return super()._sample(problem, num_reads, 1)


class HalfGradient(Reference):
    def _magnetization(self, problem: IsingProblem, key: int) -> torch.Tensor:
        m = super()._magnetization(problem, key)
        return m.detach() + 0.5 * (m - m.detach())


class UnsymmetricCouplings(Reference):
    def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
        couplings = problem.couplings.clone()
        couplings[..., 0, 1] = couplings[..., 1, 0] = 0
        samples = super()._sample(problem._rebuilt(couplings=couplings), num_reads, key)
        return dataclasses.replace(samples, energies=problem.energy(samples.spins))


FAULTS: dict[type[Sampler], str] = {
    ColderByATenth: "draws-follow-the-law",
    WrongSign: "sign-and-temperature-of-one-spin",
    EqualReads: "seeds-repeat-and-differ",
    GlobalGenerator: "no-global-generator-moves",
    SharedStream: "seeds-repeat-and-differ",
    BlindToMasks: "forbidden-spins-do-not-exist",
    SmallSeedsUnmixed: "small-seeds-are-good-seeds",
    HalfGradient: "covariance-gradient-is-unbiased",
    UnsymmetricCouplings: "relabelling-spins-relabels-results",
}

MAKERS: dict[str, Callable[[], Sampler]] = {
    "reference": Reference,
    "exact": lambda: get_sampler("exact"),
    "band": lambda: get_sampler("band"),
    "band-given-width": lambda: get_sampler("band", width=5),
    "mean-field": lambda: get_sampler("mean-field", tolerance=1e-12),
    # At the default damping the reaction term makes the checks' stronger couplings swing for ever.
    "tap": lambda: get_sampler("tap", tolerance=1e-12, damping=0.9, max_iterations=4000),
    "bethe": lambda: get_sampler("bethe", tolerance=1e-12),
    "annealing": lambda: get_sampler("annealing", num_reads=1000),
    "dqa": lambda: get_sampler("dqa"),
    "dqa-shots": lambda: get_sampler("dqa", shots=1000),
}


@pytest.mark.parametrize("check", conformance.all_checks(), ids=lambda check: check.name)
@pytest.mark.parametrize("name", MAKERS)
def test_sampler_keeps_the_contract(name: str, check: conformance.Check):
    if conformance.run_check(check, MAKERS[name]).status == "does not apply":
        pytest.skip("the sampler does not claim this")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_kit_catches_a_planted_fault(fault: type[Sampler]):
    by_name = {check.name: check for check in conformance.all_checks()}
    with pytest.raises(conformance.ConformanceError):
        conformance.run_check(by_name[FAULTS[fault]], fault)


def test_kit_reports_a_crash_as_a_failure():
    class Crashes(Reference):
        def _sample(self, problem: IsingProblem, num_reads: int, key: int) -> Samples:
            raise ZeroDivisionError("planted")

    outcomes = conformance.run_conformance(Crashes)
    assert any(outcome.status == "failed" and "planted" in outcome.detail for outcome in outcomes)


def test_command_reports_and_refuses(capsys: pytest.CaptureFixture[str]):
    assert command.main(["exact"]) == 0
    assert "0 failed" in capsys.readouterr().out
    assert command.main(["exactt"]) == 2
    assert "did you mean 'exact'" in capsys.readouterr().err
    assert command.main(["nowhere:Nothing"]) == 2
    assert command.main(["annealing", "num_reads"]) == 2
