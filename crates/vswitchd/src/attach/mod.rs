//! Attaches a network namespace to a running switch, and undoes it: the namespace, the veth pair, its addresses and routes, and
//! the port. This runs in the process that asks for it, with its privileges; the switch only adds and removes the port.
//!
//! Everything is recorded before it is made. So a detachment finds all parts, also those of an attachment that was killed, and
//! the switch opens its ports again when it starts again.

mod address;
mod asked;
mod detach;
mod error;
mod port;
pub mod record;

use crate::config::{port_from_words, veth_keys};
use crate::control::{About, Request};
use crate::status::mac_text;
pub use address::{Prefix, Route};
use asked::{about, may_be_done, request};
pub use detach::detach;
use detach::undo;
pub use error::AttachError;
pub use port::{add_port, remove_port};
use record::{Pair, Record, Records};
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::{Link, Links};
use sluicenet_dataplane::kernel::netns::Namespace;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;

/// The MTU of a namespace's device without an overlay.
const MTU: u32 = 1500;
/// Limits of a veth's MTU: the smallest for IPv4, and the kernel's largest.
const MTU_LIMITS: std::ops::RangeInclusive<u32> = 68..=65_535;

/// Keys of a port that an attachment sets itself.
const SET_ITSELF: [&str; 7] = ["kind", "name", "device", "netns", "tenant_device", "tenant_netns", "mac"];

/// The keys of a port that [`Attach::settings`] can have.
pub fn port_keys() -> Vec<&'static str> {
    veth_keys().filter(|key| !SET_ITSELF.contains(key)).collect()
}

/// What is attached, and how.
#[derive(Clone, Debug, Default)]
pub struct Attach {
    /// The namespace, by name or by a path such as `/run/netns/red1`.
    pub netns: String,
    /// Whether a namespace that does not exist is made.
    pub create: bool,
    /// The port's name; default the namespace's.
    pub port: Option<String>,
    /// The name of the device in the namespace; default `eth0`.
    pub device: Option<String>,
    /// Its addresses.
    pub addresses: Vec<Prefix>,
    /// Next hops of default routes.
    pub gateways: Vec<IpAddr>,
    /// Further routes.
    pub routes: Vec<Route>,
    /// The MAC address of the device; default one of the kernel's.
    pub mac: Option<[u8; 6]>,
    /// The MTU of the device; default that of the overlay, or 1500 without one.
    pub mtu: Option<u32>,
    /// The namespace of the switch's end; default one that is made for the switch.
    pub switch_netns: Option<String>,
    /// Whether the port may send from other addresses than its own.
    pub unlocked: bool,
    /// Further settings of the port, `key=value` as in the file.
    pub settings: Vec<String>,
    /// A text that is kept with the attachment, for the caller.
    pub note: Option<String>,
}

/// A namespace that was attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The port's name.
    pub port: String,
    /// The device in the namespace.
    pub device: Link,
    /// The namespace of the switch's end.
    pub switch_netns: String,
    /// The device of the switch's end.
    pub switch_device: Link,
}

/// Refuses a key that `key=value` gives twice: the later one would win without a word.
fn given_once(settings: &[String]) -> Result<(), AttachError> {
    let key = |word: &String| word.split('=').next().unwrap_or_default().trim().to_owned();
    match (1..settings.len()).find(|&i| settings[..i].iter().any(|earlier| key(earlier) == key(&settings[i]))) {
        Some(i) => Err(AttachError::Invalid(format!("{}: `{}` is given twice", settings[i], key(&settings[i])))),
        None => Ok(()),
    }
}

impl Attach {
    /// The port's name: the given one, or that of the namespace.
    fn port_name(&self) -> Result<String, AttachError> {
        if let Some(name) = &self.port {
            return Ok(name.clone());
        }
        let last = self.netns.rsplit('/').next().unwrap_or_default();
        match self.netns.starts_with("/proc/") {
            true => Err(AttachError::Invalid(format!(
                "{}: a port of a process's namespace needs a name; --name gives it one",
                self.netns
            ))),
            false => Ok(last.to_owned()),
        }
    }

    fn device(&self) -> &str {
        self.device.as_deref().unwrap_or("eth0")
    }

    fn check(&self) -> Result<(), AttachError> {
        let wrong = |why: String| Err(AttachError::Invalid(why));
        if self.create && self.netns.contains('/') {
            return wrong(format!("{}: only a namespace with a name can be made, not a path", self.netns));
        }
        if let Some(mtu) = self.mtu.filter(|mtu| !MTU_LIMITS.contains(mtu)) {
            return wrong(format!("an MTU of {mtu}: {} to {} are expected", MTU_LIMITS.start(), MTU_LIMITS.end()));
        }
        let families = [true, false].map(|v4| self.addresses.iter().any(|a| a.address.is_ipv4() == v4));
        let vias = self.gateways.iter().chain(self.routes.iter().filter_map(|route| route.via.as_ref()));
        if let Some(via) = vias.into_iter().find(|via| !families[usize::from(!via.is_ipv4())]) {
            return wrong(format!("the gateway {via}: the device gets no address of its family"));
        }
        for (i, gateway) in self.gateways.iter().enumerate() {
            if self.gateways[..i].iter().any(|other| other.is_ipv4() == gateway.is_ipv4()) {
                return wrong(format!("the gateway {gateway}: there is another one of its family"));
            }
        }
        given_once(&self.settings)?;
        match self.settings.iter().find(|word| SET_ITSELF.contains(&word.split('=').next().unwrap_or_default())) {
            Some(word) => wrong(format!("{word}: an attachment sets this itself")),
            None => Ok(()),
        }
    }

    /// The settings of the port for a device with this address.
    fn words(&self, pair: &Pair, mac: [u8; 6]) -> Vec<String> {
        let mut words = vec![
            "kind=veth".to_owned(),
            format!("netns={}", pair.netns),
            format!("device={}", pair.device),
            format!("tenant_netns={}", self.netns),
            format!("tenant_device={}", self.device()),
        ];
        let given = |key: &str| self.settings.iter().any(|word| word.split('=').next() == Some(key));
        if !self.unlocked {
            words.push(format!("mac={}", mac_text(mac)));
            let addresses: Vec<String> = self.addresses.iter().map(|own| format!("\"{}\"", own.address)).collect();
            if !addresses.is_empty() && !given("ip") {
                words.push(format!("ip=[{}]", addresses.join(", ")));
            }
        }
        words.extend(self.settings.iter().cloned());
        words
    }
}

/// Attaches a namespace to the switch with this control socket: all of it, or nothing.
///
/// # Errors
/// The reason; what was made until then is undone.
pub fn attach(control: &Path, wanted: &Attach) -> Result<Attached, AttachError> {
    wanted.check()?;
    let port = wanted.port_name()?;
    // The words of the port are checked before anything is made.
    let place = Pair { netns: "any".into(), device: "any".into() };
    port_from_words(&port, &wanted.words(&place, [2, 0, 0, 0, 0, 1]))
        .map_err(|e| AttachError::Invalid(format!("port {port:?}: {}", e.sentence())))?;
    let about = about(control)?;
    let records = Records::at(control);
    let pair = Pair {
        netns: wanted.switch_netns.clone().unwrap_or_else(|| own_netns(&about.name)),
        device: device_name(&port),
    };
    let mut record = Record {
        port: port.clone(),
        netns: Some(wanted.netns.clone()),
        pair: Some(pair.clone()),
        own_netns: wanted.switch_netns.is_none().then(|| pair.netns.clone()),
        note: wanted.note.clone(),
        ..Record::default()
    };
    begin(&records, &record)?;
    match build(control, wanted, &about, &records, &mut record, &pair) {
        Ok(attached) => Ok(attached),
        Err(why) => match undo(control, &records, &record) {
            Ok(()) => Err(why),
            Err(undo) => Err(AttachError::Left { why: Box::new(why), undo: Box::new(undo) }),
        },
    }
}

/// Records an attachment, unless its port or its namespace is attached.
fn begin(records: &Records, record: &Record) -> Result<(), AttachError> {
    let _lock = records.lock().map_err(AttachError::Record)?;
    let netns = record.netns.as_deref().unwrap_or_default();
    let own = Namespace::open(netns).ok();
    let same = |other: &Record| {
        let theirs = other.netns.as_deref();
        other.port == record.port
            || theirs == Some(netns)
            || matches!((&own, theirs.map(Namespace::open)), (Some(own), Some(Ok(theirs))) if own.is(&theirs).unwrap_or(false))
    };
    if let Some(other) = records.all().map_err(AttachError::Record)?.into_iter().find(same) {
        let netns = other.netns.unwrap_or_else(|| netns.to_owned());
        return Err(AttachError::Already { port: other.port, netns });
    }
    records.write(record).map_err(AttachError::Record)
}

/// Makes everything; `record` says at each moment what was made.
fn build(
    control: &Path,
    wanted: &Attach,
    about: &About,
    records: &Records,
    record: &mut Record,
    pair: &Pair,
) -> Result<Attached, AttachError> {
    let (tenant_device, pair_there) = (wanted.device(), record.pair.take());
    let tenant = namespace(wanted, records, record)?;
    let switch = match &record.own_netns {
        Some(netns) => own(records, netns)?,
        None => Namespace::open(&pair.netns)?,
    };
    let gone = |why: KernelError| match Namespace::open(&wanted.netns) {
        Err(missing) => AttachError::NoNamespace { netns: wanted.netns.clone(), why: missing },
        Ok(_) => AttachError::Kernel(why),
    };
    if tenant.enter(|| Links::open()?.find(tenant_device)).and_then(|found| found).map_err(gone)?.is_some() {
        return Err(AttachError::Invalid(format!("namespace {} has a device {tenant_device} already", wanted.netns)));
    }
    switch.enter(|| Links::open()?.create_veth(&pair.device, tenant_device, &tenant))??;
    record.pair = pair_there;
    let mtu = wanted.mtu.or(about.mtu).unwrap_or(MTU);
    let switch_device = switch.enter(|| {
        let mut links = Links::open()?;
        links.set_mtu(&pair.device, mtu)?;
        links.up(&pair.device)?;
        links.get(&pair.device)
    })??;
    let configured = tenant.enter(|| configure(wanted, tenant_device, mtu));
    let device = configured.and_then(|configured| configured).map_err(gone)?;
    record.settings = wanted.words(pair, device.mac);
    // Recorded before it is asked for: a command that is killed meanwhile leaves a port that `detach` removes.
    record.added = true;
    records.write(record).map_err(AttachError::Record)?;
    // A switch that refuses it has no such port, or one of that name which is another's.
    request(control, &Request::AddPort { name: record.port.clone(), settings: record.settings.clone() })
        .inspect_err(|e| record.added = may_be_done(e))?;
    Ok(Attached { port: record.port.clone(), device, switch_netns: pair.netns.clone(), switch_device })
}

/// Opens the namespace, or makes it.
fn namespace(wanted: &Attach, records: &Records, record: &mut Record) -> Result<Namespace, AttachError> {
    match Namespace::open(&wanted.netns) {
        Ok(namespace) => Ok(namespace),
        Err(e) if wanted.create && e.why().kind() == ErrorKind::NotFound => {
            let made = Namespace::create_lasting(&wanted.netns)?;
            record.made_netns = Some(made.identity()?);
            records.write(record).map_err(AttachError::Record)?;
            Ok(made)
        }
        Err(why) => Err(AttachError::NoNamespace { netns: wanted.netns.clone(), why }),
    }
}

/// The namespace of the switch's ends, made if it does not exist: nobody has an address in it.
fn own(records: &Records, name: &str) -> Result<Namespace, AttachError> {
    let _lock = records.lock().map_err(AttachError::Record)?;
    match Namespace::open(name) {
        Err(e) if e.why().kind() == ErrorKind::NotFound => {
            let made = Namespace::create_lasting(name)?;
            made.silence()?;
            Ok(made)
        }
        other => Ok(other?),
    }
}

/// Gives the namespace's device its addresses and routes.
fn configure(wanted: &Attach, device: &str, mtu: u32) -> Result<Link, KernelError> {
    let mut links = Links::open()?;
    if let Some(mac) = wanted.mac {
        links.set_mac(device, mac)?;
    }
    links.set_mtu(device, mtu)?;
    add_addresses(&mut links, device, &wanted.addresses)?;
    links.up(device)?;
    let default_of = |gateway: &IpAddr| {
        let all: IpAddr = if gateway.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        Route::plain(Prefix { address: all, bits: 0 }, Some(*gateway))
    };
    let routes: Vec<Route> = wanted.routes.iter().copied().chain(wanted.gateways.iter().map(default_of)).collect();
    add_routes(&mut links, device, &routes)?;
    links.get(device)
}

fn add_addresses(links: &mut Links, device: &str, addresses: &[Prefix]) -> Result<(), KernelError> {
    addresses.iter().try_for_each(|Prefix { address, bits }| links.add_address(device, *address, *bits))
}

fn add_routes(links: &mut Links, device: &str, routes: &[Route]) -> Result<(), KernelError> {
    routes.iter().try_for_each(|route| links.add_route(device, &route.of_the_kernel()))
}

/// Gives the device of an attached namespace addresses and routes that were not known before, from DHCP for example.
///
/// # Errors
/// The namespace or the device has gone, or the kernel refuses one of them.
pub fn configure_later(netns: &str, device: &str, addresses: &[Prefix], routes: &[Route]) -> Result<(), AttachError> {
    Namespace::open(netns)?.enter(|| {
        let mut links = Links::open()?;
        add_addresses(&mut links, device, addresses)?;
        add_routes(&mut links, device, routes)
    })??;
    Ok(())
}

/// The namespace in which a switch keeps its ends.
fn own_netns(switch: &str) -> String {
    match switch {
        "sluicenet" => "sluicenet".into(),
        other => format!("sluicenet-{other}"),
    }
}

/// A name for the switch's end: that of the port, or a hash of it if it is too long for a device.
fn device_name(port: &str) -> String {
    if port.len() <= 15 {
        return port.to_owned();
    }
    // FNV-1a, of 52 bits: two ports of one switch do not meet, and if they did, the kernel would refuse the second.
    let hash = port
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("p{:013x}", hash >> 12)
}

#[cfg(test)]
mod tests;
