"""The rows of the reproduction of Boltzmann attention (Kim and Park, arXiv 2606.12478): what is run, with which flags.

Every row spells its flags out, so that its command is the same whatever the defaults of the experiments become. How
long a part trains is a matter of its budget: `paper` is what the paper states, `medium` our own faster rates, `quick` a
small real result. Their numbers stand in `reproduction_budgets.py`.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Literal

from ising_attn.lab.published import Published, bracket_accuracy, text_perplexity
from ising_attn.lab.reproduction_budgets import BUDGETS, Budget, Training
from ising_attn.lab.sweep import Job
from samplers import InvalidOptionError
from samplers.errors import did_you_mean

Measure = Literal["perplexity", "accuracy"]
TEXT, BRACKETS = "tiny-shakespeare", "brackets"
SOFTMAX = "softmax"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One row of a table.

    Args:
        name: unique; also of its folder.
        part: the table.
        variant: what is compared within the table.
        context: T.
        group: rows of one part are compared within a group only (with FFN, without).
        experiment, arguments: what runs, without seed and folder.
        measure: what it comes to.
        seeds: how many by default.
        seconds: about how long one seed takes on one core.
        published: the paper's number for the same setting.
    """

    name: str
    part: str
    variant: str
    context: int
    group: str = ""
    experiment: str
    arguments: tuple[str, ...]
    measure: Measure
    seeds: int
    seconds: float
    published: Published | None = None

    def jobs(self, seeds: Sequence[int] = ()) -> list[Job]:
        """One for each seed; for its own number of seeds where none is given."""
        return [
            Job(row=self.name, seed=seed, experiment=self.experiment, arguments=self.arguments, seconds=self.seconds)
            for seed in (seeds or range(self.seeds))
        ]


@dataclasses.dataclass(frozen=True)
class Variant:
    """A kind of attention, by flags; `published` is its name in the paper's tables."""

    name: str
    flags: tuple[str, ...]
    published: str | None = None

    @property
    def uses_sampler(self) -> bool:
        return "--attention=boltzmann" in self.flags

    def but(self, name: str, *flags: str) -> "Variant":
        """With more flags, under another name."""
        return Variant(name, (*self.flags, *flags))


def _boltzmann(mode: str) -> Variant:
    return Variant(mode, ("--attention=boltzmann", f"--mode={mode}"), mode)


_SOFTMAX = Variant(SOFTMAX, ("--attention=softmax",), SOFTMAX)
_HJ, _H, _J = (_boltzmann(mode) for mode in ("h+J", "h", "J"))
_THREE_BODY = [_boltzmann(mode) for mode in ("K", "h+K", "J+K", "h+J+K")]
_BIAS = "--score-bias=distance"
_BIASED = [v.but(f"{v.name}, bias", _BIAS) for v in (_SOFTMAX, _H, _HJ)]
# Weights that start near zero and an inverse temperature that is learnt: without them single seeds get stuck.
_STEADY = [v.but(f"{v.name}, steady", _BIAS, "--score-bias-init=-1", "--learn-beta") for v in (_H, _HJ)]
_EXACT = ("--sampler=exact",)
_TEXT_MODEL = ("--embed-dim=64", "--heads=1", "--layers=1", "--ffn=mlp", "--ffn-dim=128")
_BRACKET_MODEL = ("--embed-dim=32", "--heads=1", "--layers=1")
_FFN, _NO_FFN = ("--ffn=mlp", "--ffn-dim=64"), ("--ffn=none",)
_BRACKET_DATA = ("--filler-share=0.25", "--validation-size=500", "--test-size=2000", "--data-seed=0")

PARTS = (
    "text-paper", "text-tuned", "brackets", "brackets-tuned", "recipe", "settings", "samplers", "long",
    "length-transfer",
)  # fmt: skip


def rows(budget: str = "medium", parts: Iterable[str] = PARTS) -> list[Row]:
    """The rows of the parts, in that order.

    Raises:
        InvalidOptionError: an unknown part or budget.
    """
    if budget not in BUDGETS:
        raise InvalidOptionError(f"--budget is {budget!r}; it must be one of {', '.join(BUDGETS)}")
    makers = dict(zip(PARTS, (
        _text_paper, _text_tuned, _brackets, _brackets_tuned, _recipe, _settings, _samplers, _long, _transfer,
    ), strict=True))  # fmt: skip
    found: list[Row] = []
    for part in parts:
        if part not in makers:
            raise InvalidOptionError(
                f"there is no part {part!r}{did_you_mean(part, PARTS)}; the parts are {', '.join(PARTS)}"
            )
        found += makers[part](BUDGETS[budget])
    return found


def _text_row(
    part: str, variant: Variant, context: int, training: Training, seeds: int, *flags: str, protocol: str = "paper",
    sampler: tuple[str, ...] = _EXACT, published: Published | None = None,
) -> Row:  # fmt: skip
    own = sampler if variant.uses_sampler else ()
    arguments = (f"--protocol={protocol}", f"--context={context}", *variant.flags, *own, *_TEXT_MODEL)
    return Row(
        name=_name(part, variant.name, context),
        part=part,
        variant=variant.name,
        context=context,
        experiment=TEXT,
        arguments=(*arguments, *training.flags(), *flags),
        measure="perplexity",
        seeds=seeds,
        seconds=_seconds(TEXT, variant, context, training, sampler),
        published=published,
    )


def _bracket_row(
    part: str, variant: Variant, context: int, training: Training, seeds: int, *flags: str, ffn: bool = False,
    setting: str = "", sampler: tuple[str, ...] = _EXACT, published: Published | None = None,
) -> Row:  # fmt: skip
    own = (*sampler, "--aer-sequences=0") if variant.uses_sampler else ("--sampler=exact",)
    group = setting or ("with FFN" if ffn else "without FFN")
    arguments = (f"--context={context}", *variant.flags, *own, *_BRACKET_MODEL, *(_FFN if ffn else _NO_FFN))
    return Row(
        name=_name(part, f"{variant.name}-{setting or ('ffn' if ffn else 'no-ffn')}", context),
        part=part,
        variant=variant.name,
        context=context,
        group=group,
        experiment=BRACKETS,
        arguments=_overridden((*arguments, *_BRACKET_DATA, *training.flags()), flags),
        measure="accuracy",
        seeds=seeds,
        seconds=_seconds(BRACKETS, variant, context, training, sampler),
        published=published,
    )


def _overridden(flags: tuple[str, ...], later: tuple[str, ...]) -> tuple[str, ...]:
    """All flags, each once: a later one takes the place of an earlier one of its name."""
    return tuple({flag.partition("=")[0]: flag for flag in (*flags, *later)}.values())


def _name(part: str, variant: str, context: int) -> str:
    words = variant.replace(",", "").replace(" ", "-").replace("/", "-")
    return f"{part}-{words}-T{context}"


def _text_paper(budget: Budget) -> list[Row]:
    """The paper's Tables 2 and 6, and what a bias by distance does."""
    found = []
    for context in budget.text_contexts:
        three = _THREE_BODY if context in budget.three_body_contexts else []
        seeds = budget.key_seeds if context == 12 else budget.seeds
        steady = _STEADY if context == max(c for c in budget.text_contexts if c <= 12) else []
        for variant in (_SOFTMAX, _HJ, _H, _J, *_BIASED, *steady, *three):
            own = min(seeds, budget.few_seeds) if variant in three else seeds
            known = text_perplexity(variant.published, context) if variant.published else None
            found.append(_text_row("text-paper", variant, context, budget.text, own, published=known))
    return found


def _text_tuned(budget: Budget) -> list[Row]:
    """The whole text, with learning rates chosen for each run on validation data."""
    return [
        _text_row("text-tuned", variant, context, budget.text_tuned, budget.seeds, protocol="tuned")
        for context in budget.tuned_contexts
        for variant in (_SOFTMAX, _HJ, *_BIASED, *_STEADY)
    ]


def _brackets(budget: Budget) -> list[Row]:
    """The paper's Tables 3, 5 and 7."""
    found = []
    for context in budget.bracket_contexts:
        for ffn in (False, True):
            three = _THREE_BODY if ffn and context in budget.three_body_contexts else []
            seeds = budget.key_seeds if context == 16 else budget.seeds
            for variant in (_SOFTMAX, _HJ, _H, _J, *three):
                own = min(seeds, budget.few_seeds) if variant in three else seeds
                known = bracket_accuracy(variant.published, context, ffn=ffn) if variant.published else None
                found.append(_bracket_row("brackets", variant, context, budget.brackets, own, ffn=ffn, published=known))
    return found


def _brackets_tuned(budget: Budget) -> list[Row]:
    """Which couplings pay: rates chosen for each run, at the paper's longest context without FFN."""
    context, training = max(budget.bracket_contexts), budget.brackets_tuned
    slow, fast = (dataclasses.replace(training, coupling_learning_rate=rate) for rate in (3e-4, 3e-2))
    by_distance = ("--couplings=distance",)
    plain = [
        _SOFTMAX, *_BIASED, _H, _HJ,
        _HJ.but("h+J, J starts at 0.1", "--coupling-std=0.1"),
        _HJ.but("h+J, learned beta", "--learn-beta"),
        _HJ.but("h+J by distance", *by_distance),
        _HJ.but("h+J by distance, bias", *by_distance, _BIAS),
        _HJ.but("h+J by distance, bias, learned beta", *by_distance, _BIAS, "--learn-beta"),
        _HJ.but("h+J, scalar bias", "--score-bias=scalar"),
        _H.but("h, scalar bias", "--score-bias=scalar"),
    ]  # fmt: skip
    found = [_bracket_row("brackets-tuned", variant, context, training, budget.key_seeds) for variant in plain]
    for name, own in (("h+J, slow J", slow), ("h+J, fast J", fast)):
        found.append(_bracket_row("brackets-tuned", _HJ.but(name), context, own, budget.seeds))
    return found


# What most runs of brackets-tuned chose, where 2e-2 was the largest; with a longer warm-up larger ones turn out better.
_RECIPE_RATES = {"h, bias": 1e-2, "h+J, bias": 1e-2}
_RECIPE_RATE = 2e-2
_FASTER, _FASTEST = ", faster", ", fastest"


def _recipe_training(budget: Budget, variant: Variant) -> Training:
    """Twice as long as brackets-tuned, a fifth of it warm-up, without which sigmoid-like weights get stuck."""
    tuned = budget.brackets_tuned
    steps, rate = 2 * tuned.steps, _RECIPE_RATES.get(variant.name, _RECIPE_RATE)
    rate *= 4 if variant.name.endswith(_FASTEST) else 2 if variant.name.endswith(_FASTER) else 1
    return dataclasses.replace(tuned, steps=steps, warmup=steps // 5, rates=(), rate_steps=0, learning_rate=rate)


def _recipe(budget: Budget) -> list[Row]:
    """The recipe, at the paper's longest context without FFN."""
    return [
        _bracket_row(
            "recipe", variant, max(budget.bracket_contexts), _recipe_training(budget, variant), budget.key_seeds
        )
        for variant in (*_RECIPE, *(v.but(v.name + _FASTER) for v in _RECIPE_FASTER), _SOFTMAX.but(SOFTMAX + _FASTEST))
    ]


_RECIPE = (_SOFTMAX, *_BIASED, *_STEADY)
_RECIPE_FASTER = (_SOFTMAX, _BIASED[0], *_STEADY)
_SETTINGS = {
    "two heads": ("--heads=2",),
    "three types of brackets": ("--bracket-types=3",),
    "2000 sequences": ("--train-size=2000",),
    "no fillers": ("--filler-share=0.0",),
    "crossing": ("--matching=crossing",),
    "crossing, three types": ("--matching=crossing", "--bracket-types=3"),
}


def _settings(budget: Budget) -> list[Row]:
    """The recipe where couplings may count for more or less: more heads, more to tell apart, less data, deeper nesting,
    matching that crosses, and copies (crossing types)."""
    return [
        _bracket_row(
            "settings", variant, max(budget.bracket_contexts), _recipe_training(budget, variant), budget.few_seeds,
            *flags, setting=setting,
        )
        for setting, flags in _SETTINGS.items()
        for variant in (v.but(v.name + _FASTER) for v in _RECIPE_FASTER)
    ]  # fmt: skip


_TRAINED_THROUGH = (
    ("exact", _EXACT),
    ("dqa, learned", ("--sampler=dqa",)),
    ("dqa, ramp of 20", ("--sampler=dqa", "--sampler.schedule=ramp", "--sampler.num-layers=20")),
    ("dqa, fast anneal of 200", ("--sampler=dqa", "--sampler.schedule=fast-anneal", "--sampler.num-layers=200")),
    ("mean-field", ("--sampler=mean-field",)),
    ("tap", ("--sampler=tap",)),
    ("bethe", ("--sampler=bethe", "--sampler.tolerance=1e-6", "--sampler.max-iterations=200")),
    ("gibbs", ("--sampler=gibbs", "--sampler.num-chains=32", "--sampler.num-sweeps=32", "--sampler.burn-in=16")),
    ("annealing", ("--sampler=annealing", "--sampler.num-reads=64", "--sampler.num-sweeps=16")),
)


def _samplers(budget: Budget) -> list[Row]:
    """h+J at T = 8 trained through each sampler; softmax beside it. Table 4 of the paper has the anneal."""
    found = []
    softmax: tuple[str, tuple[str, ...]] = (SOFTMAX, ())
    for name, flags in (softmax, *_TRAINED_THROUGH):
        variant = _SOFTMAX if name == SOFTMAX else _HJ.but(name)
        training = dataclasses.replace(
            budget.brackets, steps=budget.samplers.steps, eval_every=budget.samplers.eval_every
        )
        anneal = "dqa" if name == "dqa, fast anneal of 200" else "exact" if name == "exact" else None
        text = text_perplexity("h+J", 8, sampler=anneal) if anneal else None
        known = bracket_accuracy("h+J", 8, ffn=True, sampler=anneal) if anneal else None
        found += [
            _text_row(
                "samplers", variant, 8, budget.samplers, budget.few_seeds, sampler=flags, published=text
            ),
            _bracket_row(
                "samplers", variant, 8, training, budget.few_seeds, ffn=True, sampler=flags, published=known
            ),
        ]  # fmt: skip
    return found


def _long(budget: Budget) -> list[Row]:
    """Past the paper's T = 16: dense exact summation to 20, then couplings of short range, and Bethe at 32."""
    found = []
    for context in budget.long_contexts:
        training, seeds = budget.long, budget.few_seeds
        plain = [_SOFTMAX, *_BIASED[:2]]
        rows_: list[tuple[Variant, tuple[str, ...]]] = [(variant, _EXACT) for variant in plain if context <= 20]
        if context <= 20:
            rows_ += [(_HJ, _EXACT), (_BIASED[2], _EXACT)]
        else:
            rows_ += [(variant, _mean_free(variant)) for variant in plain]
            band = ("--sampler=band", "--sampler.width=4")
            for kind in ("band", "distance"):
                flags = (f"--couplings={kind}", "--coupling-width=4", _BIAS)
                rows_.append((_HJ.but(f"h+J {kind} 4, bias", *flags), band))
            if context == 32:
                bethe = ("--sampler=bethe", "--sampler.tolerance=1e-4", "--sampler.max-iterations=100")
                rows_.append((_BIASED[2].but("h+J through bethe, bias"), bethe))
        found += [_text_row("long", v, context, training, seeds, sampler=sampler) for v, sampler in rows_]
    return found


def _mean_free(variant: Variant) -> tuple[str, ...]:
    """The sampler of a row without couplings: naive mean field is exact there, at any length."""
    return ("--sampler=mean-field",) if variant.uses_sampler else ()


def _transfer(budget: Budget) -> list[Row]:
    """Trained at one length, evaluated at longer ones: everything is by distance, and there are no positions."""
    band = ("--sampler=band", "--sampler.width=4")
    coupled = _HJ.but("h+J by distance, bias", "--couplings=distance", "--coupling-width=4", _BIAS)
    others = "--other-contexts=8,12,16,24,32,48,64"
    return [
        _text_row(
            "length-transfer", variant, context, budget.text, budget.few_seeds, "--positions=none", others,
            sampler=sampler,
        )
        for context in budget.transfer_contexts
        for variant, sampler in ((_BIASED[0], ()), (_BIASED[1], ("--sampler=mean-field",)), (coupled, band))
    ]  # fmt: skip


# Milliseconds of one step of 64 windows, on one core of a Xeon at 2.8 GHz; the sweep corrects them as it runs.
_STEP_MS = {4: 6, 8: 8, 12: 11, 16: 16, 20: 40, 32: 30, 64: 60, 128: 120}
_SAMPLER_MS = {"dqa": 20, "ramp": 24, "fast-anneal": 100, "mean-field": 17, "tap": 20, "bethe": 40, "gibbs": 60,
               "annealing": 70, "band": 30}  # fmt: skip
_START_SECONDS = 3.0


def _seconds(
    experiment: str, variant: Variant, context: int, training: Training, sampler: tuple[str, ...]
) -> float:  # fmt: skip
    known = sorted(_STEP_MS)
    step = float(_STEP_MS[next((t for t in known if t >= context), known[-1])])
    if variant.uses_sampler:
        words = {flag.partition("=")[2] for flag in sampler}
        step = max([step, *(_SAMPLER_MS[word] * context / 8 for word in words & _SAMPLER_MS.keys())])
    per_batch = training.batch_size / (64 if experiment == TEXT else 128)
    return _START_SECONDS + training.all_steps * step * max(per_batch, 0.5) / 1000
