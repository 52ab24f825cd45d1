#!/usr/bin/env python3
"""How long the CNI plugin takes: ADDs of containers one after another, then DELs.

As root: scripts/cni_bench.py [FOLDER], where FOLDER has sluicenet and sluicenet-cni (target/release). It starts a
switch of its own, and needs the plugin host-local, which is Debian's unless CNI_PATH says otherwise. Everything is
removed again.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PLUGINS = os.environ.get("CNI_PATH", "/usr/lib/cni")


def call(plugin: Path, command: str, netns: str, config: str) -> float:
    """Runs the plugin as a runtime does; the milliseconds that it took."""
    environment = {
        **os.environ,
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": netns,
        "CNI_NETNS": f"/run/netns/{netns}",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": PLUGINS,
    }
    begun = time.monotonic()
    done = subprocess.run([plugin], input=config, env=environment, capture_output=True, text=True, check=False)
    took = (time.monotonic() - begun) * 1e3
    if done.returncode != 0:
        sys.exit(f"{command} of {netns}: {done.stdout}{done.stderr}")
    return took


def show(command: str, took: list[float]) -> None:
    """Prints one line of the table."""
    ordered = sorted(took)
    late = ordered[int(len(ordered) * 0.9)]
    print(f"| {command} | {len(took)} | {statistics.median(took):.1f} | {late:.1f} | {ordered[-1]:.1f} |")


def main() -> None:
    """Attaches and detaches the containers, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("target/release"))
    parser.add_argument("--containers", type=int, default=60)
    arguments = parser.parse_args()
    name = f"bench{os.getpid()}"
    names = [f"sluice-{name}-{n}" for n in range(arguments.containers)]
    with tempfile.TemporaryDirectory() as folder:
        control = f"{folder}/vs.sock"
        ipam = {"type": "host-local", "dataDir": f"{folder}/addresses", "subnet": "10.44.0.0/16"}
        config = {"cniVersion": "1.0.0", "name": name, "type": "sluicenet-cni", "switch": control, "ipam": ipam}
        text = json.dumps(config)
        run = [arguments.folder / "sluicenet", "--quiet", "switch", "run", "--name", name, "--control", control]
        with subprocess.Popen(run) as switch:
            try:
                while not Path(control).exists():
                    if switch.poll() is not None:
                        sys.exit("the switch did not start")
                    time.sleep(0.01)
                for netns in names:
                    subprocess.run(["ip", "netns", "add", netns], check=True)
                plugin = arguments.folder / "sluicenet-cni"
                print("| command | calls | median, ms | 90 % of them, ms | longest, ms |\n|---|---|---|---|---|")
                for command in ["ADD", "DEL"]:
                    show(command, [call(plugin, command, netns, text) for netns in names])
            finally:
                for netns in [*names, f"sluicenet-{name}"]:
                    subprocess.run(["ip", "netns", "del", netns], check=False, stderr=subprocess.DEVNULL)
                switch.terminate()


if __name__ == "__main__":
    main()
