"""Every annotated shape and dtype is checked while the tests run (jaxtyping with beartype)."""

from collections.abc import Iterator

import jaxtyping
import pytest
import torch
from jaxtyping import install_import_hook

_hook = install_import_hook(["samplers", "ising_attn", "models"], "shape_checker.check")

torch.set_num_threads(1)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Turn the type checker off, as for every user: what is refused must be refused by the code itself."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
