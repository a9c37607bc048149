"""The conformance kit: what every sampler, ours or a third party's, must pass.

On the command line:   python -m samplers.conformance my_package:MySampler    (or a registered name)
In a test:

    @pytest.mark.parametrize("check", conformance.all_checks(), ids=lambda check: check.name)
    def test_contract(check):
        conformance.run_check(check, MySampler)
"""

from samplers.conformance import contract, gradients, laws
from samplers.conformance.kit import Check, ConformanceError, MakeSampler, Outcome, all_checks

__all__ = ["Check", "ConformanceError", "Outcome", "all_checks", "run_check", "run_conformance"]

# Importing the modules registers their checks.
SUBJECTS = (laws, gradients, contract)


def run_check(check: Check, make: MakeSampler) -> Outcome:
    """Run one check; `make()` returns a fresh sampler.

    Returns:
        An outcome that passed or does not apply to this sampler's capabilities.

    Raises:
        ConformanceError: the sampler breaks the contract.
    """
    if not check.applies(make()):
        return Outcome(check, "does not apply")
    check.run(make)
    return Outcome(check, "passed")


def run_conformance(make: MakeSampler) -> list[Outcome]:
    """Run every check and report all outcomes, failures included. Cost: seconds to a minute."""
    outcomes = []
    for check in all_checks():
        try:
            outcomes.append(run_check(check, make))
        except Exception as error:  # a sampler under test may fail in any way; the report says how
            outcomes.append(Outcome(check, "failed", f"{type(error).__name__}: {error}"))
    return outcomes
