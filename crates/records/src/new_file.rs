//! A file for others that is written piece by piece, and whose name holds all of it or nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

/// Tries at an unused name.
const NAMES_MAX: u32 = 1_000;

/// Temporary names of all files under way.
static UNDER_WAY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A file under way. It has its name when it is finished; dropped before, it leaves nothing behind.
///
/// An existing file is replaced when the new one is finished, behind links. A target that is no file, as a pipe or a
/// terminal, is written to directly.
#[derive(Debug)]
pub struct NewFile {
    out: BufWriter<File>,
    /// Its temporary name and its name; none where it is written to directly.
    names: Option<(PathBuf, PathBuf)>,
}

impl NewFile {
    /// Begins a file.
    ///
    /// # Errors
    /// A path that is a folder or in no folder, a folder that cannot be written.
    pub fn create(path: &Path) -> io::Result<NewFile> {
        let Some(target) = replace_target(path)? else {
            let out = BufWriter::new(OpenOptions::new().write(true).open(path)?);
            return Ok(NewFile { out, names: None });
        };
        let mut under_way = under_way();
        let (temporary, file) = beside(&target)?;
        under_way.push(temporary.clone());
        Ok(NewFile { out: BufWriter::with_capacity(1 << 16, file), names: Some((temporary, target)) })
    }

    /// Fails where `create` would. Leaves no file behind, and existing files alone.
    ///
    /// # Errors
    /// As those of [`create`](NewFile::create).
    pub fn check(path: &Path) -> io::Result<()> {
        let try_beside = |target: PathBuf| beside(&target).and_then(|(temporary, _)| fs::remove_file(temporary));
        replace_target(path).and_then(|target| target.map_or(Ok(()), try_beside))
    }

    /// Removes all files under way, as the program is about to end. None begins and none gets its name after that.
    pub fn remove_all() {
        let under_way = under_way();
        for temporary in under_way.iter() {
            let _ = fs::remove_file(temporary);
        }
        // Other threads run on until the program ends: they wait here.
        std::mem::forget(under_way);
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The last bytes or the name could not be written.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()?;
        let Some((temporary, target)) = &self.names else { return Ok(()) };
        let mut under_way = under_way();
        fs::rename(temporary, target)?;
        under_way.retain(|other| other != temporary);
        drop(under_way);
        self.names = None;
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.names {
            let mut under_way = under_way();
            // The first error matters more than one of removing.
            let _ = fs::remove_file(temporary);
            under_way.retain(|other| other != temporary);
        }
    }
}

fn under_way() -> MutexGuard<'static, Vec<PathBuf>> {
    UNDER_WAY.lock().unwrap_or_else(|e| e.into_inner())
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
