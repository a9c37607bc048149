"""Runs on a Ray cluster: each worker is an actor that runs one script at a time in a process of its own.

What a cluster needs: the same code on every machine, and a folder for the runs that all of them share. Both are checked
on every machine before the first run, and the code once more by each worker, since machines may join later.
"""

import contextlib
import inspect
import os
import platform
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ising_attn.cli import experiments_folder
from ising_attn.lab.code_version import code_version
from ising_attn.lab.engines import Engine
from ising_attn.lab.script_process import ScriptProcess, with_root
from samplers.cluster import ClusterError, check_address, connected

_PROBE_SECONDS = 120.0
_PASSED_ON = "ISING_ATTN_"
# What a script's process imports first there is Ray's own main module.
_ALSO_PRELOADED = ("ray",)


class RayEngine(Engine):
    """Workers of a Ray cluster; connect with `with`.

    Args:
        address: "auto", "local", HOST:PORT or ray://HOST:PORT.
        out: the folder of the sweep, which all machines see under this name.
        workers: how many at most; each takes one CPU.
        gpus: of each worker.
        preload: modules that most runs import.
    """

    def __init__(self, address: str, out: Path, *, workers: int, gpus: int = 0, preload: Sequence[str] = ()):
        self._address, self._out, self._workers = check_address(address), out.absolute(), workers
        self._gpus, self._preload = gpus, (*preload, *_ALSO_PRELOADED)
        self._idle: list[Any] = []
        self._actors: list[Any] = []
        self._ray: Any = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "RayEngine":
        with contextlib.ExitStack() as opening:
            environment = {"PYTHONPATH": with_root()}
            self._ray = opening.enter_context(connected(self._address, workers=self._workers, environment=environment))
            opening.callback(self._end_workers)
            self._check_nodes()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def start(self, command: Sequence[str], log: Path) -> "RayRun":
        actor = self._idle.pop() if self._idle else self._new_worker()
        return RayRun(self._ray, actor, self._idle.append, _portable(command), str(log.absolute()))

    def _new_worker(self) -> Any:
        environment = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
        kind = self._ray.remote(num_cpus=1, num_gpus=self._gpus, max_restarts=0, max_concurrency=2)(Worker)
        actor = kind.remote(code_version(), str(Path.cwd()), environment, self._preload)
        self._actors.append(actor)
        return actor

    def _end_workers(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)

    def _check_nodes(self) -> None:
        """Refuse a cluster with other code, or one that does not see the folder."""
        with _token(self._out) as token:
            for found in self._asked(_probe(), str(token)):
                host, code, here = found["host"], found["code"], code_version()
                if isinstance(code, str):
                    raise ClusterError(f"{host} cannot import ising-attn ({code}); {_INSTALL}")
                if code != here:
                    raise ClusterError(_difference(host, code, here))
                if not found["sees"]:
                    raise ClusterError(
                        f"{host} does not see the folder {self._out}; --out must be a folder that all machines of the "
                        "cluster share, under the same name"
                    )

    def _asked(self, probe: Callable[[str], dict[str, Any]], token: str) -> list[dict[str, Any]]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task = self._ray.remote(num_cpus=0)(probe)
        nodes = [node["NodeID"] for node in self._ray.nodes() if node["Alive"]]
        refs = [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(token)
            for node in nodes
        ]
        try:
            return self._ray.get(refs, timeout=_PROBE_SECONDS)
        except self._ray.exceptions.RayError as error:
            raise ClusterError(
                f"not every one of the cluster's {len(nodes)} machines answers: {_first_line(error)}"
            ) from error


class RayRun:
    """One run on a worker; see `engines.Run`.

    Args:
        ray: the connected module.
        actor: a `Worker`, idle or not yet there.
        give_back: called with the actor when it is idle again.
        command, log: of the script, as the worker's machine can use them.
    """

    def __init__(self, ray: Any, actor: Any, give_back: Callable[[Any], None], command: list[str], log: str):
        self._ray, self._actor, self._give_back = ray, actor, give_back
        self._there = actor.ready.remote()
        self._result = actor.run.remote(command, log)
        self._status: int | None = None
        self.why = ""

    @property
    def status(self) -> int | None:
        if self._status is None and self._ray.wait([self._result], timeout=0)[0]:
            self._status = self._ended()
        return self._status

    def _ended(self) -> int:
        try:
            status = self._ray.get(self._result)
        except self._ray.exceptions.RayActorError as error:
            self.why = f"the worker was lost: {_cause(error)}"
            return -signal.SIGKILL
        except self._ray.exceptions.RayTaskError as error:
            self.why = _first_line(error.cause)
            return 1
        self._give_back(self._actor)
        return status

    def send(self, sent: signal.Signals) -> None:
        """SIGKILL ends the worker as well, and so does any signal before the worker is there."""
        if self._status is not None:
            return
        if sent == signal.SIGKILL or not self._ray.wait([self._there], timeout=0)[0]:
            self._ray.kill(self._actor)
        else:
            self._actor.send.remote(int(sent))


class Worker:
    """On the cluster: runs scripts, one at a time. A script ends with its worker.

    Args:
        expected: `code_version()` of the sweep.
        folder: where the sweep was started; scripts start there too, where this machine has it.
        environment: further variables for the scripts.
        preload: see `ScriptProcess`.
    """

    def __init__(self, expected: dict[str, str], folder: str, environment: Mapping[str, str], preload: Sequence[str]):
        # Said when a run is asked for: a worker that cannot be made counts as lost, and would be made again.
        found = code_version()
        self._refusal = "" if found == expected else _difference(platform.node(), found, expected)
        os.environ.update(environment)
        if Path(folder).is_dir():
            os.chdir(folder)
        self._preload = tuple(preload)
        self._process: ScriptProcess | None = None
        self._started = threading.Event()

    def ready(self) -> None:
        """Returns when the worker is there."""

    def run(self, command: list[str], log: str) -> int:
        """The exit status of a script.

        Raises:
            ClusterError: this machine has other code than the sweep.
        """
        if self._refusal:
            raise ClusterError(self._refusal)
        folder = experiments_folder()
        script = command[0] if folder is None else str(folder / command[0])
        process = ScriptProcess([script, *command[1:]], Path(log), preload=self._preload)
        self._process = process
        self._started.set()
        try:
            return process.wait()
        finally:
            self._started.clear()

    def send(self, sent: int) -> None:
        """A signal to the script."""
        if self._started.wait(timeout=60) and self._process is not None:
            self._process.send(signal.Signals(sent))


_INSTALL = "install the same version on every machine of the cluster, or start Ray there from the same checkout"


def _difference(host: str, found: Mapping[str, str], expected: Mapping[str, str]) -> str:
    different = [name for name in expected if found.get(name) != expected[name]]
    said = ", ".join(f"{name} is {found.get(name)} there and {expected[name]} here" for name in different)
    return f"{host} runs other code: {said}; {_INSTALL}"


def _probe() -> Callable[[str], dict[str, Any]]:
    """A function that a machine without this package can run: what is defined in a function travels as code."""

    def probe(token: str) -> dict[str, Any]:
        import pathlib
        import socket

        code: Any
        try:
            from ising_attn.lab.code_version import code_version as there

            code = there()
        except ImportError as error:
            code = str(error)
        return {"host": socket.gethostname(), "code": code, "sees": pathlib.Path(token).exists()}

    return inspect.unwrap(probe)  # a type checker's wrapper does not travel


@contextlib.contextmanager
def _token(out: Path) -> Iterator[Path]:
    """A file in the folder, for others to see."""
    out.mkdir(parents=True, exist_ok=True)
    token = out / f".cluster-{secrets.token_hex(8)}"
    token.touch()
    try:
        yield token
    finally:
        token.unlink(missing_ok=True)


def _portable(command: Sequence[str]) -> list[str]:
    """An experiment by its file's name alone, since other machines may have it elsewhere."""
    script, folder = Path(command[0]), experiments_folder()
    return [script.name if folder is not None and script.parent == folder else str(script), *command[1:]]


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _cause(error: BaseException) -> str:
    """Ray's words on why an actor died, without its identifiers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [
        line for line in lines if line.startswith(("The actor is dead", "The actor died because")) or "Error" in line
    ]
    return (told[-1] if told else lines[0] if lines else type(error).__name__)[:300]
