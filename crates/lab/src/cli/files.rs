//! Files the command line writes itself, and directories for results nobody keeps.

use super::failure::Failure;
use sluicenet_dataplane::remains::{self, Thing};
use std::fs;
use std::path::{Path, PathBuf};

/// The page.
pub(super) const REPORT: &str = "report.html";

/// Writes a file so that under its name there is all of it or nothing.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let temporary = path.with_extension("tmp");
    let fail = |e: std::io::Error| Failure::Failed(format!("{}: cannot write: {e}", path.display()));
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        fail(e)
    })
}

/// Fails where a file could not be written so, before anything is done for what it is to hold; leaves nothing behind, and what is there alone.
pub(super) fn can_write(path: &Path) -> Result<(), Failure> {
    let temporary = path.with_extension("tmp");
    let fail = |e: std::io::Error| Failure::Failed(format!("{}: cannot write: {e}", path.display()));
    if path.is_dir() {
        return Err(fail(std::io::ErrorKind::IsADirectory.into()));
    }
    fs::write(&temporary, "").and_then(|()| fs::remove_file(&temporary)).map_err(fail)
}

/// A directory that is gone when this is.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// A new one where the system keeps such things.
    pub fn new() -> Result<Scratch, Failure> {
        let dir = std::env::temp_dir().join(format!("sluicenet-{}", std::process::id()));
        let fail = |e| Failure::Failed(format!("{}: cannot create the directory: {e}", dir.display()));
        // Root's is found by `clean` when this is killed; others keep no such list.
        let _ = remains::add(Thing::Folder(dir.clone()));
        fs::create_dir_all(&dir).map_err(fail)?;
        Ok(Scratch(dir))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is left to whoever cleans the temporary directory.
        if fs::remove_dir_all(&self.0).is_ok() {
            remains::forget(&Thing::Folder(self.0.clone()));
        }
    }
}
