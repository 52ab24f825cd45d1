"""What can go wrong, and what is merely odd."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ._result import Result
    from ._sweep import Sweep


class SluicenetError(Exception):
    """The base of every error of this package."""


class ScenarioError(SluicenetError, ValueError):
    """A scenario or one of its input files cannot be used; as text, the place with what was expected and a hint.

    Warnings before it, which may say why, stand at the beginning of the text.

    Attributes:
        message: What is wrong, in one sentence.
        file: The file; ``overrides`` for an override, ``scenario`` for a text or a dict.
        line: The line, from 1; None where the file as a whole is meant.
        column: The column in characters, from 1; None where the file as a whole is meant.
        expected: What was expected there; may be empty.
        hint: What to do about it; may be empty.
    """

    def __init__(
        self, text: str, message: str, file: str, line: int | None, column: int | None, expected: str, hint: str
    ) -> None:
        """Keeps all of them; `text` is what is shown."""
        super().__init__(text, message, file, line, column, expected, hint)
        self.text = text
        self.message = message
        self.file = file
        self.line = line
        self.column = column
        self.expected = expected
        self.hint = hint

    def __str__(self) -> str:
        """The whole of it, below the line that Python starts."""
        return f"\n{self.text}"

    def __repr__(self) -> str:
        """Where and what; Python's own would say all of it twice, as text and in its parts."""
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"ScenarioError({f'{place}: {self.message}'!r})"


class RecordError(SluicenetError, OSError):
    """Result files that cannot be read or written, or a directory that holds another result already.

    Attributes:
        path: The file or directory.
    """

    def __init__(self, text: str, path: Path) -> None:
        """Keeps the path; `text` names it too."""
        super().__init__(text, path)
        self.text = text
        self.path = path

    def __str__(self) -> str:
        """The text alone."""
        return self.text


class RunError(SluicenetError, RuntimeError):
    """A run that failed: a deadlock, a loss where none may be.

    Attributes:
        result: What was recorded up to there; None where nothing was.
    """

    def __init__(self, text: str, result: Result | None = None) -> None:
        """Keeps the result."""
        super().__init__(text)
        self.result = result


class ClusterError(SluicenetError, RuntimeError):
    """A cluster that cannot run a sweep, or cannot any longer.

    Attributes:
        result: The runs that are complete; None where there is no sweep yet.
    """

    def __init__(self, text: str, result: Sweep | None = None) -> None:
        """Keeps the result."""
        super().__init__(text)
        self.result = result


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the run stopped at the end of an epoch.

    Attributes:
        result: What was recorded up to there; of a sweep, the runs that are complete.
    """

    def __init__(self, text: str, result: Result | Sweep) -> None:
        """Keeps the result."""
        super().__init__(text)
        self.result = result


class ScenarioWarning(UserWarning):
    """Something odd in a scenario that does not stop the run.

    Attributes:
        file: The file.
        line: The line, from 1; None where the file as a whole is meant.
        message: What is odd and what was made of it.
    """

    def __init__(self, file: str, line: int | None, message: str) -> None:
        """Keeps all three."""
        super().__init__(file, line, message)
        self.file = file
        self.line = line
        self.message = message

    def __str__(self) -> str:
        """As compilers do: file, line, message."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}"
