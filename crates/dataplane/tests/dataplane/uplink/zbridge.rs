//! zBridge between the stations of two servers over a link that loses, damages and forgets: nothing lost, nothing twice, all in order.

use super::credits::{Leaky, config, of_one_class, patient};
use super::*;
use sluicenet_proto::rng::Rng;

pub fn channel() -> ChannelConfig {
    ChannelConfig { buffer: 256, period: 16, timeout: Duration::from_ms(2), single_path: true }
}

fn reliable(
    n: usize,
    device: impl Device + Send + 'static,
    address: &impl Fn(u8) -> Ipv4Addr,
    credits: Option<CreditConfig>,
) -> Server {
    let stack = Stack { zbridge: Some(channel()), credits, ..Stack::default() };
    overlay_with(n, device, address, of_one_class, stack)
}

/// Sends 3,000 frames to each of two stations over a link that loses or damages one frame in ten, and receives all of them.
fn over_a_bad_link(damages: bool, credits: bool) {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let bad = |device, seed| Leaky { device, rng: Rng::from_words(&[seed]), one_in: 10, lost: 0, damages };
    let with = || credits.then(patient);
    let mut servers = [reliable(1, bad(a, 3), &address, with()), reliable(2, bad(b, 4), &address, with())];
    ask_first(&mut servers);
    send_to_both(&mut servers, 3_000);
    let [a, b] = &servers;
    println!(
        "damages: {damages}, credits: {credits}: {} sent again, {} damaged, {} twice",
        a.own("zbridge_resent"),
        b.own("zbridge_damaged"),
        b.own("zbridge_duplicates")
    );
    assert!(a.own("zbridge_resent") > 300);
    assert_eq!((a.own("zbridge_sent"), b.own("zbridge_delivered")), (6_000, 6_000));
    assert_eq!(b.own("zbridge_damaged") > 100, damages);
    assert_eq!(b.own("no_credit"), 0);
    for server in &servers {
        server.engine.ledger();
        assert_eq!((server.own("zbridge_unsent"), server.engine.queued()), (0, 0));
    }
}

#[test]
fn a_link_that_loses_one_frame_in_ten_loses_none_and_keeps_their_order() {
    over_a_bad_link(false, false);
    over_a_bad_link(false, true);
}

#[test]
fn a_link_that_corrupts_one_frame_in_ten_changes_none() {
    over_a_bad_link(true, false);
    over_a_bad_link(true, true);
}

/// A device that notes whose turn it was to speak: its server, each time after the other.
struct Noted {
    device: Local,
    server: usize,
    turns: Arc<Mutex<Vec<usize>>>,
}

impl Device for Noted {
    fn receive(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        self.device.receive(take)
    }
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        let mut turns = self.turns.lock().unwrap();
        if turns.last() != Some(&self.server) {
            turns.push(self.server);
        }
        self.device.send(frame)
    }
    fn wakers<'a>(&'a self, for_room: bool, fds: &mut Vec<PollFd<'a>>) {
        self.device.wakers(for_room, fds);
    }
    fn counters(&self, _show: &mut dyn FnMut(&'static str, u64)) {}
}

#[test]
fn the_first_frame_waits_for_credits_and_a_greeting_in_one_round_trip() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let turns = Arc::new(Mutex::new(Vec::new()));
    let noted = |device, server| Noted { device, server, turns: turns.clone() };
    let mut servers =
        [reliable(1, noted(a, 1), &address, Some(config())), reliable(2, noted(b, 2), &address, Some(config()))];
    ask_first(&mut servers);
    turns.lock().unwrap().clear();
    let mut sent = false;
    until(&mut servers, |[a, b]| {
        sent = sent || a.send(0, &frame(1, 3, 7, 100));
        b.number(0) == Some(7)
    });
    // A request that a slow machine repeats adds nothing to the first three.
    assert_eq!(turns.lock().unwrap()[..3], [1, 2, 1], "asked and greeted, answered, sent");
}

#[test]
fn a_good_link_sends_nothing_again_and_a_frame_that_does_not_fit_is_answered() {
    let address = network();
    let _controller = controller(&address);
    let (a, b) = Local::pair().unwrap();
    let mut servers = [reliable(1, a, &address, None), reliable(2, b, &address, None)];
    ask_first(&mut servers);
    let (mut sent, mut seen) = (0, 0);
    until(&mut servers, |[a, b]| {
        // The longest that there is room for.
        sent += u64::from(sent < 5_000 && a.send(0, &frame(1, 3, sent, 14 + 1_424)));
        b.take(0, &mut seen);
        seen == 5_000
    });
    // What is acknowledged is nobody's any more, but for what came since it was asked last.
    until(&mut servers, |[a, _]| a.own("zbridge_copies") == 0);
    assert_eq!((servers[0].own("zbridge_resent"), servers[1].own("zbridge_duplicates")), (0, 0));
    servers[0].send(0, &frame(1, 3, 0, 14 + 1_425));
    is_told(&mut servers, 1424);
}

#[test]
fn a_server_that_starts_again_is_connected_to_again() {
    let address = network();
    let _controller = controller(&address);
    let devices = kept();
    let new = |n: usize| reliable(n, Kept(devices[n - 1].clone()), &address, Some(config()));
    start_each_again(new, |_| true);
}
