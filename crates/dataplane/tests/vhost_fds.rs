//! Unrequested file descriptors (HOSTILE 11). The test is a program of its own, because it counts the descriptors of the
//! whole process.

mod vhost_rig;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sluicenet_dataplane::vhost::driver::DriverConfig;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use vhost_rig::Rig;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn descriptors_sent_with_any_message_are_closed() {
    let mut rig = Rig::empty(3);
    (0..3).for_each(|k| rig.plug(k));
    (1..3).for_each(|k| rig.connect(k, DriverConfig::default()));
    rig.until("quiet", |rig| rig.counter(0, "connected") == 0);
    let before = open_descriptors();
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut sent = 0;
    // The kernel allows a process some hundreds of descriptors on their way at once, and takes 253 with a message.
    for round in 0..600 {
        let socket = UnixStream::connect(rig.path(0)).unwrap();
        let many = [1, 2, 8, 31, 32, 33, 100, 253][round % 8];
        let fds = vec![file.as_fd(); many];
        let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        // Every known request and some unknown ones, with a body of 8 bytes or in two pieces of it.
        let mut bytes: Vec<u8> = [round as u32 % 45, 1, 8].into_iter().flat_map(u32::to_le_bytes).collect();
        bytes.extend([0; 8]);
        let cut = if round % 3 == 0 { 16 } else { 20 };
        if sendmsg(&socket, &[IoSlice::new(&bytes[..cut])], &mut control, SendFlags::NOSIGNAL).is_ok() {
            sent += many;
        }
        if cut < 20 {
            // The connection may be gone already.
            let _ = sendmsg(&socket, &[IoSlice::new(&bytes[cut..])], &mut control, SendFlags::NOSIGNAL);
        }
        drop(socket);
        rig.until("the connection to end", |rig| {
            rig.counter(0, "connections") > round as u64 && rig.counter(0, "connected") == 0
        });
    }
    assert!(sent > 10_000, "{sent}");
    drop(file);
    assert_eq!(open_descriptors(), before);
    rig.connect(0, DriverConfig::default());
    rig.check_passage(0, 1);
    rig.check_passage(1, 2);
}
