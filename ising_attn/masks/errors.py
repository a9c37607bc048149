"""Errors of masks, orders and tasks."""

from samplers.errors import IsingAttnError


class InvalidMaskError(IsingAttnError, ValueError):
    """A mask, relation or size that no order can be made of."""


class InvalidTaskError(IsingAttnError, ValueError):
    """Inputs, labels and mask that do not fit together."""


class LeakError(IsingAttnError, ValueError):
    """A position that is asked for a token which reaches it."""


class MaskFileError(IsingAttnError, ValueError):
    """A file that is missing or holds no mask."""
