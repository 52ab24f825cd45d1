//! Checks of texts in a switch's file: errors are found when the file is read, not when the text is used.

use sluicenet_scenario::Result;
use sluicenet_scenario::section::Section;

/// Bytes of the path of a Unix socket, less its end (unix(7)).
const SOCKET_BYTES_MAX: usize = 107;
/// Bytes of a device's name, less its end (`IFNAMSIZ`).
const DEVICE_BYTES_MAX: usize = 15;
/// Bytes of any other path.
const PATH_BYTES_MAX: usize = 4095;

/// A non-empty text without control characters.
fn plain<'a>(section: &Section<'a>, name: &str, bytes_max: usize) -> Result<Option<&'a str>> {
    let Some(text) = section.text(name)? else { return Ok(None) };
    let why = match text {
        "" => "it is empty".to_owned(),
        _ if text.chars().any(char::is_control) => "there is a control character in it".to_owned(),
        _ if text.len() > bytes_max => format!("it has {} bytes, {bytes_max} is the most", text.len()),
        _ => return Ok(Some(text)),
    };
    Err(section.error(name, format!("`{name}`: {why}")))
}

/// The path of a Unix socket.
pub(super) fn socket<'a>(section: &Section<'a>, name: &str) -> Result<Option<&'a str>> {
    plain(section, name, SOCKET_BYTES_MAX)
}

/// The path of a file, or the name of a user.
pub(super) fn word<'a>(section: &Section<'a>, name: &str) -> Result<Option<&'a str>> {
    plain(section, name, PATH_BYTES_MAX)
}

/// A network device's name, as Linux takes it.
pub(super) fn device<'a>(section: &Section<'a>, name: &str) -> Result<Option<&'a str>> {
    let device = plain(section, name, DEVICE_BYTES_MAX)?;
    match device {
        Some(text) if !is_device(text) => {
            Err(section.error(name, "this is no device's name").expected("up to 15 bytes without spaces, `/` and `:`"))
        }
        _ => Ok(device),
    }
}

/// Whether this is a valid name of a device.
pub(super) fn is_device(text: &str) -> bool {
    let strange = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
    (1..=DEVICE_BYTES_MAX).contains(&text.len()) && text != "." && text != ".." && !text.chars().any(strange)
}

/// A namespace, by its name or its path.
pub(super) fn namespace<'a>(section: &Section<'a>, name: &str) -> Result<Option<&'a str>> {
    let text = plain(section, name, PATH_BYTES_MAX)?;
    match text {
        Some(t) if t == "." || t == ".." || t.contains('/') && !t.starts_with('/') => Err(section
            .error(name, "this is no namespace")
            .expected("a name, as red1, or a path, as /proc/1234/ns/net")),
        _ => Ok(text),
    }
}
