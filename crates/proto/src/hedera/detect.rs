//! Detection of elephants from the counters of edge switches (Al-Fares 2012, 4.1.1): a flow is small until it grows past a
//! threshold.

use super::Host;
use crate::time::{Duration, Instant};
use crate::units::Rate;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A flow that sends a tenth of its host's link is an elephant (4.1.1).
const ELEPHANT_PERCENT: u64 = 10;

/// An elephant stays one until its rate falls below a hundredth: colliding elephants may get far less than the threshold,
/// and need placement most.
const MOUSE_PERCENT: u64 = 1;

const _: () = assert!(MOUSE_PERCENT < ELEPHANT_PERCENT);

/// A flow's number, assigned by the reader of the switches, for example an OpenFlow cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowId(pub u64);

/// A switch's report about a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The flow.
    pub flow: FlowId,
    /// The sender.
    pub src: Host,
    /// The receiver.
    pub dst: Host,
    /// Bytes counted so far.
    pub bytes: u64,
    /// Age of the counter, if the switch reports it.
    pub age: Option<Duration>,
}

/// Parameters of the detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detection {
    /// Rate of the hosts' links.
    pub link: Rate,
    /// Shortest time over which a rate is measured: at least the interval at which switches update their counters.
    pub window: Duration,
    /// Time without a report after which a flow has ended.
    pub idle: Duration,
    /// Most flows in the table, elephants included.
    pub flows_max: usize,
}

/// A change of a flow's state, caused by a sample or by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The flow is now an elephant.
    Elephant,
    /// The flow is no longer an elephant.
    Mouse,
}

/// The table is full: the flow is not watched, and stays on its hashed path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableFull;

#[derive(Clone, Copy, Debug)]
struct Flow {
    src: Host,
    dst: Host,
    /// The beginning of the window, and the bytes counted until then.
    since: Instant,
    base: u64,
    bytes: u64,
    seen: Instant,
    is_elephant: bool,
}

/// The flows of the edge switches.
#[derive(Clone, Debug)]
pub struct Detector {
    settings: Detection,
    flows: BTreeMap<FlowId, Flow>,
    /// Bytes of a window at the threshold.
    enough: u64,
    /// Counters that went backwards.
    pub restarted: u64,
}

impl Detector {
    /// A detector without flows.
    pub fn new(settings: Detection) -> Detector {
        assert!(settings.window > Duration::ZERO && settings.idle > Duration::ZERO);
        let enough = bytes_at(settings.link, settings.window, ELEPHANT_PERCENT);
        Detector { settings, flows: BTreeMap::new(), enough, restarted: 0 }
    }

    /// Flows in the table.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// The source and the destination of a flow in the table.
    pub fn ends(&self, flow: FlowId) -> Option<(Host, Host)> {
        self.flows.get(&flow).map(|f| (f.src, f.dst))
    }

    /// Takes a switch's sample; the rate is measured from the window's first sample on.
    ///
    /// A window ends early once it has the bytes of a whole window at the threshold. Between two updates of a switch's
    /// counters a flow appears idle, and at an update it appears to burst. Neither changes the flow's state before a window
    /// is over.
    pub fn receive(&mut self, now: Instant, sample: &Sample) -> Result<Option<Change>, TableFull> {
        let Sample { flow: id, src, dst, bytes, age } = *sample;
        let begun = age.map_or((now, bytes), |age| (Instant(now.0.saturating_sub(age.0)), 0));
        let is_full = self.flows.len() >= self.settings.flows_max;
        let flow = match self.flows.get_mut(&id) {
            Some(flow) => flow,
            None if is_full => return Err(TableFull),
            None => self.flows.entry(id).or_insert(Flow {
                src,
                dst,
                since: begun.0,
                base: begun.1,
                bytes,
                seen: now,
                is_elephant: false,
            }),
        };
        if bytes < flow.bytes {
            self.restarted += 1;
            (flow.since, flow.base) = begun;
        }
        (flow.bytes, flow.seen) = (bytes, now);
        let (sent, time) = (bytes - flow.base, now.since(flow.since));
        let is_over = time >= self.settings.window;
        let was_elephant = flow.is_elephant;
        if sent >= self.enough && !is_over {
            flow.is_elephant = true;
        } else if is_over {
            let percent = if was_elephant { MOUSE_PERCENT } else { ELEPHANT_PERCENT };
            flow.is_elephant = sent >= bytes_at(self.settings.link, time, percent);
            (flow.since, flow.base) = (now, bytes);
        }
        Ok(match (was_elephant, flow.is_elephant) {
            (false, true) => Some(Change::Elephant),
            (true, false) => Some(Change::Mouse),
            _ => None,
        })
    }

    /// A flow has ended.
    pub fn remove(&mut self, flow: FlowId) {
        self.flows.remove(&flow);
    }

    /// Forgets flows without recent samples; returns the elephants among them.
    pub fn expire(&mut self, now: Instant) -> Vec<FlowId> {
        let mut ended = Vec::new();
        let idle = self.settings.idle;
        self.flows.retain(|&id, flow| {
            let is_live = now.since(flow.seen) < idle;
            if !is_live && flow.is_elephant {
                ended.push(id);
            }
            is_live
        });
        ended
    }
}

/// Bytes of a percentage of a link's rate in a time, at least one.
fn bytes_at(link: Rate, time: Duration, percent: u64) -> u64 {
    (link.bytes_in(time) as u128 * percent as u128 / 100).clamp(1, u64::MAX as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Detection =
        Detection { link: Rate::gbps(1), window: Duration::from_ms(500), idle: Duration::from_secs(2), flows_max: 3 };

    /// Bytes of a percentage of a link in a time.
    fn bytes(percent: u64, ms: u64) -> u64 {
        Rate::gbps(1).bytes_in(Duration::from_ms(ms)) * percent / 100
    }

    fn at(ms: u64) -> Instant {
        Instant(Duration::from_ms(ms).0)
    }

    fn of(flow: u64, bytes: u64) -> Sample {
        Sample { flow: FlowId(flow), src: 1, dst: 2, bytes, age: None }
    }

    /// Al-Fares 2012, 4.1.1.
    #[test]
    fn a_tenth_of_the_link_makes_an_elephant_and_a_hundredth_keeps_it_one() {
        let mut d = Detector::new(SETTINGS);
        let mut count = 0;
        let mut step = |from: u64, to: u64, percent: u64| {
            count += bytes(percent, to - from);
            d.receive(at(to), &of(7, count)).unwrap()
        };
        assert_eq!(step(0, 0, 0), None);
        assert_eq!(step(0, 600, 9), None);
        // Half a window already has the bytes of a whole window at the threshold.
        assert_eq!(step(600, 850, 20), Some(Change::Elephant));
        assert_eq!(step(850, 1_200, 0), None, "it sent enough in the window as a whole");
        assert_eq!(step(1_200, 1_800, 2), None, "squeezed by another");
        assert_eq!(step(1_800, 2_200, 0), None, "the window is not over");
        assert_eq!(step(2_200, 2_400, 1), Some(Change::Mouse));
        assert_eq!(step(2_400, 3_000, 9), None);
        assert_eq!(step(3_000, 3_600, 10), Some(Change::Elephant));
    }

    #[test]
    fn counters_that_are_brought_up_to_date_late_make_nobody_an_elephant() {
        let mut d = Detector::new(SETTINGS);
        // 3 % of the link, read every 100 ms, updated every 500 ms.
        for ms in (0..10_000).step_by(100) {
            assert_eq!(d.receive(at(ms), &of(1, bytes(3, ms / 500 * 500))), Ok(None), "{ms} ms");
        }
        // A flow at 60 % stays an elephant while its counters stand still.
        let changes = (0..10_000).step_by(100).map(|ms| d.receive(at(ms), &of(2, bytes(60, ms / 500 * 500))).unwrap());
        assert_eq!(changes.flatten().collect::<Vec<_>>(), [Change::Elephant]);
    }

    #[test]
    fn the_age_of_a_counter_counts_from_the_first_sample_on() {
        let mut d = Detector::new(SETTINGS);
        let aged = |flow, bytes, ms| Sample { age: Some(Duration::from_ms(ms)), ..of(flow, bytes) };
        assert_eq!(d.receive(at(9_000), &aged(1, bytes(10, 500), 80)), Ok(Some(Change::Elephant)));
        assert_eq!(d.receive(at(9_000), &aged(2, bytes(100, 500), 6_000)), Ok(None), "an average of 8 %");
        assert_eq!(d.receive(at(9_000), &of(3, u64::MAX)), Ok(None));
    }

    #[test]
    fn a_counter_that_goes_backwards_begins_anew() {
        let mut d = Detector::new(SETTINGS);
        assert_eq!(d.receive(at(0), &of(1, u64::MAX - 5)), Ok(None));
        assert_eq!(d.receive(at(100), &of(1, 5)), Ok(None));
        assert_eq!(d.receive(at(200), &of(1, 5 + bytes(10, 500))), Ok(Some(Change::Elephant)));
        assert_eq!(d.receive(at(300), &of(1, 0)), Ok(None), "an elephant is one for the rest of the window");
        assert_eq!(d.receive(at(900), &of(1, 0)), Ok(Some(Change::Mouse)));
        assert_eq!(d.restarted, 2);
        // A clock that goes backwards does no harm, either.
        assert_eq!(d.receive(at(1), &of(1, 7)), Ok(None));
    }

    #[test]
    fn the_table_is_bounded_and_what_is_silent_leaves_it() {
        let mut d = Detector::new(SETTINGS);
        for flow in 0..3 {
            d.receive(at(flow), &of(flow, 0)).unwrap();
        }
        assert_eq!(d.receive(at(1_000), &of(9, 0)), Err(TableFull));
        assert_eq!(d.receive(at(1_000), &of(1, bytes(50, 1_000))), Ok(Some(Change::Elephant)));
        assert_eq!(d.expire(at(2_000)), []);
        assert_eq!((d.len(), d.expire(at(2_500))), (2, [].to_vec()));
        assert_eq!((d.ends(FlowId(1)), d.len()), (Some((1, 2)), 1));
        assert_eq!((d.expire(at(3_000)), d.is_empty()), ([FlowId(1)].to_vec(), true));
        assert_eq!(d.receive(at(3_000), &of(9, 0)), Ok(None));
    }
}
