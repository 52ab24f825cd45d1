//! Stages of a run, and the source files of each: the one table that says where a sample of the CPU belongs.

use Counts::{Callee, Caller, Own};

/// A stage of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Start,
    Events,
    Wires,
    Switch,
    Adapter,
    Vswitch,
    Overlay,
    Credits,
    Bridge,
    Tunnels,
    Xco,
    Bumps,
    Chain,
    Guests,
    Tcp,
    Transports,
    Application,
    Control,
    FlowLevel,
    Records,
    Other,
}

impl Stage {
    /// All of them, in the order of a packet's way.
    #[cfg(test)]
    const ALL: [Stage; 21] = [
        Stage::Start,
        Stage::Events,
        Stage::Wires,
        Stage::Switch,
        Stage::Adapter,
        Stage::Vswitch,
        Stage::Overlay,
        Stage::Credits,
        Stage::Bridge,
        Stage::Tunnels,
        Stage::Xco,
        Stage::Bumps,
        Stage::Chain,
        Stage::Guests,
        Stage::Tcp,
        Stage::Transports,
        Stage::Application,
        Stage::Control,
        Stage::FlowLevel,
        Stage::Records,
        Stage::Other,
    ];

    /// As tables and `profile.json` name it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Start => "start: reading, building",
            Stage::Events => "events",
            Stage::Wires => "wires",
            Stage::Switch => "switch",
            Stage::Adapter => "adapter",
            Stage::Vswitch => "vSwitch",
            Stage::Overlay => "overlay",
            Stage::Credits => "credits",
            Stage::Bridge => "zBridge",
            Stage::Tunnels => "tunnels",
            Stage::Xco => "XCo",
            Stage::Bumps => "bumps",
            Stage::Chain => "chain of the server",
            Stage::Guests => "guests: sockets, stack",
            Stage::Tcp => "TCP",
            Stage::Transports => "other transports",
            Stage::Application => "applications",
            Stage::Control => "control of the network",
            Stage::FlowLevel => "rates of flows",
            Stage::Records => "records",
            Stage::Other => "other",
        }
    }
}

/// How the code of a file counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// For its stage.
    Own(Stage),
    /// For its stage, with all that it calls: building a switch is no switching.
    Callee(Stage),
    /// For the stage that calls it: a queue, a header, arithmetic. If no stage does, for this one.
    Caller(Stage),
}

/// Folders and files below `crates/`; of several that begin a path, the longest counts.
const SOURCES: &[(&str, Counts)] = &[
    ("scenario/", Callee(Stage::Start)),
    ("experiment/src/build/", Callee(Stage::Start)),
    ("experiment/src/estimate/", Callee(Stage::Start)),
    ("planner/", Callee(Stage::Start)),
    ("sim/src/", Own(Stage::Events)),
    ("sim/src/wire.rs", Own(Stage::Wires)),
    ("sim/src/flow_level/", Own(Stage::FlowLevel)),
    ("sim/src/pcapng/", Callee(Stage::Records)),
    ("experiment/src/run/execute.rs", Own(Stage::Events)),
    ("node/src/link.rs", Own(Stage::Wires)),
    ("node/src/switch/", Own(Stage::Switch)),
    ("node/src/steering.rs", Own(Stage::Switch)),
    ("proto/src/routing/", Caller(Stage::Switch)),
    ("proto/src/aqm/", Caller(Stage::Switch)),
    ("proto/src/cee/", Caller(Stage::Switch)),
    ("node/src/adapter/", Own(Stage::Adapter)),
    ("node/src/uplink/", Own(Stage::Adapter)),
    ("node/src/vale/", Own(Stage::Vswitch)),
    ("node/src/gate.rs", Own(Stage::Vswitch)),
    ("node/src/fair_share.rs", Caller(Stage::Vswitch)),
    ("proto/src/guard/", Own(Stage::Vswitch)),
    ("node/src/vtep/", Own(Stage::Overlay)),
    ("proto/src/overlay/", Own(Stage::Overlay)),
    ("node/src/credits/", Own(Stage::Credits)),
    ("node/src/server/stages/credits.rs", Own(Stage::Credits)),
    ("proto/src/transport/zcredit/", Own(Stage::Credits)),
    ("node/src/channels.rs", Own(Stage::Bridge)),
    ("node/src/server/stages/zbridge.rs", Own(Stage::Bridge)),
    ("proto/src/transport/zbridge/", Own(Stage::Bridge)),
    ("node/src/tunnels/", Own(Stage::Tunnels)),
    ("node/src/server/stages/tunnels.rs", Own(Stage::Tunnels)),
    ("node/src/server/stages/xco.rs", Own(Stage::Xco)),
    ("proto/src/xco/", Own(Stage::Xco)),
    ("node/src/bump/", Own(Stage::Bumps)),
    ("netbump/", Own(Stage::Bumps)),
    ("proto/src/netbump/", Own(Stage::Bumps)),
    ("extension/", Own(Stage::Bumps)),
    ("node/src/server/", Own(Stage::Guests)),
    ("node/src/server/chain/", Own(Stage::Chain)),
    ("node/src/server/stages/", Own(Stage::Chain)),
    ("node/src/server/device.rs", Own(Stage::Chain)),
    ("node/src/server/any.rs", Own(Stage::Chain)),
    ("node/src/server/fetch.rs", Own(Stage::Chain)),
    ("node/src/guest.rs", Own(Stage::Guests)),
    ("node/src/sockets.rs", Own(Stage::Guests)),
    ("proto/src/agent/", Own(Stage::Guests)),
    ("proto/src/tcp/", Own(Stage::Tcp)),
    ("proto/src/udp/", Own(Stage::Transports)),
    ("proto/src/transport/", Own(Stage::Transports)),
    ("node/src/server/roce.rs", Own(Stage::Transports)),
    ("experiment/src/workload/", Own(Stage::Application)),
    ("node/src/server/app.rs", Own(Stage::Application)),
    ("experiment/src/run/control.rs", Callee(Stage::Control)),
    ("experiment/src/run/failures.rs", Callee(Stage::Control)),
    ("proto/src/hedera/", Own(Stage::Control)),
    ("experiment/src/run/flow_level/", Own(Stage::FlowLevel)),
    ("experiment/src/run/", Caller(Stage::Records)),
    ("experiment/src/run/collect.rs", Callee(Stage::Records)),
    ("experiment/src/run/capture.rs", Callee(Stage::Records)),
    ("experiment/src/run/messages.rs", Callee(Stage::Records)),
    ("experiment/src/run/streams.rs", Callee(Stage::Records)),
    ("experiment/src/run/figures.rs", Callee(Stage::Records)),
    ("records/", Callee(Stage::Records)),
    // Shared by all stages.
    ("node/src/device.rs", Caller(Stage::Events)),
    ("node/src/deadlines.rs", Caller(Stage::Guests)),
    ("node/src/packet", Caller(Stage::Events)),
    ("node/src/pool.rs", Caller(Stage::Events)),
    ("node/src/ring.rs", Caller(Stage::Events)),
    ("node/src/lib.rs", Caller(Stage::Events)),
    ("proto/src/frame.rs", Caller(Stage::Events)),
    ("proto/src/index.rs", Caller(Stage::Credits)),
    ("proto/src/loss.rs", Caller(Stage::Events)),
    ("proto/src/rng.rs", Caller(Stage::Events)),
    ("proto/src/time.rs", Caller(Stage::Events)),
    ("proto/src/units.rs", Caller(Stage::Events)),
    ("proto/src/lib.rs", Caller(Stage::Events)),
    ("wire/", Caller(Stage::Events)),
];

/// The stage of a sample: `files` are the source files of its functions, inlined ones too, the innermost first.
pub(crate) fn stage<'a>(files: impl Iterator<Item = &'a str>) -> Stage {
    let (mut own, mut caller) = (None, None);
    for counts in files.filter_map(counts) {
        match counts {
            Callee(stage) => return stage,
            Own(stage) => own = own.or(Some(stage)),
            Caller(stage) => caller = caller.or(Some(stage)),
        }
    }
    own.or(caller).unwrap_or(Stage::Other)
}

/// How a source file counts, by its path, of which the part below `crates/` is known here.
fn counts(file: &str) -> Option<Counts> {
    let below = file.rsplit_once("crates/").map(|(_, below)| below)?;
    let of_file = SOURCES.iter().filter(|(prefix, _)| below.starts_with(prefix));
    of_file.max_by_key(|(prefix, _)| prefix.len()).map(|&(_, counts)| counts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The source files of a crate, tests left out.
    fn sources(folder: &Path, all: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if path.is_dir() && name != "tests" {
                sources(&path, all);
            } else if name.ends_with(".rs") && !name.contains("tests") && name != "testing.rs" {
                all.push(path.to_str().unwrap().to_owned());
            }
        }
    }

    #[test]
    fn every_file_on_a_packets_way_has_a_stage() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut all = Vec::new();
        for name in ["sim", "node", "proto", "wire", "netbump", "extension", "records", "scenario"] {
            sources(&crates.join(name).join("src"), &mut all);
        }
        for name in ["build", "workload", "run"] {
            sources(&crates.join("experiment/src").join(name), &mut all);
        }
        assert!(all.len() > 200, "{}", all.len());
        for file in &all {
            assert!(counts(file).is_some(), "{file} has no stage: crates/profile/src/stages.rs");
        }
        // And every line of the table has a file.
        for (prefix, _) in SOURCES {
            let has = all.iter().any(|file| file.rsplit_once("crates/").unwrap().1.starts_with(prefix));
            assert!(has || ["planner/", "experiment/src/estimate/"].contains(prefix), "{prefix} is nowhere");
        }
    }

    #[test]
    fn the_innermost_file_with_a_stage_counts() {
        let of = |files: &[&str]| stage(files.iter().copied());
        let step = "/src/crates/sim/src/step.rs";
        assert_eq!(of(&["/rustc/x/library/core/src/cmp.rs", "crates/proto/src/tcp/receive.rs", step]), Stage::Tcp);
        assert_eq!(of(&["/src/crates/node/src/ring.rs", "/src/crates/node/src/switch/queue.rs", step]), Stage::Switch);
        assert_eq!(of(&["/src/crates/node/src/ring.rs", step]), Stage::Events);
        assert_eq!(of(&["/src/crates/proto/src/cee/pfc.rs", "/src/crates/node/src/adapter/link.rs"]), Stage::Adapter);
        assert_eq!(of(&["/src/crates/proto/src/cee/pfc.rs"]), Stage::Switch);
        assert_eq!(of(&["/src/crates/sim/src/wire.rs", step]), Stage::Wires);
    }

    #[test]
    fn building_and_records_count_with_all_that_they_call() {
        let of = |files: &[&str]| stage(files.iter().copied());
        assert_eq!(of(&["crates/node/src/switch/mod.rs", "crates/experiment/src/build/mod.rs"]), Stage::Start);
        assert_eq!(of(&["crates/node/src/server/host.rs", "crates/experiment/src/run/collect.rs"]), Stage::Records);
        assert_eq!(of(&["parquet-59/src/column/writer.rs", "crates/records/src/part.rs"]), Stage::Records);
        assert_eq!(of(&["library/std/src/thread/mod.rs"]), Stage::Other);
        assert_eq!(of(&[]), Stage::Other);
    }

    #[test]
    fn every_stage_has_a_name_of_its_own_and_a_source() {
        let names: std::collections::BTreeSet<&str> = Stage::ALL.iter().map(|stage| stage.name()).collect();
        assert_eq!(names.len(), Stage::ALL.len());
        for stage in Stage::ALL.into_iter().filter(|stage| *stage != Stage::Other) {
            let is_in =
                |&(_, counts): &(&str, Counts)| matches!(counts, Own(of) | Callee(of) | Caller(of) if of == stage);
            assert!(SOURCES.iter().any(is_in), "{stage:?}");
        }
    }
}
