//! The memory that a world takes before its first frame, and the rows of its ports at the end, counted before the world is built.

use super::topology::Plan;
use sluicenet_scenario::{Counts, Error, FlowFileContent, Pattern, Result, Scenario, Workload};
use std::collections::BTreeSet;
use std::path::Path;

// The sizes below are measured with `sluicenet run --set 'scenario.duration="1 us"'` on fat-trees whose first flow starts later,
// as differences of peak memory; docs/results/speed.md has the table.

/// Bytes of the program and of a small world.
const PROGRAM: u64 = 20 << 20;
/// Bytes of a box that nothing has reached, in all lists of boxes.
const BOX: u64 = 190;
/// Bytes of a port: its wire.
const PORT: u64 = 64;
/// Bytes of a server with applications.
const SERVER: u64 = 2_300;
/// Bytes of each of its machines in a virtual network.
const MACHINE: u64 = 350;
/// Bytes of each pair of machines of a server: a port of the vSwitch has a place for each other one.
const PAIR: u64 = 12;
/// More bytes of each machine with credits.
const CREDITS: u64 = 560;
/// Machines for which a server with credits has room at least.
const CREDITS_FROM: u64 = 4;
/// More bytes of a server with zBridge.
const BRIDGE: u64 = 600;
/// Bytes of a row of the table `ports`, from its creation until it is on the page.
const ROW: u64 = 100;
/// More bytes of a row in the part file that is being filled.
const ROW_OF_PART: u64 = 120;

/// Bytes of the address space that each thread reserves for frames: so many for a port of its boxes, and at most so many in
/// all (`FRAMES_PER_WIRE`, `MAX_FRAMES` and the size of a slot in the crates `sim` and `node`). Where it is refused, the
/// thread runs without it.
const FRAMES_OF_PORT: u64 = 256 * 64;
/// The most of it.
const FRAMES_MAX: u64 = (1 << 23) * 64;
/// Bytes of the address space that a thread besides the first one cannot do without: the C library's area for what it
/// allocates, twice 64 MiB while it is aligned, and the stack.
const THREAD: u64 = 130 << 20;

/// How a world will be run, as far as it matters for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whether records are written.
    pub recorded: bool,
    /// Threads of the run.
    pub threads: usize,
}

impl Demand {
    /// One thread, and no records.
    pub const LEAST: Demand = Demand { recorded: false, threads: 1 };
}

/// Bytes that the world of a scenario takes when it is built. Frames, connections, and switches on the way of frames come
/// on top.
pub fn needed(scenario: &Scenario) -> u64 {
    let Counts { hosts, external, switches, ports } = scenario.topology.counts();
    let boxes = u64::from(hosts) + u64::from(external) + u64::from(switches);
    PROGRAM + boxes * BOX + u64::from(ports) * PORT + servers(scenario) * of_server(scenario)
}

/// Bytes of the rows of all ports at the end of a recorded run; 0 if they are not wanted.
pub fn of_rows(scenario: &Scenario) -> u64 {
    let rows = port_rows(scenario);
    rows * ROW + rows.min(u64::from(scenario.record.part_rows)) * ROW_OF_PART
}

/// Rows of the table `ports` of a recorded run.
pub fn port_rows(scenario: &Scenario) -> u64 {
    if scenario.record.ports { scenario.topology.counts().ports.into() } else { 0 }
}

/// Bytes of a server with applications.
fn of_server(s: &Scenario) -> u64 {
    if !s.server.virtual_network {
        return SERVER;
    }
    let machines = u64::from(s.server.vms);
    let credits = if s.zcredit.enabled { CREDITS * machines.max(CREDITS_FROM) } else { 0 };
    let bridge = if s.zbridge.enabled { BRIDGE } else { 0 };
    SERVER + machines * (MACHINE + machines * PAIR) + credits + bridge
}

/// Hosts whose servers exist from the start: at most those that a workload uses, and all if servers have stages.
pub fn servers(s: &Scenario) -> u64 {
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
/// The memory that the world needs, with the rows of its ports, and the memory that this process can have, at the size of the
/// network.
pub fn check(scenario: &Scenario, demand: Demand) -> Result<()> {
    available().into_iter().chain(address_space()).min().map_or(Ok(()), |least| check_within(scenario, demand, least))
}

fn check_within(s: &Scenario, demand: Demand, available: u64) -> Result<()> {
    let (world, rows) = (needed(s), if demand.recorded { of_rows(s) } else { 0 });
    if world + rows <= available { Ok(()) } else { Err(too_large(s, (world, rows), available)) }
}

fn too_large(s: &Scenario, (world, rows): (u64, u64), available: u64) -> Error {
    let Counts { hosts, external, switches, ports } = s.topology.counts();
    let with_rows = match rows {
        0 => String::new(),
        rows => format!(", {} with the rows of all ports at the end", rounded(world + rows)),
    };
    let message = format!(
        "{} hosts, {switches} switches and {ports} ports need {} of memory before the first frame{with_rows}, and {} are available",
        hosts + external,
        rounded(world),
        rounded(available)
    );
    let hint = match world <= available {
        true => "record.ports = false, a smaller network, or a machine with more memory",
        false => "a smaller network, fewer hosts that send, or a machine with more memory",
    };
    at_network(s, message).hint(hint)
}

/// An error at the size of the network.
fn at_network(s: &Scenario, message: String) -> Error {
    let keys = ["topology.k", "topology.m", "topology.hosts", "topology.file"];
    let key = keys.into_iter().find(|key| s.locations.line_of(key).is_some()).unwrap_or("topology");
    s.locations.error(key, message)
}

/// Refuses threads for which a limited address space (`ulimit -v`) leaves no room.
///
/// # Errors
/// The address space that they need and the one that this process can have, at the size of the network.
pub fn check_threads(scenario: &Scenario, plan: &Plan, demand: Demand) -> Result<()> {
    let Some(available) = address_space() else { return Ok(()) };
    let parts = plan.parts(demand.threads).into_iter().max().map_or(1, |last| last as usize + 1);
    check_threads_within(scenario, demand.threads.clamp(1, parts) as u64, demand, available)
}

fn check_threads_within(s: &Scenario, threads: u64, demand: Demand, available: u64) -> Result<()> {
    let world = needed(s);
    let each = (u64::from(s.topology.counts().ports) / threads * FRAMES_OF_PORT).min(FRAMES_MAX);
    let others = (threads - 1) * THREAD + if demand.recorded { of_rows(s) } else { 0 };
    // One after the other reserves what it can, and so leaves too little to those that allocate later.
    let fitting = (available.saturating_sub(world) / each.max(1)).min(threads);
    let reserved = fitting * each;
    if world + reserved + others <= available {
        return Ok(());
    }
    let [all, of_world, of_frames, available] = [world + reserved + others, world, reserved, available].map(rounded);
    let named = if threads == 1 { "one thread needs".to_owned() } else { format!("{threads} threads need") };
    let message = format!(
        "{named} {all} of address space, {of_world} for the network and {of_frames} for frames in flight, and {available} are \
         available"
    );
    Err(at_network(s, message).hint("fewer --threads, or a higher limit (ulimit -v)"))
}

/// An amount of memory for a reader.
pub fn rounded(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes < 999.5e6 => format!("{:.0} MB", bytes / 1e6),
        bytes => format!("{:.1} GB", bytes / 1e9),
    }
}

/// Bytes of memory that this process can still have: the least of the system's available memory and the limits of its control
/// groups. `None` if the system tells none of them.
fn available() -> Option<u64> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let system = read(Path::new("/proc/meminfo")).and_then(|text| of_meminfo(&text));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let of_groups = group_limits(&groups).filter_map(|file| read(Path::new(&file))?.trim().parse().ok());
    of_groups.chain(system).min()
}

/// Bytes of address space that this process can still have, if it has a limit of its own.
fn address_space() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let limit = of_limits(&read("/proc/self/limits")?)?;
    let taken = read("/proc/self/status").and_then(|text| of_status(&text)).unwrap_or(0);
    Some(limit.saturating_sub(taken))
}

/// The address space that a process takes, in its /proc/self/status.
fn of_status(text: &str) -> Option<u64> {
    let kb = text.lines().find_map(|line| line.strip_prefix("VmSize:"))?.split_whitespace().next()?;
    Some(kb.parse::<u64>().ok()? * 1024)
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
        assert_eq!(check_within(&large, Demand::LEAST, 4_000_000_000), Ok(()));
        let e = check_within(&large, Demand::LEAST, 1 << 30).unwrap_err();
        let at = e.diagnostic();
        assert_eq!((at.file.as_str(), at.line), ("large.toml", 3));
        let said = "4194304 hosts, 81920 switches and 25165824 ports need 2.4 GB of memory before the first frame, and 1.1 GB are";
        assert!(at.message.starts_with(said), "{}", at.message);
    }

    #[test]
    fn rows_of_ports_count_where_they_are_written() {
        let recorded = Demand { recorded: true, threads: 1 };
        let e = check_within(&fat_tree(256, ""), recorded, 4_000_000_000).unwrap_err();
        let at = e.diagnostic();
        let said = "need 2.4 GB of memory before the first frame, 5.1 GB with the rows of all ports at the end, and 4.0 GB are";
        assert!(at.message.contains(said), "{}", at.message);
        let without = fat_tree(256, "[record]\nports = false\n");
        assert_eq!(check_within(&without, recorded, 4_000_000_000), Ok(()));
    }

    #[test]
    fn threads_that_leave_no_address_space_are_refused() {
        let (s, demand) = (fat_tree(32, ""), Demand { recorded: false, threads: 2 });
        let of = |threads, available: u64| check_threads_within(&s, threads, demand, available << 20);
        // Each of two has 384 MiB for frames. Both fit or one does, and the rest is enough; else too little is left.
        assert!(of(2, 1_000).is_ok() && of(2, 700).is_ok() && of(2, 300).is_ok());
        for available in [850, 450] {
            let e = of(2, available).unwrap_err();
            assert!(e.diagnostic().message.starts_with("2 threads need "), "{}", e.diagnostic().message);
        }
        // The first thread allocates where there is room.
        assert!(of(1, 600).is_ok() && of(1, 450).is_ok());
    }

    #[test]
    fn machines_of_a_server_meet_each_other() {
        let vms = |n: u8| {
            let rest = format!("[server]\nvirtual_network = true\nvms = {n}\n");
            of_server(&fat_tree(4, &rest))
        };
        // Measured: 5,811 and 69,812.
        assert!((5_500..6_200).contains(&vms(8)) && (66_000..74_000).contains(&vms(63)), "{} {}", vms(8), vms(63));
    }

    #[test]
    fn hosts_that_send_need_more_than_idle_ones() {
        let permutation =
            "[scenario]\nduration = \"1 ms\"\n[[workload]]\nkind = \"permutation\"\npattern = \"random\"\n";
        let [idle, few, all] = ["".to_owned(), format!("{permutation}senders = 100\n"), permutation.to_owned()]
            .map(|rest| servers(&fat_tree(16, &rest)));
        assert_eq!((idle, few, all), (2, 202, 1_024));
        let zfabric =
            "[scenario]\nhypervisor = \"zfabric\"\n[server]\nvirtual_network = true\n[vswitch]\nlossless = true\n";
        assert_eq!(servers(&fat_tree(16, zfabric)), 1_024);
    }

    #[test]
    fn limits_are_read_as_the_system_writes_them() {
        assert_eq!(of_meminfo("MemTotal:  24000000 kB\nMemAvailable:    1000 kB\n"), Some(1_024_000));
        let limits = |limit: &str| {
            format!("Limit  Soft Limit  Hard Limit  Units\nMax address space         {limit}   {limit}  bytes\n")
        };
        assert_eq!((of_limits(&limits("1073741824")), of_limits(&limits("unlimited"))), (Some(1 << 30), None));
        assert_eq!(of_status("VmPeak:  9 kB\nVmSize:   8 kB\n"), Some(8192));
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
