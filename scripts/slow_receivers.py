#!/usr/bin/env python3
"""Slow readers behind a real switch: what is lost, and what others wait for.

As root: scripts/slow_receivers.py PROGRAM groups|classes|light, where PROGRAM is sluicenet.

groups   A sender floods a multicast group, then the broadcast address. Two slow readers are in different namespaces.
classes  A namespace floods a slow reader and pings a third namespace: first with the queue that the switch installs,
         then with a class for the slow reader in that queue, which this script shuts while frames for it wait in the
         switch. That is a prototype: the switch itself has no such classes.
light    A program with light sockets floods a slow reader, and exchanges datagrams with a third program. It needs
         libsluicenet_socket.so beside PROGRAM.

The switch and its namespaces are removed again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NAME = f"slow{os.getpid()}"
NAMESPACES = [f"sluice-{NAME}-{n}" for n in range(3)]
SECONDS = 12
WAITING_MOST = 48
"""Frames that may wait in the switch before the class is shut; a third of them open it."""

READER = """
import socket, struct, sys, time
at, group, own, pause, seconds = sys.argv[1:6]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((at, 7000))
if group:
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(own))
s.settimeout(8)
print("bound", flush=True)
count, begun = 0, time.monotonic()
try:
    while True:
        s.recv(2048)
        count += 1
        if time.monotonic() - begun < float(seconds):
            time.sleep(float(pause))
except TimeoutError:
    print(count)
"""

SENDER = """
import socket, sys, time
to, own, seconds, most = sys.argv[1:5]
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
s.settimeout(0.1)
count, begun = 0, time.monotonic()
while time.monotonic() - begun < float(seconds) and count < int(most):
    try:
        s.sendto(bytes(1000), (to, 7000))
        count += 1
    except TimeoutError:
        pass
print(count)
"""

ECHO = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 7001))
s.settimeout(20)
print("bound", flush=True)
try:
    while True:
        data, sender = s.recvfrom(2048)
        s.sendto(data, sender)
except TimeoutError:
    pass
"""

FLOOD_AND_ASK = """
import socket, statistics, threading, time
goes_on, sent, took = True, 0, []
def flood():
    global sent
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(0.05)
    while goes_on:
        try:
            s.sendto(bytes(1000), ("10.9.0.2", 7000))
            sent += 1
        except (TimeoutError, BlockingIOError):
            pass
thread = threading.Thread(target=flood)
thread.start()
time.sleep(3)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
for _ in range(25):
    begun = time.monotonic()
    s.sendto(b"x", ("10.9.0.3", 7001))
    s.recv(16)
    took.append(1e3 * (time.monotonic() - begun))
    time.sleep(0.2)
goes_on = False
thread.join()
print(f"{min(took):.3f}, {statistics.mean(took):.3f}, {max(took):.3f}", sent, sep="|")
"""


def run(line: str) -> str:
    """The output of a command that has to succeed."""
    done = subprocess.run(line.split(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{line}: {done.stderr.strip()}")
    return done.stdout


def program(netns: str, text: str, *words: str) -> subprocess.Popen[str]:
    """A Python program in a namespace."""
    line = ["ip", "netns", "exec", NAMESPACES[int(netns)], sys.executable, "-c", text, *words]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def reader(netns: str, at: str, group: str, pause: float) -> subprocess.Popen[str]:
    """A slow reader that is bound."""
    found = program(netns, READER, at, group, f"10.9.0.{int(netns) + 1}", str(pause), str(SECONDS))
    assert found.stdout is not None
    found.stdout.readline()
    return found


def groups() -> None:
    """Datagrams sent to a group and received by each reader."""
    print("| to | sent | received by the first reader | by the second | lost |\n|---|---|---|---|---|")
    for to, group in [("239.1.1.1", "239.1.1.1"), ("10.9.0.255", "")]:
        readers = [reader(netns, "", group, 0.0002) for netns in "12"]
        sent = int(program("0", SENDER, to, "10.9.0.1", "3600", "100000").communicate()[0])
        received = [int(each.communicate()[0]) for each in readers]
        lost = sum(sent - count for count in received)
        print(f"| {to} | {sent:,} | {received[0]:,} | {received[1]:,} | {lost:,} |", flush=True)


class Class:
    """A class of the queue in the first namespace, for datagrams to the second one."""

    def __init__(self, program: Path, folder: str) -> None:
        """Makes the class and starts to control it."""
        self.show = f"{program} --quiet switch show --json --control {folder}/vs.sock"
        self.tc = f"tc -n {NAMESPACES[0]}"
        self.changes = 0
        self.ends = threading.Event()
        root = next(line for line in run(f"{self.tc} qdisc show dev eth0").splitlines() if " tbf " in line).split()[2]
        run(f"{self.tc} qdisc replace dev eth0 parent {root}1 handle 20: htb default 2")
        for n in (1, 2):
            run(f"{self.tc} class add dev eth0 parent 20: classid 20:{n} htb rate 10gbit quantum 1514")
        run(f"{self.tc} qdisc add dev eth0 parent 20:1 handle 21: tbf rate 16mbit burst 1600 limit 100mb")
        run(f"{self.tc} qdisc add dev eth0 parent 20:2 handle 22: pfifo limit 100000")
        match = "match ip dst 10.9.0.2/32 match ip protocol 17 0xff"
        run(f"{self.tc} filter add dev eth0 parent 20: protocol ip prio 1 u32 {match} flowid 20:1")
        self.thread = threading.Thread(target=self.control)
        self.thread.start()

    def control(self) -> None:
        """Shuts the class while frames wait in the switch."""
        shut = False
        while not self.ends.is_set():
            port = next(port for port in json.loads(run(self.show))["ports"] if port["name"] == NAMESPACES[0])
            waiting = sum(port["input"]) + port["lent"]
            wanted = waiting >= WAITING_MOST or (shut and waiting >= WAITING_MOST // 3)
            if wanted != shut:
                shut = wanted
                self.changes += 1
                rate = "8bit" if shut else "16mbit"
                qdisc = f"parent 20:1 handle 21: tbf rate {rate} burst 1600 limit 100mb"
                run(f"{self.tc} qdisc change dev eth0 {qdisc}")

    def end(self) -> None:
        """Ends the control."""
        self.ends.set()
        self.thread.join()


def classes(program_file: Path, folder: str) -> None:
    """Round trips to a third namespace beside a flood to a slow reader."""
    print("| queue | round trips, ms (least, mean, most) | sent to the slow reader | received | dropped in queues |")
    print("|---|---|---|---|---|")
    for kind in ("one queue", "a class for the slow reader"):
        slow = reader("1", "10.9.0.2", "", 0.02)
        held = Class(program_file, folder) if kind != "one queue" else None
        flood = program("0", SENDER, "10.9.0.2", "10.9.0.1", str(SECONDS), "1000000000")
        time.sleep(3)
        pinged = run(f"ip netns exec {NAMESPACES[0]} ping -i 0.2 -c 25 -W 20 10.9.0.3")
        least, mean, most, _ = pinged.rsplit("= ", 1)[1].split()[0].split("/")
        sent = int(flood.communicate()[0])
        if held is not None:
            held.end()
            run(f"{held.tc} qdisc change dev eth0 parent 20:1 handle 21: tbf rate 10gbit burst 1600 limit 100mb")
        received = int(slow.communicate()[0])
        queues = run(f"tc -n {NAMESPACES[0]} -s qdisc show dev eth0").split("dropped ")[1:]
        dropped = sum(int(queue.split(",")[0]) for queue in queues)
        print(f"| {kind} | {least}, {mean}, {most} | {sent:,} | {received:,} | {dropped} |", flush=True)


def light(program_file: Path) -> None:
    """Round trips to a third program beside a flood to a slow reader, at ports in shared memory."""
    with tempfile.TemporaryDirectory() as folder:
        ports = "".join(
            f'[[port]]\nname = "vm{n}"\nkind = "shm"\nmac = "02:00:00:00:00:0{n}"\nip = "10.9.0.{n}"\n'
            for n in (1, 2, 3)
        )
        keys = f'[switch]\nname = "{NAME}"\ncontrol = "{folder}/vs.sock"\n{ports}'
        Path(f"{folder}/vs.toml").write_text(keys)

        def program(n: int, text: str, *words: str) -> subprocess.Popen[str]:
            variables = {
                "LD_PRELOAD": str(program_file.resolve().parent / "libsluicenet_socket.so"),
                "SLUICENET_CONTROL": f"{folder}/vs.sock",
                "SLUICENET_PORT": f"vm{n}",
                "SLUICENET_ADDRESS": f"10.9.0.{n}/24",
            }
            line = [sys.executable, "-c", text, *words]
            started = subprocess.Popen(line, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
            if n != 1:
                assert started.stdout is not None
                started.stdout.readline()
            return started

        switch = [program_file, "--quiet", "switch", "run", f"{folder}/vs.toml"]
        with subprocess.Popen(switch, stdout=subprocess.DEVNULL) as running:
            try:
                while not Path(f"{folder}/vs.sock").exists():
                    time.sleep(0.01)
                slow = program(2, READER, "10.9.0.2", "", "", "0.02", "8")
                echo = program(3, ECHO, "10.9.0.3")
                took, sent = program(1, FLOOD_AND_ASK).communicate()[0].strip().split("|")
                received = int(slow.communicate()[0])
                echo.terminate()
                print("| round trips, ms (least, mean, most) | sent to the slow reader | received |\n|---|---|---|")
                print(f"| {took} | {int(sent):,} | {received:,} |")
            finally:
                running.terminate()


def main() -> None:
    """Starts the switch, and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("what", choices=["groups", "classes", "light"])
    arguments = parser.parse_args()
    if arguments.what == "light":
        return light(arguments.program)
    with tempfile.TemporaryDirectory() as folder:
        switch = f"{arguments.program} --quiet switch"
        control = f"--control {folder}/vs.sock"
        line = f"{switch} run --name {NAME} {control}".split()
        with subprocess.Popen(line, stdout=subprocess.DEVNULL) as running:
            try:
                while not Path(f"{folder}/vs.sock").exists():
                    time.sleep(0.01)
                for n, netns in enumerate(NAMESPACES):
                    run(f"{switch} attach {netns} --create --ip 10.9.0.{n + 1}/24 {control}")
                for n in (2, 3):
                    run(f"ip netns exec {NAMESPACES[0]} ping -c 1 -W 20 10.9.0.{n}")
                if arguments.what == "groups":
                    groups()
                else:
                    classes(arguments.program, folder)
            finally:
                running.terminate()
                running.wait()
                # Records are not in the folder.
                for netns in NAMESPACES:
                    subprocess.run(f"{switch} detach {netns} {control}".split(), check=False, capture_output=True)
                for netns in [*NAMESPACES, f"sluicenet-{NAME}"]:
                    subprocess.run(["ip", "netns", "del", netns], check=False, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
