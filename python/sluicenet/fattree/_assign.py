"""Which upward port each switch gives a flow: the flow classifier at every edge and aggregation switch (3.1.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._native import Classifier
from ._commands import Add, Remove
from ._entries import assigned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from .._native import Failures, FatTree
    from ._commands import Command
    from ._entries import FlowEntry, FlowKey


class Assigner:
    """A classifier for each switch, which knows nothing but what that switch has counted."""

    def __init__(
        self, tree: FatTree, failures: Failures, *, moves: bool, say: Callable[[str, Mapping[str, Any]], None]
    ) -> None:
        """Without `moves` a flow keeps its port as long as that leads to where it goes."""
        self._tree = tree
        self._failures = failures
        self._say = say
        self._names = [switch.name for switch in tree.switches]
        numbers = [switch.number for switch in tree.switches if switch.layer != "core"]
        self._classifiers = {number: Classifier(tree, number, moves=moves) for number in numbers}
        # By switch and flow: what the flow is, and its entry where it has one.
        self._flows: dict[int, dict[int, tuple[FlowKey, FlowEntry | None]]] = {number: {} for number in numbers}

    @property
    def switches(self) -> list[int]:
        """Whose counters it wants."""
        return list(self._classifiers)

    def cookies(self, switch: int) -> set[int]:
        """Of entries that a switch is to have."""
        return {entry.cookie for _, entry in self._flows.get(switch, {}).values() if entry}

    def counted(self, now: float, switch: int, flows: Iterable[tuple[FlowKey, int, int, int, float]]) -> list[Command]:
        """All that a switch has counted: each flow, its hosts, bytes and seconds."""
        classifier, known = self._classifiers[switch], self._flows[switch]
        seen = set()
        # Who began first is given a port first.
        for key, src, dst, sent, age_s in sorted(flows, key=lambda flow: -flow[4]):
            if classifier.sample(now, key.number, src, dst, sent, age_s, self._failures):
                known.setdefault(key.number, (key, None))
                seen.add(key.number)
        commands: list[Command] = []
        # What has no counter any more has sent nothing for as long as its entry lasts.
        for flow in [flow for flow in known if flow not in seen]:
            _, entry = known.pop(flow)
            classifier.lapsed(flow)
            if entry:
                commands.append((switch, Remove(entry.cookie)))
        return commands

    def tick(self, now: float) -> list[Command]:
        """Time has passed, or failures are others: flows that have another port."""
        commands: list[Command] = []
        for switch, classifier in self._classifiers.items():
            known = self._flows[switch]
            for flow, port in classifier.advance(now, self._failures):
                key, before = known.get(flow, (None, None))
                if key is None:
                    continue
                entry = None if port is None else assigned(key, port, self._tree.k)
                if entry:
                    commands.append((switch, Add(entry)))
                elif before:
                    commands.append((switch, Remove(before.cookie)))
                known[flow] = (key, entry)
                said = {"switch": self._names[switch], **key.said, "port": port, "moved": before is not None}
                self._say("assigned", said)
        return commands

    def forgotten(self, switch: int) -> list[Command]:
        """A switch has lost its entries: they are said again."""
        return [(switch, Add(entry)) for _, entry in self._flows.get(switch, {}).values() if entry]
