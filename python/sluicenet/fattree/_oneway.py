"""What is down in a tree that has one way to everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .._native import Detour, HierarchicalTree


class OneWay:
    """As `Failures`, of a tree in which nothing can be gone round: what is lost is lost, and said."""

    def __init__(self, tree: HierarchicalTree) -> None:
        """Everything is up."""
        self._peers = [tree.peers(switch.number) for switch in tree.switches]
        self._down: set[tuple[int, int]] = set()
        self._gone: set[int] = set()

    def _link(self, switch: int, port: int) -> tuple[int, int] | None:
        """A link by one of its ends; none for a host's."""
        peer = self._peers[switch][port]
        return None if peer.switch is None or peer.port is None else min((switch, port), (peer.switch, peer.port))

    def set_link(self, switch: int, port: int, up: bool) -> bool:
        """The link at a switch's port goes down or comes up; whether that is new."""
        link = self._link(switch, port)
        if link is None or up == (link not in self._down):
            return False
        (self._down.discard if up else self._down.add)(link)
        return True

    def set_switch(self, switch: int, up: bool) -> bool:
        """A switch is gone, or there again; whether that is new."""
        if up == (switch not in self._gone):
            return False
        (self._gone.discard if up else self._gone.add)(switch)
        return True

    def is_up(self, switch: int, port: int) -> bool:
        """Whether the link at a switch's port carries frames."""
        link = self._link(switch, port)
        other = self._peers[switch][port].switch
        return link not in self._down and switch not in self._gone and other not in self._gone

    def detours(self, _switch: int) -> list[Detour]:
        """None."""
        return []
