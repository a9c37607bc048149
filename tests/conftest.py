"""Every annotated shape and dtype is checked while the tests run (jaxtyping with beartype)."""

import torch
from jaxtyping import install_import_hook

_hook = install_import_hook(["samplers", "ising_attn", "models"], "shape_checker.check")

torch.set_num_threads(1)
