"""Packages that are nice to have, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, extra: str) -> Any:  # noqa: ANN401 - a module has no narrower type
    """Imports `module`, or says which extra brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise ImportError(f"this needs {module.split('.')[0]}: pip install 'sluicenet[{extra}]'", name=e.name) from e
