"""The controller at work: os-ken's events in, its messages out, and a line of JSON for all that happens."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from os_ken.base import app_manager
from os_ken.controller import event, ofp_event
from os_ken.controller.handler import CONFIG_DISPATCHER, DEAD_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.controller.ofp_handler import OFPHandler
from os_ken.lib import hub
from os_ken.ofproto import ofproto_v1_3

from ._control import Control
from ._entries import COOKIE_COUNTED, COUNT, FORWARD
from ._openflow import Connection, configure, counted, flow_mod

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .._native import FatTree, HierarchicalTree
    from ._commands import Command
    from ._control import Counted

# Entries that a switch may have which says what it has; more, and it goes on for ever.
FOUND_MAX = 20_000
# Connections for each switch of the tree.
CONNECTIONS_PER_SWITCH = 4
# Over so long a flow's rate is judged; a few times what a switch takes to bring its counters up to date, or flows seem
# to stop.
WINDOW_S = 1.0
# How often switches are asked whether they still have their tables.
AUDIT_S = 1.0
# A poll ends without those who have not answered for so many of its periods.
PATIENCE_PERIODS = 5


@dataclass(frozen=True, slots=True)
class Options:
    """What the controller is told."""

    tree: FatTree | HierarchicalTree
    routing: str
    # Of TCP a host and a port, else a file's name alone.
    listen: tuple[str, int] | tuple[str]
    link_bps: int
    poll_s: float
    seed: int


class Tick(event.EventBase):
    """Time to poll."""


@dataclass(slots=True)
class Poll:
    """The counters of all switches that count, once."""

    begun: float
    asked: set[int]
    answers: list[tuple[int, list[Counted]]] = field(default_factory=list)
    computing_s: float = 0.0


@dataclass(slots=True)
class Install:
    """Commands that switches were sent, until their barriers come back."""

    poll_begun: float
    collected: float
    computing_s: float
    sent: float
    waits: set[tuple[int, int]]
    flows: int


def say(what: str, of: Mapping[str, Any]) -> None:
    """Prints a line; `at_s` is of the machine's monotonic clock."""
    print(json.dumps({"event": what, "at_s": round(time.monotonic(), 6), **of}), flush=True)


class Listener(OFPHandler):
    """os-ken's handshakes, with connections of ours."""

    options: Options

    def start(self) -> Any:  # noqa: ANN401 - os-ken has no types
        """Listens, and says where."""
        self._most = CONNECTIONS_PER_SWITCH * len(self.options.tree.switches)
        # The oldest first.
        self._open: dict[Connection, None] = {}
        self._lock = threading.Lock()
        server = hub.StreamServer(self.options.listen, self._serve)
        # Where it cannot listen no thread has been started.
        super(OFPHandler, self).start()
        at = server.server.getsockname()
        say("listening", {"at": at if isinstance(at, str) else f"{at[0]}:{at[1]}"})
        return hub.spawn(server.serve_forever)

    def _serve(self, inner: Any, address: Any) -> None:  # noqa: ANN401 - os-ken has no types
        connection = Connection(inner, address)
        with self._lock:
            full = len(self._open) >= self._most
            # Who connects and says nothing keeps nobody out.
            oldest = next((c for c in self._open if not c.is_known), None) if full else None
            if oldest:
                del self._open[oldest]
            if oldest or not full:
                self._open[connection] = None
        if oldest:
            oldest.refuse(f"it is the oldest of {self._most} connections that has not said which switch it is")
        elif full:
            inner.close()
            return
        try:
            connection.serve()
        finally:
            with self._lock:
                self._open.pop(connection, None)

    def _hello_failed(self, datapath: Connection, error_desc: str) -> None:
        # In place of os-ken's own, which says it in its log alone.
        datapath.socket.wrong = datapath.socket.wrong or error_desc
        ofp, parser = datapath.ofproto, datapath.ofproto_parser
        incompatible = parser.OFPErrorMsg(
            datapath, type_=ofp.OFPET_HELLO_FAILED, code=ofp.OFPHFC_INCOMPATIBLE, data=error_desc
        )
        datapath.send_msg(incompatible, close_socket=True)


class Controller(app_manager.OSKenApp):
    """Everything happens in one thread, that of this app's events."""

    OFP_VERSIONS = (ofproto_v1_3.OFP_VERSION,)
    options: Options

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - os-ken has no types
        """Nobody is connected."""
        super().__init__(*args, **kwargs)
        o = self.options
        self._began = time.monotonic()
        self._by_datapath = {s.datapath_id: s.number for s in o.tree.switches}
        self._control = Control(
            o.tree, o.routing, link_bps=o.link_bps, seed=o.seed, window_s=max(WINDOW_S, 2 * o.poll_s), say=say
        )
        self._connections: dict[int, Connection] = {}
        # By connection: the request for what it has, and what it has said.
        self._found: dict[Connection, tuple[int, list[int]]] = {}
        self._xids: dict[Connection, tuple[int, list[Counted]]] = {}
        # By connection: the request for its forwarding table, to see whether it is still there, and what it has said.
        self._audits: dict[Connection, tuple[int, list[int]]] = {}
        self._audited = 0.0
        self._poll: Poll | None = None
        self._installs: list[Install] = []

    def start(self) -> None:
        """The clock ticks."""
        super().start()
        hub.spawn(self._ticking)

    def _ticking(self) -> None:
        while self.is_active:
            time.sleep(self.options.poll_s)
            # Ticks do not queue up behind one another.
            if self.events.qsize() < self.events.maxsize // 2:
                self.send_event(self.name, Tick())

    @property
    def _now(self) -> float:
        return time.monotonic() - self._began

    @set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])
    def on_state(self, ev: Any) -> None:  # noqa: ANN401 - os-ken has no types
        """A switch has introduced itself, or is gone."""
        datapath: Connection = ev.datapath
        if ev.state == MAIN_DISPATCHER:
            number = self._by_datapath.get(datapath.id)
            if number is None:
                datapath.refuse(f"datapath {datapath.id:#x} is no switch of this fat-tree")
                return
            # Whoever says so last is the switch: the one before is half open, or a liar, and cannot be told from one.
            old = self._connections.pop(number, None)
            if old is not None:
                old.refuse("the switch has connected again")
                self._forget(old)
                self._control.lost(self._now, number)
            self._connections[number] = datapath
            parser = datapath.ofproto_parser
            request = parser.OFPFlowStatsRequest(datapath)
            datapath.set_xid(request)
            self._found[datapath] = (request.xid, [])
            datapath.send_msg(request)
            return
        if datapath.socket.wrong:
            name = self._name(datapath)
            say("refused", {"switch": name, "why": datapath.socket.wrong})
            datapath.socket.wrong = None
        number = self._number(datapath)
        self._forget(datapath)
        if number is not None:
            del self._connections[number]
            self._control.lost(self._now, number)

    @set_ev_cls(ofp_event.EventOFPFlowStatsReply, MAIN_DISPATCHER)
    def on_stats(self, ev: Any) -> None:  # noqa: ANN401 - os-ken has no types
        """A switch says what it has, or what it has counted."""
        msg = ev.msg
        datapath: Connection = msg.datapath
        more = msg.flags & datapath.ofproto.OFPMPF_REPLY_MORE
        number = self._number(datapath)
        if number is None:
            return
        for asked_for in (self._found, self._audits):
            said = asked_for.get(datapath)
            if not said or said[0] != msg.xid:
                continue
            said[1].extend(stat.cookie for stat in msg.body)
            if len(said[1]) > FOUND_MAX:
                datapath.refuse(f"it says that it has more than {FOUND_MAX} entries")
            elif not more:
                del asked_for[datapath]
                if asked_for is self._found:
                    self._send(self._control.connected(self._now, number, self._ports(datapath), set(said[1])))
                else:
                    self._send(self._control.audited(number, said[1]))
            return
        asked = self._xids.get(datapath)
        if not asked or asked[0] != msg.xid:
            return
        begun = time.perf_counter()
        asked[1].extend(flow for flow in map(counted, msg.body) if flow)
        if self._poll:
            self._poll.computing_s += time.perf_counter() - begun
        if len(asked[1]) > FOUND_MAX:
            datapath.refuse(f"it says that it has counted more than {FOUND_MAX} flows")
        elif not more:
            del self._xids[datapath]
            if self._poll and number in self._poll.asked:
                self._poll.asked.discard(number)
                self._poll.answers.append((number, asked[1]))
                if not self._poll.asked:
                    self._end_poll()

    @set_ev_cls(ofp_event.EventOFPPortStatus, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def on_port(self, ev: Any) -> None:  # noqa: ANN401 - os-ken has no types
        """A port's link went down or came up."""
        msg = ev.msg
        number = self._number(msg.datapath)
        # Until a switch has said what it has, its ports are read with that.
        if number is None or msg.datapath in self._found:
            return
        gone = msg.reason == msg.datapath.ofproto.OFPPR_DELETE
        up = not gone and _is_up(msg.datapath, msg.desc)
        self._send(self._control.port(self._now, number, msg.desc.port_no - 1, up))

    @set_ev_cls(ofp_event.EventOFPBarrierReply, MAIN_DISPATCHER)
    def on_barrier(self, ev: Any) -> None:  # noqa: ANN401 - os-ken has no types
        """What a switch was told is in its tables."""
        number = self._number(ev.msg.datapath)
        if number is None:
            return
        for install in self._installs:
            install.waits.discard((number, ev.msg.xid))
        self._end_installs()

    @set_ev_cls(ofp_event.EventOFPErrorMsg, [CONFIG_DISPATCHER, MAIN_DISPATCHER])
    def on_error(self, ev: Any) -> None:  # noqa: ANN401 - os-ken has no types
        """A switch would not do something."""
        say("error", {"switch": self._name(ev.msg.datapath), "type": ev.msg.type, "code": ev.msg.code})

    @set_ev_cls(Tick)
    def on_tick(self, _ev: Tick) -> None:
        """The next poll."""
        if self._poll and time.monotonic() - self._poll.begun > PATIENCE_PERIODS * self.options.poll_s:
            self._end_poll()
        if not self._control.counting:
            self._send(self._control.tick(self._now))
        elif self._poll is None:
            self._begin_poll()
        if time.monotonic() - self._audited >= AUDIT_S:
            self._audit()
        patience = time.monotonic() - PATIENCE_PERIODS * max(self.options.poll_s, 1.0)
        self._installs = [install for install in self._installs if install.sent > patience]

    def _audit(self) -> None:
        self._audited = time.monotonic()
        for datapath in self._connections.values():
            if datapath not in self._found:
                request = datapath.ofproto_parser.OFPFlowStatsRequest(datapath, table_id=FORWARD)
                datapath.set_xid(request)
                self._audits[datapath] = (request.xid, [])
                datapath.send_msg(request)

    def _begin_poll(self) -> None:
        counting = self._control.counting
        asked = [n for n in counting if (c := self._connections.get(n)) and c not in self._found]
        self._xids.clear()
        self._poll = Poll(time.monotonic(), set(asked))
        for number in asked:
            datapath = self._connections[number]
            parser = datapath.ofproto_parser
            request = parser.OFPFlowStatsRequest(
                datapath, table_id=COUNT, cookie=COOKIE_COUNTED, cookie_mask=(1 << 64) - 1
            )
            datapath.set_xid(request)
            self._xids[datapath] = (request.xid, [])
            datapath.send_msg(request)
        if not asked:
            self._end_poll()

    def _end_poll(self) -> None:
        poll, self._poll = self._poll, None
        if poll is None:
            return
        collected = time.monotonic()
        begun = time.perf_counter()
        commands: list[Command] = []
        for number, flows in poll.answers:
            commands += self._control.counted(self._now, number, flows)
        commands += self._control.tick(self._now)
        self._control.forget_unseen()
        poll.computing_s += time.perf_counter() - begun
        self._send(commands, poll, collected)

    def _send(self, commands: Iterable[Command], poll: Poll | None = None, collected: float = 0.0) -> None:
        told: dict[int, int] = {}
        for number, what in commands:
            datapath = self._connections.get(number)
            if datapath:
                datapath.send_msg(flow_mod(datapath, what))
                told[number] = told.get(number, 0) + 1
        waits = set()
        for number in told:
            datapath = self._connections[number]
            barrier = datapath.ofproto_parser.OFPBarrierRequest(datapath)
            datapath.set_xid(barrier)
            datapath.send_msg(barrier)
            waits.add((number, barrier.xid))
        if waits:
            now = time.monotonic()
            begun = poll.begun if poll else now
            computing_s = poll.computing_s if poll else 0.0
            self._installs.append(Install(begun, collected or now, computing_s, now, waits, sum(told.values())))

    def _end_installs(self) -> None:
        now = time.monotonic()
        for install in [i for i in self._installs if not i.waits]:
            self._installs.remove(install)
            say(
                "installed",
                {
                    "entries": install.flows,
                    "collect_ms": round(1e3 * (install.collected - install.poll_begun), 3),
                    "compute_ms": round(1e3 * install.computing_s, 3),
                    "install_ms": round(1e3 * (now - install.sent), 3),
                },
            )

    def _number(self, datapath: Connection) -> int | None:
        number = self._by_datapath.get(datapath.id) if datapath.id is not None else None
        return number if number is not None and self._connections.get(number) is datapath else None

    def _name(self, datapath: Connection) -> str:
        number = self._by_datapath.get(datapath.id) if datapath.id is not None else None
        return str(datapath.address or "somebody") if number is None else self._control.name(number)

    def _ports(self, datapath: Connection) -> dict[int, bool]:
        return {number - 1: _is_up(datapath, port) for number, port in datapath.ports.items()}

    def _forget(self, datapath: Connection) -> None:
        self._found.pop(datapath, None)
        self._xids.pop(datapath, None)
        self._audits.pop(datapath, None)


def _is_up(datapath: Any, port: Any) -> bool:  # noqa: ANN401 - os-ken has no types
    ofp = datapath.ofproto
    return not (port.state & ofp.OFPPS_LINK_DOWN or port.config & ofp.OFPPC_PORT_DOWN)


def serve(options: Options) -> None:
    """Runs until a signal ends it."""
    configure()
    Listener.options = Controller.options = options
    manager = app_manager.AppManager.get_instance()
    apps = [manager.instantiate(Listener), manager.instantiate(Controller)]
    # With these blocked in every thread, only the last line here sees them.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    for app in apps:
        app.start()
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    sys.stdout.flush()
    # Threads of connections wait for their switches; nothing of them is to be kept.
    os._exit(0)
