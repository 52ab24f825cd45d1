"""Checks a trace with Perfetto's own schema: names, tracks, nesting, arrows, time.

By hand, on a trace of any size: ``.venv/bin/python python/tests/perfetto_trace.py TRACE``.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    CounterDescriptor,
    InternedData,
    Trace,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)

# Fields of interned data, and that of each entry with its text.
INTERNED = {
    "event_categories": "name",
    "event_names": "name",
    "debug_annotation_names": "name",
    "debug_annotation_string_values": "str",
}


@dataclass
class Slice:
    """A pause: its track, times, name and arguments."""

    track: int
    name: str
    begin_ns: int
    args: dict[str, Any]
    flows: list[int]
    ends_flows: list[int]
    end_ns: int | None = None


@dataclass
class Seen:
    """What a trace holds, checked."""

    tracks: dict[int, TrackDescriptor] = field(default_factory=dict)
    slices: list[Slice] = field(default_factory=list)
    counters: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def processes(self) -> list[str]:
        """The names of processes."""
        return [t.process.process_name for t in self.tracks.values() if t.HasField("process")]

    def name(self, track: int) -> str:
        """The name of a track behind that of its process."""
        d = self.tracks[track]
        return f"{self.tracks[d.parent_uuid].process.process_name}, {d.name}"


class Sequence:
    """A sequence of packets: its time and its names."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.names: dict[str, dict[int, str]] = {kind: {} for kind in INTERNED}

    def intern(self, data: InternedData) -> None:
        """Takes in new names; each text has one number."""
        for kind, text in INTERNED.items():
            for entry in getattr(data, kind):
                value = getattr(entry, text)
                value = value.decode() if isinstance(value, bytes) else value
                known = self.names[kind]
                assert entry.iid > 0, f"{kind}: no number"
                assert entry.iid not in known, f"{kind}: {entry.iid} is there already"
                assert value not in known.values(), f"{kind}: {value!r} is there already"
                known[entry.iid] = value


def check(data: bytes, end_ns: int | None = None) -> Seen:
    """Checks a trace and returns what it holds. With `end_ns` nothing may happen later."""
    trace = Trace.FromString(data)
    assert trace.packet, "no packets"
    only_known_fields(trace)
    seen, sequences, open_slices = Seen(), dict[int, Sequence](), dict[int, Slice]()
    for packet in trace.packet:
        number = packet.trusted_packet_sequence_id
        is_first = number not in sequences
        cleared = bool(packet.sequence_flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED)
        assert (packet.first_packet_on_sequence, cleared) == (is_first, is_first), f"the begin of sequence {number}"
        sequence = sequences.setdefault(number, Sequence())
        sequence.intern(packet.interned_data)
        if packet.HasField("track_descriptor"):
            announce(packet.track_descriptor, seen)
        if packet.HasField("track_event"):
            assert packet.HasField("timestamp"), "an event without a time"
            assert packet.timestamp >= sequence.now_ns, f"time goes back to {packet.timestamp} ns"
            sequence.now_ns = packet.timestamp
            assert end_ns is None or packet.timestamp <= end_ns, f"{packet.timestamp} ns is after the run"
            happen(packet, sequence, seen, open_slices)
    check_flows(seen)
    return seen


def only_known_fields(message: Message) -> None:
    """Every field is one of the schema, with its type."""
    assert len(UnknownFieldSet(message)) == 0, f"a field that {message.DESCRIPTOR.name} does not have"
    for descriptor, value in message.ListFields():
        if descriptor.message_type is not None:
            for inner in value if descriptor.is_repeated else [value]:
                only_known_fields(inner)


def announce(track: TrackDescriptor, seen: Seen) -> None:
    """A track, once, and after its process."""
    assert track.uuid > 0
    assert track.uuid not in seen.tracks, f"track {track.uuid} twice"
    if track.HasField("process"):
        pids = [t.process.pid for t in seen.tracks.values() if t.HasField("process")]
        assert track.process.pid > 0
        assert track.process.pid not in pids, f"process {track.process.pid} twice"
        assert track.process.process_name not in seen.processes, f"{track.process.process_name} twice"
    else:
        assert seen.tracks[track.parent_uuid].HasField("process"), "a track without a process"
        assert track.name, "a track without a name"
    if track.HasField("counter"):
        assert track.counter.unit == CounterDescriptor.UNIT_SIZE_BYTES
    seen.tracks[track.uuid] = track


def happen(packet: TracePacket, sequence: Sequence, seen: Seen, open_slices: dict[int, Slice]) -> None:
    """A slice begins or ends, or a counter has a value. Slices of a track follow each other and never nest."""
    event, now_ns = packet.track_event, packet.timestamp
    track = seen.tracks[event.track_uuid]
    is_counter = event.type == TrackEvent.TYPE_COUNTER
    assert is_counter == track.HasField("counter"), f"{seen.name(track.uuid)}: an event of another kind of track"
    if is_counter:
        assert event.counter_value >= 0
        seen.counters.setdefault(track.uuid, []).append((now_ns, event.counter_value))
    elif event.type == TrackEvent.TYPE_SLICE_BEGIN:
        assert packet.sequence_flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        assert track.uuid not in open_slices, f"{seen.name(track.uuid)}: a pause begins in a pause at {now_ns} ns"
        begun = begin(event, now_ns, sequence)
        open_slices[track.uuid] = begun
        seen.slices.append(begun)
    else:
        assert event.type == TrackEvent.TYPE_SLICE_END, f"an event of type {event.type}"
        assert track.uuid in open_slices, f"{seen.name(track.uuid)}: an end without a begin at {now_ns} ns"
        open_slices.pop(track.uuid).end_ns = now_ns


def begin(event: TrackEvent, now_ns: int, sequence: Sequence) -> Slice:
    """A slice that begins, with its names, which are known by then."""
    names = sequence.names
    assert [names["event_categories"][iid] for iid in event.category_iids] == ["pfc"]
    args: dict[str, Any] = {}
    for a in event.debug_annotations:
        is_text = a.HasField("string_value_iid")
        value = names["debug_annotation_string_values"][a.string_value_iid] if is_text else a.uint_value
        args[names["debug_annotation_names"][a.name_iid]] = value
    name = names["event_names"][event.name_iid]
    return Slice(event.track_uuid, name, now_ns, args, list(event.flow_ids), list(event.terminating_flow_ids))


def check_flows(seen: Seen) -> None:
    """Every arrow has one begin and, not before it, one end, on another track."""
    begins = {flow: s for s in seen.slices for flow in s.flows}
    ends = {flow: s for s in seen.slices for flow in s.ends_flows}
    counts = Counter(flow for s in seen.slices for flow in [*s.flows, *s.ends_flows])
    assert set(begins) == set(ends), f"arrows with one end: {set(begins) ^ set(ends)}"
    assert all(count == 2 for count in counts.values()), "an arrow that forks"
    for flow, s in begins.items():
        assert flow > 0
        assert s.begin_ns <= ends[flow].begin_ns, f"arrow {flow} ends before it begins"
        assert s.track != ends[flow].track, f"arrow {flow} begins and ends on one track"
        assert s.args["pause_id"] == ends[flow].args["parent_pause_id"], f"arrow {flow} is not from the cause"


if __name__ == "__main__":
    found = check(Path(sys.argv[1]).read_bytes())
    arrows, values = sum(len(s.flows) for s in found.slices), sum(map(len, found.counters.values()))
    print(f"{len(found.processes)} processes, {len(found.tracks) - len(found.processes)} tracks", end=", ")
    print(f"{len(found.slices)} slices, {arrows} arrows, {values} values of counters")
