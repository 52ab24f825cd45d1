//! What a fabric counts.

use sluicenet_proto::frame::{PRIORITIES, Pause, Priority};
use sluicenet_proto::time::{Duration, Instant};

/// Where all frames are that ever came in; pause frames, which end at each link, are not among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Came in at edges.
    pub received: u64,
    /// Went out at edges.
    pub delivered: u64,
    /// Thrown away, at edges and in switches.
    pub dropped: u64,
    /// In queues of edges and switches.
    pub queued: u64,
    /// On links.
    pub on_links: u64,
}

impl Ledger {
    /// Whether what came in is what went out, was dropped by name, or is inside.
    pub fn balance(&self) -> bool {
        self.received == self.delivered + self.dropped + self.queued + self.on_links
    }
}

/// What an edge counted.
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
    /// How often the fabric stopped a priority of what the server sends.
    pub stops: u64,
    /// How often the edge's own buffer did.
    pub own_stops: u64,
    /// How often the server stopped a priority of what it receives.
    pub server_stops: u64,
    /// How often the edge's own buffer for that did.
    pub own_server_stops: u64,
    /// How often a priority that the server held for too long was given up, and was served again.
    pub storms: (u64, u64),
    /// How long after a pause frame was sent the server still sent frames of a priority that it stops: what
    /// `testbed.response` must not be below. A server that ignores pauses shows as one that takes for ever.
    pub response: Duration,
    /// Most bytes of a priority that waited for the link, and for the server.
    pub max_bytes: (u32, u32),
}

/// Since when the server holds each priority, as far as it was told, and until when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told([Option<(Instant, Instant)>; PRIORITIES]);

impl Told {
    /// The server is told something.
    pub(super) fn pause(&mut self, now: Instant, pause: &Pause, quantum: Duration) {
        for p in pause.classes.iter() {
            let i = p as usize;
            let lasts = quantum.saturating_mul(u64::from(pause.quanta[i]));
            let since = self.0[i].filter(|&(_, until)| now <= until).map_or(now, |(since, _)| since);
            self.0[i] = (pause.quanta[i] > 0).then(|| (since, now.saturating_add(lasts)));
        }
    }

    /// How long a frame of priority `p` comes after the server was told to hold it; nothing where it may come.
    pub(super) fn response_time(&self, now: Instant, p: Priority) -> Duration {
        let held = self.0[p as usize].filter(|&(_, until)| now < until);
        held.map_or(Duration::ZERO, |(since, _)| now.since(since))
    }
}
