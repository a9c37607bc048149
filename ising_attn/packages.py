"""`samplers` and `models` are common names: make sure that the packages found are the ones of this project."""

import importlib
from types import ModuleType


class ForeignPackageError(ImportError):
    """A package of somebody else hides one of ours."""


def require_own_package(name: str) -> ModuleType:
    """Import the package `name` and return it if it carries our mark, `ISING_ATTN_PACKAGE = True`.

    Raises:
        ForeignPackageError: another package of that name comes first on `sys.path`; the message says which.
    """
    module = importlib.import_module(name)
    if getattr(module, "ISING_ATTN_PACKAGE", None) is True:
        return module
    # A folder without __init__.py is a namespace package: it has a path and no file.
    found = getattr(module, "__file__", None) or ", ".join(getattr(module, "__path__", ())) or "an unknown place"
    raise ForeignPackageError(
        f"the package {name!r} that Python found is not the one of ising-attn but {found}; "
        "remove or rename it, or put the folder that holds ising_attn before it on sys.path"
    )
