//! The files of bumps, for `sluicenet bump`.

use super::network::Names;
use super::plan::Plan;
use crate::files::mac;
use serde_json::Value;
use sluicenet_scenario::BumpApp;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// How long a bump polls before it sleeps: its machine has other work.
const SLEEP_AFTER: &str = "50 us";
/// The file of the key that the bumps share.
const KEY: &str = "bumps.key";

/// The name of the device at an end of a bump's link; `entry` counts the ends of all its links.
pub fn device(entry: u16) -> String {
    format!("l{}{}", entry / 2, if entry.is_multiple_of(2) { 'a' } else { 'b' })
}

/// Writes the files of all bumps into `folder`.
///
/// # Errors
/// A file cannot be written.
pub fn write(plan: &Plan, names: &Names, folder: &Path) -> io::Result<()> {
    let put = |name: &str, content: &[u8]| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(name))?;
        file.write_all(content)
    };
    let words: [u64; 4] = sluicenet_dataplane::controller::entropy()?;
    put(KEY, words.map(|w| format!("{w:016x}")).concat().as_bytes())?;
    for i in 0..plan.bumps.len() {
        if let [BumpApp::Program(app)] = &plan.scenario.bumps[i].app[..] {
            put(&format!("b{i}.so"), &app.file.content)?;
        }
        put(&format!("b{i}.toml"), text(plan, i, names, folder).as_bytes())?;
    }
    Ok(())
}

/// The file of bump `i`. Writing to a string cannot fail.
pub fn text(plan: &Plan, i: usize, names: &Names, folder: &Path) -> String {
    let (settings, bump) = (&plan.scenario.bumps[i], &plan.bumps[i]);
    let mut text = format!(
        "# Bump {i} of a testbed; made by `sluicenet testbed bump`.\n\
         [bump]\nname = \"b{i}\"\ncontrol = \"{}\"\nmac = \"{}\"\nsleep_after = \"{SLEEP_AFTER}\"\n\
         notification_priority = {}\nseed = {}\n",
        names.control(i, folder).display(),
        mac(bump.mac),
        settings.notification_priority,
        plan.scenario.seed.wrapping_add(i as u64),
    );
    for entry in 0..2 * bump.links as u16 {
        let (device, netns) = (device(entry), names.bump(i));
        let _ = write!(text, "[[port]]\nname = \"{device}\"\nkind = \"packet\"\nnetns = \"{netns}\"\n");
    }
    for link in 0..bump.links as u16 {
        let _ = write!(text, "[[link]]\na = \"{}\"\nb = \"{}\"\n", device(2 * link), device(2 * link + 1));
    }
    for port in &bump.downstream {
        let macs: Vec<String> =
            port.hosts.iter().map(|&host| format!("\"{}\"", mac(plan.hosts[host as usize].mac))).collect();
        let _ = write!(text, "[[map]]\nport = {}\nrate = \"{} b/s\"\n", port.number, port.rate.as_bps());
        if let Some(buffer) = settings.buffer {
            let _ = writeln!(text, "buffer = \"{} B\"", buffer.as_bytes());
        }
        let _ = writeln!(text, "macs = [{}]", macs.join(", "));
    }
    settings.app.iter().for_each(|app| application(i, app, &mut text));
    updates(plan, i, &mut text);
    text
}

/// `[[app]]` of a bump: the keys are those of the scenario.
fn application(i: usize, app: &BumpApp, text: &mut String) {
    text.push_str("[[app]]\n");
    if let BumpApp::Program(program) = app {
        let arguments = Value::from(program.arguments.as_str());
        let _ = write!(text, "kind = \"program\"\nfile = \"b{i}.so\"\narguments = {arguments}\n");
        return;
    }
    // The canonical form of a scenario has strings and numbers, which JSON and TOML write alike.
    let Ok(Value::Object(keys)) = serde_json::to_value(app) else { return };
    for (key, value) in keys.iter().filter(|(_, value)| !value.is_null()) {
        let _ = writeln!(text, "{key} = {}", toml(value));
    }
}

/// A value in TOML.
fn toml(value: &Value) -> String {
    match value {
        Value::Object(keys) => {
            let keys: Vec<String> = keys.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            format!("{{ {} }}", keys.join(", "))
        }
        Value::Array(all) => format!("[{}]", all.iter().map(toml).collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

/// `[updates]` and `[[neighbour]]` of a bump.
fn updates(plan: &Plan, i: usize, text: &mut String) {
    let (settings, bump) = (&plan.scenario.bumps[i], &plan.bumps[i]);
    if bump.neighbours.is_empty() {
        return;
    }
    let _ = write!(
        text,
        "[updates]\nbump = {i}\nkey = \"{KEY}\"\npackets = {}\ninterval = \"{} ps\"\n",
        settings.update_packets, settings.update_interval.0
    );
    for &(other, tell) in &bump.neighbours {
        let latency = plan.scenario.bumps[other].update_delay.0;
        let _ = write!(
            text,
            "[[neighbour]]\nbump = {other}\nmac = \"{}\"\nvia = \"{}\"\ntell = {tell}\nlatency = \"{latency} ps\"\n",
            mac(plan.bumps[other].mac),
            device(0)
        );
    }
}
