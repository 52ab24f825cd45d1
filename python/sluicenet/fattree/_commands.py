"""What a switch is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._entries import FlowEntry


@dataclass(frozen=True, slots=True)
class Add:
    """A switch is to have an entry; what has the same match and priority goes."""

    entry: FlowEntry


@dataclass(frozen=True, slots=True)
class Remove:
    """A switch is to have no entry with this cookie."""

    cookie: int


Command = tuple[int, Add | Remove]
