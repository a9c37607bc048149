"""Settings: which layer wins, what is refused and how, and the sampler's options among the flags."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest

from ising_attn.lab.config import Flat, Hidden, RunSettings, SamplerSettings, parse_settings, settings_to_dict
from ising_attn.lab.training import TrainingSettings
from samplers import Capabilities, InvalidOptionError, Sampler, UnknownSamplerError, option, register_sampler, registry


class Probe(Sampler):
    """A sampler with an option of every kind."""

    layers: int = option(default=4, help="number of layers", minimum=1, maximum=100)
    engine: Any = option(default="statevector", help="what computes", choices=("statevector", "aer"))
    shots: int | None = option(default=None, help="shots; None for exact probabilities", minimum=1)
    schedule: str | object = option(default="ramp", help="name or path of a schedule, or a schedule object")
    noise: object = option(default=None, help="a noise model; from Python alone")
    filters: Any = option(default=None, help="text such as a=1, or an object")
    calibrate: bool | None = option(default=None, help="None to decide by itself")
    monotone: bool = option(default=True, help="whether the schedule must be monotone")
    offset: float = option(default=0.0, help="an offset")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(exact=False, boltzmann=False, gradient="none")


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    """Registers `Probe` for this file's tests alone."""
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    register_sampler("config-probe", Probe)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The data."""

    context: int = 8
    """Sequence length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(SamplerSettings):
    """A test's settings."""

    sampler: str = "config-probe"
    """The sampler."""
    ffn: bool = True
    """Feed-forward slot."""
    norm: Literal["pre", "post", "none"] = "pre"
    """A choice that has none among its words."""
    seeds: tuple[int, ...] = (0,)
    """Seeds."""
    internal: Hidden[int] = 3
    """Not for users."""
    training: Flat[TrainingSettings] = TrainingSettings()
    data: Data = Data()


def parse(*argv: str) -> Settings:
    return parse_settings(Settings, argv, prog="probe", description="A probe.")


@pytest.fixture
def toml(tmp_path):
    def write(text: str) -> str:
        (tmp_path / "settings.toml").write_text(text)
        return f"--config={tmp_path / 'settings.toml'}"

    return write


def test_defaults_stand_where_nothing_is_given():
    assert parse() == Settings()


def test_flags_override_the_file_which_overrides_the_defaults(toml):
    file = toml("seeds = [3, 4]\nffn = false\n[training]\nsteps = 77\nlearning_rate = 0.5\n[data]\ncontext = 12\n")
    ours = parse(file, "--steps=9")
    assert (ours.training.steps, ours.training.learning_rate, ours.seeds, ours.ffn) == (9, 0.5, (3, 4), False)
    assert ours.data.context == 12
    assert ours.training.batch_size == TrainingSettings().batch_size
    assert parse("--steps=9", file) == ours
    assert parse(file, "--ffn").ffn is True
    assert parse(file, "--data.context=6").data.context == 6


def test_file_keys_may_be_spelled_like_the_flags(toml):
    assert parse(toml("learning-rate = 0.5\neval_every = 7\n")).training.learning_rate == 0.5


def test_none_can_be_given_and_taken_back(toml):
    assert parse("--clip", "None").training.clip is None
    assert parse(toml("patience = 4\n")).training.patience == 4
    assert parse(toml("patience = 4\n"), "--patience=None").training.patience is None


@pytest.mark.parametrize("spelling", [["--seeds=0,1,2"], ["--seeds", "0", "1", "2"], ["--seeds", "0,1", "2"]])
def test_sequences_take_spaces_and_commas(spelling):
    assert parse(*spelling, "--no-ffn").seeds == (0, 1, 2)


def test_booleans_may_be_spelled_out():
    assert [parse(f"--ffn={word}").ffn for word in ("true", "False")] == [True, False]
    assert parse("--sampler.monotone=false").sampler_options == {"monotone": False}
    assert parse("--sampler.calibrate=false").sampler_options == {"calibrate": False}


def test_a_choice_can_be_left_out_like_a_switch(toml):
    assert parse("--no-norm").norm == parse("--norm=none").norm == parse("--norm", "none").norm == "none"
    assert parse("--no-norm", "--norm=post").norm == "post"
    with pytest.raises(InvalidOptionError, match="there is no flag --no-seeds"):
        parse("--no-seeds")


def test_files_may_hold_a_switch_that_has_become_a_choice(toml):
    assert parse(toml("norm = true\n")).norm == "pre"
    assert parse(toml("norm = false\n")).norm == "none"
    assert parse(toml("norm = 'post'\n")).norm == "post"
    assert parse(toml("norm = false\n"), "--norm=post").norm == "post"
    with pytest.raises(InvalidOptionError, match="has norm = 1; it must be one of 'pre', 'post', 'none'"):
        parse(toml("norm = 1\n"))


def test_options_of_any_type_take_text():
    ours = parse("--sampler.filters=a=1, b=2", "--sampler.engine=aer")
    assert ours.sampler_options == {"filters": "a=1, b=2", "engine": "aer"}


def test_negative_numbers_and_underscores_are_taken():
    ours = parse("--sampler.offset", "-1.5", "--seeds=-1,2", "--learning_rate=0.2")
    assert (ours.sampler_options, ours.seeds, ours.training.learning_rate) == ({"offset": -1.5}, (-1, 2), 0.2)


def test_sampler_options_are_flags_with_or_without_equals():
    ours = parse("--sampler", "config-probe", "--sampler.layers=20", "--sampler.engine", "aer", "--sampler.no-monotone")
    assert ours.sampler_options == {"layers": 20, "engine": "aer", "monotone": False}
    sampler = ours.make_sampler(seed=5, layers=2)
    assert isinstance(sampler, Probe)
    assert (sampler.layers, sampler.engine, sampler.seed) == (20, "aer", 5)


def test_sampler_options_of_a_file_go_with_its_sampler(toml):
    file = toml('sampler = "config-probe"\nsteps = 5\n[sampler_options]\nlayers = 9\nmonotone = false\n')
    assert parse(file, "--sampler.shots=3").sampler_options == {"layers": 9, "monotone": False, "shots": 3}
    other = parse(file, "--sampler=exact")
    assert (other.sampler, other.sampler_options, other.training.steps) == ("exact", {}, 5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learnin-rate=3"], "there is no flag --learnin-rate; did you mean '--learning-rate'\\?$"),
        (["--contxt", "3"], "there is no flag --contxt; did you mean '--data.context'"),
        (["--sampler.layer=3"], "there is no flag --sampler.layer; did you mean '--sampler.layers'"),
        (["--qqq"], "there is no flag --qqq; --help lists all"),
        (["--internal=4"], "there is no flag --internal"),
        (["--noise=3"], "there is no flag --noise"),
        (["stray"], "unexpected argument 'stray'"),
        (["--sampler.layers=0"], "layers=0; it must be between 1 and 100"),
        (["--sampler.engine=aers"], "engine='aers'; it must be one of 'statevector', 'aer'; did you mean 'aer'"),
        (["--resume"], "--resume needs the run folder to go on with: --resume --out=FOLDER"),
        (["--resume", "--out=/nowhere"], "/nowhere holds no run to resume"),
        (["--config=/nowhere/x.toml"], "there is no file of settings /nowhere/x.toml"),
    ],
)
def test_what_is_not_understood_is_refused_with_the_nearest_match(flags, message):
    with pytest.raises(InvalidOptionError, match=message):
        parse(*flags)


def test_an_unknown_sampler_lists_the_known_ones():
    with pytest.raises(UnknownSamplerError, match="no sampler is named 'config-prob'; did you mean 'config-probe'"):
        parse("--sampler=config-prob")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--steps=x"], r"--steps cannot be read \(invalid literal .*'x'\); it must be a whole number$"),
        (["--out"], "--out needs a value; it must be a path, as text or null"),
        (["--sampler"], "--sampler needs a value; it must be text$"),
        (["--steps=0"], "^--steps is 0; it must be at least 1$"),
        (["--monitor-mode=maxi"], "--monitor-mode is 'maxi'; it must be one of 'max', 'min'; did you mean 'max'"),
        (["--sampler.layers=2.5"], "--sampler.layers cannot be read .*; it must be a whole number"),
        (["--seeds=1,x"], r"--seeds cannot be read \(.*'x'.*\); it must be a list of whole numbers"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_value_that_cannot_be_read_is_one_sentence(flags, message, encoding, capsys, monkeypatch):
    monkeypatch.setattr("tyro._fmtlib._FORCE_UTF8_BOXES", encoding == "utf-8")
    with pytest.raises(InvalidOptionError, match=message):
        parse(*flags)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learnin_rate = 3", "has the unknown setting 'learnin_rate'; did you mean '--learning-rate'"),
        ("[trainin]\nsteps = 3", "has the unknown table 'trainin'; did you mean 'training'"),
        ("[sampler_options]\nlayer = 3", "has the unknown setting 'layer'; did you mean '--sampler.layers'"),
        ("internal = 4", "has the unknown setting 'internal'"),
        ("out = 'x'", "has the unknown setting 'out'"),
        ("steps = 'many'", 'has steps = "many"; it must be a whole number$'),
        ("steps = true", "has steps = true; it must be a whole number$"),
        ("steps = 2.5", "has steps = 2.5; it must be a whole number$"),
        ("steps = [1, 2]", r"has steps = \[1, 2\]; it must be a whole number$"),
        ("[steps]\na = 1", 'has steps = {"a": 1}; it must be a whole number$'),
        ("learning_rate = 'fast'", 'has learning_rate = "fast"; it must be a number$'),
        ("patience = 'long'", r'has patience = "long"; it must be a whole number or null \("None" in TOML\)$'),
        ("ffn = 'yes'", 'has ffn = "yes"; it must be true or false$'),
        ("seeds = 3", "has seeds = 3; it must be a list of whole numbers$"),
        ("seeds = ['--help']", r'has seeds = \["--help"\]; it must be a list of whole numbers$'),
        ("monitor = [1]", r"has monitor = \[1\]; it must be text$"),
        ("monitor_mode = 'maxi'", "has monitor_mode = \"maxi\"; it must be one of 'max', 'min'$"),
        ("sampler = ['dqa']", r'has sampler = \["dqa"\]; it must be the name of a sampler, as text$'),
        ("sampler_options = 5", "has sampler_options = 5; it must be a table of settings$"),
        ("training = 5", "has training = 5; it must be a table of settings$"),
        ("data = [1]", r"has data = \[1\]; it must be a table of settings$"),
        ("'--steps' = 3", "has the unknown setting '--steps'; keys have no dashes in front: 'steps'$"),
        ("help = true", "has the unknown setting 'help'; it is for the command line alone"),
        ("[sampler_options]\nlayers = 'x'", 'has layers = "x"; it must be a whole number$'),
        ("steps = ", "cannot be read as TOML"),
    ],
)
def test_bad_files_are_named(toml, text, message):
    with pytest.raises(InvalidOptionError, match=f"settings.toml {message}"):
        parse(toml(text))


@pytest.mark.parametrize(("name", "text"), [("x.json", "[" * 100_000), ("x.toml", "a = " + "[" * 100_000)])
def test_a_file_that_is_nested_without_end_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidOptionError, match=f"{name} is nested too deeply"):
        parse(f"--config={tmp_path / name}")


def test_whole_numbers_serve_as_numbers_and_numbers_as_text(toml):
    ours = parse(toml("learning_rate = 1\n[sampler_options]\nfilters = 0.5\ncalibrate = true\noffset = 2\n"))
    assert ours.training.learning_rate == 1.0
    assert ours.sampler_options == {"filters": "0.5", "calibrate": True, "offset": 2.0}


def test_config_json_of_a_run_reads_back_and_serves_resumption(tmp_path):
    ours = parse("--seeds=1,2", "--no-ffn", "--sampler.layers=7", "--steps=3", "--clip=None", "--data.context=5")
    (tmp_path / "config.json").write_text(json.dumps(settings_to_dict(ours)))
    assert parse(f"--config={tmp_path / 'config.json'}") == dataclasses.replace(ours, config=tmp_path / "config.json")
    resumed = parse("--resume", f"--out={tmp_path}", "--steps=9")
    expected = dataclasses.replace(ours.training, steps=9)
    assert resumed == dataclasses.replace(ours, resume=True, out=tmp_path, training=expected)
    assert not {"out", "resume", "config", "debug", "internal"} & settings_to_dict(ours).keys()


def test_help_lists_settings_and_the_sampler_s_options_on_80_columns(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        parse("--help", "--sampler=config-probe")
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    text = " ".join(shown.replace("│", " ").split())
    for part in (
        "--learning-rate FLOAT",
        "--ffn, --no-ffn",
        "--data.context INT",
        "Options of the sampler 'config-probe'",
    ):
        assert part in text
    assert "--sampler.layers INT number of layers [at least 1, at most 100] (default: 4)" in text
    assert "--sampler.engine {statevector,aer} what computes (default: statevector)" in text
    assert "noise" not in text
    assert "--internal" not in text


def test_settings_without_a_sampler_have_no_such_flags():
    assert parse_settings(RunSettings, ["--out=x"], prog="p") == RunSettings(out=Path("x"))
    with pytest.raises(InvalidOptionError, match="there is no flag --sampler"):
        parse_settings(RunSettings, ["--sampler=exact"], prog="p")


@pytest.mark.parametrize("name", ["exact", "annealing", "dqa"])
def test_the_shipped_samplers_options_can_all_be_shown(name, capsys):
    with pytest.raises(SystemExit) as stop:
        parse("--help", f"--sampler={name}")
    assert stop.value.code == 0
    assert "--sampler.seed" in capsys.readouterr().out
