//! Who may talk to whom between two servers, and two vNICs a machine (Crisan 2014, Table 5.2): one lossless, one over a stack that drops.

use super::credits::{config, of_one_class};
use super::zbridge::channel;
use super::*;
use sluicenet_node::gate::{StationPolicy, Vnic};
use sluicenet_proto::overlay::fib::Station;
use sluicenet_proto::overlay::policy::{Party, Policy, Rule};

/// The class of first vNICs, and that of second ones.
const LOSSLESS: u8 = 3;
const LOSSY: u8 = 0;

fn station(n: usize) -> Station {
    Station::new(mac(n).0, DOMAIN)
}

fn policy(tenants: &[(usize, u16)], vnics: &[(usize, usize)], rules: Vec<Rule<Station>>) -> Arc<StationPolicy> {
    let tenants = tenants.iter().map(|&(n, tenant)| (station(n), tenant)).collect();
    let both = |&(first, second): &(usize, usize)| {
        [(first, false), (second, true)].map(|(n, lossy)| (station(n), Vnic { machine: Some(station(first)), lossy }))
    };
    let vnics = vnics.iter().flat_map(both).collect();
    Arc::new(StationPolicy::new(Policy::new(tenants, rules), vnics, PrioritySet(1 << LOSSLESS)))
}

/// 1 and 3 are of one tenant, 2 and 4 of another.
fn two_tenants(rules: Vec<Rule<Station>>) -> Arc<StationPolicy> {
    policy(&[(1, 0), (3, 0), (2, 1), (4, 1)], &[], rules)
}

/// Frames of a port that were dropped as denied when they came in.
fn denied(server: &Server, k: usize) -> u64 {
    server.engine.report(k).unwrap().counters.refused.frames(DropReason::Denied)
}

fn stacks() -> [Stack; 4] {
    [
        Stack::default(),
        Stack { credits: Some(config()), ..Stack::default() },
        Stack { credits: Some(config()), zbridge: Some(channel()), ..Stack::default() },
        Stack { tcp_tunnels: true, ..Stack::default() },
    ]
}

fn pair(access: fn(usize) -> Access, stack: Stack, address: &impl Fn(u8) -> Ipv4Addr) -> [Server; 2] {
    let (a, b) = Local::pair().unwrap();
    let anew = || Stack { credits: stack.credits.map(|_| config()), ..stack };
    [overlay_with(1, a, address, access, anew()), overlay_with(2, b, address, access, anew())]
}

#[test]
fn what_policy_denies_is_dropped_where_it_enters_the_switch_and_asks_for_nothing() {
    for stack in stacks() {
        let address = network();
        let _controller = controller(&address);
        let mut servers = pair(of_one_class, stack, &address);
        ask_first(&mut servers);
        servers.iter_mut().for_each(|server| server.engine.set_policy(Some(two_tenants(vec![]))));
        let asked = servers[0].own("credit_messages_sent");
        // To another tenant's station: of the other server, and of this one.
        for to in [4, 2] {
            (0..10).for_each(|number| assert!(servers[0].send(0, &frame(1, to, number, 100))));
        }
        until(&mut servers, |[a, _]| denied(a, 0) == 20);
        assert_eq!(servers[0].own("credit_messages_sent"), asked, "{stack:?}");
        assert_eq!(servers[1].own("decapsulated"), 0);
        // Who asks for one is answered by the switch all the same.
        servers[0].send(0, &request(1, 4));
        until(&mut servers, |[a, _]| a.receive(0).is_some_and(|f| f[6..12] == mac(4).0));
        // Its own tenant's is reached, and is the next thing that comes.
        servers[0].send(0, &frame(1, 3, 77, 100));
        until(&mut servers, |[_, b]| b.number(0) == Some(77));
        // A rule is heard of while frames go.
        let rule = Rule { between: [Party::Tenant(1), Party::Machine(station(1))], allow: true };
        servers.iter_mut().for_each(|server| server.engine.set_policy(Some(two_tenants(vec![rule]))));
        servers[0].send(0, &frame(1, 4, 78, 100));
        servers[0].send(0, &frame(1, 2, 79, 100));
        until(&mut servers, |[_, b]| b.number(1) == Some(78));
        until(&mut servers, |[a, _]| a.number(1) == Some(79));
        for server in &servers {
            server.engine.ledger();
            assert_eq!((server.engine.queued(), server.own("denied")), (0, 0), "{stack:?}");
        }
    }
}

#[test]
fn what_a_hypervisor_sends_all_the_same_is_dropped_where_it_arrives_and_answered_by_nothing() {
    for stack in stacks() {
        let address = network();
        let _controller = controller(&address);
        let mut servers = pair(of_one_class, stack, &address);
        ask_first(&mut servers);
        // The sender's server denies nothing.
        servers[1].engine.set_policy(Some(two_tenants(vec![])));
        assert!(servers[0].send(0, &frame(1, 4, 5, 100)));
        until(&mut servers, |[_, b]| b.own("denied") > 0);
        let said = ["credit_messages_sent", "zbridge_connections", "zbridge_delivered"];
        assert_eq!(said.map(|name| servers[1].own(name)), [0; 3], "{stack:?}");
        assert!(denied(&servers[1], UPLINK) > 0, "in the switch's ledger, too");
        // Who may be reached is, beside that.
        assert!(servers[0].send(1, &frame(2, 4, 6, 100)));
        until(&mut servers, |[_, b]| match b.number(1) {
            Some(number) => {
                assert_eq!(number, 6, "{stack:?}");
                true
            }
            None => false,
        });
        servers[1].engine.ledger();
    }
}

#[test]
fn over_a_trunk_a_denied_frame_is_dropped_at_either_end_too() {
    let (a, b) = Local::pair().unwrap();
    let mut servers = [trunk(1, a), trunk(2, b)];
    servers[1].engine.set_policy(Some(two_tenants(vec![])));
    servers[0].send(0, &frame(1, 4, 5, 100));
    until(&mut servers, |[_, b]| denied(b, UPLINK) == 1);
    servers[0].engine.set_policy(Some(two_tenants(vec![])));
    servers[0].send(0, &frame(1, 4, 6, 100));
    until(&mut servers, |[a, _]| denied(a, 0) == 1);
    servers[0].send(1, &frame(2, 4, 7, 100));
    until(&mut servers, |[_, b]| b.number(1) == Some(7));
    for server in &servers {
        server.engine.ledger();
    }
}

#[test]
fn what_is_for_everybody_is_not_heard_by_who_may_not() {
    let address = network();
    let (a, b) = Local::pair().unwrap();
    let mut servers = [overlay(1, a, &address), overlay(2, b, &address)];
    servers[0].engine.set_policy(Some(two_tenants(vec![])));
    servers[0].send(0, &request(1, 2));
    for _ in 0..100 {
        servers[0].engine.round();
    }
    assert_eq!(servers[0].receive(1), None);
    servers[0].engine.set_policy(None);
    servers[0].send(0, &request(1, 2));
    until(&mut servers, |[a, _]| a.receive(1).is_some());
}

/// Machine 1 has vNICs 1 and 2, machine 3 has 3 and 4: even ones are of the lossy stack.
fn of_two_stacks(station: usize) -> Access {
    Access { priority: Some(if station % 2 == 1 { LOSSLESS } else { LOSSY }), ..access(station) }
}

fn two_vnics(stack: Stack, address: &impl Fn(u8) -> Ipv4Addr) -> [Server; 2] {
    let mut servers = pair(of_two_stacks, Stack { lossless: Some(PrioritySet(1 << LOSSLESS)), ..stack }, address);
    for server in &mut servers {
        server.engine.set_policy(Some(policy(&[(1, 0), (3, 0)], &[(1, 2), (3, 4)], vec![])));
    }
    servers
}

#[test]
fn neither_vnic_of_a_machine_stops_the_other() {
    for stack in stacks() {
        // Which of the two takes nothing at the receiving machine.
        for stopped in [0, 1] {
            let address = network();
            let _controller = controller(&address);
            let mut servers = two_vnics(stack, &address);
            ask_first(&mut servers);
            let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
            let mut last = None;
            until(&mut servers, |[a, b]| {
                for (k, to) in [(0, 3), (1, 4)] {
                    sent[k] += u64::from(a.send(k, &frame(k + 1, to, sent[k], 1_000)));
                }
                let goes = 1 - stopped;
                while let Some(number) = b.number(goes) {
                    match goes {
                        0 => assert_eq!(number, seen[0], "in order, each once: {stack:?}"),
                        _ => assert!(last.is_none_or(|last| number > last), "in order: {stack:?}"),
                    }
                    last = Some(number);
                    seen[goes] += 1;
                }
                seen[goes] >= 5_000 && (stopped == 0 || sent[1] >= 5_000)
            });
            let [a, b] = &servers;
            if stopped == 0 {
                assert!(sent[0] < 4_000, "its sender waits: {sent:?}, {stack:?}");
            } else {
                // The lossy one's sender never waits: what has no room is dropped, by the receiver's switch or on the way to it.
                let lost = |server: &Server| {
                    let dropped = |k| server.engine.report(k).unwrap().counters;
                    [0, 1, UPLINK].map(|k| dropped(k).dropped.total_frames() + dropped(k).refused.total_frames())
                };
                assert!(lost(a).iter().chain(&lost(b)).sum::<u64>() > 0, "{stack:?}");
                // Then it takes what there is, and what the first had was whole.
                assert!(servers[1].number(1).is_some(), "{stack:?}");
            }
            for server in &servers {
                server.engine.ledger();
                for loss in ["headroom_exceeded", "no_credit", "denied", "watchdog", "tunnel_ended"] {
                    assert_eq!(server.own(loss), 0, "{loss}: {stack:?}");
                }
            }
        }
    }
}

#[test]
fn a_lossy_vnic_meets_neither_credits_nor_numbers_nor_streams() {
    for stack in stacks() {
        let address = network();
        let _controller = controller(&address);
        let mut servers = two_vnics(stack, &address);
        ask_first(&mut servers);
        for number in 0..50 {
            servers[0].send(1, &frame(2, 4, number, 200));
            until(&mut servers, |[_, b]| b.number(1) == Some(number));
        }
        let none = ["credit_messages_sent", "zbridge_sent", "tcp_tunnel_sent", "tcp_tunnel_segments_sent"];
        for server in &servers {
            assert_eq!(none.map(|name| server.own(name)), [0; 4], "{stack:?}");
        }
        assert_eq!(servers[0].own("encapsulated"), 50);
        // From the lossless vNIC to the lossy one, and the other way: denied where it enters.
        servers[0].send(0, &frame(1, 4, 0, 100));
        servers[0].send(1, &frame(2, 3, 0, 100));
        until(&mut servers, |[a, _]| (denied(a, 0), denied(a, 1)) == (1, 1));
    }
}

#[test]
fn a_frame_for_a_lossy_vnic_in_a_lossless_class_is_dropped_where_it_arrives() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    // The sender's server has the second vNIC of its machine in the lossless class.
    let stack = Stack { lossless: Some(PrioritySet(1 << LOSSLESS)), ..Stack::default() };
    let mut servers =
        [overlay_with(1, a, &address, of_one_class, stack), overlay_with(2, b, &address, of_two_stacks, stack)];
    ask_first(&mut servers);
    servers[1].engine.set_policy(Some(policy(&[(1, 0), (3, 0)], &[(1, 2), (3, 4)], vec![])));
    servers[0].send(1, &frame(2, 4, 0, 100));
    until(&mut servers, |[_, b]| b.own("denied") == 1);
    assert_eq!(servers[1].receive(1), None);
}
