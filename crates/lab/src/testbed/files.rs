//! The files of a testbed's programs: what `sluicenet switch` and `sluicenet controller` read.

use super::{Plan, Server};
use sluicenet_dataplane::controller::entropy;
use sluicenet_proto::frame::PrioritySet;
use sluicenet_wire::controller::UDP_PORT;
use sluicenet_wire::ethernet::MacAddress;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The namespace in which servers reach the controller: the control network, apart from the fabric (Crisan 2014, 4.5.3).
pub const CONTROL: &str = "sluice-control";
/// The controller's address there.
pub const CONTROLLER: Ipv4Addr = Ipv4Addr::new(172, 31, 255, 254);
/// The port at which servers hear it.
const SERVERS_PORT: u16 = UDP_PORT + 1;
/// The number of all tenants' broadcast domain, and of its network: machines of one testbed are of one tenant.
const TENANT: u16 = 1;
const VNI: u32 = 5001;

/// Where a testbed keeps its files.
#[derive(Clone, Debug)]
pub struct Place(PathBuf);

impl Place {
    /// Of the testbed that root may have on a machine: names of namespaces are the machine's, so there is one.
    pub fn of_the_machine() -> Place {
        Place("/run/sluicenet/testbed".into())
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
    /// The programs that were started: a line each.
    pub fn programs(&self) -> PathBuf {
        self.0.join("programs")
    }
    /// The namespaces that were made, or are to be: a line each.
    pub fn namespaces(&self) -> PathBuf {
        self.0.join("namespaces")
    }
    /// Where a program says what it has to say.
    pub fn log(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.log"))
    }
    /// Where a program prints its result.
    pub fn result(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.json"))
    }
}

/// A MAC address as the files have it.
fn mac(address: MacAddress) -> String {
    address.0.map(|b| format!("{b:02x}")).join(":")
}

fn list(priorities: PrioritySet) -> String {
    let all: Vec<String> = priorities.iter().map(|p| p.to_string()).collect();
    format!("[{}]", all.join(", "))
}

/// The file of a server's switch.
pub fn switch(plan: &Plan, server: &Server, place: &Place) -> String {
    let s = &plan.scenario;
    let physical = crate::build::lossless(s);
    let virtual_network = if s.vswitch.lossless { PrioritySet::ALL } else { PrioritySet::NONE };
    let mut text = format!(
        "# Server {host} of a testbed; made by `sluicenet testbed`.\n\
         [switch]\nname = \"s{host}\"\ncontrol = \"{control}\"\nports = {ports}\nslots = {slots}\nlossless = {virtual_network}\n\
         [watchdog]\naction = \"alert\"\n\
         [uplink]\ndevice = \"{uplink}\"\nnetns = \"{netns}\"\nmac = \"{mac}\"\nrate = \"{rate} b/s\"\n\
         response = \"{response} ps\"\nlossless = {physical}\n\
         [overlay]\naddress = \"{address}\"\ncontroller = \"{CONTROLLER}:{UDP_PORT}\"\nlisten = {SERVERS_PORT}\n\
         controller_netns = \"{CONTROL}\"\nkey = \"s{host}.key\"\n\
         [[network]]\ntenant = {TENANT}\nvni = {VNI}\n",
        host = server.host,
        control = place.control(server).display(),
        ports = (server.tenants.len() + 1).max(2),
        slots = s.vswitch.slots.min(1 << 16),
        virtual_network = list(virtual_network),
        uplink = server.uplink,
        netns = server.namespace,
        mac = mac(server.mac),
        rate = server.rate.as_bps(),
        response = s.testbed.response.0,
        physical = list(physical),
        address = server.address,
    );
    for other in plan.servers.iter().filter(|o| o.host != server.host) {
        // Writing to a string cannot fail.
        let _ = write!(text, "[[server]]\naddress = \"{}\"\nmac = \"{}\"\n", other.address, mac(other.mac));
    }
    for tenant in &server.tenants {
        let _ = write!(
            text,
            "[[port]]\nname = \"t{vm}\"\nkind = \"veth\"\ndevice = \"t{vm}\"\nnetns = \"{netns}\"\n\
             tenant_netns = \"{tenant_netns}\"\nmac = \"{mac}\"\nip = \"{ip}\"\ntenant = {TENANT}\noffload = false\n",
            vm = tenant.vm,
            netns = server.namespace,
            tenant_netns = tenant.namespace,
            mac = mac(tenant.mac),
            ip = tenant.address,
        );
    }
    text
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

/// Writes all of them, with new keys.
///
/// # Errors
/// When the folder cannot be written.
pub fn write(plan: &Plan, place: &Place) -> io::Result<()> {
    let put = |path: PathBuf, text: &str| {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    };
    put(place.controller(), &controller(plan))?;
    for server in &plan.servers {
        let words: [u64; 4] = entropy()?;
        let key: String = words.iter().map(|w| format!("{w:016x}")).collect();
        put(place.folder().join(format!("s{}.key", server.host)), &key)?;
        put(place.switch(server), &switch(plan, server, place))?;
    }
    Ok(())
}
