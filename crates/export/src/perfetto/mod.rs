//! A trace for Perfetto: a process for each switch or server, a track for each port and priority that paused its peer,
//! and a counter for each sampled queue.
//!
//! A pause is a slice on the track of the port that sent it, from XOFF to XON. An arrow leads from a pause to each pause
//! that it caused, as the records tell it: the sender's output was held by the first pause, and the frames that waited
//! there filled the buffer. A pause that was still held when the run ended has a slice without an end.
//!
//! Pauses and queues are two sequences of packets. Within each, time never goes back, and names are interned. Perfetto
//! counts nanoseconds; the exact picoseconds are arguments of the slice.

pub(crate) mod proto;

use super::error::{ExportError, Missing};
use super::output::Output;
use super::run::{self, Meter, Run};
use prost::Message as _;
use proto::{
    CounterDescriptor, DebugAnnotation, InternedData, InternedName, ProcessDescriptor, Trace, TracePacket,
    TrackDescriptor, TrackEvent,
};
use sluicenet_records::{PauseRow, QueueRow};
use std::collections::BTreeMap;
use std::path::Path;

/// Sequences of packets.
const PAUSES: u32 = 1;
const QUEUES: u32 = 2;
/// Packets that are written together.
const BATCH: usize = 1 << 10;
/// Tracks of a port: one for each priority, then its queue.
const TRACKS_OF_PORT: i32 = 9;
const QUEUE_TRACK: i32 = 8;

/// How much a trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Switches and servers.
    pub processes: u64,
    /// Ports and priorities with pauses, and sampled queues.
    pub tracks: u64,
    /// Pauses.
    pub slices: u64,
    /// Arrows from a pause to one that it caused.
    pub arrows: u64,
    /// Lengths of queues: the first of each queue, and each that differs from the one before.
    pub values: u64,
}

/// What the records of a result lack, if they have something else to draw.
///
/// # Errors
/// Records with neither pauses nor lengths of queues.
pub fn check(run: &Run) -> Result<Option<Missing>, ExportError> {
    let has_queues = run.rows_of::<QueueRow>() > 0;
    match (run.rows_of::<PauseRow>() > 0, has_queues) {
        (true, true) => Ok(None),
        (true, false) => Ok(Some(run::QUEUES)),
        (false, true) if run.lacks_pauses() => Ok(Some(run::PAUSES)),
        (false, true) => Ok(None),
        (false, false) if run.lacks_pauses() => Err(run.lacks(vec![run::PAUSES, run::QUEUES], ", or one of the two")),
        (false, false) => Err(run.lacks(vec![run::QUEUES], "; it had no pauses")),
    }
}

/// Writes the trace. `tell` hears how much of it is done, from 0 to 1.
///
/// # Errors
/// Records with nothing to draw, damaged ones, and a file that cannot be written.
pub fn write(run: &Run, path: &Path, tell: &mut dyn FnMut(f64)) -> Result<Counts, ExportError> {
    check(run)?;
    let mut out = Output::create(path)?;
    let mut meter = Meter::new(run.rows_of::<PauseRow>() + run.rows_of::<QueueRow>(), tell);
    let mut tracks = Tracks::default();
    let mut counts = Counts::default();
    let mut packets = Packets::new(&mut out, PAUSES);
    for port in run.ports() {
        tracks.process(&mut packets, &port.node)?;
    }
    let pauses = pauses(run, &mut meter)?;
    write_pauses(run, &pauses, &mut tracks, &mut packets, &mut counts)?;
    packets.flush()?;
    let mut packets = Packets::new(&mut out, QUEUES);
    write_queues(run, &mut meter, &mut tracks, &mut packets, &mut counts)?;
    packets.flush()?;
    out.finish()?;
    counts.processes = tracks.processes.len() as u64;
    counts.tracks = tracks.tracks.len() as u64;
    Ok(counts)
}

/// The pauses of a run, in the order of their numbers, which is that of XOFF.
fn pauses(run: &Run, meter: &mut Meter<'_>) -> Result<Vec<PauseRow>, ExportError> {
    let mut pauses = Vec::new();
    run.each(meter, |row: PauseRow| {
        pauses.push(row);
        Ok(())
    })?;
    pauses.sort_unstable_by_key(|pause| pause.pause_id);
    Ok(pauses)
}

/// The pauses that each pause caused, by their places in `pauses`.
fn caused(run: &Run, pauses: &[PauseRow]) -> Result<BTreeMap<usize, Vec<u64>>, ExportError> {
    let mut caused: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for pause in pauses {
        let Some(parent) = pause.parent_pause_id else { continue };
        let place = pauses.binary_search_by_key(&parent, |pause| pause.pause_id);
        match place {
            Ok(place) if pauses[place].start_ps <= pause.start_ps => {
                caused.entry(place).or_default().push(flow(pause));
            }
            // A run that was killed has no row of a pause that it had not seen the end of.
            Err(_) if !run.is_complete() => {}
            _ => {
                let detail =
                    format!("pause {} is caused by pause {parent}, which did not begin before", pause.pause_id);
                return Err(run.unfit(detail));
            }
        }
    }
    Ok(caused)
}

/// Number of the arrow to a pause. Perfetto takes 0 for no number.
fn flow(pause: &PauseRow) -> u64 {
    pause.pause_id + 1
}

fn write_pauses(
    run: &Run,
    pauses: &[PauseRow],
    tracks: &mut Tracks,
    packets: &mut Packets<'_>,
    counts: &mut Counts,
) -> Result<(), ExportError> {
    let mut caused = caused(run, pauses)?;
    let mut names = Names::default();
    // At one time ends come before begins, so that slices of a track never overlap; a pause of no length is apart.
    let mut events: Vec<(u64, bool, usize)> = Vec::new();
    for (place, pause) in pauses.iter().enumerate() {
        tracks.priority(packets, pause)?;
        events.push((pause.start_ps, true, place));
        let end =
            pause.duration_ps.filter(|&duration| duration > 0).map(|duration| pause.start_ps.saturating_add(duration));
        events.extend(end.map(|end| (end, false, place)));
    }
    events.sort_unstable();
    for &(time_ps, is_begin, place) in &events {
        let pause = &pauses[place];
        let track_uuid = tracks.priority(packets, pause)?;
        let end = TrackEvent { r#type: proto::SLICE_END, track_uuid, ..TrackEvent::default() };
        if !is_begin {
            packets.event(time_ps, end, None)?;
            continue;
        }
        let mut begin = names.begin(pause);
        begin.track_uuid = track_uuid;
        // An arrow does not fork: each has a number of its own.
        begin.flow_ids = caused.remove(&place).unwrap_or_default();
        let has_cause =
            pause.parent_pause_id.is_some_and(|id| pauses.binary_search_by_key(&id, |p| p.pause_id).is_ok());
        begin.terminating_flow_ids = has_cause.then(|| flow(pause)).into_iter().collect();
        counts.slices += 1;
        counts.arrows += u64::from(has_cause);
        packets.event(time_ps, begin, names.take())?;
        if pause.duration_ps == Some(0) {
            packets.event(time_ps, end, None)?;
        }
    }
    Ok(())
}

fn write_queues(
    run: &Run,
    meter: &mut Meter<'_>,
    tracks: &mut Tracks,
    packets: &mut Packets<'_>,
    counts: &mut Counts,
) -> Result<(), ExportError> {
    let (mut last, mut now) = (BTreeMap::new(), 0);
    run.each(meter, |row: QueueRow| {
        if row.time_ps < now {
            return Err(run.unfit(format!("queues: a sample of {} ps comes after one of {now} ps", row.time_ps)));
        }
        now = row.time_ps;
        let track_uuid = tracks.queue(packets, &row)?;
        // A counter keeps its value until the next one.
        if last.insert(track_uuid, row.bytes) == Some(row.bytes) {
            return Ok(());
        }
        counts.values += 1;
        let counter_value = Some(i64::try_from(row.bytes).unwrap_or(i64::MAX));
        let event = TrackEvent { r#type: proto::COUNTER, track_uuid, counter_value, ..TrackEvent::default() };
        packets.event(row.time_ps, event, None)
    })
}

/// Processes and tracks that have been announced, by name.
#[derive(Default)]
struct Tracks {
    processes: BTreeMap<String, u64>,
    tracks: BTreeMap<(u64, i32), u64>,
    uuids: u64,
}

impl Tracks {
    /// The process of a switch or server.
    fn process(&mut self, packets: &mut Packets<'_>, node: &str) -> Result<u64, ExportError> {
        if let Some(&uuid) = self.processes.get(node) {
            return Ok(uuid);
        }
        let uuid = self.fresh();
        self.processes.insert(node.to_owned(), uuid);
        let process = ProcessDescriptor { pid: self.processes.len() as i32, process_name: node.to_owned() };
        packets.track(TrackDescriptor {
            uuid,
            process: Some(process),
            child_ordering: proto::EXPLICIT,
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    /// The track of a pause's port and priority.
    fn priority(&mut self, packets: &mut Packets<'_>, pause: &PauseRow) -> Result<u64, ExportError> {
        let name = || format!("port {} priority {}", pause.port, pause.priority);
        self.track(packets, (&pause.node, pause.port, i32::from(pause.priority)), name)
    }

    /// The counter of a queue.
    fn queue(&mut self, packets: &mut Packets<'_>, row: &QueueRow) -> Result<u64, ExportError> {
        self.track(packets, (&row.node, row.port, QUEUE_TRACK), || format!("port {} queue", row.port))
    }

    /// A track of a port: the ports of a box stand in their order, and each port's priorities before its queue.
    fn track(
        &mut self,
        packets: &mut Packets<'_>,
        (node, port, which): (&str, u16, i32),
        name: impl FnOnce() -> String,
    ) -> Result<u64, ExportError> {
        let parent_uuid = self.process(packets, node)?;
        let rank = i32::from(port) * TRACKS_OF_PORT + which;
        if let Some(&uuid) = self.tracks.get(&(parent_uuid, rank)) {
            return Ok(uuid);
        }
        let uuid = self.fresh();
        self.tracks.insert((parent_uuid, rank), uuid);
        let counter = (which == QUEUE_TRACK).then_some(CounterDescriptor { unit: proto::SIZE_BYTES });
        packets.track(TrackDescriptor {
            uuid,
            name: name(),
            parent_uuid,
            counter,
            sibling_order_rank: rank,
            ..TrackDescriptor::default()
        })?;
        Ok(uuid)
    }

    /// An unused number. Perfetto takes 0 for no track.
    fn fresh(&mut self) -> u64 {
        self.uuids += 1;
        self.uuids
    }
}

/// Texts of one kind that a sequence has announced.
#[derive(Default)]
struct Interned(BTreeMap<String, u64>);

impl Interned {
    /// The number of a text. A new one is added to `announced`.
    fn number(&mut self, text: &str, announced: &mut Vec<InternedName>) -> u64 {
        if let Some(&iid) = self.0.get(text) {
            return iid;
        }
        let iid = self.0.len() as u64 + 1;
        self.0.insert(text.to_owned(), iid);
        announced.push(InternedName { iid, name: text.to_owned() });
        iid
    }
}

/// The names of slices, and those to announce with the next packet.
#[derive(Default)]
struct Names {
    categories: Interned,
    events: Interned,
    arguments: Interned,
    values: Interned,
    next: InternedData,
}

impl Names {
    /// The begin of a pause's slice, with what the records tell of it.
    fn begin(&mut self, pause: &PauseRow) -> TrackEvent {
        let mut event = TrackEvent { r#type: proto::SLICE_BEGIN, ..TrackEvent::default() };
        event.category_iids = vec![self.categories.number("pfc", &mut self.next.event_categories)];
        event.name_iid = self.events.number(&format!("pauses {}", pause.peer), &mut self.next.event_names);
        let numbers = [
            ("pause_id", Some(pause.pause_id)),
            ("start_ps", Some(pause.start_ps)),
            ("duration_ps", pause.duration_ps),
            ("cause_port", Some(pause.cause_port.into())),
            ("parent_pause_id", pause.parent_pause_id),
        ];
        for (name, value) in numbers {
            let name_iid = self.arguments.number(name, &mut self.next.debug_annotation_names);
            let of = |value| DebugAnnotation { name_iid, uint_value: Some(value), string_value_iid: None };
            event.debug_annotations.extend(value.map(of));
        }
        let name_iid = self.arguments.number("cause_peer", &mut self.next.debug_annotation_names);
        let value = self.values.number(&pause.cause_peer, &mut self.next.debug_annotation_string_values);
        event.debug_annotations.push(DebugAnnotation { name_iid, uint_value: None, string_value_iid: Some(value) });
        event
    }

    /// The names that are new since the packet before.
    fn take(&mut self) -> Option<InternedData> {
        let new = std::mem::take(&mut self.next);
        (new != InternedData::default()).then_some(new)
    }
}

/// The packets of one sequence, on their way out.
struct Packets<'a> {
    out: &'a mut Output,
    sequence: u32,
    is_first: bool,
    batch: Trace,
}

impl<'a> Packets<'a> {
    fn new(out: &'a mut Output, sequence: u32) -> Packets<'a> {
        Packets { out, sequence, is_first: true, batch: Trace::default() }
    }

    /// Announces a track.
    fn track(&mut self, track: TrackDescriptor) -> Result<(), ExportError> {
        self.push(TracePacket { track_descriptor: Some(track), ..TracePacket::default() })
    }

    /// An event, with the names that it is the first to use.
    fn event(&mut self, time_ps: u64, event: TrackEvent, names: Option<InternedData>) -> Result<(), ExportError> {
        self.push(TracePacket {
            timestamp: Some(time_ps / 1_000),
            track_event: Some(event),
            interned_data: names,
            sequence_flags: proto::NEEDS_INCREMENTAL_STATE,
            ..TracePacket::default()
        })
    }

    fn push(&mut self, mut packet: TracePacket) -> Result<(), ExportError> {
        packet.trusted_packet_sequence_id = self.sequence;
        if std::mem::take(&mut self.is_first) {
            packet.first_packet_on_sequence = true;
            packet.sequence_flags |= proto::INCREMENTAL_STATE_CLEARED;
        }
        self.batch.packet.push(packet);
        if self.batch.packet.len() < BATCH {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        self.out.bytes(&self.batch.encode_to_vec())?;
        self.batch.packet.clear();
        Ok(())
    }
}
