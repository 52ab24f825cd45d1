"""The controller without connections, on switches that only hold entries."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

import pytest

from sluicenet.fattree import (
    ROUTINGS,
    Choose,
    Control,
    Counted,
    Drop,
    FatTree,
    FlowEntry,
    HierarchicalTree,
    Send,
)
from sluicenet.fattree._commands import Add, Remove
from sluicenet.fattree._control import ADOPTED_S, FLOWS_MAX, HOLD_S, LOST_S, START_S
from sluicenet.fattree._entries import COOKIE_ASSIGNED, COOKIE_PLACED, COUNTED_IDLE_S, FORWARD, TCP, UDP, FlowKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sluicenet.fattree._commands import Command

RATE = 10_000_000
PLACERS = [name for name, how in ROUTINGS.items() if how.placer]
ASSIGNERS = [name for name, how in ROUTINGS.items() if how.assigns]


class Network:
    """Switches that hold what they are told, and links that carry frames or do not."""

    def __init__(self, routing: str, k: int = 4) -> None:
        """All connected, and told what there is to tell."""
        self.tree = HierarchicalTree(k) if ROUTINGS[routing].hierarchical else FatTree(k)
        self.peers = [self.tree.peers(switch.number) for switch in self.tree.switches]
        self.edge_of = {p.host: n for n, peers in enumerate(self.peers) for p in peers if p.host is not None}
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.control = Control(self.tree, routing, link_bps=RATE, say=self._say)
        self.entries: list[dict[tuple[Any, ...], FlowEntry]] = [{} for _ in self.tree.switches]
        self.down: set[tuple[int, int]] = set()
        self.now = 0.0
        self.bytes: dict[FlowKey, int] = {}
        # What switches were told and have not heard yet, while they hear nothing.
        self.unheard: list[Command] | None = None
        for switch in range(len(self.entries)):
            self.connect(switch)
        self.step(HOLD_S)

    def _say(self, what: str, of: Mapping[str, Any]) -> None:
        self.said.append((what, dict(of)))

    def connect(self, switch: int) -> None:
        """It says which links are up and what entries it has."""
        ports = {port: self.is_up(switch, port) for port in range(len(self.peers[switch]))}
        self.tell(self.control.connected(self.now, switch, ports, [e.cookie for e in self.entries[switch].values()]))

    def tell(self, commands: Iterable[Command]) -> None:
        """Switches do as they are told; at no moment a packet goes round."""
        if self.unheard is not None:
            self.unheard += commands
            return
        for switch, what in commands:
            if isinstance(what, Add):
                entry = what.entry
                self.entries[switch][entry.table, entry.priority, entry.match] = entry
            else:
                gone = [key for key, entry in self.entries[switch].items() if entry.cookie == what.cookie]
                for key in gone:
                    del self.entries[switch][key]

    def step(self, seconds: float) -> None:
        """Time passes by tenths of seconds; flows go on."""
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            for key in self.bytes:
                self.bytes[key] += RATE // 80
            self.count()
            self.tell(self.control.tick(self.now))
            self.control.forget_unseen()

    def count(self) -> None:
        """Switches say what they have counted of flows that came from below."""
        counted: dict[int, list[Counted]] = {switch: [] for switch in self.control.counting}
        for key, sent in self.bytes.items():
            src, dst = self.tree.host_at(key.src), self.tree.host_at(key.dst)
            assert src is not None and dst is not None
            for switch, _ in (self.walk(src, dst, key) or [])[:2]:
                if switch in counted and (self.tree.switches[switch].pod == self.tree.switches[self.edge_of[src]].pod):
                    counted[switch].append(Counted(key, sent, sent * 8 / RATE))
        for switch, flows in counted.items():
            self.tell(self.control.counted(self.now, switch, flows))

    def flow(self, src: int, dst: int, port: int = 7) -> FlowKey:
        """A flow at full rate from now on."""
        key = FlowKey(self.tree.host_address(src), self.tree.host_address(dst), TCP, port, 5001)
        self.bytes[key] = 0
        return key

    def is_up(self, switch: int, port: int) -> bool:
        """A port's link, at both of its ends."""
        peer = self.peers[switch][port]
        other = (switch, port) if peer.switch is None or peer.port is None else (peer.switch, peer.port)
        return (switch, port) not in self.down and other not in self.down

    def link(self, switch: int, port: int, *, up: bool) -> None:
        """A link fails or is back; nobody has said so yet."""
        (self.down.discard if up else self.down.add)((switch, port))

    def hear(self, switch: int, port: int) -> None:
        """Both ends say how their link is."""
        peer = self.peers[switch][port]
        assert peer.switch is not None and peer.port is not None
        for end in ((switch, port), (peer.switch, peer.port)):
            self.tell(self.control.port(self.now, *end, self.is_up(*end)))

    def port(self, switch: int, key: FlowKey) -> int | None:
        """Where a switch sends a packet."""
        fields = dict(key.match)
        for entry in sorted(self.entries[switch].values(), key=lambda e: -e.priority):
            if entry.table != FORWARD or not all(_agrees(fields.get(name), want) for name, want in entry.match):
                continue
            match entry.action:
                case Send(port):
                    return port if self.is_up(switch, port) else None
                case Choose(ports, basis):
                    live = [port for port in ports if self.is_up(switch, port)]
                    if not live:
                        return None
                    return live[0] if basis is None else live[hash((key, basis)) % len(live)]
                case Drop():
                    return None
        return None

    def walk(self, src: int, dst: int, key: FlowKey | None = None) -> list[tuple[int, int]] | None:
        """The way of a packet; none where it is lost. One that goes round fails the test."""
        key = key or FlowKey(self.tree.host_address(src), self.tree.host_address(dst), UDP, 1, 2)
        at = self.edge_of[src]
        way: list[tuple[int, int]] = []
        while True:
            assert len(way) <= 5, f"a loop from {src} to {dst}: {way}"
            port = self.port(at, key)
            if port is None:
                return None
            way.append((at, port))
            peer = self.peers[at][port]
            if peer.host is not None:
                assert peer.host == dst
                return way
            assert peer.switch is not None
            at = peer.switch

    def lost(self) -> int:
        """Pairs of whom the one does not reach the other."""
        pairs = [(a, b) for a in range(self.tree.hosts) for b in range(self.tree.hosts) if a != b]
        return sum(self.walk(a, b) is None for a, b in pairs)


def _agrees(has: object, want: object) -> bool:
    if isinstance(want, tuple) and isinstance(has, str):
        address, mask = (int(IPv4Address(part)) for part in want)
        return int(IPv4Address(has)) & mask == address
    return has == want


@pytest.mark.parametrize(("tree", "routing"), [(FatTree(4), "hierarchical"), (HierarchicalTree(4), "ecmp")])
def test_a_routing_is_of_one_kind_of_tree(tree: FatTree | HierarchicalTree, routing: str) -> None:
    with pytest.raises(ValueError, match="no routing of"):
        Control(tree, routing, link_bps=RATE)


@pytest.mark.parametrize("routing", ["two-level", "ecmp"])
def test_every_link_that_fails_is_steered_round_and_nothing_loops(routing: str) -> None:
    network = Network(routing)
    assert network.lost() == 0
    before = [dict(entries) for entries in network.entries]
    half = network.tree.k // 2
    links = [(s.number, port) for s in network.tree.switches if s.layer != "core" for port in range(half, 2 * half)]
    assert len(links) == 32
    for link in links:
        network.link(*link, up=False)
        # Until somebody says so, a switch sends up by its other port; what comes down is lost, and goes nowhere else.
        network.lost()
        network.hear(*link)
        assert network.lost() == 0, link
        network.link(*link, up=True)
        network.hear(*link)
        network.step(HOLD_S + 0.1)
        assert network.entries == before, "what stood for a failure is gone with it"


@pytest.mark.parametrize("routing", ASSIGNERS)
def test_flows_that_were_given_a_port_are_steered_round_every_link_that_fails(routing: str) -> None:
    network = Network(routing)
    pairs = [(host, (host + 4) % 16) for host in range(16)] + [(host, (host + 9) % 16) for host in range(16)]
    keys = [network.flow(src, dst, 7 + n) for n, (src, dst) in enumerate(pairs)]
    network.step(1)
    half = network.tree.k // 2
    for link in [(s.number, port) for s in network.tree.switches if s.layer != "core" for port in (half, half + 1)]:
        network.link(*link, up=False)
        network.hear(*link)
        # At once, before anything else is counted.
        for (src, dst), key in zip(pairs, keys, strict=True):
            assert network.walk(src, dst, key), (link, src, dst)
        assert network.lost() == 0
        network.link(*link, up=True)
        network.hear(*link)
        network.step(HOLD_S + 0.1)
    assert all(what != "switch" for what, _ in network.said)


def test_the_flow_classifier_spreads_what_a_switch_counts_and_nothing_of_others() -> None:
    network = Network("flow-classifier")
    # Same-ID outgoing: by the tables both hosts of each edge switch take one upward port.
    pairs = [(0, 4), (1, 6), (2, 8), (3, 10), (4, 0), (5, 2), (8, 12), (9, 14)]
    keys = [network.flow(src, dst) for src, dst in pairs]
    before = [network.walk(src, dst, key) for (src, dst), key in zip(pairs, keys, strict=True)]
    assert before[0] and before[1] and before[0][0] == before[1][0]
    network.step(0.5)
    ways = [network.walk(src, dst, key) for (src, dst), key in zip(pairs, keys, strict=True)]
    first = [way[0] for way in ways if way]
    assert len(first) == len(set(first)) == len(pairs), "each has an edge switch's port of its own"
    second = [way[1] for way in ways if way]
    assert max(second.count(hop) for hop in second) <= 2
    assert all(ways[n] == network.walk(*pairs[n], keys[n]) for n in range(8))
    # Entries of one switch alone make the choice: that of another edge switch is nobody else's.
    for switch, entries in enumerate(network.entries):
        own = [entry for entry in entries.values() if entry.kind == COOKIE_ASSIGNED]
        carries = [key for key, way in zip(keys, ways, strict=True) for at, _ in (way or [])[:2] if at == switch]
        assert {entry.flow for entry in own} == {key.number for key in carries}
    # Flows end: their entries go with their counters, also in the controller's mind.
    network.bytes.clear()
    network.step(0.2)
    assert all(entry.kind != COOKIE_ASSIGNED for entries in network.entries for entry in entries.values())
    assert network.lost() == 0


@pytest.mark.parametrize("routing", ASSIGNERS)
def test_entries_a_classifier_made_survive_switches_and_controllers(routing: str) -> None:
    network = Network(routing)
    keys = [network.flow(host, (host + 4) % 16) for host in range(16)]
    network.step(1)
    before = [dict(entries) for entries in network.entries]
    for switch in (0, 9):
        network.control.lost(network.now, switch)
        network.entries[switch].clear()
        network.connect(switch)
        assert network.entries[switch] == before[switch]
        network.entries[switch].clear()
        network.tell(network.control.audited(switch, []))
        assert network.entries[switch] == before[switch]
        stays = [entry.cookie for entry in before[switch].values()]
        assert network.control.audited(switch, stays) == []
    # Another controller leaves them until its own classifiers have said something, and removes what nobody needs.
    del network.bytes[keys[0]]
    network.control = Control(network.tree, routing, link_bps=RATE, say=network._say)
    network.now = 0.0
    for switch in range(len(network.entries)):
        network.connect(switch)
    assert [dict(entries) for entries in network.entries] == before
    network.step(ADOPTED_S + 0.2)
    flows = {entry.flow for entries in network.entries for entry in entries.values() if entry.flow is not None}
    assert flows == {key.number for key in keys[1:]}
    assert network.lost() == 0


def test_a_hierarchical_tree_reaches_everybody_and_says_what_is_down() -> None:
    network = Network("hierarchical")
    assert network.lost() == 0
    before = [dict(entries) for entries in network.entries]
    # A host that is not there is nobody's, and its packets go no further.
    nobody = FlowKey("10.0.0.2", "10.1.0.77", UDP, 1, 2)
    assert network.port(1, nobody) is None and network.port(0, nobody) == 4
    for up in (False, True):
        network.link(0, 4, up=up)
        network.hear(0, 4)
        network.step(HOLD_S + 0.2)
        assert network.lost() == (0 if up else 2 * 4 * 12)
        assert network.entries == before, "there is no other way"
    # Both ends say it; it is told once.
    assert [of["up"] for what, of in network.said if what == "link"] == [False, True]
    network.control.lost(network.now, 4)
    network.step(LOST_S + 0.2)
    network.entries[4].clear()
    network.connect(4)
    network.step(HOLD_S + 0.2)
    assert [of["up"] for what, of in network.said if what == "switch"] == [False, True]
    assert network.entries == before and network.lost() == 0


def test_pairs_of_failures_cut_nobody_off_to_whom_a_way_leads() -> None:
    network = Network("ecmp")
    # Both ways from one aggregation switch to the cores, and one of an edge switch of another pod.
    for link in ((8, 2), (8, 3), (3, 2)):
        network.link(*link, up=False)
        network.hear(*link)
    assert network.lost() == 0


def test_a_link_that_flaps_is_down_until_it_has_stayed_up() -> None:
    network = Network("two-level")
    for _ in range(100):
        for up in (False, True):
            network.link(8, 2, up=up)
            network.hear(8, 2)
        network.now += HOLD_S / 200
        network.tell(network.control.tick(network.now))
    told = [of["up"] for what, of in network.said if what == "link"]
    assert told == [False]
    network.step(HOLD_S + 0.1)
    assert [of["up"] for what, of in network.said if what == "link"] == [False, True]


@pytest.mark.parametrize("routing", PLACERS)
def test_no_placed_flow_is_left_at_a_dead_port(routing: str) -> None:
    network = Network(routing)
    keys = [network.flow(host, (host + 4) % 16) for host in range(16)]
    network.step(1)
    ways = [network.walk(host, (host + 4) % 16, key) for host, key in enumerate(keys)]
    hops = [hop for way in ways for hop in way or []]
    assert len(hops) == len(set(hops)) == 16 * 5, "no two flows share a link"
    # The first flow's core is gone: at once its switches know, and its packets go another way.
    way = ways[0]
    assert way is not None
    core = way[2][0]
    for port, peer in enumerate(network.tree.peers(core)):
        network.link(core, port, up=False)
        assert peer.switch is not None and peer.port is not None
        network.tell(network.control.port(network.now, peer.switch, peer.port, False))
    for host, key in enumerate(keys):
        again = network.walk(host, (host + 4) % 16, key)
        assert again is not None and core not in [switch for switch, _ in again]
    for switch, entries in enumerate(network.entries):
        for entry in entries.values():
            if entry.flow is not None:
                assert isinstance(entry.action, Choose)
                assert network.is_up(switch, entry.action.ports[0]), "an entry wants a port that is dead"
    assert network.lost() == 0


def test_a_switch_that_lost_its_entries_is_told_them_again() -> None:
    network = Network("hedera-gff")
    key = network.flow(0, 4)
    network.step(1)
    before = [dict(entries) for entries in network.entries]
    for switch in (0, 8, 16):
        network.control.lost(network.now, switch)
        network.entries[switch].clear()
        network.connect(switch)
    assert network.entries == before
    assert network.walk(0, 4, key)


def test_a_switch_that_lost_its_entries_and_knows_nothing_of_it() -> None:
    network = Network("hedera-gff")
    key = network.flow(0, 4)
    network.step(1)
    before = dict(network.entries[0])
    stranger = FlowEntry(FORWARD, 3_000, (("eth_type", 0x0800),), Drop())
    cookies = [entry.cookie for entry in before.values() if entry.table == FORWARD]
    assert network.control.audited(0, cookies) == []
    # One entry that somebody added goes; all that somebody removed comes back, the placed flow's with it.
    network.entries[0][stranger.table, stranger.priority, stranger.match] = stranger
    network.tell(network.control.audited(0, [*cookies, stranger.cookie]))
    assert network.entries[0] == before
    network.entries[0].clear()
    network.tell(network.control.audited(0, []))
    assert network.entries[0] == before and network.walk(0, 4, key)


def test_a_controller_that_restarts_keeps_what_is_right_and_removes_what_nobody_knows() -> None:
    network = Network("hedera-gff")
    keys = [network.flow(0, 4), network.flow(1, 8)]
    network.step(1)
    before = [dict(entries) for entries in network.entries]
    stranger = FlowEntry(FORWARD, 1, (("eth_type", 0x86DD),), Drop())
    network.entries[3][stranger.table, stranger.priority, stranger.match] = stranger
    # One flow ends while nobody is there.
    del network.bytes[keys[1]]
    network.control = Control(network.tree, "hedera-gff", link_bps=RATE, say=network._say)
    network.now, network.said = 0.0, []
    for switch in range(len(network.entries)):
        network.connect(switch)
    assert all(of["added"] == 0 for what, of in network.said if what == "connected"), "what is right is left alone"
    assert stranger not in network.entries[3].values()
    # As small flows went before: until it is seen which flows are large, what an earlier controller placed stays.
    assert before[0].items() <= network.entries[0].items()
    network.step(ADOPTED_S + 0.2)
    flows = {entry.flow for entries in network.entries for entry in entries.values() if entry.flow is not None}
    assert flows == {keys[0].number}


@pytest.mark.parametrize("routing", [*ASSIGNERS, *(name for name in PLACERS if name not in ASSIGNERS)])
def test_a_controller_that_dies_between_two_commands_leaves_no_loop_and_no_dead_port(routing: str) -> None:
    pairs = [(host, (host + 4) % 16) for host in range(4)]

    def before() -> tuple[Network, list[FlowKey], list[Command]]:
        network = Network(routing)
        keys = [network.flow(src, dst) for src, dst in pairs]
        told: list[Command] = []
        network.unheard = told
        network.step(0.5)
        network.unheard = None
        return network, keys, told

    whole = len(before()[2])
    assert whole >= 8
    for cut in range(whole + 1):
        network, keys, told = before()
        network.tell(told[:cut])
        for (src, dst), key in zip(pairs, keys, strict=True):
            assert network.walk(src, dst, key), "half a placement leads there, too"
        # A link dies while nobody is there: its switch takes the other one.
        network.link(0, 2, up=False)
        for (src, dst), key in zip(pairs[:2], keys[:2], strict=True):
            assert network.walk(src, dst, key)
        network.control = Control(network.tree, routing, link_bps=RATE, say=network._say)
        network.now = 0.0
        for switch in range(len(network.entries)):
            network.connect(switch)
        network.step(ADOPTED_S + 0.2)
        assert network.lost() == 0
        for (src, dst), key in zip(pairs, keys, strict=True):
            assert network.walk(src, dst, key)
        first = [entry.action for entry in network.entries[0].values() if entry.flow is not None]
        assert all(isinstance(action, Choose) and action.ports[0] != 2 for action in first)


def test_a_switch_that_is_not_heard_of_is_gone_and_one_that_never_was_too() -> None:
    network = Network("ecmp")
    network.control.lost(network.now, 16)
    network.step(LOST_S + 0.2)
    assert ("switch", {"switch": "c1-1", "up": False}) in network.said
    ways = [network.walk(a, b) for a in range(4) for b in range(8, 16)]
    assert all(way and 16 not in [switch for switch, _ in way] for way in ways)
    network.connect(16)
    network.step(HOLD_S + 0.2)
    assert network.said[-1] == ("switch", {"switch": "c1-1", "up": True})
    alone = Control(network.tree, "ecmp", link_bps=RATE)
    alone.tick(START_S - 0.1)
    assert alone.failures.is_up(8, 2)
    alone.tick(START_S + 0.1)
    assert not alone.failures.is_up(8, 2)


def test_nothing_is_placed_on_the_word_of_a_liar() -> None:
    network = Network("hedera-gff")
    tree = network.tree
    host = tree.host_address
    lies = [
        FlowKey(host(4), host(0), TCP, 1, 2),  # it does not begin here
        FlowKey("192.0.2.1", host(4), TCP, 1, 2),
        FlowKey(host(0), "10.4.1.1", TCP, 1, 2),
        FlowKey(host(0), host(0), TCP, 1, 2),
        FlowKey(host(0), host(4), 47, 1, 2),
        FlowKey("nonsense", "10.0.0.300", TCP, 1, 2),
    ]
    for now in (2.0, 2.5, 3.0):
        network.control.counted(now, 0, [Counted(lie, (1 << 64) - 1, 1e300) for lie in lies])
        assert network.control.tick(now) == []
    assigning = Network("flow-classifier").control
    for now in (2.0, 2.5, 3.0):
        assert assigning.counted(now, 0, [Counted(lie, (1 << 64) - 1, 1e300) for lie in lies]) == []
        assert assigning.counted(now, 16, [Counted(FlowKey(host(0), host(4), TCP, 1, 2), 1, 1.0)]) == [], "a core"
        assert assigning.tick(now) == []
    # However much it says, so much is looked at.
    many = [Counted(FlowKey(host(0), host(4), TCP, n % 65_536, n // 65_536), 0, 0.0) for n in range(2 * FLOWS_MAX)]
    network.control.counted(4.0, 0, many)
    assert network.said[-1][0] == "strange"
    assert network.control.port(4.0, 0, 77, False) == [] and network.control.port(4.0, 0, -1, False) == []


def test_cookies_say_what_an_entry_is() -> None:
    network = Network("hedera-gff")
    key = network.flow(0, 4)
    network.step(1)
    cookies = [entry.cookie for entry in network.entries[0].values()]
    assert len(cookies) == len(set(cookies)) and COOKIE_PLACED | key.number in cookies
    assert key.number == FlowKey(key.src, key.dst, TCP, 7, 5001).number and COUNTED_IDLE_S > 1
    # Another hash is another entry, and replaces the one before.
    other = Control(network.tree, "ecmp", link_bps=RATE, seed=1)
    told = other.connected(0.0, 0, dict.fromkeys(range(4), True), cookies)
    assert any(isinstance(what, Add) for _, what in told) and any(isinstance(what, Remove) for _, what in told)
