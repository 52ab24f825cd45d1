//! SONiC: the QoS part of `config_db.json` as keys of a scenario, and back; the headroom of SONiC's templates.
//!
//! [`settings`] gives the keys, each with its place in the file, so that an error of a key points there. A scenario with
//! `switch.sonic` has them wherever it does not give the key itself. [`write()`] goes the other way.

mod json;
mod ports;
mod settings;
pub mod template;
#[cfg(test)]
mod tests;
mod toml_text;
mod watchdog;
mod write;

pub use json::ConfigDb;
pub use settings::{Settings, settings};
pub use toml_text::toml_text;
pub use write::{Port, SwitchMemory, Written, write};

use crate::files::Files;
use crate::setting::Section;
use crate::tree::{Document, Source, Table, Value};
use crate::{ROOT, Result, Warning};
use std::borrow::Cow;
use std::sync::Arc;

/// Reads a `config_db.json`.
///
/// # Errors
/// The first fault, with file and line: no JSON, a key that stands twice, a table that is none.
pub fn parse_config_db(name: &str, bytes: &[u8]) -> Result<(ConfigDb, Vec<Warning>)> {
    ConfigDb::parse(name, bytes, settings::is_read).map(|db| (db, Vec::new()))
}

/// The document with the keys of its file of SONiC, if it names one.
pub(crate) fn merged<'d>(
    doc: &'d Document,
    files: &mut Files,
    warnings: &mut Vec<Warning>,
) -> Result<Cow<'d, Document>> {
    let Some(file) = text_of(&doc.root, "sonic") else { return Ok(Cow::Borrowed(doc)) };
    let s = Section::root(doc, &ROOT)?.section("switch")?;
    let db = s.input("sonic", files.sonic(file))?.content;
    let gives = |section: &str, key: &str| given(&doc.root, section, key);
    let of_file = settings(&db, text_of(&doc.root, "sonic_port"), &gives).map_err(|e| match e.diagnostic().line {
        0 => {
            let d = e.diagnostic();
            s.error("sonic_port", d.message.clone()).hint(d.hint.clone()).after(d.warnings.clone())
        }
        _ => e,
    })?;
    warnings.extend(of_file.warnings);
    let mut all = doc.clone();
    all.attached = Some(Source { name: db.name.clone(), text: Arc::clone(&db.text) });
    let has_flow_control = gives("scenario", "flow_control") || gives("scenario", "hypervisor");
    for mut section in of_file.keys.entries {
        if let (Value::Table(keys), "pfc", true) = (&mut section.node.value, &*section.key, has_flow_control) {
            keys.entries.retain(|e| e.key != "enabled");
        }
        let of_scenario = all.root.entries.iter_mut().find(|e| e.key == section.key).map(|e| &mut e.node.value);
        match (of_scenario, section.node.value) {
            (None, value) => {
                section.node.value = value;
                all.root.entries.push(section);
            }
            (Some(Value::Table(own)), Value::Table(keys)) => {
                add(own, keys, &section.key);
            }
            // A list of the scenario replaces that of the file; anything else is refused later.
            _ => {}
        }
    }
    Ok(Cow::Owned(all))
}

/// Adds the keys of a section that the scenario does not give.
fn add(own: &mut Table, keys: Table, section: &str) {
    // Groups and strict priorities belong together, and so do both ways to give the size of a memory.
    if section == "ets" && !own.entries.is_empty() {
        return;
    }
    let has_size = section == "buffer" && own.get("size").is_some();
    let new = |key: &str| !(has_size && key == "shared");
    for entry in keys.entries {
        if own.get(&entry.key).is_none() && new(&entry.key) {
            own.entries.push(entry);
        }
    }
}

/// A text in `[switch]`.
fn text_of<'d>(root: &'d Table, key: &str) -> Option<&'d str> {
    let Value::Table(switch) = &root.get("switch")?.node.value else { return None };
    match &switch.get(key)?.node.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// Whether a document gives a key.
fn given(root: &Table, section: &str, key: &str) -> bool {
    match root.get(section).map(|e| &e.node.value) {
        Some(Value::Table(table)) => table.get(key).is_some(),
        _ => false,
    }
}
