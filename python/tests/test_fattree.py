"""The fat-tree's machines from Python."""

from __future__ import annotations

import pytest

from sluicenet.fattree import Classifier, Failures, FatTree, HierarchicalTree, Placement, Scheduler, estimate_demands

RATE = 10_000_000


def test_figure_3_1_and_3_4() -> None:
    tree = FatTree(4)
    assert (tree.k, tree.hosts, len(tree.switches)) == (4, 16, 20)
    by_address = {s.address: s for s in tree.switches}
    upper = by_address["10.2.2.1"]
    assert (upper.layer, upper.name, upper.pod, upper.datapath_id) == ("aggregation", "a2-0", 2, 0x0A020201)
    table = [(e.address, e.mask, e.port, e.upward) for e in tree.table(upper.number)]
    assert table == [
        ("10.2.0.0", "255.255.255.0", 0, False),
        ("10.2.1.0", "255.255.255.0", 1, False),
        ("10.2.0.0", "255.255.0.0", None, False),
        ("0.0.0.2", "0.0.0.255", 2, True),
        ("0.0.0.3", "0.0.0.255", 3, True),
    ]
    assert tree.host_address(2) == "10.0.1.2" and tree.host_at("10.0.1.2") == 2
    assert tree.host_at("10.0.1.1") is None and tree.host_at("nobody") is None
    peers = tree.peers(upper.number)
    assert [(p.switch, p.port) for p in peers[:1]] == [(by_address["10.2.0.1"].number, 2)]
    assert peers[2].switch == by_address["10.4.1.1"].number


def test_what_there_is_not_is_refused() -> None:
    tree = FatTree(4)
    for k in (0, 5, 256):
        with pytest.raises(ValueError, match="ports"):
            FatTree(k)
    with pytest.raises(IndexError):
        tree.table(20)
    with pytest.raises(IndexError):
        Failures(tree).set_link(0, 4, False)
    with pytest.raises(ValueError, match="placer"):
        Scheduler(tree, "best", link_bps=RATE)
    scheduler = Scheduler(tree, "gff", link_bps=RATE)
    for src, dst in ((0, 16), (16, 0), (3, 3)):
        with pytest.raises(ValueError, match="no flow"):
            scheduler.sample(0, 1, src, dst, 0, 0.1)
    for now in (-1.0, float("nan"), 1e9):
        with pytest.raises(ValueError, match="seconds"):
            scheduler.advance(now)
    with pytest.raises(ValueError, match="no flow"):
        estimate_demands(4, [(0, 0)])


def test_figure_4_1() -> None:
    flows = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 0), (1, 2), (2, 0), (2, 3), (3, 1), (3, 1)]
    thirds = [round(3 * demand, 3) for demand in estimate_demands(4, flows)]
    assert thirds == [1, 1, 1, 1, 1, 1, 1, 2, 1, 1]


@pytest.mark.parametrize("placer", ["gff", "sa", "reserve"])
def test_elephants_get_paths_that_do_not_collide(placer: str) -> None:
    tree = FatTree(4)
    scheduler = Scheduler(tree, placer, link_bps=RATE)
    for src in range(16):
        assert scheduler.sample(0.2, src, src, (src + 4) % 16, 250_000, 0.2)
    scheduler.advance(0.2)
    scheduler.advance(0.3)
    placements = scheduler.placements()
    hops = [hop for placement in placements for hop in placement.hops or []]
    assert len(placements) == 16 and len(hops) == len(set(hops)) == 32
    assert scheduler.placements() == []
    # An edge switch that has lost its entries is told again.
    scheduler.forgotten(0)
    assert sorted(p.src for p in scheduler.placements()) == [0, 1]
    # What goes over a link that fails goes elsewhere, or as small flows do.
    moved = next(p for p in placements if p.src == 0)
    assert moved.hops is not None
    scheduler.set_link(0.4, *moved.hops[1], False)
    scheduler.sample(0.4, moved.flow, 0, 4, 500_000, 0.4)
    scheduler.advance(0.5)
    again = [p for p in scheduler.placements() if p.flow == moved.flow]
    assert again and again[-1].hops != moved.hops


@pytest.mark.parametrize("placer", ["gff", "sa", "reserve"])
def test_a_scheduler_that_is_run_when_it_is_due_places_a_flow_and_forgets_it(placer: str) -> None:
    scheduler = Scheduler(FatTree(4), placer, link_bps=RATE, idle_s=1.0, flows_max=1)
    assert scheduler.sample(0.2, 1, 0, 4, 250_000, 0.2)
    assert not scheduler.sample(0.2, 2, 1, 5, 250_000, 0.2), "there is room for one"

    def told() -> tuple[float, Placement]:
        for _ in range(100):
            now = scheduler.due
            assert now is not None
            scheduler.advance(now)
            if placements := scheduler.placements():
                assert len(placements) == 1
                return now, placements[0]
        raise AssertionError("nobody is placed")

    now, placed = told()
    assert now < 0.31 and placed.hops == [(0, 2), (8, 2)] and scheduler.elephants == 1
    now, gone = told()
    assert now == pytest.approx(1.2) and gone.hops is None and scheduler.elephants == 0, "silent for a second"
    assert scheduler.sample(now, 2, 1, 5, 250_000, 0.2), "there is room again"


def test_a_classifier_gives_new_flows_the_least_loaded_port_and_moves_three_at_most() -> None:
    tree = FatTree(4)
    failures = Failures(tree)
    edge = Classifier(tree, 0)
    # Two flows of one host at its edge switch, each with a port of its own, whose ports are 2 and 3.
    assert edge.sample(0.1, 1, 0, 4, 10_000, 0.1, failures) and edge.sample(0.1, 2, 0, 8, 10_000, 0.1, failures)
    first = dict(edge.advance(0.1, failures))
    assert set(first) == {1, 2} and set(first.values()) == {2, 3}
    assert edge.advance(0.2, failures) == [], "nothing is said twice"
    # What stays below the switch is none of its flows.
    assert not edge.sample(0.2, 3, 0, 1, 10_000, 0.1, failures) and not edge.sample(0.2, 4, 4, 0, 10_000, 0.1, failures)
    # Six flows, three at each port; then those of one port send alone, and after a second some of them are moved.
    upper = Classifier(tree, 8)
    for flow in range(6):
        assert upper.sample(0.1, flow, flow % 4, 4 + flow, 1_000, 0.1, failures)
    ports = dict(upper.advance(0.1, failures))
    busy = [flow for flow, port in ports.items() if port == ports[0]]
    assert len(busy) == 3
    for tenth in range(2, 10):
        for flow in busy:
            upper.sample(tenth / 10, flow, flow % 4, 4 + flow, 10_000 * tenth, tenth / 10, failures)
        assert upper.advance(tenth / 10, failures) == [], "not before the period has ended"
    moved = dict(upper.advance(1.0, failures))
    assert 1 <= len(moved) <= 3 and set(moved) <= set(range(6)) and set(moved) & set(busy)
    # One that may not move a flow does not.
    keeps = Classifier(tree, 8, moves=False)
    for tenth in range(1, 40):
        for flow in range(4):
            sent = 100_000 * tenth * (flow % 2)
            keeps.sample(tenth / 10, flow, flow, 4 + flow, sent, tenth / 10, failures)
        assert len(keeps.advance(tenth / 10, failures)) == (4 if tenth == 1 else 0)
    assert keeps.moved == 0 < upper.moved


def test_a_classifier_goes_round_what_is_down_at_once() -> None:
    tree = FatTree(4)
    failures = Failures(tree)
    edge = Classifier(tree, 0)
    edge.sample(0.1, 1, 0, 4, 1_000, 0.1, failures)
    [(_, port)] = edge.advance(0.1, failures)
    assert port is not None
    failures.set_link(0, port, False)
    assert edge.advance(0.1, failures) == [(1, 5 - port)]
    failures.set_link(0, 5 - port, False)
    assert edge.advance(0.1, failures) == [(1, None)], "nothing leads there"
    failures.set_link(0, port, True)
    assert edge.advance(0.1, failures) == [(1, port)]
    # A link of the destination's pod, two switches away, counts as much.
    upper = tree.peers(0)[port].switch
    assert upper is not None
    other = tree.peers(2)[port].switch
    assert other is not None
    failures.set_link(0, 5 - port, True)
    failures.set_link(2, port, False)
    assert edge.advance(0.2, failures) == [(1, 5 - port)]


def test_a_classifier_forgets_and_does_not_believe_everything() -> None:
    tree = FatTree(4)
    failures = Failures(tree)
    edge = Classifier(tree, 0, flows_max=2)
    for flow in range(4):
        assert edge.sample(0.1, flow, 0, 4, (1 << 64) - 1, 1e300, failures) == (flow < 2)
    assert len(edge.advance(0.1, failures)) == 2
    # A counter that begins anew, one that runs over, an age that is none.
    for sent, age in ((0, -1.0), ((1 << 64) - 1, float("nan")), (5, float("inf"))):
        assert edge.sample(0.2, 0, 0, 4, sent, age, failures)
    edge.lapsed(0)
    assert edge.advance(0.3, failures) == []
    edge.sample(0.4, 0, 0, 4, 100, 0.1, failures)
    assert [flow for flow, _ in edge.advance(0.4, failures)] == [0], "it is said again when it sends again"
    edge.lapsed(7)
    assert {flow for tenth in range(5, 120) for flow, _ in edge.advance(tenth / 10, failures)} == {0, 1}
    assert edge.sample(13.0, 3, 0, 4, 1, 0.1, failures), "there is room again"
    with pytest.raises(ValueError, match="core"):
        Classifier(tree, 16)
    with pytest.raises(IndexError):
        Classifier(tree, 20)
    with pytest.raises(ValueError, match="no flow"):
        edge.sample(13.0, 1, 0, 16, 1, 0.1, failures)
    with pytest.raises(ValueError, match="another tree"):
        edge.advance(13.0, Failures(FatTree(6)))


def test_the_tree_of_3_5_1() -> None:
    tree = HierarchicalTree(4)
    assert (tree.k, tree.hosts, [s.name for s in tree.switches]) == (4, 16, ["p0", "p1", "p2", "p3", "top"])
    table = [(e.address, e.mask, e.port, e.upward) for e in tree.table(1)]
    assert table == [
        ("10.1.0.2", "255.255.255.255", 0, False),
        ("10.1.0.3", "255.255.255.255", 1, False),
        ("10.1.1.2", "255.255.255.255", 2, False),
        ("10.1.1.3", "255.255.255.255", 3, False),
        ("10.1.0.0", "255.255.0.0", None, False),
        ("0.0.0.0", "0.0.0.0", 4, False),
    ]
    assert [(e.address, e.port) for e in tree.table(4)] == [(f"10.{pod}.0.0", pod) for pod in range(4)]
    for k in (0, 5, 64, 254):
        with pytest.raises(ValueError):
            HierarchicalTree(k)
    with pytest.raises(IndexError):
        tree.peers(5)
