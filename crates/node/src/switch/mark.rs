//! The marker: an active queue or congestion point at an output.

use super::Marker;
use crate::device::PortId;
use alloc::vec::Vec;
use sluicenet_proto::frame::{Frame, Priority};
use sluicenet_proto::loss::DropReason;
use sluicenet_proto::time::Instant;

/// The queues of an output as its marker sees them, without the frame in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// The output.
    pub port: PortId,
    /// The traffic class of the frame.
    pub class: Priority,
    /// Bytes of that class that wait.
    pub class_bytes: u32,
    /// Bytes of all classes that wait.
    pub port_bytes: u32,
}

/// A marker's decision on a frame. To mark a frame, the marker changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<F> {
    /// The frame goes on.
    Forward,
    /// The frame is dropped for this reason.
    Drop(DropReason),
    /// The frame goes on, and the switch sends this additional frame, as a congestion point sends a congestion
    /// notification message. The additional frame is routed, classified and admitted as if it had come in at the marker's
    /// port. Markers do not see it.
    Emit(F),
}

/// A marker. Every output has its own marker, with state for the classes that the marker watches.
///
/// A marker draws random numbers from its own [`Rng`](sluicenet_proto::rng::Rng), seeded with the scenario's seed and the
/// numbers of the switch and the port. The order of frames at a port does not depend on threads, so the draws do not either.
pub trait Mark<F: Frame> {
    /// Whether a marker of this type may send frames of its own.
    const EMITS: bool = true;

    /// A frame was admitted and will enter its queue, or go straight through an output that is idle and empty.
    #[inline(always)]
    fn on_arrival(&mut self, _now: Instant, _backlog: Backlog, _frame: &mut F) -> Verdict<F> {
        Verdict::Forward
    }

    /// A frame has left its queue for the wire. A frame that goes straight through is not passed here: it was in no
    /// queue.
    #[inline(always)]
    fn on_departure(&mut self, _now: Instant, _backlog: Backlog, _frame: &mut F) -> Verdict<F> {
        Verdict::Forward
    }

    /// The next deadline; [`Instant::MAX`] if there is none.
    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        Instant::MAX
    }

    /// A deadline may have passed.
    fn handle_timeout(&mut self, _now: Instant) {}

    /// The marker's own counters of a class, for the records.
    fn counts(&self, _class: Priority) -> MarkCounts {
        MarkCounts::default()
    }
}

/// Counters of a marker, of one class at one output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MarkCounts {
    /// Frames that were marked.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Congestion notifications that were sent.
    pub notifications: u64,
}

impl core::ops::AddAssign for MarkCounts {
    fn add_assign(&mut self, other: MarkCounts) {
        self.frames += other.frames;
        self.bytes += other.bytes;
        self.notifications += other.notifications;
    }
}

/// Drop-tail: only admission drops frames.
impl<F: Frame> Mark<F> for () {
    const EMITS: bool = false;
}

/// The markers of one output, in the order of the list of markers. The first that drops a frame, or sends a frame of its
/// own, ends the turn: markers that send stand at the end of the list.
#[derive(Clone, Debug)]
pub struct Markers(Vec<Marker>);

impl Markers {
    /// The markers of an output, made of those of its switch.
    pub fn of_port(markers: &[Marker], port: PortId) -> Markers {
        Markers(markers.iter().map(|marker| marker.of_port(port)).collect())
    }
}

impl<F: Frame> Mark<F> for Markers {
    #[inline(always)]
    fn on_arrival(&mut self, now: Instant, backlog: Backlog, frame: &mut F) -> Verdict<F> {
        for marker in &mut self.0 {
            let verdict = marker.on_arrival(now, backlog, frame);
            if !matches!(verdict, Verdict::Forward) {
                return verdict;
            }
        }
        Verdict::Forward
    }

    #[inline(always)]
    fn on_departure(&mut self, now: Instant, backlog: Backlog, frame: &mut F) -> Verdict<F> {
        for marker in &mut self.0 {
            let verdict = marker.on_departure(now, backlog, frame);
            if !matches!(verdict, Verdict::Forward) {
                return verdict;
            }
        }
        Verdict::Forward
    }

    #[inline(always)]
    fn poll_timeout(&self) -> Instant {
        self.0.iter().map(Mark::<F>::poll_timeout).min().unwrap_or(Instant::MAX)
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|marker| Mark::<F>::handle_timeout(marker, now));
    }

    fn counts(&self, class: Priority) -> MarkCounts {
        let mut sum = MarkCounts::default();
        self.0.iter().for_each(|marker| sum += Mark::<F>::counts(marker, class));
        sum
    }
}

/// Declares an enum of markers that is a marker itself, so that ports of one switch can have different markers. A
/// marker joins the set with one line.
///
/// ```
/// # use sluicenet_node::switch::{Backlog, Mark, Verdict};
/// # use sluicenet_proto::frame::Frame;
/// # use sluicenet_proto::{loss::DropReason, time::Instant};
/// /// Drops frames that find this many bytes of their class.
/// #[derive(Clone, Debug)]
/// pub struct Threshold(u32);
///
/// impl<F: Frame> Mark<F> for Threshold {
///     fn on_arrival(&mut self, _: Instant, backlog: Backlog, _: &mut F) -> Verdict<F> {
///         if backlog.class_bytes < self.0 { Verdict::Forward } else { Verdict::Drop(DropReason::SwitchBuffer) }
///     }
/// }
///
/// sluicenet_node::markers! {
///     /// Of this switch.
///     pub enum Marker {
///         /// Drop-tail.
///         None(()),
///         /// By queue length.
///         Threshold(Threshold),
///     }
/// }
/// ```
#[macro_export]
macro_rules! markers {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$of:meta])* $variant:ident($marker:ty),)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        $vis enum $name { $($(#[$of])* $variant($marker),)+ }

        impl<F: ::sluicenet_proto::frame::Frame> $crate::switch::Mark<F> for $name
        where
            $($marker: $crate::switch::Mark<F>,)+
        {
            #[inline(always)]
            fn on_arrival(
                &mut self,
                now: ::sluicenet_proto::time::Instant,
                backlog: $crate::switch::Backlog,
                frame: &mut F,
            ) -> $crate::switch::Verdict<F> {
                match self { $($name::$variant(marker) => marker.on_arrival(now, backlog, frame),)+ }
            }

            #[inline(always)]
            fn on_departure(
                &mut self,
                now: ::sluicenet_proto::time::Instant,
                backlog: $crate::switch::Backlog,
                frame: &mut F,
            ) -> $crate::switch::Verdict<F> {
                match self { $($name::$variant(marker) => marker.on_departure(now, backlog, frame),)+ }
            }

            #[inline(always)]
            fn poll_timeout(&self) -> ::sluicenet_proto::time::Instant {
                match self { $($name::$variant(marker) => $crate::switch::Mark::<F>::poll_timeout(marker),)+ }
            }

            fn handle_timeout(&mut self, now: ::sluicenet_proto::time::Instant) {
                match self { $($name::$variant(marker) => $crate::switch::Mark::<F>::handle_timeout(marker, now),)+ }
            }

            fn counts(&self, class: ::sluicenet_proto::frame::Priority) -> $crate::switch::MarkCounts {
                match self { $($name::$variant(marker) => $crate::switch::Mark::<F>::counts(marker, class),)+ }
            }
        }
    };
}
