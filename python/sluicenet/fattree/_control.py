"""The controller without its connections: what switches say comes in with a time, what they are to be told out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._native import Failures, FatTree, Scheduler
from ._assign import Assigner
from ._commands import Add, Remove
from ._entries import (
    COOKIE_ASSIGNED,
    COOKIE_COUNTED,
    COOKIE_NUMBER_MASK,
    COOKIE_PLACED,
    COOKIE_STATIC,
    FORWARD,
    TCP,
    UDP,
    FlowEntry,
    FlowKey,
    placed,
    static,
)
from ._oneway import OneWay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from .._native import HierarchicalTree
    from ._commands import Command


@dataclass(frozen=True, slots=True)
class Routing:
    """How flows find their way."""

    # Upward by a hash of the flow, where not by the two-level tables.
    hashes: bool = False
    # Each switch gives a flow the least loaded of its upward ports, and may move it later.
    assigns: bool = False
    moves: bool = False
    # Who places large flows, by its name in `Scheduler`.
    placer: str | None = None
    # How often it is asked for all of them.
    period_s: float = 0.1
    # Over the hierarchical tree in place of the fat-tree.
    hierarchical: bool = False


ROUTINGS: dict[str, Routing] = {
    "two-level": Routing(),
    "ecmp": Routing(hashes=True),
    "flow-classifier": Routing(assigns=True, moves=True),
    "flow-scheduler": Routing(assigns=True, placer="reserve", period_s=1.0),
    "hedera-gff": Routing(hashes=True, placer="gff"),
    "hedera-sa": Routing(hashes=True, placer="sa"),
    "hierarchical": Routing(hierarchical=True),
}

# A link or switch that comes back is used when it has stayed for so long: one that flaps is down.
HOLD_S = 1.0
# A switch that has not been heard of for so long is gone, whatever its neighbours see of its links.
LOST_S = 1.0
# So long after the start nobody is missed, and for so long entries of an earlier controller may be found useful.
START_S = 5.0
ADOPTED_S = 3.0
# Flows of one switch that are looked at; what a switch says beyond that is not.
FLOWS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Counted:
    """What a switch has counted of a flow."""

    key: FlowKey
    bytes: int
    age_s: float


class Control:
    """Tables, placements and failures of one tree. Times are in seconds from when it began."""

    def __init__(
        self,
        tree: FatTree | HierarchicalTree,
        routing: str,
        *,
        link_bps: int,
        seed: int = 0,
        window_s: float = 0.1,
        say: Callable[[str, Mapping[str, Any]], None] = lambda _what, _of: None,
    ) -> None:
        """Nothing is known of any switch; `say` hears what happens."""
        how = ROUTINGS[routing]
        if how.hierarchical == isinstance(tree, FatTree):
            raise ValueError(f"{routing} is no routing of {tree!r}")
        self.tree = tree
        self.switches = tree.switches
        self._say = say
        self._bases = [self._basis(seed, s.datapath_id) if how.hashes else None for s in self.switches]
        self._peers = [tree.peers(s.number) for s in self.switches]
        self.scheduler: Scheduler | None = None
        self.assigner: Assigner | None = None
        self.failures: Failures | OneWay
        if isinstance(tree, FatTree):
            self.failures = Failures(tree)
            if how.placer:
                self.scheduler = Scheduler(
                    tree, how.placer, link_bps=link_bps, window_s=window_s, period_s=how.period_s, seed=seed
                )
            if how.assigns:
                self.assigner = Assigner(tree, self.failures, moves=how.moves, say=say)
        else:
            self.failures = OneWay(tree)
        edges = [s.number for s in self.switches if s.layer == "edge"]
        self._edge_of = {p.host: n for n in edges for p in self._peers[n] if p.host is not None}
        # Switches that count flows, and whose counters are read.
        self.counting = self.assigner.switches if self.assigner else edges if self.scheduler else []
        # By connected switch: the static entries it has, by cookie.
        self._installed: dict[int, dict[int, FlowEntry | None]] = {}
        # By flow: what it is, where it has entries.
        self._placed: dict[int, tuple[FlowKey, dict[int, FlowEntry]]] = {}
        self._keys: dict[int, FlowKey] = {}
        self._keys_before: dict[int, FlowKey] = {}
        # Entries for flows that an earlier controller placed, by switch, and until when they may be found useful.
        self._adopted: dict[int, tuple[float, set[int]]] = {}
        self._ports_down: set[tuple[int, int]] = set()
        self._links_back: dict[tuple[int, int], float] = {}
        self._lost: dict[int, float] = {s.number: START_S - LOST_S for s in self.switches}
        self._back: dict[int, float] = {}

    @staticmethod
    def _basis(seed: int, datapath_id: int) -> int:
        return (seed * 0x9E37 + datapath_id * 0x85EB + (datapath_id >> 8) * 0xC2B3) & 0xFFFF

    def name(self, switch: int) -> str:
        """As a bridge is called."""
        return self.switches[switch].name

    def connected(self, now: float, switch: int, ports: Mapping[int, bool], cookies: Iterable[int]) -> list[Command]:
        """A switch is there, with these links up or down and these entries: some are added, others removed."""
        known: dict[int, FlowEntry | None] = {}
        strange: list[int] = []
        adopted: set[int] = set()
        own_flows = self._flows_at(switch)
        for cookie in cookies:
            kind = cookie & ~COOKIE_NUMBER_MASK
            if kind == COOKIE_STATIC:
                known[cookie] = None
            elif (kind == COOKIE_PLACED and self.scheduler) or (kind == COOKIE_ASSIGNED and self.assigner):
                if cookie not in own_flows:
                    adopted.add(cookie)
            elif kind != COOKIE_COUNTED or switch not in self.counting:
                strange.append(cookie)
        self._installed[switch] = known
        self._adopted[switch] = (now + ADOPTED_S, adopted)
        self._lost.pop(switch, None)
        self._back[switch] = now + HOLD_S
        own: list[Command] = [*self._sync(switch), *((switch, Remove(cookie)) for cookie in strange)]
        self._say(
            "connected",
            {
                "switch": self.name(switch),
                "found": len(known) + len(adopted),
                "added": sum(isinstance(command, Add) for _, command in own),
                "removed": sum(isinstance(command, Remove) for _, command in own),
            },
        )
        for port in range(len(self._peers[switch])):
            own += self.port(now, switch, port, ports.get(port, False))
        return [*own, *self._again(switch)]

    def _flows_at(self, switch: int) -> set[int]:
        """Cookies of the entries for single flows that a switch is to have."""
        placed_here = {COOKIE_PLACED | flow for flow, (_, entries) in self._placed.items() if switch in entries}
        return placed_here | (self.assigner.cookies(switch) if self.assigner else set())

    def _again(self, switch: int) -> list[Command]:
        """The entries for single flows of a switch that may have lost them."""
        commands: list[Command] = []
        if self.assigner:
            commands += self.assigner.forgotten(switch)
        if self.scheduler:
            self.scheduler.forgotten(switch)
            commands += self._place()
        return commands

    def audited(self, switch: int, cookies: Iterable[int]) -> list[Command]:
        """A connected switch says what stands in its forwarding table; it may have lost it and know nothing of that."""
        installed = self._installed.get(switch)
        if installed is None:
            return []
        found = set(cookies)
        missing = [c for c, entry in installed.items() if entry and entry.table == FORWARD and c not in found]
        known = installed.keys() | self._flows_at(switch) | self._adopted.get(switch, (0.0, set()))[1]
        strange = sorted(found - known)
        commands: list[Command] = []
        if missing:
            self._say("restored", {"switch": self.name(switch), "missing": len(missing)})
            # Who has lost some may have lost others, of other tables.
            self._installed[switch] = {}
            commands = [*self._sync(switch), *self._again(switch)]
        return [*commands, *((switch, Remove(cookie)) for cookie in strange)]

    def lost(self, now: float, switch: int) -> None:
        """Nothing is heard of a switch any more. It forwards as it did, or is dead; which, its neighbours see."""
        if self._installed.pop(switch, None) is not None:
            self._lost[switch] = now
            self._back.pop(switch, None)
            self._say("lost", {"switch": self.name(switch)})

    def port(self, now: float, switch: int, port: int, up: bool) -> list[Command]:
        """A port's link is up or down, as its switch says."""
        if not 0 <= port < len(self._peers[switch]):
            return []
        at = (switch, port)
        if up == (at not in self._ports_down):
            return []
        if up:
            self._ports_down.discard(at)
            if self._other(at) not in self._ports_down:
                self._links_back[at] = now + HOLD_S
            return []
        self._ports_down.add(at)
        for end in (at, self._other(at)):
            self._links_back.pop(end, None)
        commands = self._link(now, at, up=False)
        # Where an earlier controller's entries at this switch point nobody knows.
        _, adopted = self._adopted.pop(switch, (0.0, set()))
        return [*commands, *((switch, Remove(cookie)) for cookie in sorted(adopted))]

    def counted(self, now: float, switch: int, flows: Iterable[Counted]) -> list[Command]:
        """All that a switch has counted."""
        if switch not in self.counting:
            return []
        believed = list(self._believed(switch, flows))
        if self.scheduler:
            for key, src, dst, sent, age_s in believed:
                # A flow that does not begin here is none that is placed on this switch's word.
                if self._edge_of[src] == switch and self.scheduler.sample(now, key.number, src, dst, sent, age_s):
                    self._keys[key.number] = key
        return self.assigner.counted(now, switch, believed) if self.assigner else []

    def _believed(self, switch: int, flows: Iterable[Counted]) -> Iterator[tuple[FlowKey, int, int, int, float]]:
        """Flows between hosts, not more of them than a switch has."""
        for n, flow in enumerate(flows):
            if n >= FLOWS_MAX:
                self._say("strange", {"switch": self.name(switch), "what": f"more than {FLOWS_MAX} flows"})
                return
            key = flow.key
            src, dst = self.tree.host_at(key.src), self.tree.host_at(key.dst)
            if src is not None and dst is not None and src != dst and key.protocol in (TCP, UDP):
                yield key, src, dst, flow.bytes, flow.age_s

    def tick(self, now: float) -> list[Command]:
        """Time has passed: rounds that are due, links that have stayed up, switches that are gone."""
        commands: list[Command] = []
        for at in [at for at, when in self._links_back.items() if when <= now]:
            del self._links_back[at]
            commands += self._link(now, at, up=True)
        for switch in [s for s, when in self._lost.items() if now - when >= LOST_S]:
            self._lost[switch] = float("inf")
            commands += self._switch(now, switch, up=False)
        for switch in [s for s, when in self._back.items() if when <= now]:
            del self._back[switch]
            commands += self._switch(now, switch, up=True)
        for switch in [s for s, (until, _) in self._adopted.items() if until <= now]:
            _, adopted = self._adopted.pop(switch)
            commands += [(switch, Remove(cookie)) for cookie in sorted(adopted)]
        if self.assigner:
            commands += self._assign(now)
        if self.scheduler:
            self.scheduler.advance(now)
            commands += self._place()
        return commands

    def forget_unseen(self) -> None:
        """A poll is over: flows that neither this nor the one before has seen are forgotten."""
        self._keys_before, self._keys = self._keys, {}

    def _other(self, at: tuple[int, int]) -> tuple[int, int]:
        peer = self._peers[at[0]][at[1]]
        return at if peer.switch is None or peer.port is None else (peer.switch, peer.port)

    def _link(self, now: float, at: tuple[int, int], *, up: bool) -> list[Command]:
        if not self.failures.set_link(*at, up):
            return []
        self._say("link", {"switch": self.name(at[0]), "port": at[1], "up": up})
        if self.scheduler:
            self.scheduler.set_link(now, *at, up)
        return self._around(now)

    def _switch(self, now: float, switch: int, *, up: bool) -> list[Command]:
        if not self.failures.set_switch(switch, up):
            return []
        self._say("switch", {"switch": self.name(switch), "up": up})
        if self.scheduler:
            self.scheduler.set_switch(now, switch, up)
        return self._around(now)

    def _around(self, now: float) -> list[Command]:
        """Something of the network is other than it was: single flows first, as large ones carry most."""
        commands = [*self._place(), *self._assign(now)]
        for switch in sorted(self._installed):
            commands += self._sync(switch)
        return commands

    def _sync(self, switch: int) -> list[Command]:
        installed = self._installed[switch]
        entries = static(self.tree, self.switches[switch], self.failures, self._bases[switch], switch in self.counting)
        wanted: dict[int, FlowEntry] = {entry.cookie: entry for entry in entries}
        add: list[Command] = [(switch, Add(entry)) for cookie, entry in wanted.items() if cookie not in installed]
        remove: list[Command] = [(switch, Remove(cookie)) for cookie in sorted(installed.keys() - wanted.keys())]
        self._installed[switch] = dict(wanted)
        # What is new first: at no moment a packet finds less than before.
        return [*add, *remove]

    def _assign(self, now: float) -> list[Command]:
        if not self.assigner:
            return []
        commands = self.assigner.tick(now)
        for switch, what in commands:
            if isinstance(what, Add):
                self._adopted.get(switch, (0.0, set()))[1].discard(what.entry.cookie)
        return commands

    def _place(self) -> list[Command]:
        if not self.scheduler:
            return []
        commands: list[Command] = []
        for placement in self.scheduler.placements():
            flow = placement.flow
            key, had = self._placed.pop(flow, (None, {}))
            key = key or self._keys.get(flow) or self._keys_before.get(flow)
            if key is None:
                continue
            hops = placement.hops or []
            entries = {switch: placed(key, port, self.tree.k) for switch, port in hops}
            # From the top down: when the edge switch sends it another way, that way is ready.
            commands += [(switch, Add(entry)) for switch, entry in reversed(entries.items())]
            commands += [(switch, Remove(entry.cookie)) for switch, entry in had.items() if switch not in entries]
            if entries:
                self._placed[flow] = (key, entries)
            for switch in entries:
                self._adopted.get(switch, (0.0, set()))[1].discard(COOKIE_PLACED | flow)
            path = [[self.name(switch), port] for switch, port in hops] if placement.hops is not None else None
            self._say("placed", {**key.said, "path": path})
        return commands
