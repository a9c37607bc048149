"""Every annotated shape and dtype is checked while the tests run (jaxtyping with beartype)."""

import signal
from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

_hook = install_import_hook(["samplers", "ising_attn", "models"], "shape_checker.check")

torch.set_num_threads(1)


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl-C raises, even where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn the type checker off, as for every user: what is refused must be refused by the code itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
