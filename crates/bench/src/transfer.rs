//! Streams over which programs send as fast as possible, and their cost.

use super::local::cpu_time;
use sluicenet_testbed::machine::Ticks;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Before it is measured: windows open, caches fill.
const WARM_UP: Duration = Duration::from_millis(100);

/// A receiver that sleeps for so long whenever it has read so many bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Naps {
    pub every: usize,
    pub sleep: Duration,
}

/// Bytes received, and their cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    pub bytes: u64,
    pub gbps: f64,
    /// Processor seconds of this process, the kernel's work for it included.
    pub cpu_s: f64,
    /// Processor seconds by the meter, as a part of these.
    pub part_s: f64,
    /// Processor seconds of all cores, for any work.
    pub machine_s: f64,
}

/// Sends over streams for so long, as fast as they go. Returns the bytes received meanwhile, and their cost.
pub(super) fn transfer<S: Read + Write + Send>(
    streams: Vec<(S, S)>,
    time: Duration,
    naps: Option<Naps>,
    meter: impl Fn() -> io::Result<f64>,
    stop: &AtomicBool,
) -> io::Result<Moved> {
    let (received, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let mut connections = Vec::new();
        for (mut stream, mut peer) in streams {
            let (received, done) = (&received, &done);
            connections.push(scope.spawn(move || -> io::Result<()> {
                let block = vec![7; 1 << 17];
                while !done.load(Ordering::Relaxed) {
                    stream.write_all(&block)?;
                }
                Ok(())
            }));
            connections.push(scope.spawn(move || {
                let mut block = vec![0; 1 << 18];
                let mut awake = 0;
                loop {
                    // Data that is left at the end is read without rest.
                    let naps = naps.filter(|_| !done.load(Ordering::Relaxed));
                    let most = naps.map_or(block.len(), |naps| (naps.every - awake).min(block.len()));
                    let n = peer.read(&mut block[..most])?;
                    if n == 0 {
                        return Ok(());
                    }
                    received.fetch_add(n as u64, Ordering::Relaxed);
                    awake += n;
                    if let Some(naps) = naps.filter(|naps| awake >= naps.every) {
                        awake = 0;
                        std::thread::sleep(naps.sleep);
                    }
                }
            }));
        }
        let wait = |time: Duration| {
            let started = Instant::now();
            while started.elapsed() < time && !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5).min(time.saturating_sub(started.elapsed())));
            }
        };
        let look = || -> io::Result<_> {
            let now = (Instant::now(), received.load(Ordering::Relaxed));
            Ok((now, cpu_time().as_secs_f64(), meter()?, machine_seconds()?))
        };
        wait(WARM_UP);
        let before = look();
        wait(time);
        let after = look();
        done.store(true, Ordering::Relaxed);
        for connection in connections {
            connection.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        let (((began, received), cpu, part, machine), ((ended, in_all), cpu_after, part_after, machine_after)) =
            (before?, after?);
        let bytes = in_all - received;
        Ok(Moved {
            bytes,
            gbps: 8.0 * bytes as f64 / ended.duration_since(began).as_secs_f64() / 1e9,
            cpu_s: cpu_after - cpu,
            part_s: part_after - part,
            machine_s: machine_after - machine,
        })
    })
}

/// Seconds for which the cores of this machine were busy.
fn machine_seconds() -> io::Result<f64> {
    /// Ticks a second in `/proc/stat`, on every system of Linux.
    const TICKS: f64 = 100.0;
    Ok(Ticks::now()?.busy as f64 / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Bytes move, each is counted once, and a receiver that sleeps reads no more than it may between two rests.
    #[test]
    fn what_moves_is_counted() {
        for naps in [None, Some(Naps { every: 1000, sleep: Duration::from_micros(100) })] {
            let streams = (0..2).map(|_| UnixStream::pair().unwrap()).collect();
            let never = AtomicBool::new(false);
            let moved = transfer(streams, Duration::from_millis(30), naps, || Ok(1.5), &never).unwrap();
            assert!(moved.bytes > 0 && moved.gbps > 0.0 && moved.cpu_s > 0.0 && moved.machine_s >= 0.0, "{moved:?}");
            assert!(moved.part_s == 0.0, "the difference of two looks: {moved:?}");
        }
    }
}
