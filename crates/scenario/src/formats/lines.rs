//! Bounded reading of text files by lines and words.

use std::io::Read;
use std::path::Path;

use crate::{Error, Result, Warning};

/// The largest input file read: larger ones are refused before reading.
pub const FILE_BYTES_MAX: u64 = 256 << 20;
/// The longest line accepted.
pub const LINE_BYTES_MAX: usize = 64 << 10;
/// Warnings kept for one file; that there were more is said once.
const WARNINGS_MAX: usize = 20;

/// The bytes of a file of at most `max` bytes; errors call the file `name`.
///
/// # Errors
/// A file that cannot be read, is not a file, or is larger: before a byte of it is read, where its length is known.
pub fn read_bounded(path: &Path, name: &str, max: u64) -> Result<Vec<u8>> {
    let fail = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => Error::file(name, "there is no such file"),
        _ => Error::file(name, format!("cannot read this file: {e}")),
    };
    let too_large = |what: String| {
        Error::file(name, format!("this file is too large: {what}")).hint(format!("at most {} MiB are read", max >> 20))
    };
    // Before it is opened: a pipe without a writer would hold us there for ever.
    let meta = std::fs::metadata(path).map_err(fail)?;
    if meta.is_dir() {
        return Err(Error::file(name, "this is a folder, not a file"));
    }
    if !meta.is_file() {
        return Err(Error::file(name, "this is no regular file: pipes and devices are not read")
            .hint("write it to a file first"));
    }
    let file = std::fs::File::open(path).map_err(fail)?;
    if meta.len() > max {
        return Err(too_large(format!("{} bytes", meta.len())));
    }
    let mut bytes = Vec::new();
    // A file that grows has more than it had.
    file.take(max + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > max {
        return Err(too_large(format!("more than {max} bytes")));
    }
    Ok(bytes)
}

/// A text being read, with its name, and the warnings so far.
pub(super) struct Reader<'a> {
    /// Name of the file in errors.
    pub file: &'a str,
    rest: &'a [u8],
    number: u32,
    warnings: Vec<Warning>,
    suppressed: usize,
}

/// One line: its number from 1, and its text without the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    pub number: u32,
    pub text: &'a str,
}

impl<'a> Reader<'a> {
    pub fn new(file: &'a str, bytes: &'a [u8]) -> Reader<'a> {
        let rest = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        Reader { file, rest, number: 0, warnings: Vec::new(), suppressed: 0 }
    }

    /// The next line.
    pub fn next_line(&mut self) -> Result<Option<Line<'a>>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        self.number = self.number.saturating_add(1);
        // Not even looked at beyond the limit: a line may be as long as the file.
        let window = &self.rest[..self.rest.len().min(LINE_BYTES_MAX + 1)];
        let end = match window.iter().position(|b| *b == b'\n') {
            Some(end) => end,
            None if window.len() <= LINE_BYTES_MAX => window.len(),
            None => {
                return Err(Error::line(self.file, self.number, "", "this line is too long")
                    .hint(format!("a line has at most {LINE_BYTES_MAX} bytes; lists may go over several lines")));
            }
        };
        let (line, rest) = self.rest.split_at(end);
        self.rest = rest.get(1..).unwrap_or(&[]);
        let Ok(text) = core::str::from_utf8(line) else {
            return Err(Error::line(
                self.file,
                self.number,
                &String::from_utf8_lossy(line),
                "this line is not text (UTF-8)",
            ));
        };
        Ok(Some(Line { number: self.number, text: text.strip_suffix('\r').unwrap_or(text) }))
    }

    pub fn warn(&mut self, line: u32, message: impl Into<String>) {
        if self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(Warning { file: self.file.to_string(), line, message: message.into() });
        } else {
            self.suppressed += 1;
        }
    }

    /// The end of reading: what was read and all warnings, or the error after these warnings.
    pub fn ended<T>(mut self, outcome: Result<T>) -> Result<(T, Vec<Warning>)> {
        if self.suppressed > 0 {
            let message = format!("{} more warnings about this file", self.suppressed);
            self.warnings.push(Warning { file: self.file.to_string(), line: 0, message });
        }
        match outcome {
            Ok(read) => Ok((read, self.warnings)),
            Err(e) => Err(e.after(self.warnings)),
        }
    }

    /// An error at the end of the file.
    pub fn truncated(&self, message: impl Into<String>) -> Error {
        Error::line(self.file, self.number.max(1), "", message).hint("the file is cut short, or its header is wrong")
    }

    /// An error at `word`, which must be a part of `line`.
    pub fn at(&self, line: Line<'_>, word: &str, message: impl Into<String>) -> Error {
        at(self.file, line, word, message)
    }

    /// `word` as a whole number of at most `max`.
    pub fn number_in(&self, line: Line<'_>, word: &str, what: &str, max: u64) -> Result<u64> {
        number_in(self.file, line, word, what, max)
    }
}

/// An error at `word`, a part of `line`.
pub(super) fn at(file: &str, line: Line<'_>, word: &str, message: impl Into<String>) -> Error {
    let start = (word.as_ptr() as usize).wrapping_sub(line.text.as_ptr() as usize);
    let start = if start <= line.text.len() { start } else { 0 };
    Error::span(file, line.text, start, start + word.len(), message).on_line(line.number)
}

/// `word` as a whole number of at most `max`.
pub(super) fn number_in(file: &str, line: Line<'_>, word: &str, what: &str, max: u64) -> Result<u64> {
    let shown: String = word.chars().take(40).collect();
    if word.is_empty() || !word.bytes().all(|b| b.is_ascii_digit()) {
        return Err(at(file, line, word, format!("`{shown}` is not {what}")).expected("a whole number"));
    }
    match word.parse::<u64>() {
        Ok(n) if n <= max => Ok(n),
        _ => Err(at(file, line, word, format!("{what} of {shown} is too large")).hint(format!("at most {max}"))),
    }
}

/// Words of a text whose line breaks mean nothing, as C++ streams read: each with its line.
pub(super) struct Words<'a> {
    pub reader: Reader<'a>,
    line: Line<'a>,
    rest: &'a str,
}

impl<'a> Words<'a> {
    pub fn new(file: &'a str, bytes: &'a [u8]) -> Words<'a> {
        Words { reader: Reader::new(file, bytes), line: Line { number: 0, text: "" }, rest: "" }
    }

    /// The next word; none at the end.
    pub fn next(&mut self) -> Result<Option<(Line<'a>, &'a str)>> {
        loop {
            let trimmed = self.rest.trim_start();
            if !trimmed.is_empty() {
                let end = trimmed.find(char::is_whitespace).unwrap_or(trimmed.len());
                let (word, rest) = trimmed.split_at(end);
                self.rest = rest;
                return Ok(Some((self.line, word)));
            }
            match self.reader.next_line()? {
                Some(line) => (self.line, self.rest) = (line, line.text),
                None => return Ok(None),
            }
        }
    }

    /// The next word, which must be there; errors call it `what`.
    pub fn need(&mut self, what: &str) -> Result<(Line<'a>, &'a str)> {
        match self.next()? {
            Some(word) => Ok(word),
            None => Err(self.reader.truncated(format!("the file ends where {what} should be"))),
        }
    }

    /// The next word, a whole number of at most `max`.
    pub fn number(&mut self, what: &str, max: u64) -> Result<(Line<'a>, &'a str, u64)> {
        let (line, word) = self.need(what)?;
        let n = self.reader.number_in(line, word, what, max)?;
        Ok((line, word, n))
    }
}
