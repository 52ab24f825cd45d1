//! The memory that a world takes before its first frame, counted before the world is built.

use sluicenet_scenario::{Counts, Error, FlowFileContent, Pattern, Result, Scenario, Workload};
use std::collections::BTreeSet;
use std::path::Path;

// The sizes below are measured with `sluicenet run --set 'scenario.duration="1 us"'` on a fat-tree of k = 96 whose first flow
// starts later, as differences of peak memory; docs/results/speed.md has the table.

/// Bytes of the program and of a small world.
const PROGRAM: u64 = 20 << 20;
/// Bytes of a box that nothing has reached, in all lists of boxes.
const BOX: u64 = 190;
/// Bytes of a port: its wire.
const PORT: u64 = 64;
/// Bytes of a server with applications.
const SERVER: u64 = 2_300;
/// Bytes of each of its machines in a virtual network.
const MACHINE: u64 = 460;
/// More bytes of each machine with credits.
const CREDITS: u64 = 580;

/// Bytes that the world of a scenario takes when it is built. Frames, connections, and switches on the way of frames come
/// on top.
pub fn needed(scenario: &Scenario) -> u64 {
    let Counts { hosts, external, switches, ports } = scenario.topology.counts();
    let boxes = u64::from(hosts) + u64::from(external) + u64::from(switches);
    let machine = match (scenario.server.virtual_network, scenario.zcredit.enabled) {
        (false, _) => 0,
        (true, false) => MACHINE,
        (true, true) => MACHINE + CREDITS,
    };
    let server = SERVER + machine * u64::from(scenario.server.vms);
    PROGRAM + boxes * BOX + u64::from(ports) * PORT + busy(scenario) * server
}

/// Hosts whose servers exist from the start: at most those that a workload uses, and all if servers have stages.
fn busy(s: &Scenario) -> u64 {
    let counts = s.topology.counts();
    let all = u64::from(counts.hosts) + u64::from(counts.external);
    if s.zcredit.enabled || s.zbridge.enabled || s.overlay.tcp || s.xco.is_some() {
        return all;
    }
    let ends = |pairs: &mut dyn Iterator<Item = (u32, u32)>| {
        pairs.flat_map(|(src, dst)| [src, dst]).collect::<BTreeSet<u32>>().len() as u64
    };
    let of_workload = |w: &Workload| match w {
        Workload::Flow(_) => 2,
        Workload::Incast(w) => w.senders.len() as u64 + 1,
        Workload::Hotspot(w) => w.sources.len() as u64 + 1,
        Workload::Shuffle(w) => u64::from(w.hosts),
        Workload::Permutation(w) => match (&w.pattern, w.senders) {
            (Pattern::File(file), _) => ends(&mut file.content.iter().copied()),
            (_, Some(senders)) => 2 * u64::from(senders) * u64::from(w.flows),
            (_, None) => all,
        },
        Workload::FlowFile(w) => match &w.content {
            FlowFileContent::Hpcc { file } => ends(&mut file.content.flows.iter().map(|flow| (flow.src, flow.dst))),
            FlowFileContent::Htsim { file } => ends(&mut file.content.connections.iter().map(|c| (c.src, c.dst))),
        },
        _ => all,
    };
    s.workloads.iter().map(of_workload).sum::<u64>().min(all)
}

/// Refuses a world for which there is not enough memory.
///
/// # Errors
/// The memory that the world needs and the memory that this process can have, at the size of the network.
pub fn check(scenario: &Scenario) -> Result<()> {
    available().map_or(Ok(()), |available| check_within(scenario, available))
}

fn check_within(scenario: &Scenario, available: u64) -> Result<()> {
    let needed = needed(scenario);
    if needed <= available { Ok(()) } else { Err(too_large(scenario, needed, available)) }
}

fn too_large(s: &Scenario, needed: u64, available: u64) -> Error {
    let Counts { hosts, external, switches, ports } = s.topology.counts();
    let [needed, available] = [needed, available].map(rounded);
    let message = format!(
        "{} hosts, {switches} switches and {ports} ports need {needed} of memory before the first frame, and {available} are available",
        hosts + external
    );
    let keys = ["topology.k", "topology.m", "topology.hosts", "topology.file"];
    let key = keys.into_iter().find(|key| s.locations.line_of(key).is_some()).unwrap_or("topology");
    s.locations.error(key, message).hint("a smaller network, fewer hosts that send, or a machine with more memory")
}

/// An amount of memory for a reader.
pub fn rounded(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes < 999.5e6 => format!("{:.0} MB", bytes / 1e6),
        bytes => format!("{:.1} GB", bytes / 1e9),
    }
}

/// Bytes of memory that this process can still have: the least of the system's available memory, the limits of its control
/// groups and its own limit. `None` if the system tells none of them.
fn available() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let system = read(Path::new("/proc/meminfo")).and_then(|text| of_meminfo(&text));
    let own = read(Path::new("/proc/self/limits")).and_then(|text| of_limits(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let of_groups = group_limits(&groups).filter_map(|file| read(Path::new(&file))?.trim().parse().ok());
    of_groups.chain(system).chain(own).min()
}

/// The available memory in /proc/meminfo.
fn of_meminfo(text: &str) -> Option<u64> {
    let kb = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?.split_whitespace().next()?;
    Some(kb.parse::<u64>().ok()? * 1024)
}

/// The limit of the address space in /proc/self/limits, if there is one.
fn of_limits(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("Max address space"))?.split_whitespace().next()?.parse().ok()
}

/// The files with the limits of the control groups that /proc/self/cgroup names, and of the groups around them.
fn group_limits(text: &str) -> impl Iterator<Item = String> {
    let groups = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next()?, fields.next()?) {
            // Version 2 has one hierarchy, without a name.
            ("", path) => Some(("/sys/fs/cgroup", path, "memory.max")),
            (names, path) if names.split(',').any(|name| name == "memory") => {
                Some(("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"))
            }
            _ => None,
        }
    });
    groups.flat_map(|(root, path, file)| {
        // In a container the path may be one of the host: the group of the mount point is then its own.
        let around = Path::new(path).ancestors().map(|path| path.to_string_lossy().trim_matches('/').to_owned());
        around.map(move |path| format!("{root}/{path}/{file}")).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fat_tree(k: u32, rest: &str) -> Scenario {
        let text = format!(
            "[topology]\nkind = \"fat-tree\"\nk = {k}\n[[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n{rest}"
        );
        Scenario::parse(&text, "large.toml").unwrap().scenario
    }

    #[test]
    fn four_million_hosts_are_refused_where_their_number_stands() {
        let large = fat_tree(256, "");
        assert!((2_000_000_000..3_000_000_000).contains(&needed(&large)), "{}", needed(&large));
        assert_eq!(check_within(&large, 4_000_000_000), Ok(()));
        let e = check_within(&large, 1 << 30).unwrap_err();
        let at = e.diagnostic();
        assert_eq!((at.file.as_str(), at.line), ("large.toml", 3));
        let said = "4194304 hosts, 81920 switches and 25165824 ports need 2.4 GB of memory before the first frame, and 1.1 GB are";
        assert!(at.message.starts_with(said), "{}", at.message);
    }

    #[test]
    fn hosts_that_send_need_more_than_idle_ones() {
        let permutation =
            "[scenario]\nduration = \"1 ms\"\n[[workload]]\nkind = \"permutation\"\npattern = \"random\"\n";
        let [idle, few, all] = ["".to_owned(), format!("{permutation}senders = 100\n"), permutation.to_owned()]
            .map(|rest| busy(&fat_tree(16, &rest)));
        assert_eq!((idle, few, all), (2, 202, 1_024));
        let zfabric =
            "[scenario]\nhypervisor = \"zfabric\"\n[server]\nvirtual_network = true\n[vswitch]\nlossless = true\n";
        assert_eq!(busy(&fat_tree(16, zfabric)), 1_024);
    }

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        assert_eq!(of_meminfo("MemTotal:  24000000 kB\nMemAvailable:    1000 kB\n"), Some(1_024_000));
        let limits = |limit: &str| {
            format!("Limit  Soft Limit  Hard Limit  Units\nMax address space         {limit}   {limit}  bytes\n")
        };
        assert_eq!((of_limits(&limits("1073741824")), of_limits(&limits("unlimited"))), (Some(1 << 30), None));
        let files: Vec<String> = group_limits("0::/a/b\n").collect();
        assert_eq!(
            files,
            ["/sys/fs/cgroup/a/b/memory.max", "/sys/fs/cgroup/a/memory.max", "/sys/fs/cgroup//memory.max"]
        );
        let files: Vec<String> = group_limits("5:cpu:/x\n4:memory:/a\n").collect();
        assert_eq!(files.len(), 2);
        assert_eq!(files[0], "/sys/fs/cgroup/memory/a/memory.limit_in_bytes");
    }
}
