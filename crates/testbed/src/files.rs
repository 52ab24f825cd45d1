//! The files of a testbed's programs, for `sluicenet switch` and `sluicenet controller`.

use super::{Plan, Server, Tenant};
use serde::{Deserialize, Serialize};
use sluicenet_dataplane::controller::entropy;
use sluicenet_node::uplink::Link;
use sluicenet_proto::cee::ets::EtsConfig;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_proto::time::Duration;
use sluicenet_scenario::setting::Choice;
use sluicenet_scenario::{BUFFER_MAX, FlowControl, InitialWindow, Limiters, Party, Qcn, Tcp, TenantKind};
use sluicenet_wire::controller::UDP_PORT;
use sluicenet_wire::ethernet::{FCS_LEN, HEADER_LEN, MacAddress};
use sluicenet_wire::vlan::TAG_LEN;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The namespace in which servers reach the controller: the control network, apart from the fabric (Crisan 2014, 4.5.3).
pub const CONTROL: &str = "sluice-control";
/// The controller's address in the control network.
pub const CONTROLLER: Ipv4Addr = Ipv4Addr::new(172, 31, 255, 254);
/// The port at which servers receive the controller's messages.
const SERVERS_PORT: u16 = UDP_PORT + 1;
/// The number of the tenants' broadcast domain, and of its network: all VMs of a testbed belong to one tenant.
const TENANT: u16 = 1;
const VNI: u32 = 5001;

/// The most frames in a queue of a real switch.
const SLOTS_MAX: u32 = 1 << 16;

/// The directory of a testbed's files.
#[derive(Clone, Debug)]
pub struct TestbedDir(PathBuf);

impl TestbedDir {
    /// The directory of this machine's testbed: names of namespaces are global, so there can be only one.
    pub fn of_the_machine() -> TestbedDir {
        TestbedDir("/run/sluicenet/testbed".into())
    }
    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }
    /// The control socket of a server's switch.
    pub fn control(&self, server: &Server) -> PathBuf {
        self.0.join(format!("s{}.sock", server.host))
    }
    /// The file of a server's switch.
    pub fn switch(&self, server: &Server) -> PathBuf {
        self.0.join(format!("s{}.toml", server.host))
    }
    /// The controller's file.
    pub fn controller(&self) -> PathBuf {
        self.0.join("controller.toml")
    }
    /// The socket of a guest's port, which its server's switch creates.
    pub fn port(&self, tenant: &Tenant) -> PathBuf {
        self.0.join(format!("s{}-t{}.sock", tenant.host, tenant.vm))
    }
    /// The socket of the guests' supervisor.
    pub fn guests(&self) -> PathBuf {
        self.0.join("guests.sock")
    }
    /// The image of the guests.
    pub fn image(&self) -> PathBuf {
        self.0.join("image")
    }
    /// The parts of the testbed.
    pub fn made(&self) -> PathBuf {
        self.0.join("testbed.json")
    }
    /// The started programs, one per line.
    pub fn programs(&self) -> PathBuf {
        self.0.join("programs")
    }
    /// The namespaces, one per line, recorded before they are created.
    pub fn namespaces(&self) -> PathBuf {
        self.0.join("namespaces")
    }
    /// The report of the running fabric.
    pub fn fabric_now(&self) -> PathBuf {
        self.0.join("fabric-now.json")
    }
    /// The log of a program.
    pub fn log(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.log"))
    }
    /// The output of a program.
    pub fn result(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.json"))
    }
}

/// The parts of a running testbed, for other commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Whether tenants are guests.
    pub guests: bool,
    /// Whether servers have Linux bridges.
    pub bridged: bool,
    /// Whether no frame may be lost because a buffer is full.
    pub lossless: bool,
    /// The namespace of the fabric.
    pub fabric: String,
    /// The servers.
    pub servers: Vec<MadeServer>,
}

/// A server of a running testbed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeServer {
    /// The server's namespace.
    pub namespace: String,
    /// The server's end of the uplink.
    pub uplink: String,
    /// The fabric's end of the uplink.
    pub edge: String,
    /// The control socket of the server's switch, if it has one.
    pub control: PathBuf,
    /// The server's tenants.
    pub tenants: Vec<MadeTenant>,
}

/// A tenant of a running testbed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeTenant {
    /// The name of the tenant's namespace or guest.
    pub name: String,
    /// The tenant's number on its server.
    pub vm: u8,
    /// The tenant's address.
    pub address: Ipv4Addr,
    /// Whether the tenant is a namespace or a guest, and not only a port for light sockets.
    pub kernel: bool,
}

impl Made {
    /// The parts of a plan.
    pub fn of(plan: &Plan, dir: &TestbedDir) -> Made {
        let tenant =
            |t: &Tenant| MadeTenant { name: t.namespace.clone(), vm: t.vm, address: t.address, kernel: t.has_kernel() };
        let server = |s: &Server| MadeServer {
            namespace: s.namespace.clone(),
            uplink: s.uplink.into(),
            edge: s.edge.clone(),
            control: dir.control(s),
            tenants: s.tenants.iter().filter(|t| t.machine.is_none()).map(tenant).collect(),
        };
        Made {
            guests: plan.has_guests(),
            bridged: plan.is_bridged(),
            lossless: plan.flow_control == FlowControl::Zz && !plan.is_bridged(),
            fabric: plan.fabric.clone(),
            servers: plan.servers.iter().map(server).collect(),
        }
    }

    /// All tenants.
    pub fn tenants(&self) -> impl Iterator<Item = &MadeTenant> {
        self.servers.iter().flat_map(|s| &s.tenants)
    }

    /// The parts of the testbed in `dir`.
    ///
    /// # Errors
    /// The file of the parts cannot be read.
    pub fn read(dir: &TestbedDir) -> io::Result<Made> {
        Ok(serde_json::from_slice(&std::fs::read(dir.made())?)?)
    }
}

/// A MAC address in the notation of the files.
pub(crate) fn mac(address: MacAddress) -> String {
    address.0.map(|b| format!("{b:02x}")).join(":")
}

fn list(priorities: PrioritySet) -> String {
    let all: Vec<String> = priorities.iter().map(|p| p.to_string()).collect();
    format!("[{}]", all.join(", "))
}

/// The receive buffer of a class at a server's uplink, in bytes. It is the sum of the headroom of flow control, the
/// vSwitch's queue, and the adapter's buffer, since a frame stays in it until its VM has received it.
fn receive_buffer(plan: &Plan, server: &Server, lossless: PrioritySet) -> u32 {
    let s = &plan.scenario;
    let max_frame = plan.mtu + (HEADER_LEN + TAG_LEN + FCS_LEN) as u32;
    let none = Link::new(server.mac, server.rate, max_frame, s.testbed.response, lossless, 0);
    let flow_control = none.err().map_or(0, |least| least.needs);
    let queue = u64::from(s.vswitch.slots.min(SLOTS_MAX)) * u64::from(max_frame);
    u32::try_from(flow_control + queue + s.adapter.buffer.as_bytes())
        .unwrap_or(u32::MAX)
        .min(BUFFER_MAX.as_bytes() as u32)
}

/// The file of a server's switch. Writing to a string cannot fail, here and in the functions of its sections.
pub fn switch(plan: &Plan, server: &Server, dir: &TestbedDir) -> String {
    let s = &plan.scenario;
    let physical = sluicenet_experiment::build::lossless(s);
    let lossy = s.server.lossy_vnic.map_or(0, |p| 1 << p);
    let virtual_network = PrioritySet(if s.vswitch.lossless { !lossy } else { 0 });
    let mut text = format!(
        "# Server {host} of a testbed; made by `sluicenet testbed`.\n\
         [switch]\nname = \"s{host}\"\nuser = \"root\"\ncontrol = \"{control}\"\nports = {ports}\nslots = {slots}\nlossless = {virtual_network}\n\
         [watchdog]\naction = \"alert\"\ndetection_time = \"{detection} ps\"\nrestoration_time = \"{restoration} ps\"\n\
         [uplink]\ndevice = \"{uplink}\"\nnetns = \"{netns}\"\nmac = \"{mac}\"\nrate = \"{rate} b/s\"\n\
         response = \"{response} ps\"\nlossless = {physical}\nbuffer = \"{buffer} B\"\n\
         [overlay]\naddress = \"{address}\"\ncontroller = \"{CONTROLLER}:{UDP_PORT}\"\nlisten = {SERVERS_PORT}\n\
         controller_netns = \"{CONTROL}\"\nkey = \"s{host}.key\"\n\
         [[network]]\ntenant = {TENANT}\nvni = {VNI}\n",
        host = server.host,
        control = dir.control(server).display(),
        ports = (server.tenants.iter().map(Tenant::ports).sum::<usize>() + 1).max(2),
        slots = s.vswitch.slots.min(SLOTS_MAX),
        detection = plan.watchdog[0].0,
        restoration = plan.watchdog[1].0,
        virtual_network = list(virtual_network),
        uplink = server.uplink,
        netns = server.namespace,
        mac = mac(server.mac),
        rate = server.rate.as_bps(),
        response = s.testbed.response.0,
        physical = list(physical),
        buffer = receive_buffer(plan, server, physical),
        address = server.address,
    );
    if let Some(qcn) = s.qcn.as_ref().filter(|qcn| qcn.limiters != Limiters::Off) {
        limiters(qcn, &mut text);
    }
    if let Some(ets) = &s.ets.config {
        bandwidths(ets, &mut text);
    }
    if s.zcredit.enabled {
        zcredit(plan, &mut text);
    }
    if s.zbridge.enabled {
        let z = &s.zbridge;
        let timeout = z.timeout.0;
        let _ = write!(text, "[zbridge]\nperiod = {}\nbuffer = {}\ntimeout = \"{timeout} ps\"\n", z.period, z.buffer);
    }
    if s.overlay.tcp {
        tcp_tunnel(&s.tcp, &mut text);
    }
    for other in plan.servers.iter().filter(|o| o.host != server.host) {
        let _ = write!(text, "[[server]]\naddress = \"{}\"\nmac = \"{}\"\n", other.address, mac(other.mac));
    }
    for tenant in &server.tenants {
        if let Some(light) = tenant.light() {
            port(&light.name, light.mac, light.address, tenant, &mut text);
            text.push_str("kind = \"shm\"\n");
        }
        if tenant.has_kernel() {
            port(&format!("t{}", tenant.vm), tenant.mac, tenant.address, tenant, &mut text);
            kernel_port(plan, server, tenant, dir, &mut text);
        }
    }
    policy(plan, &mut text);
    text
}

/// `[qcn]` of a switch.
fn limiters(qcn: &Qcn, text: &mut String) {
    text.push_str("[qcn]\n");
    for (key, value) in [
        ("limiters", format!("\"{}\"", qcn.limiters.word())),
        ("min_rate", format!("\"{} b/s\"", qcn.min_rate.as_bps())),
        ("byte_reset", format!("\"{} B\"", qcn.byte_reset.as_bytes())),
        ("time_reset", qcn.time_reset.map_or("\"off\"".into(), |time| format!("\"{} ps\"", time.0))),
        ("threshold", qcn.threshold.to_string()),
        ("ai_rate", format!("\"{} b/s\"", qcn.ai_rate.as_bps())),
        ("hai_rate", format!("\"{} b/s\"", qcn.hai_rate.as_bps())),
        ("gd", qcn.gd.to_string()),
        ("min_decrease_factor", qcn.min_decrease_factor.to_string()),
        ("extra_fast_recovery", qcn.extra_fast_recovery.to_string()),
    ] {
        let _ = writeln!(text, "{key} = {value}");
    }
}

/// `[ets]` of a switch.
fn bandwidths(ets: &EtsConfig, text: &mut String) {
    let _ = writeln!(text, "[ets]\nstrict = {}", list(ets.strict()));
    let is_percent = ets.groups().iter().map(|group| u32::from(group.bandwidth)).sum::<u32>() == 100;
    let key = if is_percent { "bandwidth" } else { "weight" };
    for group in ets.groups() {
        let priorities = list(group.priorities);
        let _ = writeln!(text, "[[ets.group]]\npriorities = {priorities}\n{key} = {}", group.bandwidth);
    }
}

/// `[zcredit]` of a switch.
fn zcredit(plan: &Plan, text: &mut String) {
    let z = &plan.scenario.zcredit;
    let _ = write!(text, "[zcredit]\nrx_queue = {}\nbatch = {}\ntx_queue = {}\n", z.rx_queue, z.batch, z.tx_queue);
    for w in &z.weight {
        let machine = plan.servers.iter().flat_map(|s| &s.tenants).find(|t| (t.host, t.vm.into()) == (w.host, w.vm));
        // VMs of the scenario that are not in the testbed send nothing.
        let Some(tenant) = machine else { continue };
        // A tenant with both kinds of sockets has a port of its own for the light ones.
        let beside = tenant.light().map(|light| light.mac).filter(|&other| other != tenant.mac);
        for station in [tenant.mac].into_iter().chain(beside) {
            let _ = write!(
                text,
                "[[zcredit.weight]]\ntenant = {TENANT}\nmac = \"{}\"\nweight = {}\n",
                mac(station),
                w.weight
            );
        }
    }
}

/// `[tcp_tunnel]` of a switch.
fn tcp_tunnel(t: &Tcp, text: &mut String) {
    text.push_str("[tcp_tunnel]\n");
    let max_buffer = if t.auto_buffer { t.max_buffer } else { t.buffer };
    let ps = |d: Duration| format!("\"{} ps\"", d.0);
    let window = match t.initial_window {
        InitialWindow::Rfc3390 => "\"rfc3390\"".into(),
        InitialWindow::Segments(n) => n.to_string(),
    };
    let congestion = format!("\"{}\"", t.congestion.name());
    // The simulator's tunnels have no connection cache and no stack latencies either.
    for (key, value) in [
        ("congestion", congestion),
        ("buffer", format!("\"{} B\"", t.buffer.as_bytes())),
        ("max_buffer", format!("\"{} B\"", max_buffer.as_bytes())),
        ("rto_base", ps(t.rto_base)),
        ("rto_min", ps(t.rto_min)),
        ("rto_slop", ps(t.rto_slop)),
        ("rto_max", ps(t.rto_max)),
        ("tick", ps(t.tick)),
        ("delayed_ack", t.delayed_ack.map_or("\"off\"".into(), ps)),
        ("ack_every", t.ack_every.to_string()),
        ("reassembly_limit", t.reassembly_limit.to_string()),
        ("initial_window", window),
        ("sack", t.sack.to_string()),
        ("timestamps", t.timestamps.to_string()),
        ("window_scaling", t.window_scaling.to_string()),
        ("ecn", t.ecn.to_string()),
        ("limited_transmit", t.limited_transmit.to_string()),
        ("prr", t.prr.to_string()),
        ("restart_after_idle", t.restart_after_idle.to_string()),
        ("nagle", t.nagle.to_string()),
    ] {
        let _ = writeln!(text, "{key} = {value}");
    }
    if let Some(ssthresh) = t.ssthresh {
        let _ = writeln!(text, "ssthresh = \"{} B\"", ssthresh.as_bytes());
    }
}

/// The keys of a port that every kind has.
fn port(name: &str, station: MacAddress, address: Ipv4Addr, tenant: &Tenant, text: &mut String) {
    let station = mac(station);
    let _ = write!(text, "[[port]]\nname = \"{name}\"\ntenant = {TENANT}\nmac = \"{station}\"\nip = \"{address}\"\n");
    if let Some(rate) = tenant.rate {
        let _ = writeln!(text, "rate = \"{} b/s\"", rate.as_bps());
    }
}

/// The keys of a port to a tenant's kernel.
fn kernel_port(plan: &Plan, server: &Server, tenant: &Tenant, dir: &TestbedDir, text: &mut String) {
    let s = &plan.scenario;
    let (vm, netns) = (tenant.vm, &server.namespace);
    let _ = match (s.server.lossy_vnic.filter(|_| tenant.lossy), plan.tenants) {
        (Some(priority), _) => {
            write!(text, "kind = \"packet\"\ndevice = \"t{vm}\"\nnetns = \"{netns}\"\npriority = {priority}\n")
        }
        (None, TenantKind::Namespaces) => write!(
            text,
            "kind = \"veth\"\ndevice = \"t{vm}\"\nnetns = \"{netns}\"\ntenant_netns = \"{}\"\noffload = false\n",
            tenant.namespace,
        ),
        // In a lossy virtual network nothing waits for a slow program, so no agent is needed.
        (None, TenantKind::Guests) => write!(
            text,
            "kind = \"vhost-user\"\nsocket = \"{}\"\nagent = {}\n",
            dir.port(tenant).display(),
            s.vswitch.lossless,
        ),
    };
}

fn controller(plan: &Plan) -> String {
    let mut text = format!(
        "# The controller of a testbed; made by `sluicenet testbed`.\n\
         [controller]\nlisten = \"{CONTROLLER}:{UDP_PORT}\"\nnetns = \"{CONTROL}\"\nservers_port = {SERVERS_PORT}\n"
    );
    for server in &plan.servers {
        let _ = write!(text, "[[server]]\naddress = \"{}\"\nkey = \"s{}.key\"\n", server.address, server.host);
    }
    text
}

/// `[policy]` of a switch: the VMs of all servers that may communicate, and their second vNICs.
fn policy(plan: &Plan, text: &mut String) {
    let s = &plan.scenario;
    if s.policy.is_empty() && s.server.lossy_vnic.is_none() {
        return;
    }
    let _ = writeln!(text, "[policy]");
    let hosts = s.topology.counts().hosts;
    // The policy treats a VM's ports of both kinds as separate machines with similar names.
    let names = |t: &Tenant| {
        let beside = t.light().filter(|light| light.mac != t.mac).map(|light| (light.mac, "-light"));
        let own = [(t.mac, "")].into_iter().chain(beside);
        own.map(|(mac, end)| (mac, format!("s{}-t{}{end}", t.host, t.vm))).collect::<Vec<_>>()
    };
    for t in plan.machines() {
        let second = plan.servers[t.host as usize].tenants.iter().find(|other| other.machine == Some(t.vm));
        let group = s.policy.tenant.iter().position(|of| of.machines.contains(&(t.host, t.vm.into())));
        for (n, (station, name)) in names(t).into_iter().enumerate() {
            let key = if t.lossy { "lossy_mac" } else { "mac" };
            let _ = write!(text, "[[policy.machine]]\ntenant = {TENANT}\n{key} = \"{}\"\n", mac(station));
            if t.host >= hosts {
                text.push_str("outside = true\n");
                continue;
            }
            let _ = writeln!(text, "name = \"{name}\"");
            if let Some(group) = group {
                let _ = writeln!(text, "group = \"tenant-{group}\"");
            }
            if let Some(second) = second.filter(|_| n == 0) {
                let _ = writeln!(text, "lossy_mac = \"{}\"", mac(second.mac));
            }
        }
    }
    let parties = |party: Party| match party {
        Party::Tenant(number) => vec![format!("tenant-{number}")],
        Party::Machine(host, vm) => {
            plan.tenant(host, vm as u8).map_or(Vec::new(), |t| names(t).into_iter().map(|(_, name)| name).collect())
        }
        Party::Outside => vec!["outside".into()],
    };
    for rule in &s.policy.rule {
        let [party, peer] = rule.between.map(parties);
        for (party, peer) in party.iter().flat_map(|a| peer.iter().map(move |b| (a, b))) {
            let _ = write!(text, "[[policy.rule]]\nparty = \"{party}\"\npeer = \"{peer}\"\nallow = {}\n", rule.allow);
        }
    }
}

/// Writes all files, with new keys.
///
/// # Errors
/// The directory cannot be written.
pub fn write(plan: &Plan, dir: &TestbedDir) -> io::Result<()> {
    let put = |path: PathBuf, text: &str| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    put(dir.made(), &serde_json::to_string(&Made::of(plan, dir))?)?;
    put(dir.controller(), &controller(plan))?;
    for server in &plan.servers {
        let words: [u64; 4] = entropy()?;
        let key: String = words.iter().map(|w| format!("{w:016x}")).collect();
        put(dir.folder().join(format!("s{}.key", server.host)), &key)?;
        put(dir.switch(server), &switch(plan, server, dir))?;
    }
    Ok(())
}
