//! `[scenario]`: the run as a whole.

use super::CongestionManagement;
use crate::error::Result;
use crate::setting::Section;
use crate::units::POSITIVE_TIME;
use crate::{choices, settings};
use sluicenet_proto::time::Duration;
use std::path::Path;

choices! {
    /// The set of default values a scenario starts from; two of them are a source's tables, and they are never merged.
    pub enum ParameterSet {
        /// Crisan 2014, Table 2.1: the CEE network of chapter 2.
        Crisan2014Ch2 = "crisan2014-ch2",
        /// Crisan 2014, Tables 3.1 and 3.2: the overlay networks of chapters 3 and 4.
        Crisan2014Ch3 = "crisan2014-ch3",
        /// A generic 10 Gb/s network of store-and-forward drop-tail switches.
        Plain = "plain",
    }
}

impl ParameterSet {
    /// The default in this set. A value that the source's tables leave open is a decision, marked [d] at its key and
    /// explained in `docs/decisions.md`.
    pub(crate) fn of<T>(self, plain: T, crisan2014_ch2: T, crisan2014_ch3: T) -> T {
        match self {
            ParameterSet::Plain => plain,
            ParameterSet::Crisan2014Ch2 => crisan2014_ch2,
            ParameterSet::Crisan2014Ch3 => crisan2014_ch3,
        }
    }

    /// The default of [`ParameterSet::Plain`], and the one that both of the source's tables share.
    pub(crate) fn plain_or<T>(self, plain: T, crisan2014: T) -> T {
        if self == ParameterSet::Plain { plain } else { crisan2014 }
    }
}

choices! {
    /// Which network is lossless: the first letter is the virtual one, the second the physical.
    pub enum FlowControl {
        /// Both lossy.
        Ll = "LL",
        /// Virtual lossy, physical lossless.
        Lz = "LZ",
        /// Virtual lossless, physical lossy.
        Zl = "ZL",
        /// Both lossless.
        Zz = "ZZ",
    }
}

impl FlowControl {
    /// From its two halves.
    pub fn new(virtual_lossless: bool, physical_lossless: bool) -> FlowControl {
        match (virtual_lossless, physical_lossless) {
            (false, false) => FlowControl::Ll,
            (false, true) => FlowControl::Lz,
            (true, false) => FlowControl::Zl,
            (true, true) => FlowControl::Zz,
        }
    }

    /// Whether the virtual network is lossless.
    pub fn virtual_lossless(self) -> bool {
        matches!(self, FlowControl::Zl | FlowControl::Zz)
    }

    /// Whether the physical network is lossless.
    pub fn physical_lossless(self) -> bool {
        matches!(self, FlowControl::Lz | FlowControl::Zz)
    }
}

choices! {
    /// The stack of the hypervisors below the VMs' transports (Crisan 2014, 5.4.1).
    pub enum Hypervisor {
        /// None, and both networks drop frames.
        Lossy = "lossy",
        /// None, and both networks are lossless.
        Pfc = "pfc",
        /// A TCP connection between each two hypervisors, over lossless networks.
        Tcp = "tcp",
        /// Credits and reliability, over lossless networks.
        ZFabric = "zfabric",
    }
}

choices! {
    /// What is simulated.
    pub enum Level {
        /// Every packet.
        Packet = "packet",
        /// The rates of flows.
        Flow = "flow",
    }
}

impl Level {
    /// Whether packets are simulated.
    pub fn is_packet(&self) -> bool {
        *self == Level::Packet
    }
}

settings! {
    /// what it is, and which defaults it starts from
    pub model struct General in "scenario" (s) {
        /// its name; default the file's
        name: String = stem(s),
        /// its purpose
        description: String = String::new(),
        /// the seed of every random choice; default 1
        seed: u64 = 1,
        /// when to stop; default when every finite workload has ended
        duration: Option<Duration> [POSITIVE_TIME],
        /// time at the start that the statistics exclude; default 0
        warmup: Duration = Duration::ZERO,
        /// the set of defaults of every section; default plain
        parameters: ParameterSet = ParameterSet::Plain,
        /// the virtual (first letter) and the physical network lossy (L) or lossless (Z)
        #[serde(skip)]
        flow_control: Option<FlowControl>,
        /// the stack of the hypervisors below the VMs' transports (Crisan 2014, 5.4.1), instead of flow_control
        #[serde(skip)]
        hypervisor: Option<Hypervisor>,
        /// the congestion management of the physical network (Crisan 2014, 2.6), instead of red.enabled and qcn.enabled
        #[serde(skip)]
        congestion_management: Option<CongestionManagement>,
        /// whether packets or the rates of flows are simulated; default packet
        #[serde(skip_serializing_if = "Level::is_packet")]
        level: Level = Level::Packet,
    }
}

/// The name of a scenario that gives none: its file's.
fn stem(s: &Section<'_>) -> String {
    let name = s.doc.sources.first().map_or("", |source| source.name.as_str());
    Path::new(name).file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy().into_owned())
}

impl General {
    /// Checks how the keys relate.
    pub(crate) fn check(&self, s: &Section<'_>) -> Result<()> {
        if self.hypervisor.is_some() && self.flow_control.is_some() {
            return Err(s
                .error_at(&["flow_control", "hypervisor"], "`hypervisor` says which networks are lossless, too")
                .hint("remove `flow_control` or `hypervisor`"));
        }
        if self.duration.is_some_and(|duration| self.warmup >= duration) {
            return Err(s.error("warmup", "the warm-up is not shorter than the run: nothing would count"));
        }
        Ok(())
    }

    /// Whether the virtual network is lossless, if the section says so.
    pub(crate) fn virtual_lossless(&self) -> Option<bool> {
        Some(self.networks()?.virtual_lossless())
    }

    /// Whether the physical network is lossless, if the section says so.
    pub(crate) fn physical_lossless(&self) -> Option<bool> {
        Some(self.networks()?.physical_lossless())
    }

    fn networks(&self) -> Option<FlowControl> {
        let by_stack = |stack| if stack == Hypervisor::Lossy { FlowControl::Ll } else { FlowControl::Zz };
        self.flow_control.or(self.hypervisor.map(by_stack))
    }

    /// Whether the hypervisors have this stack, if the section says so.
    pub(crate) fn has_stack(&self, stack: Hypervisor) -> Option<bool> {
        self.hypervisor.map(|given| given == stack)
    }
}
