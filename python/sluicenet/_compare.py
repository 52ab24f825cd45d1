"""Whether two results are the same."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import _native
from ._result import Result, directory


@dataclass(frozen=True)
class Diff:
    """The comparison of two results, row by row; true where they differ."""

    identical: bool
    text: str

    def __bool__(self) -> bool:
        """Whether there is a difference."""
        return not self.identical

    def __repr__(self) -> str:
        """Where they part, and by how much."""
        return self.text


def diff(a: Result | str | os.PathLike[str], b: Result | str | os.PathLike[str]) -> Diff:
    """Compares the tables of two results; how the rows were cut into files does not matter.

    Raises:
        RecordError: Files that cannot be read, by name.
    """
    return Diff(*_native.diff(directory(a), directory(b)))
