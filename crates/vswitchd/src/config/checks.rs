//! Texts of a switch's file that are checked when the file is read, not when they are used.

use sluicenet_proto::guard::{BadPrefix, Prefix};
use sluicenet_scenario::setting::{Kind, Section, Setting};
use sluicenet_scenario::tree::{Node, Value};
use sluicenet_scenario::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;

/// Bytes of the path of a Unix socket, less its end (unix(7)).
const SOCKET_BYTES_MAX: usize = 107;
/// Bytes of a device's name, less its end (`IFNAMSIZ`).
const DEVICE_BYTES_MAX: usize = 15;
/// Bytes of any other path.
const PATH_BYTES_MAX: usize = 4095;

/// Most addresses of one kind that a port lists: each frame is compared with all of them.
const LISTED_MAX: usize = 64;

/// Declares types of settings, each with its kind and its check.
macro_rules! checked {
    ($($(#[doc = $doc:literal])+ $name:ident($value:ty) = $kind:ident($check:ident),)+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Debug)]
        pub(crate) struct $name(pub $value);

        impl Setting for $name {
            type Limits = ();
            const ANY: () = ();

            fn kind(_: &()) -> Kind {
                Kind::$kind
            }

            fn read(s: &Section<'_>, name: &str, node: &Node, _: &()) -> Result<$name> {
                $check(s, name, node).map($name)
            }
        }
    )+};
}
checked!(
    /// The path of a Unix socket.
    SocketPath(String) = Text(socket),
    /// The path of a file, or the name of a user.
    Word(String) = Text(word),
    /// A network device's name, as Linux takes it.
    Device(String) = Text(device),
    /// A namespace, by its name or its path.
    Namespace(String) = Text(namespace),
    /// A name that can be part of a file's name and of a label.
    Name(String) = Text(label),
    /// The address of an endpoint.
    Mac([u8; 6]) = Text(mac),
    /// The IPv4 address of one machine.
    Address(Ipv4Addr) = Text(ipv4),
    /// An IPv4 address and a port.
    Socket(SocketAddrV4) = Text(socket_address),
    /// An address at which metrics are served; without a host only this machine reaches it.
    Listener(SocketAddr) = Text(listener),
    /// The addresses of several endpoints.
    Macs(Vec<[u8; 6]>) = Texts(macs),
    /// The IPv4 addresses of one machine.
    Addresses(Vec<Ipv4Addr>) = Texts(addresses),
    /// Folders by their paths.
    Folders(Vec<PathBuf>) = Texts(folders),
    /// The MAC addresses of one endpoint.
    OwnMacs(Vec<[u8; 6]>) = TextOrTexts(own_macs),
    /// The IP addresses and networks of one endpoint.
    Prefixes(Vec<Prefix>) = TextOrTexts(prefixes),
);

/// Checks one text.
type Check<T> = fn(&Section<'_>, &str, &Node) -> Result<T>;

/// Checks each text of a list, which an error calls `what`.
fn each<T>(s: &Section<'_>, name: &str, node: &Node, what: &str, check: Check<T>) -> Result<Vec<T>> {
    let Value::List(list) = &node.value else { return Err(s.wrong(node, what)) };
    list.iter().map(|node| check(s, name, node)).collect()
}

/// Checks the addresses of an endpoint: one text, or a list of texts.
fn listed<T>(s: &Section<'_>, name: &str, node: &Node, check: Check<T>) -> Result<Vec<T>> {
    let nodes = match &node.value {
        Value::List(list) => &list[..],
        _ => std::slice::from_ref(node),
    };
    if nodes.is_empty() || nodes.len() > LISTED_MAX {
        let why = format!("`{name}` lists {} addresses", nodes.len());
        return Err(wrong(s, node, &why, &format!("1 to {LISTED_MAX}")));
    }
    nodes.iter().map(|node| check(s, name, node)).collect()
}

fn macs(s: &Section<'_>, name: &str, node: &Node) -> Result<Vec<[u8; 6]>> {
    each(s, name, node, "a list of MAC addresses", mac)
}

fn addresses(s: &Section<'_>, name: &str, node: &Node) -> Result<Vec<Ipv4Addr>> {
    each(s, name, node, "a list of IPv4 addresses", ipv4)
}

fn folders(s: &Section<'_>, name: &str, node: &Node) -> Result<Vec<PathBuf>> {
    Ok(each(s, name, node, "a list of folders", word)?.into_iter().map(PathBuf::from).collect())
}

fn own_macs(s: &Section<'_>, name: &str, node: &Node) -> Result<Vec<[u8; 6]>> {
    listed(s, name, node, mac)
}

fn prefixes(s: &Section<'_>, name: &str, node: &Node) -> Result<Vec<Prefix>> {
    listed(s, name, node, prefix)
}

/// Checks that a text is not empty, not too long, and without control characters.
fn plain(s: &Section<'_>, name: &str, node: &Node, bytes_max: usize) -> Result<String> {
    let text = s.text_of(node)?;
    let why = match text {
        "" => "it is empty".to_owned(),
        _ if text.chars().any(char::is_control) => "there is a control character in it".to_owned(),
        _ if text.len() > bytes_max => format!("it has {} bytes, {bytes_max} is the most", text.len()),
        _ => return Ok(text.to_owned()),
    };
    Err(s.doc.error(node.span, format!("`{name}`: {why}")))
}

/// An error at a text, with examples of valid texts.
fn wrong(s: &Section<'_>, node: &Node, message: &str, expected: &str) -> Error {
    s.doc.error(node.span, message).expected(expected)
}

fn socket(s: &Section<'_>, name: &str, node: &Node) -> Result<String> {
    plain(s, name, node, SOCKET_BYTES_MAX)
}

fn word(s: &Section<'_>, name: &str, node: &Node) -> Result<String> {
    plain(s, name, node, PATH_BYTES_MAX)
}

fn device(s: &Section<'_>, name: &str, node: &Node) -> Result<String> {
    let text = plain(s, name, node, DEVICE_BYTES_MAX)?;
    if is_device(&text) {
        return Ok(text);
    }
    Err(wrong(s, node, "this is no device's name", "up to 15 bytes without spaces, `/` and `:`"))
}

/// Whether a device can have this name.
pub(super) fn is_device(text: &str) -> bool {
    let strange = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    (1..=DEVICE_BYTES_MAX).contains(&text.len()) && text != "." && text != ".." && !text.chars().any(strange)
}

fn namespace(s: &Section<'_>, name: &str, node: &Node) -> Result<String> {
    let text = plain(s, name, node, PATH_BYTES_MAX)?;
    if text != "." && text != ".." && (!text.contains('/') || text.starts_with('/')) {
        return Ok(text);
    }
    Err(wrong(s, node, "this is no namespace", "a name, as red1, or a path, as /proc/1234/ns/net"))
}

fn label(s: &Section<'_>, _: &str, node: &Node) -> Result<String> {
    let text = s.text_of(node)?;
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if (1..=32).contains(&text.len()) && text.chars().all(fine) && !text.starts_with(['.', '-']) {
        return Ok(text.to_owned());
    }
    Err(wrong(s, node, "this is no name", "up to 32 letters, digits, `_`, and after the first `-` and `.`"))
}

fn mac(s: &Section<'_>, _: &str, node: &Node) -> Result<[u8; 6]> {
    let parts: Vec<Option<u8>> =
        s.text_of(node)?.split(':').map(|p| (p.len() == 2).then(|| u8::from_str_radix(p, 16).ok()).flatten()).collect();
    let address = <[Option<u8>; 6]>::try_from(parts).ok().filter(|parts| parts.iter().all(Option::is_some));
    let wrong = |message: &str| Err(wrong(s, node, message, "as 02:00:00:00:00:01"));
    match address.map(|parts| parts.map(Option::unwrap_or_default)) {
        None => wrong("this is no MAC address"),
        Some([0, 0, 0, 0, 0, 0]) => wrong("this address is nobody's"),
        Some(mac) if mac[0] & 1 != 0 => wrong("this address is of a group of machines"),
        Some(mac) => Ok(mac),
    }
}

fn ipv4(s: &Section<'_>, _: &str, node: &Node) -> Result<Ipv4Addr> {
    let wrong = |message: &str| wrong(s, node, message, "as 10.0.0.1");
    let address: Ipv4Addr = s.text_of(node)?.parse().map_err(|_| wrong("this is no IPv4 address"))?;
    if address.is_unspecified() || address.is_broadcast() || address.is_multicast() {
        return Err(wrong("this is not the address of one machine"));
    }
    Ok(address)
}

fn prefix(s: &Section<'_>, _: &str, node: &Node) -> Result<Prefix> {
    let expected = "as 10.0.0.1, 10.0.1.0/24, 2001:db8::1 or 2001:db8::/64";
    let prefix: Prefix = s.text_of(node)?.parse().map_err(|bad| match bad {
        BadPrefix::Unreadable => wrong(s, node, "this is no IP address and no network", expected),
        BadPrefix::Host => wrong(s, node, "this network has bits behind its length", expected)
            .hint("an endpoint's own address has no length: 10.0.1.7 instead of 10.0.1.7/24"),
    })?;
    let is_nobodys = match prefix.host() {
        Some(IpAddr::V4(address)) => address.is_unspecified() || address.is_broadcast() || address.is_multicast(),
        Some(IpAddr::V6(address)) => address.is_unspecified() || address.is_multicast(),
        None => false,
    };
    if is_nobodys {
        return Err(wrong(s, node, "this is not the address of one machine", expected));
    }
    Ok(prefix)
}

fn socket_address(s: &Section<'_>, _: &str, node: &Node) -> Result<SocketAddrV4> {
    let wrong = |_| wrong(s, node, "this is no address with a port", "as 172.16.0.1:49789");
    s.text_of(node)?.parse().map_err(wrong)
}

fn listener(s: &Section<'_>, _: &str, node: &Node) -> Result<SocketAddr> {
    let text = s.text_of(node)?;
    let local = || text.parse().map(|port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let wrong = |_| wrong(s, node, "this is no address to listen at", "as 9464, 127.0.0.1:9464 or [::]:9464");
    text.parse().or_else(|_| local()).map_err(wrong)
}
