//! Over a real link, a veth pair.

use super::*;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::{Namespace, may_make_namespaces};
use sluicenet_dataplane::kernel::packet::{PacketDevice, Pieces};

/// A namespace that is deleted with the test.
struct Scratch(String);
impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = Namespace::delete(&self.0);
    }
}

#[test]
fn over_a_real_cable_of_veth_pfc_and_tunnels_lose_nothing() {
    over_a_cable([Pieces::Frames; 2]);
}

#[test]
fn over_a_cable_that_takes_runs_nothing_is_lost_either() {
    over_a_cable([Pieces::Runs { sends: true }; 2]);
    // One end that sends none.
    over_a_cable([Pieces::Runs { sends: true }, Pieces::Runs { sends: false }]);
}

fn over_a_cable(pieces: [Pieces; 2]) {
    if let Err(e) = may_make_namespaces() {
        println!("SKIPPED: {e}");
        return;
    }
    static CABLES: AtomicU8 = AtomicU8::new(0);
    let name = format!("sluice-uplink-{}-{}", std::process::id(), CABLES.fetch_add(1, Ordering::Relaxed));
    let namespace = Namespace::create(&name).unwrap();
    let _scratch = Scratch(name);
    let wired = namespace.enter(|| {
        let mut links = Links::open()?;
        links.create_veth("a", "b", &namespace)?;
        // Nobody but the servers speaks on it.
        links.up("a")?;
        links.up("b")
    });
    wired.unwrap().unwrap();
    let address = network();
    let _controller = controller(&address);
    let device = |name, pieces| PacketDevice::open_for(&namespace, name, 512, pieces).unwrap();
    let mut servers = [overlay(1, device("a", pieces[0]), &address), overlay(2, device("b", pieces[1]), &address)];
    ask_first(&mut servers);
    overload(&mut servers);
    // What the link could have sent while nobody looked goes at once, and where runs are sent in one piece.
    (0..10).for_each(|n| assert!(servers[0].send(1, &frame(2, 4, n, 100))));
    servers[0].engine.round();
    std::thread::sleep(std::time::Duration::from_millis(1));
    servers[0].engine.round();
    until_all(&mut servers, 1, 10);
    let [tunnelled, arrived] = [servers[0].own("encapsulated"), servers[1].own("decapsulated")];
    assert!(tunnelled > 1_000 && tunnelled == arrived, "{tunnelled} {arrived}");
    // Each class of the tunnel has kept its priority on the wire.
    assert!(servers[1].own("received_3") > 100 && servers[1].own("received_1") > 1_000);
    assert_eq!(servers[0].own("pauses_received"), servers[1].own("pauses_sent"));
    let own = |name| [servers[0].own(name), servers[1].own(name)];
    assert_eq!([own("rx_socket_drops"), own("rx_bad")], [[0, 0]; 2]);
    // Frames are counted, not pieces; a kernel may say something, too.
    let ([a, _], [_, b]) = (own("tx_frames"), own("rx_frames"));
    assert!(a > 4_000 && (a..a + 100).contains(&b), "{a} {b}");
    let ([sent, back], [_, received]) = (own("tx_runs"), own("rx_runs"));
    assert_eq!(sent, received);
    assert_eq!(sent > 0, pieces[0] == Pieces::Runs { sends: true }, "{sent}");
    assert!(back == 0 || pieces[1] == Pieces::Runs { sends: true });
}
