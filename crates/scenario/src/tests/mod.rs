//! Tests of scenarios as a whole.

mod errors;
mod model;
mod sweeps;

use super::*;

/// The shortest valid scenario.
pub(super) const MINIMAL: &str = r#"
[topology]
kind = "single-switch"
hosts = 4

[[workload]]
kind = "flow"
src = 0
dst = 1
bytes = "1 MB"
"#;

/// A scenario that gives every key of every section.
pub(super) const FULL: &str = include_str!("../../tests/data/full.toml");

pub(super) fn parse(text: &str) -> Result<Loaded> {
    Scenario::parse(text, "t.toml")
}

/// The error a text must give.
pub(super) fn refused(text: &str) -> Diagnostic {
    match parse(text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(e) => e.diagnostic().clone(),
    }
}

/// `tests/data`, where our own samples lie.
pub(super) fn data() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}
