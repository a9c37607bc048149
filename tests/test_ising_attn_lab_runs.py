"""Run folders: nothing overwritten, one process at a time, metrics that survive a crash."""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from ising_attn.lab import files
from ising_attn.lab.errors import RunFolderError
from ising_attn.lab.files import dump_json, replacing, write_json
from ising_attn.lab.runs import RunFolder, default_path, read_json, read_metrics


def contents(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def test_a_run_has_all_its_parts(tmp_path):
    with RunFolder.create(tmp_path / "run", config={"steps": 3, "out": Path("x")}) as run:
        run.log(step=1, loss=0.5)
        run.write_summary({"test_accuracy": 0.75})
        assert run.checkpoints.is_dir()
        assert run.plots.is_dir()
    assert read_json(run.path / "config.json") == {"steps": 3, "out": "x"}
    assert read_json(run.path / "summary.json") == {"test_accuracy": 0.75}
    assert read_metrics(run.path) == [{"step": 1, "loss": 0.5}]
    record = read_json(run.path / "environment.json")
    assert record["versions"]["torch"] == torch.__version__
    assert record["threads"] == torch.get_num_threads()
    assert record["device"] == "cpu"
    assert record["command"]
    assert "commit" in record


def test_the_default_folder_is_new_and_dated(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with RunFolder.create(config={}, name="brackets") as run:
        assert run.path.parent == tmp_path.resolve() / "runs"
        assert run.path.name.startswith("brackets-20")
    assert default_path("x") != default_path("x")


def test_a_run_is_never_overwritten(tmp_path):
    with RunFolder.create(tmp_path, config={"a": 1}) as run:
        run.write_summary({"kept": True})
    before = contents(tmp_path)
    with pytest.raises(RunFolderError, match="holds a run already; continue it with --resume"):
        RunFolder.create(tmp_path, config={"a": 2})
    assert contents(tmp_path) == before


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="is not empty and is no run folder"):
        RunFolder.create(tmp_path, config={})
    assert list(contents(tmp_path)) == ["thesis.tex"]
    with pytest.raises(RunFolderError, match="is a file"):
        RunFolder.create(tmp_path / "thesis.tex", config={})


def test_nothing_is_made_where_there_is_nothing_to_resume(tmp_path):
    with pytest.raises(RunFolderError, match="holds no run to resume"):
        RunFolder.create(tmp_path / "new", config={}, resume=True)
    assert not (tmp_path / "new").exists()


def test_a_resumed_run_keeps_its_settings_until_told_and_the_record_of_both_processes(tmp_path):
    RunFolder.create(tmp_path, config={"steps": 1}).close()
    with RunFolder.create(tmp_path, config={"steps": 2}, resume=True) as run:
        assert run.read_json("config.json") == {"steps": 1}
        run.write_config()
        assert run.read_json("config.json") == {"steps": 2}
    before = contents(tmp_path)
    RunFolder.create(tmp_path, config={"steps": 3}, resume=True).close()
    assert contents(tmp_path) == before
    with RunFolder.create(tmp_path, config={"steps": 2}, resume=True) as run:
        run.write_summary({})
        run.write_config()
    record = read_json(tmp_path / "environment.json")
    assert len(record["resumed_from"]) == 2
    assert all("resumed_from" not in earlier for earlier in record["resumed_from"])


def test_a_second_user_of_a_folder_is_refused_until_the_first_is_done(tmp_path):
    with RunFolder.create(tmp_path, config={}), pytest.raises(RunFolderError, match="in use by another process"):
        RunFolder.create(tmp_path, config={}, resume=True)
    RunFolder.create(tmp_path, config={}, resume=True).close()


def test_a_killed_process_gives_the_folder_back(tmp_path):
    script = """
        import sys
        from ising_attn.lab.runs import RunFolder
        run = RunFolder.create(sys.argv[1], config={})
        run.log(step=1)
        print("ready", flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    root = Path(__file__).resolve().parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            with pytest.raises(RunFolderError, match="in use by another process"):
                RunFolder.create(tmp_path, config={}, resume=True)
        finally:
            process.send_signal(signal.SIGKILL)
    with RunFolder.create(tmp_path, config={}, resume=True) as run:
        assert run.metrics() == [{"step": 1}]


def test_half_a_line_left_by_a_crash_is_dropped_on_resumption(tmp_path):
    with RunFolder.create(tmp_path, config={}) as run:
        run.log(step=1)
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "lo')
    with RunFolder.create(tmp_path, config={}, resume=True) as run:
        run.log(step=2)
        assert run.metrics() == [{"step": 1}, {"step": 2}]
        run.keep_metrics(lambda row: row["step"] <= 1)
        assert run.metrics() == [{"step": 1}]


def test_unreadable_files_are_named(tmp_path):
    for line in (b"nonsense", b"", b"[" * 100_000, b'{"step": 1, "note": "\xff"}'):
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b"\n")
        with pytest.raises(RunFolderError, match=r"line 2 of .*metrics\.jsonl is not JSON; remove that line"):
            read_metrics(tmp_path)
    for line in (b"[1]", b"3", b"null", b'{"loss": 1}', b'{"step": "2"}', b'{"step": true}'):
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b"\n")
        with pytest.raises(RunFolderError, match=r"line 2 of .*metrics\.jsonl is no row with a step"):
            read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(RunFolderError, match="does not exist"):
        read_json(tmp_path / "config.json")
    for content in (b"{", b'"\xff"', b"[" * 100_000):
        (tmp_path / "config.json").write_bytes(content)
        with pytest.raises(RunFolderError, match="not valid JSON"):
            read_json(tmp_path / "config.json")
    assert read_metrics(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("content", ["[]", "3", '{"resumed_from": 3}'])
def test_an_environment_of_another_shape_is_refused(tmp_path, content):
    RunFolder.create(tmp_path, config={}).close()
    (tmp_path / "environment.json").write_text(content)
    before = contents(tmp_path)
    with pytest.raises(RunFolderError, match=r"environment\.json is no record of .*; move it away"):
        RunFolder.create(tmp_path, config={}, resume=True)
    assert contents(tmp_path) == before
    (tmp_path / "environment.json").unlink()
    RunFolder.create(tmp_path, config={}, resume=True).close()


def test_lines_end_at_line_feeds_alone(tmp_path):
    with RunFolder.create(tmp_path, config={}) as run:
        run.log(step=1, text="a\u2028b\x85c")
        assert run.metrics() == [{"step": 1, "text": "a\u2028b\x85c"}]


def test_file_names_that_are_no_text_are_written_and_read_back(tmp_path):
    name = os.fsdecode(b"caf\xe9-\xc3\xa9")
    with RunFolder.create(tmp_path / name, config={"text": Path(name)}) as run:
        run.log(step=1, text=name)
        run.keep_metrics(lambda row: True)
        assert run.read_json("config.json") == {"text": name}
        assert run.metrics() == [{"step": 1, "text": name}]


def leave_partial(path: Path) -> Path:
    """What a process killed while it wrote `path` leaves."""
    block = replacing(path)
    temporary = block.__enter__()
    with contextlib.suppress(KeyboardInterrupt):
        block.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    temporary.write_text("half")
    return temporary


def test_what_a_killed_process_half_wrote_is_removed(tmp_path):
    left = [leave_partial(tmp_path / "config.json")]
    with RunFolder.create(tmp_path, config={}):
        assert not left[0].exists()
    places = ("config.json", "checkpoints/last.safetensors", "checkpoints/rate-0.1/last.safetensors", "plots/a.b.png")
    left = [leave_partial(tmp_path / place) for place in places]
    own = [tmp_path / ".my-document.txt", tmp_path / "checkpoints" / ".last-abcdefgh", tmp_path / "plots" / "x.png"]
    own.append(leave_partial(tmp_path / "seed-1" / "config.json"))  # that folder has a lock of its own
    for path in own:
        path.touch()
    with RunFolder.create(tmp_path, config={}, resume=True):
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in own)


def test_a_full_disk_is_said_of_the_file(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, replacing(tmp_path / "x.json"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.filename == str(tmp_path / "x.json")


def test_json_is_strict_and_takes_numbers_of_numpy_and_torch():
    value = {"nan": float("nan"), "inf": np.inf, "np": np.float32(0.5), "t": torch.tensor([1, 2]), 3: (None, True)}
    assert json.loads(dump_json(value)) == {"nan": None, "inf": None, "np": 0.5, "t": [1, 2], "3": [None, True]}


def test_an_error_inside_the_block_leaves_the_old_file_and_no_rest(tmp_path):
    write_json(tmp_path / "x.json", 1)
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "x.json") as temporary:
        temporary.write_text("half")
        assert temporary.suffix == ".json"
        raise ZeroDivisionError
    assert contents(tmp_path) == {"x.json": b"1\n"}


def test_written_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "plain").write_text("")
    write_json(tmp_path / "ours", 1)
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_bytes_reach_the_disk_before_the_name_changes(tmp_path, monkeypatch):
    order, fsync, replace = [], os.fsync, Path.replace

    def noted_fsync(fd):
        order.append("fsync")
        return fsync(fd)

    def noted_replace(path, target):
        order.append("replace")
        return replace(path, target)

    monkeypatch.setattr(files.os, "fsync", noted_fsync)
    monkeypatch.setattr(files.Path, "replace", noted_replace)
    write_json(tmp_path / "x", 1)
    assert order[:2] == ["fsync", "replace"]
