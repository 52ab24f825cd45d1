//! `sluicenet-cni`: attaches containers to a running switch, by the Container Network Interface.
//!
//! | module | does |
//! |---|---|
//! | `environment` | the parameters of a call |
//! | `config` | its configuration |
//! | `version`, `error`, `outcome` | the specification's forms |
//! | `ipam` | runs the plugin that manages addresses |
//! | `attachments` | the records of attachments, by network, container and device |
//! | `commands` | ADD, DEL, CHECK, STATUS, GC |
#![forbid(unsafe_code)]

mod attachments;
mod commands;
mod config;
mod environment;
mod error;
mod ipam;
mod outcome;
mod version;

use commands::Call;
use config::Network;
use environment::{Command, Environment};
use error::{DECODE, Error, IO};
use std::io::{Read, Write};
use std::process::ExitCode;
use version::Version;

/// The most bytes of a configuration.
const INPUT_BYTES_MAX: u64 = 1 << 20;

/// What a person reads who runs the plugin by hand.
const ABOUT: &str = concat!(
    "sluicenet-cni ",
    env!("CARGO_PKG_VERSION"),
    ": a CNI plugin, run by container runtimes. docs/cni.md explains its configuration."
);

fn main() -> ExitCode {
    let get = |name: &str| std::env::var_os(name);
    if get("CNI_COMMAND").is_none() {
        eprintln!("{ABOUT}");
    }
    let mut version = Version::NEWEST;
    let failed = match environment::command(get).and_then(|command| run(command, &mut version)) {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(Answer { text, undo })) => match print(&text) {
            Ok(()) => return ExitCode::SUCCESS,
            // The runtime knows nothing of the attachment.
            Err(e) => Error::new(IO, "standard output", e.to_string()).and(undo()),
        },
        Err(error) => error,
    };
    let text = failed.json(version);
    if print(&text).is_err() {
        eprintln!("sluicenet-cni: {}", failed.sentence());
    }
    ExitCode::FAILURE
}

/// The output of a command, and how it is undone.
struct Answer {
    text: serde_json::Value,
    undo: Box<dyn FnOnce() -> Result<(), Error>>,
}

/// Executes a command. `version` becomes that of the configuration as soon as it is known.
fn run(command: Command, version: &mut Version) -> Result<Option<Answer>, Error> {
    let environment = Environment::read(command, |name| std::env::var_os(name))?;
    let input = input()?;
    if command == Command::Version {
        return Ok(Some(Answer { text: version::answer(&input), undo: Box::new(|| Ok(())) }));
    }
    let object = config::object(&input)?;
    *version = Version::of(&object)?;
    let network = Network::read(*version, object)?;
    let outcome = Call { network: &network, environment: &environment, input: &input }.execute(command)?;
    let text = outcome.map(|outcome| outcome.json(*version));
    let undo =
        move || Call { network: &network, environment: &environment, input: &input }.execute(Command::Del).map(drop);
    Ok(text.map(|text| Answer { text, undo: Box::new(undo) }))
}

fn input() -> Result<Vec<u8>, Error> {
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(INPUT_BYTES_MAX + 1).read_to_end(&mut input);
    read.map_err(|e| Error::new(IO, "standard input", e.to_string()))?;
    match input.len() as u64 > INPUT_BYTES_MAX {
        true => {
            let why = format!("standard input has more than {INPUT_BYTES_MAX} bytes");
            Err(Error::new(DECODE, "invalid network configuration", why))
        }
        false => Ok(input),
    }
}

fn print(value: &serde_json::Value) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{value:#}\n").as_bytes())?;
    out.flush()
}
