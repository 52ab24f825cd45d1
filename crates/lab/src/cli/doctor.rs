//! `doctor`: what this machine has of what sluicenet can use. Nothing here needs root.

use super::failure::Failure;
use super::table::{Table, short};
use super::{Global, cells, output};
use serde::Serialize;
use std::path::Path;
use std::process::Command;

#[derive(Serialize)]
struct Finding {
    name: &'static str,
    found: Option<String>,
    /// What it is for.
    purpose: &'static str,
    needed: bool,
}

pub(super) fn main(global: Global) -> Result<(), Failure> {
    let version = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).output().ok()?;
        let text = if out.stdout.is_empty() { out.stderr } else { out.stdout };
        String::from_utf8_lossy(&text).lines().next().map(|l| l.trim().chars().take(60).collect::<String>())
    };
    let finding = |name, found, purpose, needed| Finding { name, found, purpose, needed };
    let memory = memory_bytes().map(|(all, free)| format!("{}B, {}B free", short(all), short(free)));
    let data = ["../shared/data", "../../shared/data"].iter().find(|d| Path::new(d).is_dir());
    let samples = data.map(|d| {
        let count = std::fs::read_dir(d).map_or(0, |entries| entries.flatten().count());
        format!("{d}: {count} entries")
    });
    let scratch = super::files::Scratch::new().ok();
    let place = std::env::temp_dir().display().to_string();
    let findings = [
        finding("sluicenet", Some(env!("CARGO_PKG_VERSION").into()), "this program", true),
        finding("cores", Some(cells::cores().to_string()), "sweeps use all, a run as many as --threads", true),
        finding("memory", memory, "about 1 GB for the demo", true),
        finding("temporary files", scratch.map(|_| format!("{place}: writable")), "bench without --out", true),
        finding("python3", version("python3", &["--version"]), "the Python package, from 3.11", false),
        finding("tshark", version("tshark", &["--version"]), "reading captures", false),
        finding("chromium", version("chromium", &["--version"]), "pictures of report pages", false),
        finding("sample files", samples, "tests against other simulators' files", false),
    ];
    if global.json {
        output::json(&findings);
    } else {
        let mut t = Table::new(4, ["", "", "found", "for"]);
        for f in &findings {
            let mark = match (&f.found, f.needed) {
                (Some(_), _) => "✔",
                (None, true) => "✘",
                (None, false) => "-",
            };
            let absent = if f.needed { "missing" } else { "not found (optional)" };
            t.row([mark, f.name, f.found.as_deref().unwrap_or(absent), f.purpose]);
        }
        output::print(&t.text());
    }
    match findings.iter().find(|f| f.needed && f.found.is_none()) {
        None => Ok(()),
        Some(f) => Err(Failure::Failed(format!("{} is missing: {}", f.name, f.purpose))),
    }
}

/// All memory and what is free of it, in bytes.
fn memory_bytes() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<f64>().ok().map(|kb| kb * 1024.0)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}
