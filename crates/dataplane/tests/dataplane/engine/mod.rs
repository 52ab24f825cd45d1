//! The switch over ports in shared memory: nothing lost under overload, hostile programs contained.
mod groups;
mod offload;
mod overload;
mod ports;
mod sockets;
mod spoof;
mod watching;

use sluicenet_dataplane::engine::Engine;
use sluicenet_dataplane::shm::{Access, Client};
use sluicenet_node::vale::{Action, ValeConfig, WatchdogConfig};
use sluicenet_proto::time::Duration;

fn mac(n: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, n as u8]
}

/// A frame of `len` bytes that carries a number.
fn frame(from: usize, to: usize, number: u64, len: usize) -> Vec<u8> {
    let mut frame = vec![0; len.max(22)];
    frame[..6].copy_from_slice(&mac(to));
    frame[6..12].copy_from_slice(&mac(from));
    frame[12] = 0x88;
    frame[13] = 0xb5;
    frame[14..22].copy_from_slice(&number.to_le_bytes());
    frame
}

/// A watchdog that isolates a receiver as soon as it finds it stuck.
fn quick(time: Duration) -> WatchdogConfig {
    let [detection_time, isolation_time, restoration_time] = [time; 3];
    WatchdogConfig { action: Action::Drop, detection_time, isolation_time, restoration_time }
}

/// No watchdog: however slow the machine, only tests about it may hang on time.
fn patient() -> ValeConfig {
    ValeConfig { watchdog: WatchdogConfig::OFF, ..ValeConfig::default() }
}

/// A round in which a port that sent a forged frame may send again: it pauses for 10 us.
fn round_after_pause(engine: &mut Engine) -> usize {
    let start = std::time::Instant::now();
    while start.elapsed().as_micros() < 20 {
        std::hint::spin_loop();
    }
    engine.round()
}

/// A switch with a program at every port.
fn switch(ports: usize, buffers: u32, config: ValeConfig) -> (Engine, Vec<Client>) {
    let mut engine = Engine::new(ports, config);
    let clients = (0..ports).map(|k| open(plug(&mut engine, k, buffers))).collect();
    (engine, clients)
}
fn plug(engine: &mut Engine, k: usize, buffers: u32) -> Access {
    let access = engine.plug_shm(k, &format!("test-{k}"), buffers).unwrap();
    assert!(engine.give(mac(k), 0, k));
    access
}
fn open(access: Access) -> Client {
    Client::open(access.memory).unwrap()
}

/// The number in the next frame of a program, if there is one.
fn received(client: &mut Client) -> Option<(usize, u64)> {
    let mut bytes = [0; 2048];
    client.receive(&mut bytes).unwrap()?;
    let _ = client.publish();
    Some((bytes[11] as usize, u64::from_le_bytes(bytes[14..22].try_into().unwrap())))
}
