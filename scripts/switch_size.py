#!/usr/bin/env python3
"""What a switch with many ports costs while nothing moves: its start, its processor time and its memory.

As root: scripts/switch_size.py PROGRAM KIND PORTS..., where PROGRAM is sluicenet and KIND is shm (nobody attached) or
veth (namespaces without IPv6, attached). Processor time and memory are the sums over the switch and its helper; open
files are those of the switch. The output is a table in Markdown. Everything is removed again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAME = f"size{os.getpid()}"


def switch(program: Path, folder: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A command to the running switch."""
    line = [program, "--quiet", "switch", *words, "--control", f"{folder}/vs.sock"]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def start(program: Path, folder: str, kind: str, ports: int) -> tuple[subprocess.Popen[bytes], float]:
    """Starts the switch; returns it when all ports are in service, with the seconds that it took."""
    begun = time.monotonic()
    running = subprocess.Popen([program, "--quiet", "switch", "run", f"{folder}/vs.toml"], stdout=subprocess.DEVNULL)
    while True:
        shown = switch(program, folder, "show", "--json")
        if shown.returncode == 0:
            there = json.loads(shown.stdout)["ports"]
            if len([p for p in there if kind == "shm" or p.get("number") is not None]) >= ports:
                return running, time.monotonic() - begun
        if running.poll() is not None:
            sys.exit("the switch did not start")
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """The process and all that it started."""
    children = [
        int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in tasks.read_text().split()
    ]
    return [pid, *(found for child in children for found in descendants(child))]


def processor_seconds(pids: list[int]) -> float:
    """Processor time of all threads."""
    threads = (thread for pid in pids for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def resident(pids: list[int]) -> float:
    """Sum of the resident memories in MB; pages that processes share count several times."""
    statuses = [Path(f"/proc/{pid}/status").read_text().splitlines() for pid in pids]
    return sum(int(line.split()[1]) for status in statuses for line in status if line.startswith("VmRSS")) / 1e3


def measure(arguments: argparse.Namespace, ports: int) -> None:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        keys = f'[switch]\nname = "{NAME}"\ncontrol = "{folder}/vs.sock"\nports = {max(ports, 64)}\n'
        if arguments.kind == "shm":
            keys += "".join(f'[[port]]\nname = "p{n}"\nkind = "shm"\n' for n in range(ports))
        Path(f"{folder}/vs.toml").write_text(keys)
        namespaces = [f"sluice-{NAME}-{n}" for n in range(ports)] if arguments.kind == "veth" else []
        running = None
        try:
            if namespaces:
                running, _ = start(arguments.program, folder, arguments.kind, 0)
                for n, netns in enumerate(namespaces):
                    # Without IPv6 a kernel sends nothing by itself.
                    quiet = ["ip", "netns", "exec", netns, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1"]
                    subprocess.run(["ip", "netns", "add", netns], check=True)
                    subprocess.run(quiet, check=True)
                    done = switch(arguments.program, folder, "attach", netns, "--ip", f"10.7.{n >> 8}.{n & 255}/16")
                    if done.returncode != 0:
                        sys.exit(done.stderr)
                running.terminate()
                running.wait()
            running, took = start(arguments.program, folder, arguments.kind, ports)
            time.sleep(arguments.settle)
            pids = descendants(running.pid)
            used, begun = processor_seconds(pids), time.monotonic()
            time.sleep(arguments.seconds)
            share = (processor_seconds(pids) - used) / (time.monotonic() - begun)
            files = len(list(Path(f"/proc/{running.pid}/fd").iterdir()))
            print(
                f"| {arguments.kind} | {ports:,} | {took:.2f} s | {100 * share:.2f} % | {resident(pids):.0f} MB "
                f"| {files:,} |",
                flush=True,
            )
        finally:
            if running is not None:
                running.terminate()
                running.wait()
            # Records are not in the folder.
            for netns in namespaces:
                switch(arguments.program, folder, "detach", netns)
            for netns in [*namespaces, f"sluicenet-{NAME}"]:
                subprocess.run(["ip", "netns", "del", netns], check=False, stderr=subprocess.DEVNULL)


def main() -> None:
    """Measures each number of ports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("kind", choices=["shm", "veth"])
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--settle", type=float, default=5.0, help="seconds before the measurement")
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    print("| kind | ports | start | processor | memory | open files |\n|---|---|---|---|---|---|")
    for ports in arguments.ports:
        measure(arguments, ports)


if __name__ == "__main__":
    main()
