//! The settings in the environment: the port, its switch and the address.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

/// The settings of this library.
#[derive(Debug)]
pub struct Wanted {
    /// The switch's control socket.
    pub control: String,
    /// Ports of the switch, of which each process takes the first free one.
    pub ports: Vec<String>,
    pub address: Ipv4Addr,
    pub prefix: u8,
    /// Whether sockets at no address in particular are light.
    pub any: bool,
    pub mtu: Option<u16>,
    pub dead_after: Option<Duration>,
    /// Bytes that all streams of a process take ahead of their readers.
    pub memory: Option<u64>,
    /// How long a program may leave datagrams unread before it loses some; `None` inside: for ever.
    pub stall: Option<Option<Duration>>,
}

impl Wanted {
    /// Whether sockets at this address are light, for a program that binds one.
    pub fn is_own(&self, ip: Ipv4Addr) -> bool {
        ip == self.address || (ip.is_unspecified() && self.any)
    }

    /// The host of a process.
    pub fn config(&self) -> light::Config {
        let mut config = light::Config::new(self.address, self.prefix);
        config.mtu = self.mtu.unwrap_or(config.mtu);
        config.dead_after = self.dead_after.unwrap_or(config.dead_after);
        config.memory = self.memory.unwrap_or(config.memory);
        config.stall = self.stall.unwrap_or(config.stall);
        config
    }

    /// Whether sockets to this address are light.
    pub fn reaches(&self, ip: Ipv4Addr) -> bool {
        let config = light::Config::new(self.address, self.prefix);
        !ip.is_unspecified() && !ip.is_broadcast() && !ip.is_multicast() && config.reaches(ip)
    }
}

/// The settings, if there are any. Invalid ones are reported once on stderr, and then no socket is light.
pub fn wanted() -> Option<&'static Wanted> {
    // No lock: a child that another thread forks meanwhile would wait for it for ever. Of several threads that ask at once,
    // one wins.
    static WANTED: AtomicPtr<Option<Wanted>> = AtomicPtr::new(std::ptr::null_mut());
    let mut known = WANTED.load(Ordering::Acquire);
    if known.is_null() {
        let (wanted, wrong) = match parse(|name| std::env::var(name).ok()) {
            Ok(wanted) => (wanted, None),
            Err(why) => (None, Some(why)),
        };
        let names: Vec<_> = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect();
        let wrong: Vec<String> = unread(names.iter().map(String::as_str)).into_iter().chain(wrong).collect();
        let read = Box::into_raw(Box::new(wanted));
        match WANTED.compare_exchange(known, read, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                known = read;
                wrong.iter().for_each(|why| say(why));
            }
            Err(others) => {
                known = others;
                // SAFETY: made just now, and not yet shared.
                drop(unsafe { Box::from_raw(read) });
            }
        }
    }
    // SAFETY: made once, and there for good.
    unsafe { &*known }.as_ref()
}

/// Writes a message to stderr.
pub fn say(what: &str) {
    let line = format!("libsluicenet_socket: {what}\n");
    // SAFETY: bytes of ours, to a descriptor that need not be open.
    unsafe { crate::kernel::write(2, line.as_ptr().cast(), line.len()) };
}

/// The variables of this library, and their names in a host's configuration.
const VARIABLES: [(&str, &str); 8] = [
    (PORT, ""),
    ("SLUICENET_CONTROL", ""),
    ("SLUICENET_ADDRESS", "address"),
    ("SLUICENET_ANY", ""),
    ("SLUICENET_MTU", "mtu"),
    ("SLUICENET_DEAD_AFTER_MS", "dead_after"),
    ("SLUICENET_MEMORY_MB", "memory"),
    ("SLUICENET_STALL_MS", ""),
];
const PORT: &str = "SLUICENET_PORT";

/// Warnings about names that are not read: a misspelt name would otherwise be ignored in silence.
fn unread<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let known = |name: &str| VARIABLES.iter().any(|v| v.0 == name);
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        names.filter(|name| name.starts_with("SLUICENET_")).partition(|name| known(name));
    if known.is_empty() {
        return Vec::new();
    }
    let all = VARIABLES.map(|v| v.0).join(", ");
    let mut said: Vec<String> = unknown.iter().map(|name| format!("{name} is not read: there are {all}")).collect();
    if !known.contains(&PORT) {
        said.push(format!("{} is set, {PORT} is not: every socket is the kernel's", known[0]));
    }
    said
}

fn parse(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Wanted>, String> {
    let Some(ports) = variable(PORT) else { return Ok(None) };
    let wrong = |name: &str, text: &str, expected: &str| {
        format!("{name}={text}: {expected} is expected; until then every socket is the kernel's")
    };
    let names: Vec<String> = ports.split(',').map(|port| port.trim().to_owned()).collect();
    if names.iter().any(String::is_empty) {
        return Err(wrong(PORT, &ports, "a port's name, or several with commas between them,"));
    }
    let needed =
        |name: &str| variable(name).ok_or(format!("{PORT} is set, {name} is not: every socket is the kernel's"));
    let control = needed("SLUICENET_CONTROL")?;
    let address = needed("SLUICENET_ADDRESS")?;
    let with_prefix = || wrong("SLUICENET_ADDRESS", &address, "an address with its prefix, such as 10.1.0.2/24,");
    let (ip, prefix) = address.split_once('/').ok_or_else(with_prefix)?;
    let ip: Ipv4Addr = ip.parse().map_err(|_| with_prefix())?;
    // With a shorter prefix, the light network would take this machine's own addresses, 127.0.0.1 among them.
    let prefix = prefix.parse().ok().filter(|prefix: &u8| (8..=32).contains(prefix));
    let prefix = prefix.ok_or_else(|| wrong("SLUICENET_ADDRESS", &address, "a prefix of 8 to 32 bits"))?;
    let any = match variable("SLUICENET_ANY").as_deref() {
        None | Some("kernel") => false,
        Some("light") => true,
        Some(other) => return Err(wrong("SLUICENET_ANY", other, "light or kernel")),
    };
    let number = |name: &str| {
        let whole = |text: String| text.parse::<u64>().map_err(|_| wrong(name, &text, "a whole number"));
        variable(name).map(whole).transpose()
    };
    let mtu = number("SLUICENET_MTU")?.map(|mtu| u16::try_from(mtu).unwrap_or(u16::MAX));
    let dead_after = number("SLUICENET_DEAD_AFTER_MS")?.map(Duration::from_millis);
    let memory = number("SLUICENET_MEMORY_MB")?.map(|mb| mb.saturating_mul(1_000_000));
    let stall = match variable("SLUICENET_STALL_MS").as_deref() {
        Some("off") => Some(None),
        Some(text) => {
            let ms = text.parse().ok().filter(|&ms: &u64| ms > 0);
            let ms = ms.ok_or_else(|| wrong("SLUICENET_STALL_MS", text, "a whole number of at least 1, or off,"))?;
            Some(Some(Duration::from_millis(ms)))
        }
        None => None,
    };
    let wanted = Wanted { control, ports: names, address: ip, prefix, any, mtu, dead_after, memory, stall };
    wanted.config().check().map_err(|(field, expected)| {
        let name = VARIABLES.iter().find(|v| v.1 == field).map_or(field, |v| v.0);
        wrong(name, &variable(name).unwrap_or_default(), expected)
    })?;
    Ok(Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 3] =
        [("SLUICENET_PORT", "a, b"), ("SLUICENET_CONTROL", "/run/vs"), ("SLUICENET_ADDRESS", "10.1.0.2/24")];

    fn with(changed: &[(&str, &str)]) -> Result<Option<Wanted>, String> {
        let find = |all: &[(&str, &str)], name: &str| all.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
        parse(|name| find(changed, name).or_else(|| find(&GOOD, name)))
    }

    #[test]
    fn a_stall_is_a_time_or_none() {
        let stall = |text| with(&[("SLUICENET_STALL_MS", text)]).unwrap().unwrap().config().stall;
        assert_eq!((stall("250"), stall("off")), (Some(Duration::from_millis(250)), None));
    }

    #[test]
    fn what_is_wrong_is_named_alone() {
        let all = with(&[]).unwrap().unwrap();
        assert_eq!((&all.ports[..], all.prefix, all.any), (&["a".to_owned(), "b".to_owned()][..], 24, false));
        for (name, text) in [
            ("SLUICENET_PORT", ""),
            ("SLUICENET_PORT", "a,,b"),
            ("SLUICENET_ADDRESS", "10.1.0.2"),
            ("SLUICENET_ADDRESS", "10.1.0/24"),
            ("SLUICENET_ADDRESS", "10.1.0.2/33"),
            ("SLUICENET_ADDRESS", "10.1.0.2/0"),
            ("SLUICENET_ADDRESS", "127.0.0.1/8"),
            ("SLUICENET_ADDRESS", "10.1.0.0/24"),
            ("SLUICENET_ADDRESS", "10.1.0.255/24"),
            ("SLUICENET_ANY", "yes"),
            ("SLUICENET_MTU", "1.5"),
            ("SLUICENET_MTU", "100"),
            ("SLUICENET_MTU", "70000"),
            ("SLUICENET_DEAD_AFTER_MS", "-1"),
            ("SLUICENET_DEAD_AFTER_MS", "5"),
            ("SLUICENET_MEMORY_MB", "0"),
            ("SLUICENET_MEMORY_MB", "much"),
            ("SLUICENET_STALL_MS", "0"),
            ("SLUICENET_STALL_MS", "never"),
        ] {
            let why = with(&[(name, text)]).err().unwrap_or_else(|| panic!("{name}={text} is taken"));
            assert!(why.starts_with(&format!("{name}={text}: ")), "{why}");
            assert_eq!(why.matches("SLUICENET_").count(), 1, "{why}");
        }
    }

    #[test]
    fn names_that_nobody_reads_are_said() {
        let said = |names: &[&str]| unread(names.iter().copied());
        assert!(said(&["PATH", "SLUICENET_DOCS"]).is_empty());
        assert!(said(&["SLUICENET_PORT", "SLUICENET_ADDRESS", "SLUICENET_CONTROL"]).is_empty());
        let wrong = said(&["SLUICENET_PROT", "SLUICENET_ADDRESS"]);
        assert_eq!(wrong.len(), 2);
        assert!(wrong[0].starts_with("SLUICENET_PROT is not read"), "{wrong:?}");
        assert!(wrong[1].starts_with("SLUICENET_ADDRESS is set, SLUICENET_PORT is not"), "{wrong:?}");
    }
}
