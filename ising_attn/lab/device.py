"""The device of a run: "auto", "cpu", "cuda" or "cuda:N", checked before anything is built."""

import torch

from samplers.errors import InvalidOptionError


def resolve_device(name: str = "auto") -> torch.device:
    """The torch device for a `--device` value; "auto" takes CUDA where there is one.

    Raises:
        InvalidOptionError: no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not (kind == "cuda" and index.isdecimal())):
        raise InvalidOptionError(f"--device is {name!r}; it must be auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "no CUDA device was found"
        raise InvalidOptionError(f"--device={name} was asked for, but {reason}; use --device=cpu")
    if index and int(index) >= torch.cuda.device_count():
        raise InvalidOptionError(
            f"--device={name} was asked for, but there are {torch.cuda.device_count()} CUDA devices"
        )
    return torch.device(name)
