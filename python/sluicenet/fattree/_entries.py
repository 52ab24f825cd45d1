"""What is to stand in a switch's tables, without a word of OpenFlow's encoding.

| table | of | holds |
|---|---|---|
| 0 | switches that count | TCP and UDP from below are counted flow by flow in table 1; everything goes on to table 2 |
| 1 | switches that count | an entry for each flow, which the switch makes itself when the flow begins, and forgets |
| 2 | all | placed flows; flows that were given a port; detours round failures; the static table |

Upward, every entry names all ports that lead there in the order in which it wants them, and the switch takes the first
whose link is up, or hashes over those that are: what points at a dead port is steered round by the switch itself,
before anybody is told. What the controller takes for dead whatever its link says, a core that is not heard of or a link
that flaps, is none of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .._native import Detour, Entry, Failures, FatTree, HierarchicalTree, Switch
    from ._oneway import OneWay

CLASSIFY, COUNT, FORWARD = 0, 1, 2

# Priorities in table 2, as `sluicenet fabric tables --format ovs` numbers them: the static table falls from 1000.
PLACED_PRIORITY = 2_000
ASSIGNED_PRIORITY = 1_800
DETOUR_PRIORITY = 1_500
STATIC_PRIORITY = 1_000

# The first two bytes of every cookie: what has others is nobody's here.
COOKIE_OWN = 0x51CE << 48
COOKIE_STATIC = COOKIE_OWN | 1 << 40
COOKIE_PLACED = COOKIE_OWN | 3 << 40
COOKIE_COUNTED = COOKIE_OWN | 4 << 40
COOKIE_ASSIGNED = COOKIE_OWN | 5 << 40
# The rest of it: what the entry says, or which flow it is for.
COOKIE_NUMBER_MASK = (1 << 40) - 1

# Seconds without a packet after which a switch forgets a flow's entries.
FLOW_IDLE_S = 5
COUNTED_IDLE_S = 5

ETH_IPV4, ETH_ARP = 0x0800, 0x0806
TCP, UDP = 6, 17

Field = str | int | tuple[str, str]


@dataclass(frozen=True, slots=True)
class Send:
    """By one port."""

    port: int


@dataclass(frozen=True, slots=True)
class Choose:
    """By one of several ports whose links are up: the first, or by a hash of the flow that `basis` draws."""

    ports: tuple[int, ...]
    basis: int | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """By none."""


@dataclass(frozen=True, slots=True)
class Count:
    """The flow gets an entry of its own in table 1, and goes on to table 2."""

    protocol: int


@dataclass(frozen=True, slots=True)
class Forward:
    """On to table 2."""


Action = Send | Choose | Drop | Count | Forward


@dataclass(frozen=True, slots=True)
class FlowEntry:
    """An entry of a switch: `match` has OpenFlow's fields by name."""

    table: int
    priority: int
    match: tuple[tuple[str, Field], ...]
    action: Action
    idle_s: int = 0
    flow: int | None = None
    kind: int = COOKIE_STATIC

    @property
    def cookie(self) -> int:
        """By which it is known again: the flow it is for, or a hash of all it says."""
        if self.flow is not None:
            return self.kind | self.flow & COOKIE_NUMBER_MASK
        return COOKIE_STATIC | _hash40(repr((self.table, self.priority, self.match, self.action, self.idle_s)))


def _hash40(text: str) -> int:
    return int.from_bytes(hashlib.blake2s(text.encode(), digest_size=5).digest(), "big")


@dataclass(frozen=True, slots=True)
class FlowKey:
    """What tells flows apart."""

    src: str
    dst: str
    protocol: int
    src_port: int
    dst_port: int

    @property
    def number(self) -> int:
        """The same in every run."""
        return _hash40(f"{self.src} {self.dst} {self.protocol} {self.src_port} {self.dst_port}")

    @property
    def said(self) -> dict[str, Any]:
        """What is said of it whatever happens to it."""
        return {
            "flow": f"{self.number:#x}",
            "src": self.src,
            "dst": self.dst,
            "protocol": self.protocol,
            "ports": [self.src_port, self.dst_port],
        }

    @property
    def match(self) -> tuple[tuple[str, Field], ...]:
        """Fields of its packets."""
        name = "tcp" if self.protocol == TCP else "udp"
        return (
            ("eth_type", ETH_IPV4),
            ("ip_proto", self.protocol),
            ("ipv4_src", self.src),
            ("ipv4_dst", self.dst),
            (f"{name}_src", self.src_port),
            (f"{name}_dst", self.dst_port),
        )


def placed(key: FlowKey, port: int, k: int) -> FlowEntry:
    """A flow goes up by a port, as a scheduler says; by another one while that is down."""
    return _exact(key, port, k, PLACED_PRIORITY, COOKIE_PLACED)


def assigned(key: FlowKey, port: int, k: int) -> FlowEntry:
    """A flow goes up by a port, as the switch's own classifier says, unless a scheduler has placed it."""
    return _exact(key, port, k, ASSIGNED_PRIORITY, COOKIE_ASSIGNED)


def _exact(key: FlowKey, port: int, k: int, priority: int, kind: int) -> FlowEntry:
    others = [p for p in range(k // 2, k) if p != port]
    return FlowEntry(FORWARD, priority, key.match, Choose((port, *others)), FLOW_IDLE_S, key.number, kind)


def static(
    tree: FatTree | HierarchicalTree, switch: Switch, failures: Failures | OneWay, basis: int | None, counts: bool
) -> Iterator[FlowEntry]:
    """All but single flows: two-level tables, or with a `basis` a hash over what leads up."""
    yield FlowEntry(CLASSIFY, 0, (), Forward())
    if counts:
        for port in range(tree.k // 2):
            for protocol in (TCP, UDP):
                match = (("in_port", port + 1), ("eth_type", ETH_IPV4), ("ip_proto", protocol))
                yield FlowEntry(CLASSIFY, 1, match, Count(protocol))
    table = tree.table(switch.number)
    upward = [entry for entry in table if entry.upward]
    # Of a hierarchical tree there is none, and every entry has one port.
    ports = sorted({entry.port for entry in upward if entry.port is not None})
    # Where nothing is left there is nothing to lose.
    ports_up = [port for port in ports if failures.is_up(switch.number, port)] or ports
    for detour in failures.detours(switch.number):
        yield from _detour(detour, upward, basis)
    for priority, entry in zip(range(STATIC_PRIORITY, 0, -1), table, strict=False):
        if entry.port is None:
            yield from _to(priority, entry.address, entry.mask, Drop())
        elif not entry.upward:
            yield from _to(priority, entry.address, entry.mask, Send(entry.port))
        elif basis is None:
            yield from _to(priority, entry.address, entry.mask, Choose(_from(entry.port, ports_up)))
        else:
            yield from _to(priority, "0.0.0.0", "0.0.0.0", Choose(tuple(ports_up), basis))
            return


def _detour(detour: Detour, upward: list[Entry], basis: int | None) -> Iterator[FlowEntry]:
    """Where no port is left the static table stays: what it sends is lost further on, and never comes back."""
    if not detour.ports:
        return
    # A subnet's stands in front of its pod's.
    priority = DETOUR_PRIORITY + bin(int(IPv4Address(detour.mask))).count("1")
    if basis is not None:
        yield from _to(priority, detour.address, detour.mask, Choose(tuple(detour.ports), basis))
        return
    for entry in upward:
        address = int(IPv4Address(detour.address)) | int(IPv4Address(entry.address))
        mask = int(IPv4Address(detour.mask)) | int(IPv4Address(entry.mask))
        ports = _from(entry.port if entry.port is not None else 0, detour.ports)
        yield from _to(priority, str(IPv4Address(address)), str(IPv4Address(mask)), Choose(ports))


def _from(first: int, ports: Sequence[int]) -> tuple[int, ...]:
    """Ports in turn, from `first` on."""
    return (*[p for p in ports if p >= first], *[p for p in ports if p < first])


def _to(priority: int, address: str, mask: str, action: Action) -> Iterator[FlowEntry]:
    """Packets to some destinations, and the questions and answers of ARP to who has them, which take the same way."""
    for kind, field in ((ETH_IPV4, "ipv4_dst"), (ETH_ARP, "arp_tpa")):
        # A field of which no bit counts is no field.
        what: tuple[tuple[str, Field], ...] = () if mask == "0.0.0.0" else ((field, (address, mask)),)
        yield FlowEntry(FORWARD, priority, (("eth_type", kind), *what), action)
