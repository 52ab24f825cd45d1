//! The parameters of a call, in environment variables.

use super::error::{ENVIRONMENT, Error};
use std::ffi::OsString;
use std::path::PathBuf;

/// The bytes of a device's name, less its end (`IFNAMSIZ`).
const DEVICE_BYTES_MAX: usize = 15;

/// What the runtime asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Attach a container.
    Add,
    /// Undo an attachment.
    Del,
    /// Find out whether an attachment is as it was made.
    Check,
    /// Find out whether containers can be attached.
    Status,
    /// Undo all attachments but those that are listed.
    Gc,
    /// List the versions of the specification.
    Version,
}

impl Command {
    const ALL: [Command; 6] =
        [Command::Add, Command::Del, Command::Check, Command::Status, Command::Gc, Command::Version];

    /// As in `CNI_COMMAND`.
    pub fn name(self) -> &'static str {
        match self {
            Command::Add => "ADD",
            Command::Del => "DEL",
            Command::Check => "CHECK",
            Command::Status => "STATUS",
            Command::Gc => "GC",
            Command::Version => "VERSION",
        }
    }
}

/// The parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The container.
    pub container: String,
    /// The path of its network namespace; empty for DEL if it has gone.
    pub netns: String,
    /// The name of the device in it.
    pub ifname: String,
    /// Folders of plugins.
    pub path: Vec<PathBuf>,
    /// The device's address, from `MAC` in `CNI_ARGS`.
    pub mac: Option<String>,
    /// The pod's name, from `K8S_POD_NAME` in `CNI_ARGS`.
    pub pod: Option<String>,
}

/// Reads `CNI_COMMAND`.
pub fn command(get: impl Fn(&str) -> Option<OsString>) -> Result<Command, Error> {
    let text = variable(&get, "CNI_COMMAND")?;
    Command::ALL.into_iter().find(|command| command.name() == text).ok_or_else(|| {
        let names = Command::ALL.map(Command::name).join(", ");
        match text.as_str() {
            "" => invalid(format!("CNI_COMMAND is missing; expected: one of {names}")),
            _ => invalid(format!("CNI_COMMAND: {text:?} is no command; expected: one of {names}")),
        }
    })
}

impl Environment {
    /// Reads the parameters of a command.
    pub fn read(command: Command, get: impl Fn(&str) -> Option<OsString>) -> Result<Environment, Error> {
        let path = get("CNI_PATH").unwrap_or_default();
        let path = std::env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty()).collect();
        let one = matches!(command, Command::Add | Command::Del | Command::Check);
        if !one {
            return Ok(Environment { path, ..Environment::default() });
        }
        let [container, netns, ifname] =
            ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"].map(|name| variable(&get, name));
        let (container, netns, ifname) = (container?, netns?, ifname?);
        let mut missing: Vec<&str> = Vec::new();
        missing.extend(container.is_empty().then_some("CNI_CONTAINERID"));
        missing.extend((netns.is_empty() && command != Command::Del).then_some("CNI_NETNS"));
        missing.extend(ifname.is_empty().then_some("CNI_IFNAME"));
        if !missing.is_empty() {
            return Err(invalid(format!("{} must be set for {}", missing.join(", "), command.name())));
        }
        if !is_identifier(&container) {
            return Err(invalid(format!(
                "CNI_CONTAINERID: {container:?} is no identifier; expected: letters, digits, and after the first `_`, `.` and `-`"
            )));
        }
        let strange = |c: char| c == '/' || c == ':' || c.is_whitespace() || c.is_control();
        if ifname.len() > DEVICE_BYTES_MAX || [".", ".."].contains(&ifname.as_str()) || ifname.contains(strange) {
            return Err(invalid(format!(
                "CNI_IFNAME: {ifname:?} is no device's name; expected: up to {DEVICE_BYTES_MAX} bytes without spaces, `/` and `:`"
            )));
        }
        if !netns.is_empty() && !netns.starts_with('/') {
            return Err(invalid(format!("CNI_NETNS: {netns:?} is no absolute path")));
        }
        let (mut mac, mut pod) = (None, None);
        for pair in variable(&get, "CNI_ARGS")?.split(';').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("MAC", value)) => mac = Some(value.to_owned()),
                Some(("K8S_POD_NAME", value)) => pod = Some(value.to_owned()),
                // Every plugin gets all arguments, and each takes those that it knows.
                Some((key, _)) if !key.is_empty() => {}
                _ => return Err(invalid(format!("CNI_ARGS: {pair:?} is no KEY=VALUE"))),
            }
        }
        Ok(Environment { container, netns, ifname, path, mac, pod })
    }
}

/// Whether this can be the name of a network, or of a container.
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn variable(get: &impl Fn(&str) -> Option<OsString>, name: &str) -> Result<String, Error> {
    get(name).unwrap_or_default().into_string().map_err(|text| invalid(format!("{name}: {text:?} is not UTF-8")))
}

fn invalid(details: String) -> Error {
    Error::new(ENVIRONMENT, "invalid environment variable", details)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: [(&str, &str); 5] = [
        ("CNI_CONTAINERID", "c0ffee-1.2_x"),
        ("CNI_NETNS", "/run/netns/a"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_PATH", "/opt/cni/bin:/usr/lib/cni"),
        ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web;MAC=02:00:00:00:00:01"),
    ];

    fn with<'a>(changes: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            let all = changes.iter().chain(&GOOD);
            all.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.into())
        }
    }

    #[test]
    fn parameters_are_read() {
        let environment = Environment::read(Command::Add, with(&[])).unwrap();
        assert_eq!((environment.container.as_str(), environment.ifname.as_str()), ("c0ffee-1.2_x", "eth0"));
        assert_eq!(environment.path, [PathBuf::from("/opt/cni/bin"), "/usr/lib/cni".into()]);
        assert_eq!((environment.mac.as_deref(), environment.pod.as_deref()), (Some("02:00:00:00:00:01"), Some("web")));
        // A network has no container.
        let empty = [("CNI_CONTAINERID", ""), ("CNI_IFNAME", ""), ("CNI_NETNS", "")];
        for command in [Command::Gc, Command::Status, Command::Version] {
            assert_eq!(Environment::read(command, with(&empty)).unwrap().container, "");
        }
        // The namespace of a deleted container may have gone.
        assert_eq!(Environment::read(Command::Del, with(&[("CNI_NETNS", "")])).unwrap().netns, "");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (change, words) in [
            (&[("CNI_NETNS", "")][..], "CNI_NETNS must be set for ADD"),
            (&[("CNI_IFNAME", ""), ("CNI_CONTAINERID", "")], "CNI_CONTAINERID, CNI_IFNAME must be set"),
            (&[("CNI_CONTAINERID", "../x")], "CNI_CONTAINERID: \"../x\""),
            (&[("CNI_CONTAINERID", "-x")], "CNI_CONTAINERID: \"-x\""),
            (&[("CNI_IFNAME", "a-name-of-16-byt")], "CNI_IFNAME: \"a-name-of-16-byt\""),
            (&[("CNI_IFNAME", "a b")], "CNI_IFNAME: \"a b\""),
            (&[("CNI_IFNAME", "..")], "CNI_IFNAME: \"..\""),
            (&[("CNI_NETNS", "a")], "CNI_NETNS: \"a\" is no absolute path"),
            (&[("CNI_ARGS", "A=B;C")], "CNI_ARGS: \"C\" is no KEY=VALUE"),
        ] {
            let error = Environment::read(Command::Add, with(change)).unwrap_err();
            assert!(error.code == ENVIRONMENT && error.details.contains(words), "{error:?}");
        }
        for (text, words) in [("", "CNI_COMMAND is missing"), ("add", "CNI_COMMAND: \"add\" is no command")] {
            let error = command(with(&[("CNI_COMMAND", text)])).unwrap_err();
            assert!(error.code == ENVIRONMENT && error.details.contains(words), "{error:?}");
        }
        assert_eq!(command(with(&[("CNI_COMMAND", "GC")])), Ok(Command::Gc));
    }
}
