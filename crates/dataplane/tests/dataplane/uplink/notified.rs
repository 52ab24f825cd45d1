//! Congestion notifications at an uplink (802.1Qau): the network limits the rates of destinations or flows, and only the
//! network does.

use super::*;
use sluicenet_node::uplink::{Limits, Managed};
use sluicenet_proto::cee::qcn::ReactionPointConfig;
use sluicenet_proto::cee::source_control::RateLimiters;
use sluicenet_wire::qcn;

fn limits(by_flow: bool) -> Managed<Vec<u8>> {
    let limiter = ReactionPointConfig::crisan2014(Rate::gbps(1));
    Managed::new(Some(Limits::new(Arc::new(RateLimiters { limiter, by_flow, seed: 1 }), Rate::gbps(1), 1)), None)
}

/// A notification of the most congestion, about a frame of class 3 from one station of the link to another.
fn notification(from: MacAddress, to: MacAddress, flow: Option<u16>) -> Vec<u8> {
    let message = qcn::Repr::of(9 << 16, (63, 100_000, 1_000), 3, to);
    let frame = qcn::Frame { destination: from, source: MacAddress::switch(9), priority: 7, flow, message };
    let mut bytes = vec![0; frame.emitted_len()];
    frame.emit(&mut bytes);
    bytes
}

/// All stations are of class 3.
fn of_class_3(station: usize) -> Access {
    Access { priority: Some(3), ..access(station) }
}

fn limited_trunk(device: Local) -> Server {
    let mut server = Server::new(1, of_class_3);
    let port = Uplink::trunk_of(device, link(1), limits(false));
    server.engine.plug(UPLINK, "uplink", Box::new(port), Access::default()).unwrap();
    server
}

fn lost(server: &Server) -> u64 {
    server.engine.ledger();
    let counters = server.engine.report(UPLINK).unwrap().counters;
    counters.dropped.total_frames() + counters.refused.total_frames()
}

#[test]
fn a_notification_holds_the_senders_to_one_destination_and_nobody_else() {
    let (device, mut neighbour) = Local::pair().unwrap();
    let mut server = limited_trunk(device);
    let start = Instant::now();
    // Frames that arrived from station 1, to 50, and from station 2, to 51.
    let (mut sent, mut arrived) = ([0u64; 2], [0u64; 2]);
    let mut turn = |server: &mut Server, sends: [bool; 2], sent: &mut [u64; 2], arrived: &mut [u64; 2]| {
        assert!(start.elapsed().as_secs() < 60, "{sent:?} {arrived:?}");
        for k in 0..2 {
            sent[k] += u64::from(sends[k] && server.send(k, &frame(1 + k, 50 + k, sent[k], 1_000)));
        }
        server.engine.round();
        neighbour
            .receive(&mut |frame| {
                let number = u64::from_le_bytes(frame[38..46].try_into().unwrap());
                let k = usize::from(frame[11] - 1);
                assert_eq!(number, arrived[k], "in order, each once");
                arrived[k] += 1;
            })
            .unwrap();
        if sends[0] {
            // As often as the network says it: the limiter is at its lowest rate.
            let about = if arrived[0] > 0 { mac(50) } else { mac(60) };
            let _ = neighbour.send(&notification(mac(1), about, None)).unwrap();
        }
    };
    while arrived[1] < 5_000 {
        turn(&mut server, [true, true], &mut sent, &mut arrived);
    }
    assert_eq!((server.own("limiters"), server.own("limiters_made")), (1, 1));
    assert_eq!(server.own("limited_rate_bps"), 100_000);
    assert!(server.own("cnm_received") > 100 && server.own("limited_frames") > 60);
    // The sender is held: its buffers, the queue for its destination and the limited queue are full.
    assert!(sent[0] < 2_000, "{sent:?}");
    assert!(!server.send(0, &frame(1, 50, sent[0], 1_000)));
    // Without notifications the rate comes back, and all that was sent arrives.
    while arrived != sent {
        turn(&mut server, [false, false], &mut sent, &mut arrived);
    }
    assert_eq!(lost(&server), 0);
    while server.own("limiters") > 0 {
        turn(&mut server, [false, false], &mut sent, &mut arrived);
    }
}

/// HOSTILE 17 and 33: a tenant's notifications go nowhere, whatever their tags.
#[test]
fn hostile_17_only_the_network_notifies() {
    let (device, mut neighbour) = Local::pair().unwrap();
    let mut server = limited_trunk(device);
    let plain = notification(mac(2), mac(50), None);
    let untagged = [&plain[..12], &plain[16..], &[0; 4]].concat();
    let with_cn_tag = [&untagged[..12], &qcn::tag_bytes(7), &untagged[12..]].concat();
    let (mut sent, mut others, mut arrived) = (0, 0, 0);
    let start = Instant::now();
    while arrived < 2_000 {
        assert!(start.elapsed().as_secs() < 60, "{sent} {others} {arrived}");
        let mut frame_of = [&plain, &untagged, &with_cn_tag][sent as usize % 3].clone();
        // To another station of the network, from its own address.
        frame_of[..6].copy_from_slice(&mac(50).0);
        frame_of[6..12].copy_from_slice(&mac(1).0);
        sent += u64::from(server.send(0, &frame_of));
        others += u64::from(server.send(1, &frame(2, 50, others, 1_000)));
        server.engine.round();
        neighbour
            .receive(&mut |frame| {
                assert!(!qcn::is_notification(frame));
                arrived += u64::from(frame[11] == 2);
            })
            .unwrap();
    }
    assert!(sent > 100);
    let forged = server.own("cnm_forged");
    assert!(forged > 100 && forged <= sent, "{forged} of {sent}");
    assert_eq!((server.own("limiters_made"), server.own("cnm_received")), (0, 0));
    let dropped = server.engine.report(UPLINK).unwrap().counters.dropped;
    assert_eq!(dropped.frames(DropReason::Reserved), forged);
    assert_eq!(lost(&server), forged);
}

/// The end of a link at which frames are looked at on their way out, and put in on their way in.
struct Watched {
    device: Local,
    network: Arc<Mutex<Network>>,
}

#[derive(Default)]
struct Network {
    /// The flows of the frames of each station.
    flows: [Option<u16>; 2],
    notifications: Vec<Vec<u8>>,
}

impl Device for Watched {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        self.network.lock().unwrap().notifications.drain(..).for_each(|frame| take(&frame));
        self.device.receive(take)
    }
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        // Addresses, tag, CN-TAG, type, IPv4, UDP, VXLAN, inner destination and source.
        if let Some(flow) = qcn::flow_of(frame).filter(|_| frame.len() > 800) {
            let station = usize::from(frame[14 + 4 + 4 + 20 + 8 + 8 + 11]);
            self.network.lock().unwrap().flows[station - 1] = Some(flow);
        }
        self.device.send(frame)
    }
    fn wakers<'a>(&'a self, for_room: bool, fds: &mut Vec<PollFd<'a>>) {
        self.device.wakers(for_room, fds);
    }
    fn counters(&self, show: &mut dyn FnMut(&'static str, u64)) {
        self.device.counters(show);
    }
}

#[test]
fn of_two_flows_between_two_servers_only_the_notified_one_waits() {
    let address = network();
    let _controller = controller(&address);
    let (device, b) = Local::pair().unwrap();
    let network = Arc::new(Mutex::new(Network::default()));
    let a = Watched { device, network: network.clone() };
    let stack = Stack::default();
    let mut servers = [
        overlay_of(1, a, &address, of_class_3, stack, limits(true)),
        overlay_of(2, b, &address, of_class_3, stack, limits(true)),
    ];
    ask_first(&mut servers);
    let (mut sent, mut seen) = ([0u64; 2], [0u64; 2]);
    let turn = |servers: &mut [Server; 2], sends: bool, sent: &mut [u64; 2], seen: &mut [u64; 2]| {
        for (k, to) in [(0, 3), (1, 4)] {
            sent[k] += u64::from(sends && servers[0].send(k, &frame(1 + k, to, sent[k], 1_000)));
            servers[1].take(k, &mut seen[k]);
        }
    };
    let flows = || network.lock().unwrap().flows;
    until(&mut servers, |servers| {
        turn(servers, true, &mut sent, &mut seen);
        flows().iter().all(Option::is_some)
    });
    assert_ne!(flows()[0], flows()[1]);
    let notify = |to, flow| network.lock().unwrap().notifications.push(notification(to, mac(102), flow));
    let before = seen;
    until(&mut servers, |servers| {
        notify(mac(101), flows()[0]);
        turn(servers, true, &mut sent, &mut seen);
        seen[1] >= before[1] + 3_000
    });
    assert_eq!((servers[0].own("limiters"), servers[0].own("limiters_made")), (1, 1));
    assert!(seen[0] < before[0] + 500, "{seen:?} {before:?}");
    until(&mut servers, |servers| {
        turn(servers, false, &mut sent, &mut seen);
        seen == sent
    });
    // One for another server does nothing.
    let made = servers[0].own("limiters_made");
    let ignored = servers[0].own("cnm_ignored");
    notify(mac(109), flows()[1]);
    until(&mut servers, |servers| servers[0].own("cnm_ignored") > ignored);
    assert_eq!(servers[0].own("limiters_made"), made);
    // A tenant's notification inside the tunnel would concern no server, and is dropped at the uplink.
    let inside = notification(mac(3), mac(102), flows()[1]);
    let inside = [&mac(3).0[..], &mac(1).0, &inside[12..]].concat();
    until(&mut servers, |[a, _]| {
        a.send(0, &inside);
        a.own("cnm_forged") > 10
    });
    assert_eq!(servers.each_ref().map(|server| server.own("cnm_received")), [servers[0].own("cnm_received"), 0]);
    assert_eq!(lost(&servers[1]), 0);
    // Whoever asked before the other server was known got no answer.
    assert_eq!(lost(&servers[0]), servers[0].own("cnm_forged") + servers[0].own("unresolved"));
}
