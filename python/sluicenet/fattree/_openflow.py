"""OpenFlow 1.3 by os-ken: entries as its messages, and connections that a switch cannot hold up or lead astray.

os-ken reads on after a message that it cannot parse, takes any length for one, and waits for ever for a switch that
reads nothing; a connection here ends at the first of these.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
from socket import AF_UNIX, IPPROTO_TCP, SHUT_RDWR
from typing import TYPE_CHECKING, Any

from os_ken import cfg
from os_ken.controller.controller import Datapath
from os_ken.controller.handler import MAIN_DISPATCHER
from os_ken.lib import hub
from os_ken.ofproto import nicira_ext, ofproto_common

from ._commands import Add
from ._control import Counted
from ._entries import (
    COOKIE_COUNTED,
    COUNT,
    COUNTED_IDLE_S,
    ETH_IPV4,
    FORWARD,
    TCP,
    Choose,
    Count,
    Drop,
    FlowKey,
    Forward,
    Send,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from ._commands import Remove
    from ._entries import Action, FlowEntry

OFP_VERSION = 4
# The last type of message of OpenFlow 1.3, OFPT_METER_MOD.
TYPE_LAST = 29
HELLO, ERROR = 0, 1

# A switch of the largest tree has 254 ports, and one of its own.
PORTS_MAX = 512
# Messages that wait for a switch to read them, a few times what it is told at once.
SEND_MAX = 4_096
# A switch that answers nothing for two of these is not there.
ECHO_S = 1.0
ECHO_UNANSWERED_MAX = 2
SOCKET_S = 2.0

# `symmetric_l3l4+udp` of ovs-actions(7), which os-ken has no name for: addresses and ports, of UDP too.
HASH_FIELDS_FLOW = 3
IN_PORT = 0xFFF8
LEARNT_PRIORITY = 1


def configure() -> None:
    """os-ken's settings; where to listen is none of them."""
    cfg.CONF(args=[], project="os_ken", default_config_files=[], default_config_dirs=[])
    cfg.CONF.set_override("echo_request_interval", ECHO_S)
    cfg.CONF.set_override("maximum_unreplied_echo_requests", ECHO_UNANSWERED_MAX)
    cfg.CONF.set_override("socket_timeout", SOCKET_S)
    logging.getLogger("os_ken.ofproto.ofproto_parser").addHandler(_Unparsed())
    # What is wrong with a connection is said once, and by us.
    for name in ("os_ken.ofproto.ofproto_parser", "os_ken.controller.controller", "os_ken.lib.hub"):
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())


class Framed:
    """A switch's socket, whose messages begin as OpenFlow 1.3 has it or end the connection."""

    def __init__(self, inner: socket.socket) -> None:
        """Nothing was read."""
        self._inner = inner
        self._header = b""
        self._left = 0
        self.wrong: str | None = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a socket has
        return getattr(self._inner, name)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As a socket's; one of a file has nothing that TCP could be told."""
        if not (level == IPPROTO_TCP and self._inner.family == AF_UNIX):
            self._inner.setsockopt(level, option, value)

    def recv(self, size: int) -> bytes:
        """As a socket's."""
        data = self._inner.recv(size)
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                at += step
                continue
            step = ofproto_common.OFP_HEADER_SIZE - len(self._header)
            self._header += data[at : at + step]
            at += step
            if len(self._header) == ofproto_common.OFP_HEADER_SIZE:
                version, kind, length = struct.unpack_from("!BBH", self._header)
                self._header = b""
                if length < ofproto_common.OFP_HEADER_SIZE:
                    self._end(f"a message of {length} bytes, less than a header")
                if kind > TYPE_LAST or (version != OFP_VERSION and kind not in (HELLO, ERROR)):
                    self._end(f"a message of type {kind} in version {version}")
                self._left = length - ofproto_common.OFP_HEADER_SIZE
        return data

    def _end(self, wrong: str) -> None:
        self.wrong = wrong
        raise ConnectionAbortedError(wrong)


_parsing = threading.local()


class _Unparsed(logging.Handler):
    """A message that os-ken's parser gave up on is told in its log alone."""

    def emit(self, record: logging.LogRecord) -> None:
        connection: Connection | None = getattr(_parsing, "connection", None)
        if connection and record.exc_info:
            connection.refuse(f"a message that cannot be parsed: {record.exc_info[1]!r:.100}")


class _Ports(dict[int, Any]):
    """What a switch says of its ports, which os-ken writes down however many they are."""

    def __init__(self, of: Connection) -> None:
        """None yet."""
        super().__init__()
        self._of = of

    def __setitem__(self, number: int, port: Any) -> None:  # noqa: ANN401 - os-ken has no types
        """One more, or one that has changed."""
        if len(self) >= PORTS_MAX and number not in self:
            why = f"it says that it has more than {PORTS_MAX} ports"
            self._of.refuse(why)
            raise ConnectionAbortedError(why)
        super().__setitem__(number, port)


class Connection(Datapath):
    """A switch."""

    def __init__(self, inner: socket.socket, address: Any) -> None:  # noqa: ANN401 - as the family of the socket has it
        """A connection that came in."""
        super().__init__(Framed(inner), address)
        self.send_q = hub.Queue(SEND_MAX)
        self._send_q_sem = hub.BoundedSemaphore(SEND_MAX)

    @property
    def ports(self) -> _Ports:
        """By number; os-ken puts a new dictionary there when a switch has said who it is."""
        return self._ports

    @ports.setter
    def ports(self, _new: object) -> None:
        self._ports = _Ports(self)

    @property
    def is_known(self) -> bool:
        """Whether it has said which switch it is."""
        return bool(self.state == MAIN_DISPATCHER)

    def refuse(self, why: str) -> None:
        """Ends it at once, and says why."""
        self.socket.wrong = self.socket.wrong or why
        self.close()
        # Its thread may be waiting for what comes next.
        with contextlib.suppress(OSError):
            self.socket.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Ends it, as os-ken does when nobody answers."""
        if len(self.unreplied_echo_requests) > self.max_unreplied_echo_requests:
            self.socket.wrong = self.socket.wrong or "it answers nothing"
        super().close()

    def send(self, buf: bytes, close_socket: bool = False) -> bool:
        """Queues a message; a switch that takes none any more is left."""
        if not self._send_q_sem.acquire(blocking=False):
            self.refuse(f"{SEND_MAX} messages wait, and it reads none")
            return False
        queue = self.send_q
        if queue is None:
            self._send_q_sem.release()
            return False
        queue.put((buf, close_socket))
        return True

    def _recv_loop(self) -> None:
        _parsing.connection = self
        try:
            super()._recv_loop()
        except Exception as e:
            self.socket.wrong = self.socket.wrong or f"a message that cannot be parsed: {e!r:.100}"
        finally:
            _parsing.connection = None
            self.close()
            with contextlib.suppress(OSError):
                self.socket.close()
            # The thread that sends waits for something to send, and ends when it cannot.
            self.send(b"")


def actions(parser: Any, action: Action) -> tuple[list[Any], list[Any]]:  # noqa: ANN401 - os-ken has no types
    """What an entry does, as os-ken's actions, and what comes after them."""
    match action:
        case Send(port):
            return [parser.OFPActionOutput(port + 1)], []
        case Choose(ports, basis):
            algorithm = nicira_ext.NX_BD_ALG_ACTIVE_BACKUP if basis is None else nicira_ext.NX_BD_ALG_HRW
            bundle = parser.NXActionBundle(
                algorithm=algorithm,
                fields=HASH_FIELDS_FLOW,
                basis=basis or 0,
                slave_type=nicira_ext.NXM_OF_IN_PORT,
                n_slaves=len(ports),
                ofs_nbits=0,
                dst=0,
                slaves=[port + 1 for port in ports],
            )
            return [bundle], []
        case Count(protocol):
            learn = parser.NXActionLearn(
                table_id=COUNT,
                specs=list(_learnt(parser, protocol)),
                idle_timeout=COUNTED_IDLE_S,
                hard_timeout=0,
                priority=LEARNT_PRIORITY,
                cookie=COOKIE_COUNTED,
                flags=0,
                fin_idle_timeout=0,
                fin_hard_timeout=0,
            )
            counted = parser.NXActionResubmitTable(in_port=IN_PORT, table_id=COUNT)
            return [learn, counted], [parser.OFPInstructionGotoTable(FORWARD)]
        case Forward():
            return [], [parser.OFPInstructionGotoTable(FORWARD)]
        case Drop():
            return [], []


def _learnt(parser: Any, protocol: int) -> Iterator[Any]:  # noqa: ANN401 - os-ken has no types
    """The match of a flow's own entry, from its first packet."""
    name = "tcp" if protocol == TCP else "udp"
    yield parser.NXFlowSpecMatch(src=ETH_IPV4, dst=("eth_type_nxm", 0), n_bits=16)
    yield parser.NXFlowSpecMatch(src=protocol, dst=("ip_proto_nxm", 0), n_bits=8)
    for field, bits in (("ipv4_src", 32), ("ipv4_dst", 32), (f"{name}_src", 16), (f"{name}_dst", 16)):
        yield parser.NXFlowSpecMatch(src=(f"{field}_nxm", 0), dst=(f"{field}_nxm", 0), n_bits=bits)


def flow_mod(datapath: Any, what: Add | Remove) -> Any:  # noqa: ANN401 - os-ken has no types
    """A command as a message."""
    ofp, parser = datapath.ofproto, datapath.ofproto_parser
    if isinstance(what, Add):
        entry: FlowEntry = what.entry
        apply, after = actions(parser, entry.action)
        instructions = [parser.OFPInstructionActions(ofp.OFPIT_APPLY_ACTIONS, apply)] if apply else []
        return parser.OFPFlowMod(
            datapath,
            cookie=entry.cookie,
            table_id=entry.table,
            command=ofp.OFPFC_ADD,
            idle_timeout=entry.idle_s,
            priority=entry.priority,
            match=parser.OFPMatch(**dict(entry.match)),
            instructions=[*instructions, *after],
        )
    return parser.OFPFlowMod(
        datapath,
        cookie=what.cookie,
        cookie_mask=(1 << 64) - 1,
        table_id=ofp.OFPTT_ALL,
        command=ofp.OFPFC_DELETE,
        out_port=ofp.OFPP_ANY,
        out_group=ofp.OFPG_ANY,
        match=parser.OFPMatch(),
    )


def counted(stat: Any) -> Counted | None:  # noqa: ANN401 - os-ken has no types
    """A flow's own entry, if it is one."""
    match = stat.match
    protocol = match.get("ip_proto")
    name = "tcp" if protocol == TCP else "udp"
    src, dst = match.get("ipv4_src"), match.get("ipv4_dst")
    ports = match.get(f"{name}_src"), match.get(f"{name}_dst")
    if not (isinstance(src, str) and isinstance(dst, str) and isinstance(ports[0], int) and isinstance(ports[1], int)):
        return None
    key = FlowKey(src, dst, protocol, ports[0], ports[1])
    return Counted(key, stat.byte_count, stat.duration_sec + stat.duration_nsec / 1e9)
