"""Python values as TOML: what dicts and overrides become before they are read like any scenario."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence


def value(v: object) -> str:
    """A value on one line."""
    match v:
        case bool():
            return "true" if v else "false"
        case int():
            return str(v)
        case float():
            return repr(v) if math.isfinite(v) else str(v)
        case str():
            # A JSON string is a TOML string, but for DEL and for halves of surrogate pairs, which are no text.
            return json.dumps(v, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return "{ " + ", ".join(f"{key(k)} = {value(x)}" for k, x in v.items()) + " }"
        case Sequence():
            return "[" + ", ".join(map(value, v)) + "]"
    # Numbers of NumPy and the like.
    for convert in ("__index__", "__float__"):
        if hasattr(v, convert):
            return value(getattr(v, convert)())
    raise TypeError(f"a scenario takes text, numbers, booleans, lists and dicts, not {type(v).__name__}: {v!r}")


def key(k: object) -> str:
    """A key, in quotes where it needs them."""
    if not isinstance(k, str):
        raise TypeError(f"a key of a scenario is text, not {type(k).__name__}: {k!r}")
    return k if k.isascii() and k.replace("_", "").replace("-", "").isalnum() else value(k)


def document(scenario: Mapping[str, object]) -> str:
    """A scenario as people write it: a table a section, so that errors point at a short line."""
    plain: list[str] = []
    tables: list[str] = []
    for name, v in scenario.items():
        if isinstance(v, Mapping):
            tables += [f"[{key(name)}]", *_lines(v), ""]
        elif _is_tables(v):
            for table in v:  # type: ignore[attr-defined]
                tables += [f"[[{key(name)}]]", *_lines(table), ""]
        else:
            plain.append(f"{key(name)} = {value(v)}")
    return "\n".join([*plain, *tables]) + "\n"


def _is_tables(v: object) -> bool:
    is_list = isinstance(v, Sequence) and not isinstance(v, str) and len(v) > 0
    return is_list and all(isinstance(x, Mapping) for x in v)  # type: ignore[attr-defined]


def _lines(table: Mapping[str, object]) -> list[str]:
    return [f"{key(k)} = {value(v)}" for k, v in table.items()]
