"""Character text: where Tiny Shakespeare comes from, its characters as numbers, and the splits of both protocols.

Tiny Shakespeare is the `input.txt` of Andrej Karpathy's char-rnn, 1,115,394 bytes. It is no part of this package:
`find_corpus` takes a file that is given, that an environment variable names, or that is in the user's cache, and
downloads it there, checked, where it is not.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ising_attn.lab.errors import CorpusError
from samplers.errors import InvalidOptionError

CORPUS_VARIABLE = "ISING_ATTN_TINY_SHAKESPEARE"
CORPUS_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
CORPUS_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_CACHED_NAME = "tinyshakespeare.txt"
_PAPER_CHARACTERS = 100_000
_REPOSITORY_CHARACTERS = 80_000
_LONGEST_REASON = 120


def find_corpus(path: Path | None = None) -> Path:
    """The file of the text: `path`, else the one that ISING_ATTN_TINY_SHAKESPEARE names, else the user's cache.

    An absent cache is filled by a download that is checked by its SHA-256.

    Raises:
        CorpusError: the file that was named does not exist, or there is none and the download failed.
    """
    named = os.environ.get(CORPUS_VARIABLE)
    for given, source in ((path, "--data"), (Path(named) if named else None, CORPUS_VARIABLE)):
        if given is not None:
            if not given.is_file():
                raise CorpusError(f"{source} names {given}, which is no file; give a text file")
            return given
    return _cached()


def cached_corpus() -> Path:
    """Where a download is kept, whether it is there or not."""
    import pooch

    return Path(pooch.os_cache("ising-attn")) / _CACHED_NAME


def _cached() -> Path:
    import pooch

    kept = cached_corpus()
    try:
        file = pooch.retrieve(CORPUS_URL, known_hash=f"sha256:{CORPUS_SHA256}", fname=kept.name, path=kept.parent)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong checksum is a ValueError
        raise CorpusError(
            f"Tiny Shakespeare is not here and its download failed ({_reason(error)}); give its input.txt with "
            f"--data=PATH, name it in the environment variable {CORPUS_VARIABLE}, or put it at {kept}"
        ) from None
    return Path(file)


def _reason(error: Exception) -> str:
    if not isinstance(error, OSError):
        return "what came has another checksum"
    text = error.strerror or str(error)
    return text if 0 < len(text) <= _LONGEST_REASON else f"no connection to {urlsplit(CORPUS_URL).hostname}"


@dataclass(frozen=True)
class Corpus:
    """A text and where it is from.

    Args:
        text: as it stands in the file, line ends included.
        source: the file.
        sha256: of its bytes.
    """

    text: str
    source: Path
    sha256: str

    @classmethod
    def read(cls, path: Path | None = None) -> "Corpus":
        """The text at `path`, or Tiny Shakespeare; see `find_corpus`.

        Raises:
            CorpusError: no such file, no network where one is needed, or a file that is not UTF-8 text.
        """
        source = find_corpus(path)
        content = source.read_bytes()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(f"{source} is not UTF-8 text ({error.reason} at byte {error.start})") from None
        return cls(text, source.resolve(), hashlib.sha256(content).hexdigest())

    @property
    def is_tiny_shakespeare(self) -> bool:
        return self.sha256 == CORPUS_SHA256


@dataclass(frozen=True)
class Vocabulary:
    """The characters that have a number: distinct, in the order of their code points.

    Args:
        characters: number k is characters[k].
    """

    characters: str

    @classmethod
    def of(cls, text: str) -> "Vocabulary":
        """All characters of a text."""
        return cls("".join(sorted(set(text))))

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> Int[Tensor, "characters"]:
        """Numbers (int64) of the characters of `text`.

        Raises:
            InvalidOptionError: a character that is not in the vocabulary.
        """
        known, points = _code_points(self.characters), _code_points(text)
        numbers = np.searchsorted(known, points)
        wrong = np.append(known, 0)[numbers] != points
        if wrong.any():
            strange = chr(points[wrong][0])
            raise InvalidOptionError(f"the character {strange!r} is none of the {len(self)} of the training text")
        return torch.from_numpy(numbers.astype(np.int64))

    def decode(self, numbers: Int[Tensor, "characters"]) -> str:
        """The inverse of `encode`."""
        return "".join(self.characters[k] for k in numbers.tolist())


def _code_points(text: str) -> Int[np.ndarray, "characters"]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.int64)


@dataclass(frozen=True)
class TextData:
    """A text in numbers, split into consecutive parts; its vocabulary is that of the whole part that is used.

    Args:
        train, validation, test: (characters,) int64. With the paper's protocol validation and test are the same.
    """

    vocabulary: Vocabulary
    train: Int[Tensor, "train"]
    validation: Int[Tensor, "validation"]
    test: Int[Tensor, "test"]

    @classmethod
    def paper(cls, text: str) -> "TextData":
        """The first 100,000 characters; nine tenths are trained on, the last tenth selects and is reported.

        Kim and Park, arXiv 2606.12478, section 4.1.
        """
        return cls._of_beginning(text[:_PAPER_CHARACTERS])

    @classmethod
    def repository(cls, text: str) -> "TextData":
        """The first 80,000 characters; nine tenths are trained on, the last tenth selects and is reported.

        karumaru-kakikukekodoumei/boolean-attention, src/*_charlm.py.
        """
        return cls._of_beginning(text[:_REPOSITORY_CHARACTERS])

    @classmethod
    def tuned(cls, text: str) -> "TextData":
        """The whole text: nine tenths are trained on, a twentieth selects, the last twentieth is reported."""
        vocabulary = Vocabulary.of(text)
        return cls(vocabulary, *_parts(vocabulary.encode(text), 0.9, 0.95))

    @classmethod
    def _of_beginning(cls, used: str) -> "TextData":
        vocabulary = Vocabulary.of(used)
        train, held_out = _parts(vocabulary.encode(used), 0.9)
        return cls(vocabulary, train, held_out, held_out)

    @property
    def selects_on_test(self) -> bool:
        """Whether the characters that are reported also chose the weights."""
        return self.test is self.validation


def _parts(numbers: Int[Tensor, "characters"], *shares: float) -> list[Tensor]:
    cuts = [0, *(round(share * len(numbers)) for share in shares), len(numbers)]
    return [numbers[a:b] for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
