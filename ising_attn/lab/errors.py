"""Errors of experiments: files that cannot be used, training that cannot go on."""

from samplers.errors import IsingAttnError


class RunFolderError(IsingAttnError, ValueError):
    """A run folder that exists already, is in use, or is no run folder."""


class CheckpointError(IsingAttnError, ValueError):
    """A checkpoint that is missing, damaged, foreign, too new, or from another model."""


class TrainingDivergedError(IsingAttnError, ArithmeticError):
    """A loss or gradient that is not finite."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training, after the step was finished and the last checkpoint written."""


class LostProcessError(IsingAttnError, RuntimeError):
    """Another process of a training on several processes has ended."""


class ProblemFileError(IsingAttnError, ValueError):
    """A file of Ising problems that is missing, damaged, or in an unknown format."""


class CorpusError(IsingAttnError, ValueError):
    """A text that is missing and cannot be downloaded, or that is no text."""
