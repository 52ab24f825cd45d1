//! `profile.json`: how the CPU time of a run was shared among its stages.

use super::error::RecordError;
use super::files::write_file;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// File name of a run's profile.
pub const PROFILE: &str = "profile.json";
/// File name of the stacks behind it, a line each, as flame graphs are drawn from.
pub const FOLDED: &str = "profile.folded";

/// The profile of a run. As `run.json` it depends on the machine and is never compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// How often the run was interrupted, over all threads.
    pub samples: u64,
    /// Its stages, the largest first; those without a sample are left out.
    pub stages: Vec<StageShare>,
}

/// A stage of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageShare {
    /// Its name.
    pub stage: String,
    /// Samples in it.
    pub samples: u64,
    /// Its share of all samples, 0 to 1.
    pub share: f64,
}

impl Profile {
    /// The profile of a result directory, if it has one.
    pub fn read(dir: &Path) -> Option<Profile> {
        serde_json::from_str(&std::fs::read_to_string(dir.join(PROFILE)).ok()?).ok()
    }

    /// Writes the profile, and the stacks behind it, into a result directory.
    ///
    /// # Errors
    /// Files that cannot be written.
    pub fn write(&self, folded: &str, dir: &Path) -> Result<(), RecordError> {
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        write_file(&dir.join(PROFILE), text.as_bytes())?;
        write_file(&dir.join(FOLDED), folded.as_bytes())
    }
}
