"""The effective inverse temperature of a device in its own energy units, tracked from call to call."""

import math
from typing import Any

# A device's temperature wanders by a few percent between calls (temperature, calibration, anneal, problem).
_DRIFT = 0.03


class DeviceBeta:
    """log β of a device with its variance: a random walk observed through estimates with error bars (Kalman filter)."""

    def __init__(self, value: float | None = None):
        self._log = None if value is None else math.log(value)
        self._variance = math.inf if value is None else 0.25

    @property
    def value(self) -> float | None:
        return None if self._log is None else math.exp(self._log)

    def update(self, estimate: float, error: float) -> str:
        """Take in an estimate with its one-sigma error; returns what was done, in words."""
        if math.isnan(estimate):
            return "not updated: the model has no biases"
        if math.isinf(estimate):
            return "not updated: every read is a local minimum, so the estimate is infinite"
        if estimate <= 0 or not math.isfinite(error):
            return f"not updated: the estimate {estimate:.3g} ± {error:.2g} is no positive temperature"
        relative = max(error / estimate, 1e-3)
        prior = self._variance + _DRIFT**2
        gain = 1.0 if math.isinf(prior) else prior / (prior + relative**2)
        old = math.log(estimate) if self._log is None else self._log
        self._log = old + gain * (math.log(estimate) - old)
        self._variance = relative**2 if math.isinf(prior) else (1 - gain) * prior
        return f"updated with weight {gain:.2f}"

    def state(self) -> dict[str, Any]:
        return {"log": self._log, "variance": self._variance}

    def load(self, state: dict[str, Any]) -> None:
        self._log, self._variance = state["log"], float(state["variance"])
