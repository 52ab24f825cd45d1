"""The controller as a process, and switches that say what they should, or anything else."""

from __future__ import annotations

import contextlib
import json
import queue
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytest.importorskip("os_ken", reason="os-ken is not installed: pip install 'sluicenet[fattree]'")

VERSION = 4
HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY = 0, 1, 2, 3
FEATURES_REQUEST, FEATURES_REPLY, PORT_STATUS, FLOW_MOD = 5, 6, 12, 14
MULTIPART_REQUEST, MULTIPART_REPLY, BARRIER_REQUEST, BARRIER_REPLY = 18, 19, 20, 21
FLOW_STATS, PORT_DESC, MORE = 1, 13, 1
PATIENCE_S = 60.0
EDGE, AGGREGATION = 0x0A000001, 0x0A000201
COUNTED, ASSIGNED = 0x51CE_0400_0000_0000, 0x51CE_05
COUNT_TABLE = 1


class Controller:
    """The process, and what it says."""

    def __init__(self, routing: str) -> None:
        """It listens."""
        command = [sys.executable, "-m", "sluicenet.fattree", "--listen", "127.0.0.1:0", "--routing", routing]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        at = self.wait("listening")["at"]
        self.address = ("127.0.0.1", int(at.rpartition(":")[2]))

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.put(json.loads(line))

    def wait(self, event: str, **of: object) -> dict[str, Any]:
        """The next line about that; others are passed over."""
        until = time.monotonic() + PATIENCE_S
        while True:
            line = self.lines.get(timeout=max(until - time.monotonic(), 0.01))
            if line["event"] == event and all(line.get(key) == value for key, value in of.items()):
                return line

    def end(self) -> None:
        """It ends by a signal, with nothing to say."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0


@pytest.fixture
def controller(request: pytest.FixtureRequest) -> Iterator[Controller]:
    """One that lives to the end of the test."""
    controller = Controller(getattr(request, "param", "hedera-gff"))
    try:
        yield controller
        assert controller.process.poll() is None, "the controller ended"
        controller.end()
    finally:
        controller.process.kill()
        controller.process.wait()


def until(condition: Callable[[], bool]) -> None:
    """Waits for it."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Switch:
    """The other end, in bytes."""

    def __init__(self, controller: Controller, datapath: int = EDGE) -> None:
        """Connected; nothing said."""
        self.socket = socket.create_connection(controller.address, PATIENCE_S)
        self.datapath = datapath
        self.flow_mods: list[bytes] = []
        # Statistics of its flows' own entries, by how often it was asked for them.
        self.counters: Callable[[int], bytes] = lambda _: b""
        self.counted = 0

    def send(self, kind: int, body: bytes = b"", xid: int = 0, version: int = VERSION) -> None:
        """A message."""
        self.throw(struct.pack("!BBHI", version, kind, 8 + len(body), xid) + body)

    def throw(self, data: bytes) -> None:
        """Bytes; an `EOFError` when the controller has hung up."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None

    def read(self) -> tuple[int, int, bytes]:
        """What the controller says: type, number, body; an `EOFError` when it has hung up."""
        kind, length, xid = struct.unpack("!xBHI", self._exactly(8))
        return kind, xid, self._exactly(length - 8)

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            try:
                part = self.socket.recv(count - len(got))
            except ConnectionResetError:
                part = b""
            if not part:
                raise EOFError
            got += part
        return got

    def answer(self, kind: int, xid: int, body: bytes) -> None:
        """As a switch does, with four ports and no entries but its flows' own."""
        if kind == ECHO_REQUEST:
            self.send(ECHO_REPLY, body, xid)
        elif kind == FEATURES_REQUEST:
            self.send(FEATURES_REPLY, struct.pack("!QIBBHII", self.datapath, 256, 254, 0, 0, 0, 0), xid)
        elif kind == MULTIPART_REQUEST:
            (what,) = struct.unpack_from("!H", body)
            said = b""
            if what == PORT_DESC:
                said = b"".join(map(port_desc, range(1, 5)))
            elif what == FLOW_STATS and body[8] == COUNT_TABLE:
                self.counted += 1
                said = self.counters(self.counted)
            self.send(MULTIPART_REPLY, struct.pack("!HHI", what, 0, 0) + said, xid)
        elif kind == BARRIER_REQUEST:
            self.send(BARRIER_REPLY, b"", xid)
        elif kind == FLOW_MOD:
            self.flow_mods.append(body)

    def until(self, kind: int, what: int | None = None) -> tuple[int, bytes]:
        """Answers until the controller says that, which is left to the test."""
        while True:
            found, xid, body = self.read()
            if found == kind and (what is None or struct.unpack_from("!H", body) == (what,)):
                return xid, body
            self.answer(found, xid, body)

    def introduce(self) -> None:
        """Up to what it is told first."""
        self.send(HELLO)
        xid, body = self.until(BARRIER_REQUEST)
        self.answer(BARRIER_REQUEST, xid, body)

    def serve(self) -> None:
        """Answers from now on, in a thread of its own, until the controller hangs up."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self.answer(*self.read())

    def cookies(self) -> set[int]:
        """Of what it was told."""
        return {struct.unpack_from("!Q", mod)[0] for mod in self.flow_mods}

    def hung_up(self) -> None:
        """Reads until the other side has gone."""
        with pytest.raises(EOFError):
            while True:
                self.answer(*self.read())


def port_desc(number: int, state: int = 0) -> bytes:
    """A port with nothing to say of itself."""
    return struct.pack("!I4x6s2x16sIIIIIIII", number, number.to_bytes(6), b"p", 0, state, 0, 0, 0, 0, 0, 0)


def test_a_switch_is_told_its_table_and_a_port_that_is_down_is_dead(controller: Controller) -> None:
    switch = Switch(controller)
    switch.introduce()
    assert controller.wait("connected", switch="e0-0")["added"] == len(switch.flow_mods) == 13
    assert controller.wait("installed")["entries"] == 13
    cookies = switch.cookies()
    assert len(cookies) == 13 and all(cookie >> 48 == 0x51CE for cookie in cookies)
    switch.send(PORT_STATUS, struct.pack("!B7x", 2) + port_desc(3, state=1))
    link = controller.wait("link")
    assert (link["switch"], link["port"], link["up"]) == ("e0-0", 2, False)


GARBAGE = {
    "noise": random.Random(1).randbytes(4_000),
    "a length below a header": struct.pack("!BBHI", VERSION, 10, 3, 0),
    "an unknown type": struct.pack("!BBHI", VERSION, 99, 8, 0),
    "another version": struct.pack("!BBHI", 1, 10, 8, 0),
    "statistics of an unknown kind": struct.pack("!BBHIHHI", VERSION, MULTIPART_REPLY, 16, 0, 0x7777, 0, 0),
    "a flow's statistics that are cut off": struct.pack("!BBHIHHI", VERSION, MULTIPART_REPLY, 40, 0, FLOW_STATS, 0, 0)
    + bytes(24),
    "a port status that is cut off": struct.pack("!BBHI", VERSION, PORT_STATUS, 12, 0) + bytes(4),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_ends_the_connection_and_nothing_else(controller: Controller, name: str) -> None:
    neighbour = Switch(controller, AGGREGATION)
    neighbour.introduce()
    controller.wait("connected", switch="a0-0")
    switch = Switch(controller)
    switch.introduce()
    controller.wait("connected", switch="e0-0")
    with contextlib.suppress(EOFError):
        switch.throw(GARBAGE[name])
    switch.hung_up()
    assert controller.wait("refused", switch="e0-0")["why"]
    controller.wait("lost", switch="e0-0")
    # It may come back, and its neighbour has not been disturbed.
    again = Switch(controller)
    again.introduce()
    controller.wait("connected", switch="e0-0")
    neighbour.until(ECHO_REQUEST)


@pytest.mark.parametrize("version", [1, 5])
def test_another_openflow_is_refused(controller: Controller, version: int) -> None:
    switch = Switch(controller)
    # Of 1.0 as it says no more; of 1.4 as its bitmap has that alone.
    switch.send(HELLO, struct.pack("!HHI", 1, 8, 1 << version) if version > VERSION else b"", version=version)
    switch.until(ERROR)
    switch.hung_up()
    assert "version" in controller.wait("refused")["why"]
    good = Switch(controller)
    good.introduce()
    controller.wait("connected", switch="e0-0")


def test_half_a_message_and_then_nothing(controller: Controller) -> None:
    switch = Switch(controller)
    switch.introduce()
    controller.wait("connected", switch="e0-0")
    switch.socket.sendall(struct.pack("!BBHI", VERSION, MULTIPART_REPLY, 1_000, 0) + bytes(100))
    with pytest.raises(EOFError):
        while True:
            switch.read()
    controller.wait("lost", switch="e0-0")
    # The same, and it is gone.
    switch = Switch(controller)
    switch.introduce()
    controller.wait("connected", switch="e0-0")
    switch.socket.sendall(b"\4\23\3")
    switch.socket.close()
    controller.wait("lost", switch="e0-0")


def test_strangers_and_twins(controller: Controller) -> None:
    stranger = Switch(controller, 0x0B000001)
    stranger.send(HELLO)
    stranger.hung_up()
    assert "no switch of this fat-tree" in controller.wait("refused")["why"]
    first, second = Switch(controller), Switch(controller)
    first.introduce()
    controller.wait("connected", switch="e0-0")
    # A switch whose last connection is half open connects again.
    second.introduce()
    first.hung_up()
    controller.wait("connected", switch="e0-0")
    second.until(ECHO_REQUEST)


def test_a_switch_that_goes_on_for_ever_about_its_entries(controller: Controller) -> None:
    switch = Switch(controller)
    switch.send(HELLO)
    xid, _ = switch.until(MULTIPART_REQUEST, FLOW_STATS)
    entry = struct.pack("!HBxIIHHHH4xQQQ", 56, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0) + struct.pack("!HH4x", 1, 4)
    message = struct.pack("!HHI", FLOW_STATS, MORE, 0) + 1_000 * entry
    with pytest.raises(EOFError):
        while True:
            switch.send(MULTIPART_REPLY, message, xid)
    assert "more than 20000 entries" in controller.wait("refused", switch="e0-0")["why"]


@pytest.mark.parametrize("datapath", [EDGE, 0xDEAD])
def test_a_switch_that_invents_ports_for_ever(controller: Controller, datapath: int) -> None:
    switch = Switch(controller, datapath)
    switch.send(HELLO)
    xid, _ = switch.until(MULTIPART_REQUEST, PORT_DESC)
    for first in range(1, 100_000, 100):
        ports = b"".join(map(port_desc, range(first, first + 100)))
        try:
            switch.send(MULTIPART_REPLY, struct.pack("!HHI", PORT_DESC, MORE, 0) + ports, xid)
        except EOFError:
            break
    switch.hung_up()
    assert "more than 512 ports" in controller.wait("refused")["why"]


def test_a_switch_that_adds_ports_for_ever(controller: Controller) -> None:
    switch = Switch(controller)
    switch.introduce()
    controller.wait("connected", switch="e0-0")
    with contextlib.suppress(EOFError):
        for number in range(5, 10_000):
            switch.send(PORT_STATUS, struct.pack("!B7x", 0) + port_desc(number))
    switch.hung_up()
    assert "more than 512 ports" in controller.wait("refused", switch="e0-0")["why"]
    controller.wait("lost", switch="e0-0")


def test_who_says_nothing_keeps_nobody_out(controller: Controller) -> None:
    silent = [socket.create_connection(controller.address, PATIENCE_S) for _ in range(100)]
    assert "oldest of 80 connections" in controller.wait("refused")["why"]
    switch = Switch(controller)
    switch.introduce()
    controller.wait("connected", switch="e0-0")
    for connection in silent:
        connection.close()


def test_a_socket_is_removed_only_where_nobody_listens(tmp_path: Path) -> None:
    def begins(at: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "sluicenet.fattree", "--listen", f"unix:{at}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    file = tmp_path / "precious"
    file.write_text("data")
    out, err = begins(file).communicate(timeout=PATIENCE_S)
    assert (out, err, file.read_text()) == ("", f"error: unix:{file}: there is a file, and it is no socket\n", "data")
    at = tmp_path / "controller"
    for _ in range(2):
        # The second time over what the first left that was killed.
        first = begins(at)
        assert first.stdout and "listening" in first.stdout.readline()
        _, err = begins(at).communicate(timeout=PATIENCE_S)
        assert err == f"error: unix:{at}: somebody listens there\n"
        first.kill()
        first.communicate(timeout=PATIENCE_S)


def entry(src: str, dst: str, port: int, sent: int, seconds: int) -> bytes:
    """The statistics of a flow's own entry, of UDP."""
    fields = struct.pack("!HBBH", 0x8000, 5 << 1, 2, 0x0800) + struct.pack("!HBBB", 0x8000, 10 << 1, 1, 17)
    fields += b"".join(struct.pack("!HBB", 0x8000, n << 1, 4) + socket.inet_aton(a) for n, a in ((11, src), (12, dst)))
    fields += b"".join(struct.pack("!HBBH", 0x8000, n << 1, 2, p) for n, p in ((15, port), (16, 5001)))
    match = struct.pack("!HH", 1, 4 + len(fields)) + fields
    match += bytes(-len(match) % 8)
    head = struct.pack("!HBxIIHHHH4xQQQ", 48 + len(match), 1, seconds, 0, 1, 5, 0, 0, COUNTED, 1, sent)
    return head + match


@pytest.mark.parametrize("controller", ["flow-classifier"], indirect=True)
def test_a_switch_counts_a_flow_and_is_told_its_port_and_a_liar_moves_nobody_else(controller: Controller) -> None:
    def joined(datapath: int, counters: Callable[[int], bytes] = lambda _: b"") -> Switch:
        switch = Switch(controller, datapath)
        switch.counters = counters
        switch.introduce()
        switch.serve()
        return switch

    # A pod is enough: whoever of the others is taken for dead, and when, leads nowhere that these flows go.
    for aggregation in (AGGREGATION, 0x0A000301):
        joined(aggregation)
    # Flows that go on, at one rate.
    sources = ((1, "10.0.0.2"), (2, "10.0.0.3"))
    switch = joined(EDGE, lambda n: b"".join(entry(src, "10.0.1.2", port, 100_000 * n, n) for port, src in sources))
    liar = joined(0x0A000101)
    ports: dict[str, int | None] = {}
    while set(ports.values()) != {2, 3}:
        line = controller.wait("assigned", switch="e0-0")
        ports[line["flow"]] = line["port"]
    until(lambda: len({c for c in switch.cookies() if c >> 40 == ASSIGNED}) == 2)
    # Flows of another switch's hosts, of nobody, within its own subnet; and one of its own, of all bytes or none.
    lies = (("10.0.0.2", "10.0.1.2"), ("192.0.2.1", "10.0.0.2"), ("10.0.1.2", "10.0.1.3"), ("10.0.1.2", "10.9.9.9"))
    said = b"".join(entry(src, dst, 7, (1 << 64) - 1, (1 << 32) - 1) for src, dst in lies)
    liar.counters = lambda n: said + entry("10.0.1.2", "10.0.0.2", 7, n % 2 * ((1 << 64) - 1), 0)
    only = controller.wait("assigned")
    assert (only["switch"], only["src"], only["dst"]) == ("e0-1", "10.0.1.2", "10.0.0.2")
    rounds = liar.counted + 3
    until(lambda: liar.counted > rounds)
    later = [controller.lines.get() for _ in range(controller.lines.qsize())]
    assert not any(line["event"] == "assigned" and line["switch"] == "e0-0" for line in later), "others' flows stay"
    # Counters that are cut off end the liar's connection, and no other.
    liar.counters = lambda _: said[:100]
    assert controller.wait("refused", switch="e0-1")["why"]
    rounds = switch.counted
    until(lambda: switch.counted > rounds)


def test_what_it_does_not_take() -> None:
    for arguments, why in (
        (["--k", "5"], "even"),
        (["--k", "1000000000"], "254"),
        (["--k", "128", "--routing", "hierarchical"], "no room"),
        (["--link-bps", "0"], "--link-bps"),
        (["--seed", "-1"], "--seed"),
        (["--poll", "nan"], "--poll"),
        (["--listen", "here"], "HOST:PORT"),
        (["--poll", "0"], "--poll"),
        (["--routing", "magic"], "invalid choice"),
    ):
        command = [sys.executable, "-m", "sluicenet.fattree", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and why in done.stderr
    taken = socket.create_server(("127.0.0.1", 0))
    command = [sys.executable, "-m", "sluicenet.fattree", "--listen", f"127.0.0.1:{taken.getsockname()[1]}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "in use" in done.stderr
