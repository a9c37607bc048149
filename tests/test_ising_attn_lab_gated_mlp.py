"""The study of gated MLPs: equal parameters, commands, tables and tests on made-up outcomes."""

import csv
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from script_runs import loaded

from ising_attn.lab.config import parse_settings
from ising_attn.lab.gated_mlp_plots import save_figures
from ising_attn.lab.gated_mlp_report import Outcome, Report
from ising_attn.lab.gated_mlp_rows import CHOSEN, Study, Variant
from ising_attn.lab.paired import PairedDifference, holm
from models import CharLM, CharLMConfig, FeedForwardConfig
from samplers.errors import InvalidOptionError

STUDY = Study()


def test_the_variants_are_those_of_the_study():
    variants = STUDY.variants()
    assert len(variants) == len(set(variants)) == 32
    assert {v.activation for v in variants if v.form == "mlp"} == {"identity", "relu", "gelu", "silu"}
    assert {v.rank for v in variants} == {0, 1, 2, 4, 8}
    assert {v.activation for v in variants if v.form == "gated"} == {"relu", "gelu", "silu"}
    assert len({v.name for v in variants}) == 32


def test_all_layers_have_the_same_number_of_parameters_within_the_stated_share():
    counts = [STUDY.layer_parameters(variant) for variant in STUDY.variants()]
    assert max(abs(count / STUDY.parameters - 1) for count in counts) < 0.003
    assert len({STUDY.hidden_dim(v) for v in STUDY.variants()}) == 5


def test_commands_train_the_variants_they_name():
    variant = Variant("gated", 4, "silu")
    with loaded("tiny_shakespeare") as script:
        job = STUDY.job(variant, 3, 0.02)
        settings = parse_settings(script.TextSettings, job.command()[1:], prog="")
        tuning = parse_settings(script.TextSettings, STUDY.tuning_job(variant).command()[1:], prog="")
    given = {name: value for name, value in settings.model.feed_forward_options().items() if value is not None}
    assert given == {"kind": "gated", "hidden_dim": STUDY.hidden_dim(variant), "rank": 4, "activation": "silu"}
    assert (settings.training.seed, settings.training.learning_rate, settings.training.steps) == (3, 0.02, STUDY.steps)
    assert (settings.model.attention, settings.context, settings.plots) == ("softmax", 16, False)
    assert tuning.learning_rates == STUDY.learning_rates and tuning.rate_steps == STUDY.rate_steps
    assert tuning.training.seed not in range(1000)
    same = dataclasses.replace(settings, learning_rates=tuning.learning_rates, rate_steps=tuning.rate_steps)
    assert same.model == tuning.model and same.validation_characters == tuning.validation_characters
    slot = FeedForwardConfig(**settings.model.feed_forward_options())
    models = [CharLM(CharLMConfig(feed_forward=part, context=16, embed_dim=64)) for part in (slot, 0)]
    with_slot, without = (sum(p.numel() for p in model.parameters()) for model in models)
    assert with_slot - without == STUDY.layer_parameters(variant) + 2 * 64  # and the layer norm before it
    assert f"--learning-rate={CHOSEN}" in STUDY.job(variant, 3, None).arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranks": (0,)}, "--ranks has 0; .* from 1 to --embed-dim=64"),
        ({"ranks": (1, 9), "embed_dim": 8}, "--ranks has 9; .* from 1 to --embed-dim=8"),
        ({"ranks": ()}, "--ranks is empty"),
        ({"activations": ("glu",)}, "--activations has 'glu'; did you mean"),
        ({"learning_rates": (0.1, -1.0)}, "--learning-rates has -1.0"),
        ({"rate_steps": 0}, "--rate-steps is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_studied_is_refused(options: dict, message: str):
    with pytest.raises(InvalidOptionError, match=message):
        Study(**options)


def test_too_few_parameters_are_refused_with_the_numbers():
    with pytest.raises(InvalidOptionError, match="500 parameters are too few .* rank or width"):
        Study(parameters=500).hidden_dim(Variant("gated", 8, "gelu"))


# ---- the report -----------------------------------------------------------------------------------------------

SMALL = Study(ranks=(1, 2), activations=("identity", "relu"))


def outcome(variant: Variant, seed: int, test: float) -> Outcome:
    one = Outcome(variant, seed, validation=test + 0.1, test=test, learning_rate=0.02, parameters=50_000)
    if not variant.rank:
        return one
    gap = 0.4 if variant.form == "gated" else 0.0
    scaling = {0.5: gap / 2, 2.0: gap / 4}
    return dataclasses.replace(one, exchange=gap, scaling=scaling, plain=test, exchanged=test + gap)


def made_up(effect: float, noise: float = 0.05, seeds: int = 5) -> list[Outcome]:
    """Perplexities with spread over seeds that the variants share, and an effect of gating at rank 1."""
    rng = np.random.default_rng(0)
    shared = rng.normal(8, 1, size=seeds)
    return [
        outcome(v, s, float(shared[s] + rng.normal(0, noise) + effect * (v.form == "gated" and v.rank == 1)))
        for v in SMALL.variants()
        for s in range(seeds)
    ]


def test_a_planted_effect_is_found_where_it_is_and_only_there():
    report = Report(SMALL, made_up(-0.4))
    rows = {row[0]: row for row in report.tables()["gated_minus_symmetric"].rows}
    first = PairedDifference.of(*(report.test(Variant(form, 1, "relu")) for form in ("gated", "symmetric")))
    second = PairedDifference.of(*(report.test(Variant(form, 2, "relu")) for form in ("gated", "symmetric")))
    assert first.p is not None and second.p is not None
    assert rows[1][2:] == [first.mean, first.low, first.high, 5, first.p, holm([first.p, second.p])[0]]
    assert holm([first.p, second.p])[0] < 0.01 < 0.05 < second.p
    assert rows["all"][2] == pytest.approx((first.mean + second.mean) / 2)
    summary = report.summary()
    assert (summary["comparisons"], summary["gated_better"], summary["gated_worse"]) == (2, 1, 0)
    assert "of 2 comparisons 1 have gated better at the 5% level (Holm), 0 worse" in report.remarks()[0]
    worse = Report(SMALL, made_up(0.4)).summary()
    assert (worse["gated_better"], worse["gated_worse"]) == (0, 1)


def test_without_an_effect_nothing_is_found():
    assert Report(SMALL, made_up(0.0)).summary()["gated_better"] == 0


def test_pairing_removes_what_the_seeds_share():
    """The spread over seeds (1) is twenty times that of the differences."""
    table = Report(SMALL, made_up(-0.4)).tables()["minus_mlp"]
    low, high = table.columns.index("95 % from"), table.columns.index("to")
    assert max(float(str(row[high])) - float(str(row[low])) for row in table.rows) < 0.5
    shown = Report(SMALL, made_up(-0.4)).tables()["results"].rows[0][-1]
    assert float(re.findall(r"± ([\d.]+)", str(shown))[0]) > 0.4


def test_the_best_of_each_form_is_chosen_by_validation():
    found = made_up(0.0)
    lucky = Variant("gated", 2, "relu")
    found = [dataclasses.replace(o, validation=1.0) if o.variant == lucky else o for o in found]
    rows = {row[0]: row for row in Report(SMALL, found).tables()["best"].rows}
    assert list(rows) == ["MLP", "bilinear", "symmetric", "gated"]
    assert rows["gated"][1:3] == [2, "relu"]
    assert rows["MLP"][4:] == [None] * 4


@pytest.mark.parametrize("seeds", [1, 5])
def test_tables_and_plots_are_written_also_for_one_seed(seeds: int, tmp_path: Path):
    report = Report(SMALL, made_up(-0.4, seeds=seeds))
    for name, table in report.tables().items():
        assert len(list(csv.reader(table.csv().splitlines()))) == len(table.rows) + 1, name
    assert save_figures(report, tmp_path) == []
    for name in ("perplexity", "differences", "symmetry"):
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
        assert (tmp_path / f"{name}.csv").read_text().count("\n") > 2
    json.dumps(report.summary())


def test_variants_without_runs_are_left_out():
    found = [o for o in made_up(-0.4) if o.variant.form != "symmetric" and o.seed < 2]
    report = Report(SMALL, found)
    assert report.tables()["gated_minus_symmetric"].rows == [] and report.remarks() == []
    assert {row[0] for row in report.tables()["results"].rows} == {"MLP", "gated"}
    assert Report(SMALL, []).tables()["results"].rows == []
