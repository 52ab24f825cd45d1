"""The fat-tree of real switches: its tables, who is placed where, and an OpenFlow 1.3 controller that does so.

    from sluicenet.fattree import FatTree, Scheduler

    tree = FatTree(4)
    scheduler = Scheduler(tree, "gff", link_bps=10_000_000)
    scheduler.sample(0.2, flow=1, src=0, dst=4, sent_bytes=100_000, age_s=0.2)
    scheduler.advance(0.2)
    scheduler.placements()

A `Classifier` is the flow classifier of one switch, and `HierarchicalTree` what a fat-tree is measured beside.

`python -m sluicenet.fattree` is the controller; it needs the extra ``fattree``. Switches are numbered as in
`FatTree.switches`: edge switches, aggregation switches, cores. Ports count from 0, those that lead down first;
OpenFlow's have one more.
"""

from .._native import (
    Classifier,
    Detour,
    Entry,
    Failures,
    FatTree,
    HierarchicalTree,
    Peer,
    Placement,
    Scheduler,
    Switch,
    estimate_demands,
)
from ._control import ROUTINGS, Control, Counted, Routing
from ._entries import Choose, Count, Drop, FlowEntry, Forward, Send

__all__ = [
    "ROUTINGS",
    "Choose",
    "Classifier",
    "Control",
    "Count",
    "Counted",
    "Detour",
    "Drop",
    "Entry",
    "Failures",
    "FatTree",
    "FlowEntry",
    "Forward",
    "HierarchicalTree",
    "Peer",
    "Placement",
    "Routing",
    "Scheduler",
    "Send",
    "Switch",
    "estimate_demands",
]
