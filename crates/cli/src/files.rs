//! Files that the command line writes itself, and temporary directories for results.

use super::failure::Failure;
use sluicenet_dataplane::leftovers::{self, Leftover};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The page.
pub(super) const REPORT: &str = "report.html";

/// Tries at an unused name.
const NAMES_MAX: u32 = 1_000;

/// Writes a file so that its name holds all of it or nothing. A target that is no file, as a pipe or a terminal, is
/// written to directly.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let fail = |e: io::Error| Failure::Failed(format!("{}: cannot write: {e}", path.display()));
    let Some(target) = replace_target(path).map_err(fail)? else { return fs::write(path, text).map_err(fail) };
    let (temporary, mut file) = beside(&target).map_err(fail)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&temporary, &target));
    written.map_err(|e| {
        let _ = fs::remove_file(&temporary);
        fail(e)
    })
}

/// Fails where `write` could not write the file, before any work for its content is done. Leaves no file behind, and
/// existing files alone.
pub(super) fn can_write(path: &Path) -> Result<(), Failure> {
    let try_beside = |target: PathBuf| beside(&target).and_then(|(temporary, _)| fs::remove_file(temporary));
    let tried = replace_target(path).and_then(|target| target.map_or(Ok(()), try_beside));
    tried.map_err(|e| Failure::Input(format!("{}: cannot write: {e}", path.display())))
}

/// The file that is to be replaced or made, behind links; `None` for a device or a pipe, which cannot be replaced.
fn replace_target(path: &Path) -> io::Result<Option<PathBuf>> {
    match fs::metadata(path) {
        Ok(what) if what.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(what) if what.is_file() => fs::canonicalize(path).map(Some),
        Ok(_) => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Some(path.into())),
        Err(e) => Err(e),
    }
}

/// A new file in the same folder, under an unused name.
fn beside(target: &Path) -> io::Result<(PathBuf, File)> {
    let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_string_lossy();
    let process = std::process::id();
    for number in 0..NAMES_MAX {
        // A name of 255 bytes is as long as most file systems have them.
        let short: String = name.chars().take(40).collect();
        let temporary = target.with_file_name(format!(".{short}.{process}-{number}.tmp"));
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
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
