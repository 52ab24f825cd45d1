//! Files that the command line writes itself, and temporary directories for results.

use super::failure::Failure;
use sluicenet_dataplane::leftovers::{self, Leftover};
use sluicenet_records::NewFile;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The page.
pub(super) const REPORT: &str = "report.html";

/// Writes a file so that its name holds all of it or nothing. A target that is no file, as a pipe or a terminal, is
/// written to directly.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let fail = |e: io::Error| Failure::Failed(format!("{}: cannot write: {e}", path.display()));
    let mut file = NewFile::create(path).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.finish()).map_err(fail)
}

/// Fails where `write` could not write the file, before any work for its content is done. Leaves no file behind, and
/// existing files alone.
pub(super) fn can_write(path: &Path) -> Result<(), Failure> {
    NewFile::check(path).map_err(|e| Failure::Input(format!("{}: cannot write: {e}", path.display())))
}

/// A directory that is gone when this is.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// A new one where the system keeps such things.
    pub fn new() -> Result<Scratch, Failure> {
        let dir = std::env::temp_dir().join(format!("sluicenet-{}", std::process::id()));
        let fail = |e| Failure::Failed(format!("{}: cannot create the directory: {e}", dir.display()));
        // Root's is found by `clean` when this is killed; others keep no such list.
        let _ = leftovers::add(Leftover::Folder(dir.clone()));
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
        // A folder that cannot be removed is left to the cleaner of the temporary directory.
        if fs::remove_dir_all(&self.0).is_ok() {
            leftovers::forget(&Leftover::Folder(self.0.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, symlink};

    #[test]
    fn what_is_written_replaces_a_file_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("sluicenet-files-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("a.svg");
        // Files of others with such names stay.
        for other in ["a.tmp", ".a.svg.tmp"] {
            fs::write(dir.join(other), "theirs").unwrap();
        }
        for text in ["first", "second"] {
            can_write(&path).unwrap();
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        // A link goes on pointing where it did.
        symlink(&path, dir.join("link")).unwrap();
        write(&dir.join("link"), "third").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "third");
        assert!(dir.join("link").is_symlink());
        // A pipe is written to, and stays one.
        let pipe = dir.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        can_write(&pipe).unwrap();
        let reading = std::thread::spawn({
            let pipe = pipe.clone();
            move || fs::read_to_string(pipe).unwrap()
        });
        write(&pipe, "piped").unwrap();
        assert_eq!(reading.join().unwrap(), "piped");
        assert!(fs::metadata(&pipe).unwrap().file_type().is_fifo());
        for wrong in [dir.clone(), dir.join("none/a.svg"), path.join("a")] {
            assert!(matches!(can_write(&wrong), Err(Failure::Input(_))), "{wrong:?}");
            assert!(write(&wrong, "").is_err(), "{wrong:?}");
        }
        for other in ["a.tmp", ".a.svg.tmp"] {
            assert_eq!(fs::read_to_string(dir.join(other)).unwrap(), "theirs");
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 5);
        fs::remove_dir_all(&dir).unwrap();
    }
}
