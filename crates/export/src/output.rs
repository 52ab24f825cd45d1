//! A file that an export writes.

use super::error::ExportError;
use sluicenet_records::NewFile;
use std::fmt::Arguments;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file under way to its name; errors name it.
pub(crate) struct Output {
    path: PathBuf,
    file: NewFile,
}

impl Output {
    /// Begins a file.
    pub fn create(path: &Path) -> Result<Output, ExportError> {
        let file = NewFile::create(path).map_err(ExportError::write(path))?;
        Ok(Output { path: path.to_owned(), file })
    }

    /// Writes bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), ExportError> {
        self.file.write_all(bytes).map_err(ExportError::write(&self.path))
    }

    /// Writes the end of a buffer, so that a full disk is known before any file has its name.
    pub fn flush(&mut self) -> Result<(), ExportError> {
        self.file.flush().map_err(ExportError::write(&self.path))
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<PathBuf, ExportError> {
        self.file.finish().map_err(ExportError::write(&self.path))?;
        Ok(self.path)
    }

    /// For `write!`.
    pub fn write_fmt(&mut self, text: Arguments<'_>) -> Result<(), ExportError> {
        self.file.write_fmt(text).map_err(ExportError::write(&self.path))
    }
}
