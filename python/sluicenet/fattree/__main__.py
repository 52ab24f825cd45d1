"""`python -m sluicenet.fattree`: the controller of a fat-tree of OpenFlow 1.3 switches."""

from __future__ import annotations

import argparse
import sys
from errno import EADDRINUSE, EEXIST
from pathlib import Path
from socket import AF_UNIX, socket
from stat import S_ISSOCK

from . import ROUTINGS, FatTree, HierarchicalTree


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sluicenet.fattree",
        description="Installs the tables of a k-ary fat-tree in Open vSwitch and says which way flows go. Switches say "
        "which they are by their datapath id, their address as a number (10.2.0.1 is 0xa020001); port n is OpenFlow's "
        "n+1. Prints a line of JSON for all that happens.",
    )
    parser.add_argument("--k", type=int, default=4, help="ports of a switch (default %(default)s)")
    parser.add_argument("--routing", choices=ROUTINGS, default="hedera-gff", help="(default %(default)s)")
    parser.add_argument(
        "--listen", default="127.0.0.1:6653", metavar="HOST:PORT|unix:FILE", help="(default %(default)s)"
    )
    parser.add_argument(
        "--link-bps",
        type=int,
        default=10_000_000,
        metavar="N",
        help="of a host's link; a tenth of it is a large flow",
    )
    parser.add_argument(
        "--poll", type=float, default=0.1, metavar="S", help="how often counters are read (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of hashes and of annealing")
    parser.add_argument("--check", action="store_true", help="say whether all that is needed is here, and end")
    args = parser.parse_args()
    host, _, port = args.listen.rpartition(":")
    listen: tuple[str, int] | tuple[str]
    if host == "unix" and port:
        listen = (str(Path(port).absolute()),)
    elif host and port.isdecimal() and int(port) <= 0xFFFF:
        listen = (host, int(port))
    else:
        parser.error(f"--listen takes HOST:PORT or unix:FILE, not {args.listen!r}")
    if not 0.01 <= args.poll <= 60:
        parser.error("--poll is from 0.01 to 60 s")
    if not 1_000 <= args.link_bps <= 10_000_000_000_000:
        parser.error("--link-bps is from 1e3 to 1e13")
    if not 0 <= args.seed < 1 << 64:
        parser.error("--seed is from 0 to 2^64 - 1")
    try:
        tree = HierarchicalTree(args.k) if ROUTINGS[args.routing].hierarchical else FatTree(args.k)
    except ValueError as e:
        parser.error(str(e))
    try:
        from ._app import Options, serve
    except ImportError as e:
        print(f"error: this needs {e.name}: pip install 'sluicenet[fattree]'", file=sys.stderr)
        return 1
    if args.check:
        print("sluicenet.fattree: all that is needed is here")
        return 0
    try:
        if len(listen) == 1:
            _make_room(Path(listen[0]))
        serve(Options(tree, args.routing, listen, args.link_bps, args.poll, args.seed))
    except OSError as e:
        print(f"error: {args.listen}: {e.strerror}", file=sys.stderr)
        return 1
    return 0


def _make_room(file: Path) -> None:
    """Removes the socket that a controller left which was killed, and nothing else."""
    try:
        if not S_ISSOCK(file.lstat().st_mode):
            raise FileExistsError(EEXIST, "there is a file, and it is no socket")
    except FileNotFoundError:
        return
    with socket(AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(file))
        except ConnectionRefusedError:
            file.unlink()
        else:
            raise OSError(EADDRINUSE, "somebody listens there")


if __name__ == "__main__":
    sys.exit(main())
