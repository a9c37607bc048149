"""The run folder: where one experiment keeps its settings, surroundings, numbers, weights and plots."""

import contextlib
import datetime
import importlib.metadata
import json
import platform
import secrets
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import filelock
import torch

from ising_attn.lab.distributed import current_team
from ising_attn.lab.errors import RunFolderError
from ising_attn.lab.files import encode_json, is_partial, remove_partial, write_bytes, write_json

_RECORDED_PACKAGES = (
    "ising-attn", "torch", "numpy", "scipy", "numba", "dimod", "dwave-samplers", "dwave-system", "qiskit", "qiskit-aer",
    "qiskit-aer-gpu",
)  # fmt: skip
_ENVIRONMENT = "environment.json"
_OF_A_START = (".lock", _ENVIRONMENT)
"""What a start leaves behind that came to no config.json, on a full disk for instance."""


class RunFolder:
    """One run on disk, held by one process: config.json, environment.json, metrics.jsonl, checkpoints/, plots/,
    summary.json. Every file is written whole (atomically); metrics.jsonl grows line by line.

    Make one with `RunFolder.create` and use it as a context manager, so that the lock is given back:

        with RunFolder.create(settings.out, config=settings, name="brackets") as run:
            run.log(step=10, loss=0.3)
            run.write_summary({"test_accuracy": 0.99})
    """

    def __init__(
        self, path: Path, lock: filelock.BaseFileLock, config: Mapping[str, Any], device: torch.device | str = "cpu"
    ):
        self.path, self.config, self.device = path, config, device
        self._lock, self._recorded = lock, False

    @classmethod
    def create(
        cls,
        path: str | Path | None = None,
        *,
        config: Mapping[str, Any],
        name: str = "run",
        resume: bool = False,
        device: torch.device | str = "cpu",
    ) -> "RunFolder":
        """Make the folder (or, with `resume`, take up an existing one), lock it, write config and environment.

        On resumption config.json and environment.json stay until `write_config`, which the trainer calls when the
        checkpoint has proved to fit: settings that do not fit the run never replace those that do.

        Args:
            path: the folder; by default runs/NAME-DATE-ID under the working directory.
            config: settings as plain values; see `config.settings_to_dict`.
            resume: go on in a folder that has a run. Without it, such a folder is refused, never overwritten.

        Raises:
            RunFolderError: the folder holds a run already, is used by another process, or is not a run folder.
        """
        folder = default_path(name) if path is None else Path(path)
        check_usable(folder, resume=resume)
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock")
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            raise RunFolderError(f"{folder} is in use by another process; wait for it, or give another --out") from None
        run = cls(folder.resolve(), lock, config, device)
        try:
            check_usable(folder, resume=resume)  # once more: another process may have come and gone
            run._remove_partial()
            if resume:
                run._earlier_environment()
                run._drop_torn_line()
            else:
                (folder / _ENVIRONMENT).unlink(missing_ok=True)
                run.write_config()
            run.checkpoints.mkdir(exist_ok=True)
            run.plots.mkdir(exist_ok=True)
        except BaseException:
            lock.release()
            raise
        return run

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def plots(self) -> Path:
        return self.path / "plots"

    def log(self, **row: Any) -> None:
        """Append one row to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("ab") as file:
            file.write(encode_json(row) + b"\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl so far."""
        return read_metrics(self.path)

    def keep_metrics(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the rows for which `keep` is false: those after the checkpoint from which a run goes on."""
        rows = [row for row in self.metrics() if keep(row)]
        write_bytes(self.path / "metrics.jsonl", b"".join(encode_json(row) + b"\n" for row in rows))

    def write_config(self) -> None:
        """Write config.json from the settings given to `create`, and this process's surroundings."""
        self._record_environment()
        self.write_json("config.json", self.config)

    def write_json(self, name: str, value: Any) -> None:
        write_json(self.path / name, value)

    def read_json(self, name: str) -> Any:
        return read_json(self.path / name)

    def write_summary(self, values: Mapping[str, Any]) -> None:
        """Write summary.json, the final numbers of the run."""
        self._record_environment()
        self.write_json("summary.json", values)

    def close(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _remove_partial(self) -> None:
        remove_partial(self.path)  # not in the folders of other seeds, which have locks of their own
        remove_partial(self.checkpoints, recursive=True)
        remove_partial(self.plots, recursive=True)

    def _drop_torn_line(self) -> None:
        """A process killed while it wrote leaves half a line at the end."""
        file = self.path / "metrics.jsonl"
        if file.exists() and not (content := file.read_bytes()).endswith(b"\n"):
            write_bytes(file, content[: content.rfind(b"\n") + 1])

    def _record_environment(self) -> None:
        """This process's surroundings, once; those of the processes before it are kept."""
        if self._recorded:
            return
        record = environment(self.device)
        if (before := self._earlier_environment()) is not None:
            record["resumed_from"] = [*before.pop("resumed_from", []), before]
        self.write_json(_ENVIRONMENT, record)
        self._recorded = True

    def _earlier_environment(self) -> dict[str, Any] | None:
        file = self.path / _ENVIRONMENT
        if not file.exists():
            return None
        record = read_json(file)
        if not isinstance(record, dict) or not isinstance(record.get("resumed_from", []), list):
            raise RunFolderError(f"{file} is no record of a process's surroundings; move it away to go on without it")
        return record


def check_usable(folder: Path, *, resume: bool) -> None:
    """Refuse a folder that `RunFolder.create` would refuse, without touching it: to be said before long work."""
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(f"{folder} is a file; give a folder with --out")
    has_run = (folder / "config.json").exists()
    if has_run and not resume:
        raise RunFolderError(f"{folder} holds a run already; continue it with --resume, or give another --out")
    if resume and not has_run:
        raise RunFolderError(f"{folder} holds no run to resume (no config.json); leave --resume out to start one")
    if (
        not has_run
        and folder.is_dir()
        and any(f.name not in _OF_A_START and not is_partial(f) for f in folder.iterdir())
    ):
        raise RunFolderError(f"{folder} is not empty and is no run folder; give another --out")


def default_path(name: str) -> Path:
    """runs/NAME-DATE-ID: sorted by time, and never met twice."""
    return Path("runs") / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl; none where there is no such file."""
    file = Path(folder) / "metrics.jsonl"
    if not file.exists():
        return []
    rows = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            raise RunFolderError(f"line {number} of {file} is not JSON; remove that line") from None
        step = row.get("step") if isinstance(row, dict) else None
        if isinstance(step, bool) or not isinstance(step, int | float):
            raise RunFolderError(f"line {number} of {file} is no row with a step; remove that line")
        rows.append(row)
    return rows


def read_json(path: str | Path) -> Any:
    """The content of a JSON file of a run folder."""
    try:
        return json.loads(Path(path).read_bytes().decode())
    except FileNotFoundError:
        raise RunFolderError(f"{path} does not exist; is {Path(path).parent} a run folder?") from None
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is not valid JSON ({error})") from None


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What a run depended on: versions, commit, device, threads and command line."""
    device = torch.device(device)
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "processes": current_team().size,
        "versions": {name: version for name in _RECORDED_PACKAGES if (version := _version(name))},
    }


def _version(package: str) -> str | None:
    if package == "torch":
        return str(torch.__version__)  # with the build, such as +cu130, which the index's metadata lack
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None


def _commit() -> str | None:
    """The commit of the checkout that is running, "-dirty" where files differ; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", root, *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
