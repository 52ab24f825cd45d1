"""What a user calls a scenario: a file, a text, a dict."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path

from . import _native, _toml
from ._errors import ScenarioWarning

Source = str | os.PathLike[str] | Mapping[str, object]
"""A file's path, TOML text (a string of more than one line), or a dict of sections."""

Odd = tuple[str, int | None, str]
"""A warning as Rust gives it: file, line, message."""

_NAME = "scenario"


def read(source: Source, overrides: Mapping[str, object] | None = None, seed: int | None = None) -> _native.Scenario:
    """Reads a scenario, with overrides and a seed applied."""
    settings = [f"{key}={_toml.value(value)}" for key, value in (overrides or {}).items()]
    if seed is not None:
        settings.append(f"scenario.seed={_toml.value(seed)}")
    if isinstance(source, Mapping):
        return _native.Scenario.parse(_toml.document(source), _NAME, Path.cwd(), settings)
    if isinstance(source, str) and "\n" in source:
        return _native.Scenario.parse(source, _NAME, Path.cwd(), settings)
    return _native.Scenario.load(os.fspath(source), settings)


def validate(source: Source, *, overrides: Mapping[str, object] | None = None) -> list[ScenarioWarning]:
    """Reads a scenario and all its variants, builds them as a run would, and runs nothing.

    Args:
        source: A file's path, TOML text, or a dict of sections.
        overrides: Values by dotted key, as ``{"tcp.congestion": "cubic"}``.

    Returns:
        What is odd; empty where nothing is.

    Raises:
        ScenarioError: What makes it unusable, with file, line and column.
    """
    return [ScenarioWarning(*w) for w in read(source, overrides).check()]


def warn(odd: list[Odd], stacklevel: int) -> None:
    """Warns of what is odd, at the line of the caller `stacklevel` frames up."""
    for w in odd:
        warnings.warn(ScenarioWarning(*w), stacklevel=stacklevel + 1)
