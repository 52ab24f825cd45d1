//! Attaches a network namespace to a running switch, and undoes it: the namespace, the veth pair, its addresses and routes, and
//! the port. This runs in the process that asks for it, with its privileges; the switch only adds and removes the port.
//!
//! Everything is recorded before it is made. So a detachment finds all parts, also those of an attachment that was killed, and
//! the switch opens its ports again when it starts again.

mod address;
pub mod record;

use crate::config::{port_from_words, veth_keys};
use crate::control::{About, Answer, Refusal, Request, ask, reached_nobody};
use crate::status::mac_text;
pub use address::{Prefix, Route};
use record::{Pair, Record, Records};
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::{Link, Links};
use sluicenet_dataplane::kernel::netns::Namespace;
use std::fmt;
use std::io::{self, ErrorKind};
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

/// Why a namespace was not attached, or not detached. Nothing of a failed attachment is left, except where the message says so.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// The request contradicts itself, or a value is none.
    Invalid(String),
    /// The port, or the namespace, is attached already.
    Already {
        /// The port.
        port: String,
        /// The namespace.
        netns: String,
    },
    /// The namespace does not exist, or went away meanwhile.
    NoNamespace {
        /// The namespace.
        netns: String,
        /// The failed request.
        why: KernelError,
    },
    /// No switch answers.
    NoSwitch(io::Error),
    /// The switch does not take the port.
    Refused(String),
    /// The switch has no such port.
    NoSuchPort(String),
    /// The switch serves as many connections as it can, and has not read the request.
    Busy(String),
    /// The switch was asked and has not answered. It may have done what it was asked for.
    Unanswered(io::Error),
    /// The kernel refused a request.
    Kernel(KernelError),
    /// The record of attachments cannot be read or written.
    Record(io::Error),
    /// The attachment failed, and so did the attempt to undo it.
    Left {
        /// The first error.
        why: Box<AttachError>,
        /// The error of the attempt to undo it.
        undo: Box<AttachError>,
    },
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Invalid(why) | AttachError::Refused(why) | AttachError::NoSuchPort(why) => write!(f, "{why}"),
            AttachError::Busy(why) => write!(f, "the switch is busy: {why}; try again later"),
            AttachError::Unanswered(why) => {
                write!(f, "{why}: the switch was asked and has not answered; `sluicenet switch show` tells its ports")
            }
            AttachError::Already { port, netns } => write!(
                f,
                "namespace {netns} is attached already, as port {port}; `sluicenet switch detach {port}` undoes that"
            ),
            AttachError::NoNamespace { netns, why } => {
                write!(f, "{why}")?;
                match netns.starts_with('/') {
                    true => Ok(()),
                    false => write!(f, "; --create makes a namespace {netns}"),
                }
            }
            AttachError::NoSwitch(why) => write!(f, "{why}"),
            AttachError::Kernel(why) => write!(f, "{why}"),
            AttachError::Record(why) => write!(f, "the record of attachments: {why}"),
            AttachError::Left { why, undo } => write!(f, "{why}; not all of it could be undone: {undo}"),
        }
    }
}

impl std::error::Error for AttachError {}

impl From<KernelError> for AttachError {
    fn from(why: KernelError) -> AttachError {
        AttachError::Kernel(why)
    }
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

/// Detaches the port, or the namespace, of this name: the port, the pair and, if `attach` made it, the namespace are removed,
/// if they still exist. The switch need not run. Returns the record of the attachment; `None` if there is none.
///
/// # Errors
/// A part of it could not be removed. The attachment stays recorded, and can be detached again.
pub fn detach(control: &Path, port_or_netns: &str) -> Result<Option<Record>, AttachError> {
    let records = Records::at(control);
    let all = records.all().map_err(AttachError::Record)?;
    let short =
        |netns: &str| netns.strip_prefix("/run/netns/").or(netns.strip_prefix("/var/run/netns/")).map(str::to_owned);
    let name = short(port_or_netns).unwrap_or_else(|| port_or_netns.to_owned());
    let netns = |record: &Record| record.netns.as_deref().map(|netns| short(netns).unwrap_or_else(|| netns.to_owned()));
    let by_port = all.iter().position(|record| record.port == port_or_netns);
    let Some(at) = by_port.or_else(|| all.iter().position(|record| netns(record).as_deref() == Some(&name))) else {
        return Ok(None);
    };
    undo(control, &records, &all[at])?;
    Ok(all.into_iter().nth(at))
}

/// Removes all parts of an attachment that still exist, and then its record.
fn undo(control: &Path, records: &Records, record: &Record) -> Result<(), AttachError> {
    if record.added {
        match request(control, &Request::DelPort { name: record.port.clone() }) {
            // A switch that does not run has no ports.
            Ok(_) | Err(AttachError::NoSuchPort(_) | AttachError::NoSwitch(_)) => {}
            // It may still have the port, and would serve it without a record.
            Err(e) => return Err(e),
        }
    }
    let missing = |e: &KernelError| e.why().kind() == ErrorKind::NotFound;
    // First, so that an attempt after a failure still finds the pair, which tells whose namespace it is.
    if let (Some(made), Some(netns)) = (record.made_netns, &record.netns) {
        match Namespace::open(netns) {
            // Another namespace of this name is not ours. The kernel gives numbers of namespaces again, but a pair ends with the
            // namespace that one of its devices is in.
            Ok(namespace) if namespace.identity()? == made && has_its_pair(record)? => Namespace::delete(netns)?,
            Ok(_) => {}
            Err(e) if missing(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    if let Some(pair) = &record.pair {
        match Namespace::open(&pair.netns) {
            Ok(switch) => switch.enter(|| -> Result<(), KernelError> {
                let mut links = Links::open()?;
                match links.find(&pair.device)? {
                    // It may go away meanwhile, with the namespace of its other end.
                    Some(_) => links.delete(&pair.device).or_else(|e| match links.find(&pair.device)? {
                        None => Ok(()),
                        Some(_) => Err(e),
                    }),
                    None => Ok(()),
                }
            })??,
            Err(e) if missing(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let _lock = records.lock().map_err(AttachError::Record)?;
    records.remove(&record.port).map_err(AttachError::Record)?;
    match &record.own_netns {
        Some(netns) => remove_if_empty(records, netns),
        None => Ok(()),
    }
}

/// Whether the pair of an attachment exists, if it was made.
fn has_its_pair(record: &Record) -> Result<bool, AttachError> {
    let Some(pair) = &record.pair else { return Ok(true) };
    match Namespace::open(&pair.netns) {
        Ok(switch) => Ok(switch.enter(|| Links::open()?.find(&pair.device))??.is_some()),
        Err(e) if e.why().kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Removes the namespace of the switch's ends after the last one.
fn remove_if_empty(records: &Records, netns: &str) -> Result<(), AttachError> {
    let used = |record: &Record| record.own_netns.as_deref() == Some(netns);
    if records.all().map_err(AttachError::Record)?.iter().any(used) {
        return Ok(());
    }
    let Ok(namespace) = Namespace::open(netns) else { return Ok(()) };
    if namespace.enter(|| Links::open()?.count())?? == 0 {
        Namespace::delete(netns)?;
    }
    Ok(())
}

/// Adds a port to a switch, and records it, so that the switch opens it again when it starts again.
///
/// # Errors
/// The switch refuses the port, or the record cannot be written.
pub fn add_port(control: &Path, name: &str, settings: &[String]) -> Result<String, AttachError> {
    given_once(settings)?;
    port_from_words(name, settings).map_err(|e| AttachError::Invalid(format!("port {name:?}: {}", e.sentence())))?;
    let records = Records::at(control);
    // As in an attachment, the record says that the switch was asked, before it is.
    let record = Record { port: name.to_owned(), settings: settings.to_vec(), added: true, ..Record::default() };
    {
        let _lock = records.lock().map_err(AttachError::Record)?;
        if let Some(other) = records.get(name).map_err(AttachError::Record)? {
            return Err(AttachError::Refused(format!("there is a port {} already", other.port)));
        }
        records.write(&record).map_err(AttachError::Record)?;
    }
    let added = request(control, &Request::AddPort { name: name.to_owned(), settings: settings.to_vec() });
    if added.as_ref().is_err_and(|e| !may_be_done(e)) {
        records.remove(name).map_err(AttachError::Record)?;
    }
    added
}

/// Removes a port from a switch, and from the record. A port of an attachment is refused.
///
/// # Errors
/// The switch has no such port, or the record cannot be written.
pub fn remove_port(control: &Path, name: &str) -> Result<String, AttachError> {
    let records = Records::at(control);
    if records.get(name).map_err(AttachError::Record)?.is_some_and(|record| record.netns.is_some()) {
        let why = format!("port {name} was attached with its namespace: `sluicenet switch detach {name}` removes both");
        return Err(AttachError::Refused(why));
    }
    let removed = request(control, &Request::DelPort { name: name.to_owned() });
    // A port that the switch does not have, as one that its start left out, may still have a record.
    if matches!(removed, Ok(_) | Err(AttachError::NoSuchPort(_))) {
        records.remove(name).map_err(AttachError::Record)?;
    }
    removed
}

/// The name and the MTU of the switch.
fn about(control: &Path) -> Result<About, AttachError> {
    match answer(control, &Request::About)? {
        // A namespace is named after it, with the privileges of whoever asks; the switch has none.
        Answer::About(about) if is_file_name(&about.name) => Ok(about),
        Answer::About(about) => Err(AttachError::Refused(format!("{:?}: this is no name of a switch", about.name))),
        other => Err(AttachError::Refused(format!("an answer that is none: {other:?}"))),
    }
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0'])
}

fn request(control: &Path, request: &Request) -> Result<String, AttachError> {
    match answer(control, request)? {
        Answer::Ok(text) => Ok(text),
        other => Err(AttachError::Refused(format!("an answer that is none: {other:?}"))),
    }
}

/// The answer of a switch that has done what it was asked for.
fn answer(control: &Path, request: &Request) -> Result<Answer, AttachError> {
    match ask(control, request) {
        Ok(Answer::Error(why)) => Err(AttachError::Refused(why)),
        Ok(Answer::Refused { error, reason: Refusal::NoSuchPort }) => Err(AttachError::NoSuchPort(error)),
        Ok(Answer::Refused { error, reason: Refusal::Busy }) => Err(AttachError::Busy(error)),
        Ok(answer) => Ok(answer),
        Err(e) if reached_nobody(&e) => Err(AttachError::NoSwitch(e)),
        Err(e) => Err(AttachError::Unanswered(e)),
    }
}

/// Whether a switch may have done what it was asked for, though this error came.
fn may_be_done(e: &AttachError) -> bool {
    matches!(e, AttachError::Unanswered(_))
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
mod tests {
    use super::*;
    use sluicenet_testkit::Dir;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;
    use std::thread::JoinHandle;

    fn wanted(netns: &str) -> Attach {
        Attach { netns: netns.into(), addresses: vec!["10.0.0.1/24".parse().unwrap()], ..Attach::default() }
    }

    #[test]
    fn a_port_has_the_name_of_its_namespace() {
        for (netns, name) in [("red1", "red1"), ("/run/netns/cni-1", "cni-1")] {
            assert_eq!(wanted(netns).port_name().unwrap(), name);
        }
        assert!(matches!(wanted("/proc/12/ns/net").port_name(), Err(AttachError::Invalid(_))));
        assert_eq!(device_name("red1"), "red1");
        let long = device_name("a-port-with-a-long-name");
        assert!(long.len() <= 15 && long != device_name("a-port-with-a-long-name2"), "{long}");
    }

    #[test]
    fn a_setting_that_is_given_twice_is_refused() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        given_once(&words(&["tenant=7", "rate=10 Mb/s"])).unwrap();
        let twice = words(&["tenant=7", "rate=10 Mb/s", "tenant = 8"]);
        let refused = Attach { settings: twice.clone(), ..wanted("red1") }.check();
        for refused in [refused, add_port(Path::new("vs.sock"), "a", &twice).map(drop)] {
            assert!(
                matches!(&refused, Err(AttachError::Invalid(why)) if why == "tenant = 8: `tenant` is given twice"),
                "{refused:?}"
            );
        }
    }

    /// A switch that answers requests in turn with these lines; with an empty one it hangs up.
    fn switch(folder: &Dir, answers: &'static [&'static str]) -> (PathBuf, JoinHandle<Vec<String>>) {
        let control = folder.0.join("vs.sock");
        let _ = std::fs::remove_file(&control);
        let listener = UnixListener::bind(&control).unwrap();
        let serve = move |answer: &&str| {
            let (stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            (&stream).write_all(answer.as_bytes()).unwrap();
            request
        };
        (control, std::thread::spawn(move || answers.iter().map(serve).collect()))
    }

    const BUSY: &str = "{\"refused\":{\"error\":\"128 connections are open\",\"reason\":\"busy\"}}\n";

    const NO_PORT: &str = "{\"refused\":{\"error\":\"there is no port a\",\"reason\":\"no-such-port\"}}\n";

    #[test]
    fn a_port_that_may_be_there_keeps_its_record() {
        let folder = Dir::new("attach-unanswered");
        let add = |answer: &'static [&'static str]| {
            let (control, served) = switch(&folder, answer);
            let added = add_port(&control, "a", &["kind=shm".to_owned()]);
            assert!(served.join().unwrap()[0].contains("add-port"));
            (added, Records::at(&control).get("a").unwrap().map(|record| record.added))
        };
        let (added, record) = add(&["{\"error\":\"no room\"}\n"]);
        assert!(matches!(&added, Err(AttachError::Refused(why)) if why == "no room") && record.is_none(), "{added:?}");
        let (added, record) = add(&[BUSY]);
        assert!(matches!(added, Err(AttachError::Busy(_))) && record.is_none(), "{added:?}");
        let (added, record) = add(&[""]);
        assert!(matches!(added, Err(AttachError::Unanswered(_))) && record == Some(true), "{added:?}");
        // Nor does it lose it before the switch says that there is no such port.
        let remove = |answer: &'static [&'static str]| {
            let (control, served) = switch(&folder, answer);
            let removed = remove_port(&control, "a").unwrap_err();
            assert!(served.join().unwrap()[0].contains("del-port"));
            (removed, Records::at(&control).get("a").unwrap().is_some())
        };
        assert!(matches!(remove(&[BUSY]), (AttachError::Busy(_), true)));
        assert!(matches!(remove(&[""]), (AttachError::Unanswered(_), true)));
        assert!(matches!(remove(&[NO_PORT]), (AttachError::NoSuchPort(_), false)));
    }

    #[test]
    fn no_namespace_is_named_as_a_switch_likes() {
        let folder = Dir::new("attach-about");
        let (control, served) =
            switch(&folder, &["{\"about\":{\"name\":\"../../x\",\"mtu\":null,\"ports_free\":1}}\n"]);
        let refused = attach(&control, &wanted("red1")).unwrap_err().to_string();
        assert_eq!(refused, "\"../../x\": this is no name of a switch");
        assert_eq!((served.join().unwrap().len(), Records::at(&control).all().unwrap()), (1, vec![]));
    }

    #[test]
    fn nothing_is_undone_while_the_switch_may_have_the_port() {
        let folder = Dir::new("attach-undo");
        let undone = |answers: &'static [&'static str]| {
            let (control, served) = switch(&folder, answers);
            let records = Records::at(&control);
            drop(records.lock().unwrap());
            records.write(&Record { port: "a".into(), added: true, ..Record::default() }).unwrap();
            let detached = detach(&control, "a");
            assert_eq!(served.join().unwrap().len(), answers.len());
            (detached.map(|record| record.is_some()), records.get("a").unwrap().is_some())
        };
        assert!(matches!(undone(&[BUSY]), (Err(AttachError::Busy(_)), true)));
        assert!(matches!(undone(&[""]), (Err(AttachError::Unanswered(_)), true)));
        assert!(matches!(undone(&["{\"error\":\"not now\"}\n"]), (Err(AttachError::Refused(_)), true)));
        assert!(matches!(undone(&[NO_PORT]), (Ok(true), false)));
        // No switch runs.
        std::fs::remove_file(folder.0.join("vs.sock")).unwrap();
        let records = Records::at(&folder.0.join("vs.sock"));
        records.write(&Record { port: "a".into(), added: true, ..Record::default() }).unwrap();
        assert!(detach(&folder.0.join("vs.sock"), "a").unwrap().is_some());
        assert_eq!(records.all().unwrap(), []);
    }

    #[test]
    fn what_contradicts_itself_is_refused_before_anything_is_made() {
        let v6: IpAddr = "fd00::1".parse().unwrap();
        let v4: IpAddr = "10.0.0.254".parse().unwrap();
        for (attach, words) in [
            (Attach { create: true, ..wanted("/run/netns/a") }, "only a namespace with a name can be made"),
            (Attach { mtu: Some(67), ..wanted("a") }, "an MTU of 67: 68 to 65535 are expected"),
            (Attach { gateways: vec![v6], ..wanted("a") }, "the gateway fd00::1: the device gets no address"),
            (Attach { gateways: vec![v4, v4], ..wanted("a") }, "there is another one of its family"),
            (Attach { settings: vec!["kind=tap".into()], ..wanted("a") }, "kind=tap: an attachment sets this itself"),
        ] {
            let error = attach.check().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_port_is_locked_to_its_addresses_unless_it_is_not_to_be() {
        let pair = Pair { netns: "sluicenet".into(), device: "red1".into() };
        let words = wanted("red1").words(&pair, [2, 0, 0, 0, 0, 10]);
        assert!(words.contains(&"mac=02:00:00:00:00:0a".to_owned()) && words.contains(&"ip=[\"10.0.0.1\"]".to_owned()));
        let open = Attach { unlocked: true, ..wanted("red1") }.words(&pair, [2, 0, 0, 0, 0, 10]);
        assert!(open.iter().all(|word| !word.starts_with("mac=") && !word.starts_with("ip=")), "{open:?}");
    }
}
