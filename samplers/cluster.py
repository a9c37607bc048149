"""Ray: a connection to a cluster that is quiet and leaves nothing behind, and an executor whose tasks run there."""

import concurrent.futures
import contextlib
import re
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from samplers.errors import InvalidOptionError, IsingAttnError, MissingDependencyError
from samplers.processes import variables

# The least that Ray takes. What is sent is small; plasma would else claim a third of the memory.
_OBJECT_STORE_BYTES = 80 * 2**20
_ANSWER_SECONDS = 10.0
_OF_A_LOCAL_RAY = {
    # Nothing about this machine is sent to anyone.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray announces a change of its future defaults.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray would give way to everything else on the machine, down to a standstill on a busy one.
    "RAY_worker_niceness": "0",
    # A busy machine takes longer to start than Ray waits for its parts.
    "RAY_agent_register_timeout_ms": "180000",
}


class ClusterError(IsingAttnError, RuntimeError):
    """A Ray cluster that cannot be reached, or whose machines cannot do the work."""


def check_address(address: str) -> str:
    """The address, if it is "auto", "local", HOST:PORT or ray://HOST:PORT.

    Raises:
        InvalidOptionError: it is none of these.
    """
    if address in ("auto", "local") or re.fullmatch(r"(ray://)?[^\s/:]+:\d{1,5}", address):
        return address
    raise InvalidOptionError(
        f"the cluster is {address!r}; it must be auto (a Ray that runs on this machine), local (start one here), "
        "HOST:PORT or ray://HOST:PORT"
    )


@contextlib.contextmanager
def connected(address: str, *, workers: int = 1, environment: Mapping[str, str] | None = None) -> Iterator[Any]:
    """Within the block Ray is connected, and is the value; where the caller had connected it before, it stays so.

    Args:
        address: see `check_address`.
        workers: CPUs of a Ray that is started here (address "local").
        environment: of its processes, beside that of this one.

    Raises:
        MissingDependencyError: Ray is not installed.
        ClusterError: no cluster answers there, or it runs another version of Ray or Python.
    """
    check_address(address)
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("ray", "cluster", "work on a cluster") from error
    if ray.is_initialized():
        yield ray
        return
    _check_answer(address)
    with _quiet(), _sigterm_kept():
        try:
            _init(ray, address, workers, environment or {})
            yield ray
        finally:
            ray.shutdown()


def _check_answer(address: str) -> None:
    """Refuse a port where nobody listens; Ray would try for minutes and tell of each try."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {address!r} ({error}); ray start --head starts one, and says its address"
        ) from error


def _init(ray: Any, address: str, workers: int, environment: Mapping[str, str]) -> None:
    local = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    given: dict[str, Any] = local if address == "local" else {}
    with variables({**_OF_A_LOCAL_RAY, **environment}), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="error", **given)
        except Exception as error:  # Ray raises bare Exception, RuntimeError, ConnectionError, ValueError, …
            said = " ".join(str(error).split())[:400] or type(error).__name__
            advice = "ray start --head starts one; --cluster=local needs none"
            where = "Ray did not start here" if address == "local" else f"no Ray cluster can be used at {address!r}"
            raise ClusterError(f"{where}: {said}{'' if address == 'local' else f' ({advice})'}") from error


class RayExecutor(concurrent.futures.Executor):
    """Tasks of a connected Ray as `concurrent.futures` has them; each takes one CPU of the cluster.

    with connected("auto") as ray:
        executor = RayExecutor(ray)

    Args:
        ray: the connected module; see `connected`.
        retries: how often a task is done again whose worker died.
    """

    def __init__(self, ray: Any, *, retries: int = 2):
        self._ray, self._retries = ray, retries
        self._remote: dict[Callable, Any] = {}

    def submit(self, function: Callable, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future:
        """The future of function(*args, **kwargs) on some machine of the cluster."""
        if function not in self._remote:
            self._remote[function] = self._ray.remote(num_cpus=1, max_retries=self._retries)(function)
        return self._remote[function].remote(*args, **kwargs).future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing to do: the connection belongs to who made it."""


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray prints what happens to its workers on stdout, whatever its log level is; who submits a task hears of it."""
    import ray._private.worker as worker

    before = getattr(worker, "print_to_stdstream", None)
    if before is None:
        yield
        return
    worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        worker.print_to_stdstream = before


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray replaces the handler of SIGTERM when it connects."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
