"""How long each part of the reproduction trains, at which lengths and for how many seeds: all its numbers."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """How a row is trained; `rates` are tried for `rate_steps` each on validation data before."""

    steps: int
    batch_size: int
    learning_rate: float
    coupling_learning_rate: float
    schedule: str = "cosine"
    warmup: int = 0
    weight_decay: float = 0.01
    eval_every: int = 250
    patience: int | None = None
    dropout: float = 0.0
    rates: tuple[float, ...] = ()
    rate_steps: int = 0

    def flags(self) -> list[str]:
        names = (
            "steps", "batch_size", "learning_rate", "coupling_learning_rate", "schedule", "warmup", "weight_decay",
            "eval_every", "patience", "dropout",
        )  # fmt: skip
        given = [f"--{name.replace('_', '-')}={getattr(self, name)}" for name in names]
        if self.rates:
            given += [f"--learning-rates={','.join(map(str, self.rates))}", f"--rate-steps={self.rate_steps}"]
        return [*given, "--clip=1.0", "--monitor=loss", "--monitor-mode=min", "--no-plots"]

    @property
    def all_steps(self) -> int:
        return self.steps + len(self.rates) * self.rate_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """Training of each part, which contexts it has, and how many seeds (more where a claim hangs on the row)."""

    text: Training
    text_tuned: Training
    brackets: Training
    brackets_tuned: Training
    samplers: Training
    long: Training
    text_contexts: tuple[int, ...] = (4, 6, 8, 10, 12, 14, 16)
    three_body_contexts: tuple[int, ...] = (4, 6, 8, 10)
    tuned_contexts: tuple[int, ...] = (8, 12, 16)
    bracket_contexts: tuple[int, ...] = (4, 6, 8, 10, 12, 14, 16)
    long_contexts: tuple[int, ...] = (20, 32, 64, 128)
    transfer_contexts: tuple[int, ...] = (8, 12)
    seeds: int = 5
    key_seeds: int = 10
    few_seeds: int = 3


# Without dropout, which costs so small a model more than it gains: at T = 12 softmax attention comes to a perplexity of
# 5.8 in 2000 such steps, to 6.7 with a dropout of 0.1 at half the rate.
_TEXT = Training(
    steps=2000, batch_size=64, learning_rate=1e-2, coupling_learning_rate=1e-2, warmup=100, eval_every=250
)  # fmt: skip
_TUNED = dataclasses.replace(_TEXT, steps=2500, rates=(5e-3, 1e-2, 2e-2), rate_steps=500)
_BRACKETS = Training(
    steps=1500, batch_size=64, learning_rate=1e-2, coupling_learning_rate=1e-2, warmup=50, eval_every=200
)  # fmt: skip
_BRACKETS_TUNED = dataclasses.replace(_BRACKETS, steps=2000, rates=(3e-3, 1e-2, 2e-2), rate_steps=400)
_SAMPLERS = dataclasses.replace(_TEXT, steps=1500)
_LONG = dataclasses.replace(_TEXT, steps=1500, batch_size=32, eval_every=500)
_PAPER_TEXT = Training(
    steps=40000, batch_size=64, learning_rate=1e-3, coupling_learning_rate=3e-5, schedule="constant", eval_every=500,
    patience=20, dropout=0.1,
)  # fmt: skip
# The paper states neither the number of sequences nor that of steps; its longest curve has 200 evaluations.
_PAPER_BRACKETS = Training(
    steps=40000, batch_size=128, learning_rate=3e-4, coupling_learning_rate=1e-4, schedule="constant", eval_every=200,
    patience=20,
)  # fmt: skip


def _quick(training: Training, steps: int = 200) -> Training:
    return dataclasses.replace(
        training, steps=steps, eval_every=100, warmup=20, rate_steps=min(training.rate_steps, 60)
    )


BUDGETS = {
    "paper": Budget(
        text=_PAPER_TEXT,
        text_tuned=dataclasses.replace(_TUNED, steps=20000, rate_steps=2000, eval_every=500),
        brackets=_PAPER_BRACKETS,
        brackets_tuned=dataclasses.replace(_BRACKETS_TUNED, steps=16000, rate_steps=2000),
        samplers=dataclasses.replace(_SAMPLERS, steps=5000, eval_every=500),
        long=dataclasses.replace(_LONG, steps=10000),
        three_body_contexts=(4, 6, 8, 10, 12, 14),
    ),
    "medium": Budget(
        text=_TEXT,
        text_tuned=_TUNED,
        brackets=_BRACKETS,
        brackets_tuned=_BRACKETS_TUNED,
        samplers=_SAMPLERS,
        long=_LONG,
    ),
    "quick": Budget(
        text=_quick(_TEXT),
        text_tuned=_quick(_TUNED),
        brackets=_quick(_BRACKETS),
        brackets_tuned=_quick(_BRACKETS_TUNED),
        samplers=_quick(_SAMPLERS, 40),
        long=_quick(_LONG, 60),
        text_contexts=(4, 8),
        three_body_contexts=(4,),
        tuned_contexts=(8,),
        bracket_contexts=(4, 8),
        long_contexts=(20,),
        transfer_contexts=(8,),
        seeds=2,
        key_seeds=1,
        few_seeds=1,
    ),
}
