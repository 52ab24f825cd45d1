//! The file that a switch obeys, in memory that outlives a worker: the file on the disk may have changed since the switch read it,
//! and may have errors. The process that starts workers keeps this memory, and each worker has it as its standard output.

use crate::config::{Config, text_of};
use rustix::fs::{FileType, MemfdFlags, fstat, memfd_create};
use sluicenet_scenario::Result;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The text of that file; empty before the first worker has read it.
#[derive(Debug)]
pub(super) struct InForce(File);

impl InForce {
    /// Memory for workers.
    pub fn new() -> io::Result<InForce> {
        Ok(InForce(memfd_create("in-force", MemfdFlags::CLOEXEC)?.into()))
    }

    /// The memory of this worker; `None` if no such process has started it.
    pub fn own() -> Option<InForce> {
        let output = io::stdout().as_fd().try_clone_to_owned().ok()?;
        let is_file = fstat(&output).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file());
        is_file.then(|| InForce(output.into()))
    }

    /// Another descriptor of it.
    pub fn try_clone(&self) -> io::Result<File> {
        self.0.try_clone()
    }

    /// The text; `None` if nobody has kept one.
    pub fn text(&self) -> Option<String> {
        let mut bytes = vec![0; self.0.metadata().ok()?.len() as usize];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
    }

    /// Keeps a text in place of the one before.
    pub fn keep(&self, text: &str) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.write_all_at(text.as_bytes(), 0)
    }
}

/// Loads the file of a switch for a worker: as the worker before it knew it, or else as it is.
///
/// # Errors
/// As [`Config::load`], but for the files of keys.
pub fn load(path: &Path) -> Result<Config> {
    let memory = InForce::own();
    if let Some(text) = memory.as_ref().and_then(InForce::text) {
        return Config::parse_without_keys(path, &text);
    }
    let text = text_of(path)?;
    let config = Config::parse_without_keys(path, &text)?;
    // Without it, the next worker reads the file.
    memory.iter().for_each(|memory| drop(memory.keep(&text)));
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_text_is_kept() {
        let memory = InForce::new().unwrap();
        let other = InForce(memory.try_clone().unwrap());
        assert_eq!(other.text(), None);
        for text in ["a long text of a file", "short"] {
            memory.keep(text).unwrap();
            assert_eq!(other.text().as_deref(), Some(text));
        }
    }
}
