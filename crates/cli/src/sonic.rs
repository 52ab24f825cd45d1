//! `sonic`: the QoS part of SONiC's `config_db.json` as sections of a scenario, and back.

use super::failure::Failure;
use super::{Global, Overrides, files, output};
use serde::Serialize;
use sluicenet_experiment::build::{self, Plan};
use sluicenet_scenario::formats::{FILE_BYTES_MAX, read_bounded};
use sluicenet_scenario::sonic::{self, Port, SwitchMemory};
use sluicenet_scenario::{Bytes, Quantity, Scenario};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, clap::Args)]
pub(super) struct SonicVerb {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Print the sections of a scenario that a config_db.json gives
    Read(Read),
    /// Print the QoS part of a config_db.json for a switch of a scenario
    Write(Write),
}

#[derive(Debug, clap::Args)]
struct Read {
    /// The config_db.json
    file: PathBuf,
    /// The port whose settings all ports have, as Ethernet0; default: the ports must agree
    #[arg(long)]
    port: Option<String>,
    /// The shared memory, for a pool whose size the switch computes, as "20 MB"
    #[arg(long, value_name = "SIZE", value_parser = Bytes::parse)]
    shared: Option<Bytes>,
}

#[derive(Debug, clap::Args)]
struct Write {
    /// The scenario
    file: PathBuf,
    /// The number of the switch, counted level by level from the hosts up
    #[arg(long, value_name = "N", default_value_t = 0)]
    switch: u32,
    /// The file; default the terminal
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Replace FILE, with all that it has besides
    #[arg(long, requires = "output")]
    force: bool,
    #[command(flatten)]
    overrides: Overrides,
}

impl SonicVerb {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        match self.verb {
            Verb::Read(read) => read.main(global),
            Verb::Write(write) => write.main(global),
        }
    }
}

/// The result of `sonic read`.
#[derive(Serialize)]
struct Keys {
    toml: String,
    warnings: Vec<String>,
}

impl Read {
    fn main(self, global: Global) -> Result<(), Failure> {
        let name = self.file.display().to_string();
        let bytes = read_bounded(&self.file, &name, FILE_BYTES_MAX)?;
        let (db, _) = sonic::parse_config_db(&name, &bytes)?;
        let given = |section: &str, key: &str| self.shared.is_some() && (section, key) == ("buffer", "shared");
        let settings = sonic::settings(&db, self.port.as_deref(), &given)?;
        let toml = sonic::toml_text(&settings.keys);
        let toml = match self.shared {
            Some(shared) if toml.contains("[buffer]\nshared = ") => {
                return Err(Failure::Input(format!(
                    "{name} gives the shared memory: remove --shared {}",
                    shared.written()
                )));
            }
            Some(shared) if toml.contains("[buffer]\n") => {
                toml.replacen("[buffer]\n", &format!("[buffer]\nshared = \"{}\"\n", shared.written()), 1)
            }
            Some(shared) => {
                return Err(Failure::Input(format!("{name} has no pool: remove --shared {}", shared.written())));
            }
            None => toml,
        };
        let warnings: Vec<String> = settings.warnings.iter().map(ToString::to_string).collect();
        if global.json {
            output::json(&Keys { toml, warnings });
            return Ok(());
        }
        if !global.quiet {
            warnings.iter().for_each(|warning| output::note(warning));
        }
        output::print(&toml);
        Ok(())
    }
}

impl Write {
    fn main(self, global: Global) -> Result<(), Failure> {
        if let Some(output) = &self.output {
            if output.is_file() && !self.force {
                let name = output.display();
                return Err(Failure::Input(format!(
                    "{name}: this file exists; give another one, or --force to replace it"
                )));
            }
            files::can_write(output)?;
        }
        let loaded = Scenario::load_with(&self.file, &self.overrides.all())?;
        output::warnings(&loaded.warnings, global);
        let s = &loaded.scenario;
        let plan = Arc::new(Plan::new(s)?);
        let node = plan.hosts() + self.switch;
        let count = plan.switches().len();
        if self.switch as usize >= count {
            return Err(Failure::Input(format!("--switch {}: the network has {count}, counted from 0", self.switch)));
        }
        let port = |index: usize| {
            let link = plan.link(node, index as u16);
            let (headroom, _) = build::headroom_at(s, &plan, node, core::iter::once(index as u16));
            Port { rate: link.rate, delay: link.delay, headroom }
        };
        let ports: Vec<Port> = (0..plan.ports(node)).map(port).collect();
        let memory = build::memory_of(s, self.switch as usize)?;
        let memory = memory.map(|(size, shared)| SwitchMemory { size, shared });
        let written = sonic::write(s, &ports, memory)?;
        if !global.quiet {
            written.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
        }
        match &self.output {
            Some(path) => files::write(path, &(pretty(&written.json) + "\n")),
            None => {
                output::json(&written.json);
                Ok(())
            }
        }
    }
}

/// A value as SONiC saves it, indented by four spaces.
fn pretty(json: &impl Serialize) -> String {
    let mut text = Vec::new();
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut out = serde_json::Serializer::with_formatter(&mut text, format);
    match json.serialize(&mut out) {
        Ok(()) => String::from_utf8_lossy(&text).into_owned(),
        Err(e) => unreachable!("a value of JSON is written: {e}"),
    }
}
