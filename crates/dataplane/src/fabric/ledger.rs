//! The counters of a fabric.

use sluicenet_proto::frame::{PRIORITIES, Pause, Priority};
use sluicenet_proto::time::{Duration, Instant};

/// The account of all frames that have entered. Pause frames, which end at each link, do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Entered at edges.
    pub received: u64,
    /// Made by the markers of switches.
    pub emitted: u64,
    /// Left at edges.
    pub delivered: u64,
    /// Dropped, at edges and in switches.
    pub dropped: u64,
    /// In queues of edges and switches.
    pub queued: u64,
    /// On links.
    pub on_links: u64,
}

impl Ledger {
    /// Whether every frame that entered or was made inside has left, was dropped by name, or is inside.
    pub fn balance(&self) -> bool {
        self.received + self.emitted == self.delivered + self.dropped + self.queued + self.on_links
    }
}

/// The counters of an edge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeCounters {
    /// Frames and bytes from the server, pauses not counted.
    pub received: (u64, u64),
    /// Frames and bytes to the server, pauses not counted.
    pub delivered: (u64, u64),
    /// Pause frames from the server.
    pub pauses_received: u64,
    /// Pause frames to the server.
    pub pauses_sent: u64,
    /// How often the fabric paused a priority of the frames from the server.
    pub stops: u64,
    /// How often the edge's own buffer paused it.
    pub own_stops: u64,
    /// How often the server paused a priority of the frames for it.
    pub server_stops: u64,
    /// How often the edge's buffer for these frames paused it.
    pub own_server_stops: u64,
    /// How often a priority that the server paused for too long was given up, and was served again.
    pub storms: (u64, u64),
    /// How long after a pause frame the server still sent frames of a paused priority; `testbed.response` must not be shorter.
    /// It grows without limit if a server ignores pauses.
    pub response: Duration,
    /// The most bytes of a priority that waited for the link, and for the server.
    pub max_bytes: (u32, u32),
}

/// The pauses sent to the server: since when and until when each priority is paused.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PauseLog([Option<(Instant, Instant)>; PRIORITIES]);

impl PauseLog {
    /// A pause was sent to the server.
    pub(super) fn pause(&mut self, now: Instant, pause: &Pause, quantum: Duration) {
        for p in pause.classes.iter() {
            let i = p as usize;
            let lasts = quantum.saturating_mul(u64::from(pause.quanta[i]));
            let since = self.0[i].filter(|&(_, until)| now <= until).map_or(now, |(since, _)| since);
            self.0[i] = (pause.quanta[i] > 0).then(|| (since, now.saturating_add(lasts)));
        }
    }

    /// How long after the pause of priority `p` a frame of it arrives; zero if the priority is not paused.
    pub(super) fn response_time(&self, now: Instant, p: Priority) -> Duration {
        let running = self.0[p as usize].filter(|&(_, until)| now < until);
        running.map_or(Duration::ZERO, |(since, _)| now.since(since))
    }
}
