//! Address management, delegated to another plugin: it gets this plugin's configuration and environment.

use super::environment::{Command, Environment};
use super::error::{DELEGATED, ENVIRONMENT, Error, INVALID_CONFIG, IO};
use super::outcome::Outcome;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

/// The most bytes of a plugin's output.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// A plugin that manages addresses.
#[derive(Clone, Debug)]
pub struct Ipam {
    /// Its name, from `ipam.type`.
    pub kind: String,
    file: PathBuf,
}

impl Ipam {
    /// Finds the plugin in the folders of `CNI_PATH`.
    pub fn find(kind: &str, environment: &Environment) -> Result<Ipam, Error> {
        let executable = |file: &PathBuf| {
            std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        };
        let file = environment.path.iter().map(|folder| folder.join(kind)).find(executable);
        file.map(|file| Ipam { kind: kind.to_owned(), file }).ok_or_else(|| {
            let folders: Vec<String> = environment.path.iter().map(|folder| folder.display().to_string()).collect();
            match folders.is_empty() {
                true => {
                    let details = format!("CNI_PATH is empty, and the plugin {kind:?} of `ipam` is looked for there");
                    Error::new(ENVIRONMENT, "invalid environment variable", details)
                }
                false => {
                    let details =
                        format!("key \"ipam\": there is no plugin {kind:?} in CNI_PATH: {}", folders.join(", "));
                    Error::new(INVALID_CONFIG, "invalid network configuration", details)
                }
            }
        })
    }

    /// Runs the plugin for an ADD. If it fails, it is told to undo the addition.
    pub fn add(&self, config: &[u8]) -> Result<Outcome, Error> {
        let added = self.run(Command::Add, config).and_then(|output| {
            let value = serde_json::from_slice(&output).unwrap_or(Value::Null);
            Outcome::read(value, &format!("the plugin {}", self.kind))
        });
        added.map_err(|error| error.and(self.run(Command::Del, config).map(drop)))
    }

    /// Runs the plugin for a command without a result.
    pub fn tell(&self, command: Command, config: &[u8]) -> Result<(), Error> {
        self.run(command, config).map(drop)
    }

    fn run(&self, command: Command, config: &[u8]) -> Result<Vec<u8>, Error> {
        let io = |e: std::io::Error| Error::new(IO, "a delegated plugin", format!("{}: {e}", self.file.display()));
        let mut child = Process::new(&self.file)
            .env("CNI_COMMAND", command.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(io)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let mut output = Vec::new();
        // It may write before it reads.
        let copied = std::thread::scope(|threads| {
            let writer = threads.spawn(|| match stdin.map(|mut stdin| stdin.write_all(config)) {
                // It need not read its configuration.
                Some(Err(e)) if e.kind() != ErrorKind::BrokenPipe => Err(e),
                _ => Ok(()),
            });
            let read = stdout.map_or(Ok(0), |stdout| stdout.take(OUTPUT_BYTES_MAX + 1).read_to_end(&mut output));
            if output.len() as u64 > OUTPUT_BYTES_MAX {
                let _ = child.kill();
            }
            read.and(writer.join().unwrap_or(Ok(())))
        });
        let status = child.wait().map_err(io)?;
        copied.map_err(io)?;
        if output.len() as u64 > OUTPUT_BYTES_MAX {
            let why = format!("its output has more than {OUTPUT_BYTES_MAX} bytes");
            return Err(Error::new(DELEGATED, self.failed(command), why));
        }
        match status.success() {
            true => Ok(output),
            false => Err(self.error(command, &output, &status.to_string())),
        }
    }

    /// The plugin's own error, if it printed one.
    fn error(&self, command: Command, output: &[u8], status: &str) -> Error {
        let value: Value = serde_json::from_slice(output).unwrap_or(Value::Null);
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        match value.get("code").and_then(Value::as_u64).and_then(|code| u32::try_from(code).ok()) {
            Some(code) if code > 0 => {
                let details = [text("msg"), text("details")].into_iter().filter(|part| !part.is_empty());
                Error::new(code, self.failed(command), details.collect::<Vec<_>>().join("; "))
            }
            _ => Error::new(DELEGATED, self.failed(command), status.to_owned()),
        }
    }

    fn failed(&self, command: Command) -> String {
        format!("{} of the plugin {} failed", command.name(), self.kind)
    }
}

/// Whether a plugin can have this name: it is part of a path.
pub fn is_plugin(kind: &str) -> bool {
    !kind.contains(['/', '\0']) && Path::new(kind).file_name().is_some_and(|name| name == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_testkit::Dir;

    /// A plugin in shell that notes each command with its configuration.
    fn plugin(dir: &Dir, text: &str) -> Ipam {
        let notes = dir.path("notes");
        let script = format!("#!/bin/sh\necho \"$CNI_COMMAND $(cat)\" >> {notes}\n{text}\n");
        let file = dir.file("fake", &script);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        let environment = Environment { path: vec!["/nowhere".into(), dir.0.clone()], ..Environment::default() };
        Ipam::find("fake", &environment).unwrap()
    }

    fn notes(dir: &Dir) -> String {
        std::fs::read_to_string(dir.path("notes")).unwrap_or_default()
    }

    #[test]
    fn it_gets_the_configuration_and_gives_addresses() {
        let dir = Dir::new("cni-ipam");
        let ipam = plugin(&dir, r#"echo '{"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}'"#);
        let outcome = ipam.add(br#"{"a": 1}"#).unwrap();
        assert_eq!(outcome.ips[0].address.to_string(), "10.1.0.2/24");
        ipam.tell(Command::Check, b"x").unwrap();
        assert_eq!(notes(&dir), "ADD {\"a\": 1}\nCHECK x\n");
    }

    #[test]
    fn a_failed_addition_is_undone_and_its_error_is_passed_on() {
        let dir = Dir::new("cni-ipam-failed");
        let failing =
            r#"[ $CNI_COMMAND = DEL ] || { echo '{"code": 11, "msg": "full", "details": "of /24"}'; exit 1; }"#;
        let error = plugin(&dir, failing).add(b"x").unwrap_err();
        assert_eq!((error.code, error.sentence().as_str()), (11, "ADD of the plugin fake failed: full; of /24"));
        assert_eq!(notes(&dir), "ADD x\nDEL x\n");
        for (text, code, words) in [
            ("exit 3", DELEGATED, "exit status: 3; not all of it could be undone: DEL of the plugin fake failed"),
            ("echo nonsense", super::super::error::DECODE, "this is no JSON object"),
            ("head -c 1100000 /dev/zero", DELEGATED, "more than 1048576 bytes"),
            ("kill -9 $$", DELEGATED, "signal: 9"),
        ] {
            let error = plugin(&dir, text).add(b"x").unwrap_err();
            assert!(error.code == code && error.details.contains(words), "{error:?}");
        }
    }

    #[test]
    fn it_is_found_only_where_it_can_be_run() {
        let dir = Dir::new("cni-ipam-path");
        dir.file("host-local", "no program");
        let find =
            |path: Vec<PathBuf>| Ipam::find("host-local", &Environment { path, ..Environment::default() }).unwrap_err();
        assert_eq!((find(Vec::new()).code, find(vec![dir.0.clone()]).code), (ENVIRONMENT, INVALID_CONFIG));
        assert!(find(vec![dir.0.clone()]).details.contains("no plugin \"host-local\" in CNI_PATH: /"));
        for (kind, fine) in [("host-local", true), ("a/b", false), ("..", false), ("", false), (".", false)] {
            assert_eq!(is_plugin(kind), fine, "{kind}");
        }
    }
}
