//! The one error of this crate's readers: the place, the expected input and a hint, rendered as rustc does.

use crate::printable::line as harmless;
use crate::units::closest;
use core::fmt;

/// A place in a text and its fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The fault, in one sentence.
    pub message: String,
    /// The file, or `--set` for an override of the command line.
    pub file: String,
    /// The line, from 1; 0 where the file as a whole is meant.
    pub line: u32,
    /// The column in characters, from 1; 0 where the line as a whole is meant.
    pub column: u32,
    /// How many characters to underline.
    pub width: u32,
    /// The line itself, shortened where it is very long.
    pub excerpt: String,
    /// The expected input at that place; may be empty.
    pub expected: String,
    /// Advice for the user; may be empty.
    pub hint: String,
    /// The warnings before it, which may say why.
    pub warnings: Vec<Warning>,
}

/// Why a scenario or an input file could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Diagnostic>);

/// The outcome of reading.
pub type Result<T> = core::result::Result<T, Error>;

/// The longest excerpt shown, in characters: a line may be very long.
const EXCERPT_CHARS_MAX: usize = 160;

impl Error {
    /// An error about a file as a whole.
    pub fn file(file: impl Into<String>, message: impl Into<String>) -> Error {
        Error(Box::new(Diagnostic {
            message: message.into(),
            file: file.into(),
            line: 0,
            column: 0,
            width: 0,
            excerpt: String::new(),
            expected: String::new(),
            hint: String::new(),
            warnings: Vec::new(),
        }))
    }

    /// An error about a whole line of a file, `line` from 1.
    pub fn line(file: impl Into<String>, line: u32, text: &str, message: impl Into<String>) -> Error {
        let mut e = Error::file(file, message);
        e.0.line = line;
        e.0.excerpt = text.trim_end().chars().take(EXCERPT_CHARS_MAX).collect();
        e.0.column = 1;
        e.0.width = u32::try_from(e.0.excerpt.chars().count()).unwrap_or(1).max(1);
        e
    }

    /// The error of a file that is not text from byte `at` on.
    pub fn not_text(file: impl Into<String>, bytes: &[u8], at: usize) -> Error {
        let at = at.min(bytes.len());
        let start = bytes[..at].iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        let end = bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |i| at + i);
        let line = bytes[..start].iter().filter(|&&b| b == b'\n').count() + 1;
        let mut e = Error::file(file, "this is not text in UTF-8");
        let (before, text) = (String::from_utf8_lossy(&bytes[start..at]), String::from_utf8_lossy(&bytes[start..end]));
        e.0.line = u32::try_from(line).unwrap_or(u32::MAX);
        e.0.column = u32::try_from(before.chars().count() + 1).unwrap_or(u32::MAX);
        e.0.width = 1;
        let skip = if e.0.column as usize + 1 > EXCERPT_CHARS_MAX { e.0.column as usize - 21 } else { 0 };
        e.0.excerpt = text.trim_end().chars().skip(skip).take(EXCERPT_CHARS_MAX).collect();
        e
    }

    /// An error about the bytes `start..end` of `text`.
    pub fn span(file: impl Into<String>, text: &str, start: usize, end: usize, message: impl Into<String>) -> Error {
        let mut e = Error::file(file, message);
        let start = floor_boundary(text, start.min(text.len()));
        let end = floor_boundary(text, end.clamp(start, text.len()));
        let (before, rest) = text.split_at(start);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        let line_end = rest.find('\n').map_or(text.len(), |i| start + i);
        let full = &text[line_start..line_end];
        let column = text[line_start..start].chars().count();
        let width = text[start..end.min(line_end)].chars().count().max(1);
        // A window around the place when the line is long.
        let skip = if column + width > EXCERPT_CHARS_MAX { column.saturating_sub(20) } else { 0 };
        e.0.line = u32::try_from(before.bytes().filter(|b| *b == b'\n').count() + 1).unwrap_or(u32::MAX);
        e.0.column = u32::try_from(column + 1).unwrap_or(u32::MAX);
        e.0.width = u32::try_from(width.min(EXCERPT_CHARS_MAX)).unwrap_or(1);
        e.0.excerpt = full.trim_end().chars().skip(skip).take(EXCERPT_CHARS_MAX).collect();
        e
    }

    /// The error at a line of its own, where its text was one line of a file.
    #[must_use]
    pub fn on_line(mut self, line: u32) -> Error {
        self.0.line = line;
        self
    }

    /// The error with the input that was expected at its place.
    #[must_use]
    pub fn expected(mut self, expected: impl Into<String>) -> Error {
        self.0.expected = expected.into();
        self
    }

    /// The same, with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.0.hint = hint.into();
        self
    }

    /// The error of a name that is none of `names`: these are expected, and one that is close is the hint.
    #[must_use]
    pub(crate) fn none_of(self, name: &str, names: &[&str]) -> Error {
        let error = self.expected(names.join(", "));
        match closest(name, names.iter().copied()) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error,
        }
    }

    /// The error after these warnings, which came before those that it has.
    #[must_use]
    pub fn after(mut self, mut warnings: Vec<Warning>) -> Error {
        warnings.append(&mut self.0.warnings);
        self.0.warnings = warnings;
        self
    }

    /// The error with an addition to its message.
    #[must_use]
    pub fn with(mut self, addition: &str) -> Error {
        self.0.message.push_str(addition);
        self
    }

    /// The error of one variant of a sweep, with the variant's name; unchanged where there is no sweep.
    #[must_use]
    pub fn in_variant(self, label: &str) -> Error {
        if label.is_empty() {
            return self;
        }
        let hint = match self.0.hint.as_str() {
            "" => format!("in the variant {label}"),
            hint => format!("{hint} (in the variant {label})"),
        };
        self.hint(hint)
    }

    /// The error in a sentence, for values from no file: the fault, the value, and the expected input.
    pub fn sentence(&self) -> String {
        let d = &*self.0;
        let quoted = if d.excerpt.is_empty() { String::new() } else { format!(": {}", d.excerpt) };
        let expected = if d.expected.is_empty() { String::new() } else { format!("; expected: {}", d.expected) };
        let hint = if d.hint.is_empty() { String::new() } else { format!("; {}", d.hint) };
        harmless(&format!("{}{quoted}{expected}{hint}", d.message)).into_owned()
    }

    /// Place and fault.
    pub fn diagnostic(&self) -> &Diagnostic {
        &self.0
    }
}

/// The last character boundary at or before `at`.
fn floor_boundary(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let d = &self.0;
        writeln!(f, "error: {}", harmless(&d.message))?;
        if d.line == 0 {
            write!(f, " --> {}", harmless(&d.file))?;
        } else {
            let gutter = d.line.to_string().len();
            let shown = d.excerpt.chars().count();
            let column = (d.column as usize).saturating_sub(1);
            // Where the excerpt is a window, the mark stands 20 characters in, as `span` cut it.
            let offset = if column + d.width as usize > EXCERPT_CHARS_MAX { column.min(20) } else { column };
            writeln!(f, "{:gutter$}--> {}:{}:{}", " ", harmless(&d.file), d.line, d.column)?;
            writeln!(f, "{:gutter$} |", "")?;
            // Tabs are kept in the margin so that the mark stands under the text.
            let margin: String =
                d.excerpt.chars().take(offset).map(|c| if c == '\t' { '\t' } else { ' ' }).collect::<String>()
                    + &" ".repeat(offset.saturating_sub(shown));
            writeln!(f, "{} | {}", d.line, harmless(&d.excerpt))?;
            write!(f, "{:gutter$} | {margin}{}", "", "^".repeat((d.width as usize).clamp(1, EXCERPT_CHARS_MAX)))?;
            if !d.expected.is_empty() {
                write!(f, " {}", harmless(&d.expected))?;
            }
        }
        if d.line == 0 && !d.expected.is_empty() {
            write!(f, "\n  = expected: {}", harmless(&d.expected))?;
        }
        if !d.hint.is_empty() {
            write!(f, "\n  = help: {}", harmless(&d.hint))?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

/// Something odd that does not stop the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The file.
    pub file: String,
    /// The line, from 1; 0 where the file as a whole is meant.
    pub line: u32,
    /// The odd input, and how it was taken.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, message) = (harmless(&self.file), harmless(&self.message));
        match self.line {
            0 => write!(f, "warning: {file}: {message}"),
            line => write!(f, "warning: {file}:{line}: {message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_rendered_like_rustc() {
        let text = "[topology]\nlink_rate = \"10 Gbits\"\n";
        let start = text.find("\"10").unwrap();
        let e = Error::span("a.toml", text, start, start + 10, "unknown unit `Gbits`")
            .expected("a rate, as \"10 Gb/s\"")
            .hint("write `Gb/s`");
        let shown = e.to_string();
        let want = "error: unknown unit `Gbits`\n --> a.toml:2:13\n  |\n\
                    2 | link_rate = \"10 Gbits\"\n  |             ^^^^^^^^^^ \
                    a rate, as \"10 Gb/s\"\n  = help: write `Gb/s`";
        assert_eq!(shown, want);
    }

    #[test]
    fn what_a_file_says_cannot_move_the_cursor() {
        let text = "name = \"a\u{1b}[2J\u{9b}\u{202e}b\"\n";
        let hostile = "\u{1b}]0;x\u{7}\r\n";
        let e = Error::span(format!("{hostile}.toml"), text, 7, 9, hostile).expected(hostile).hint(hostile);
        let warning = Warning { file: hostile.into(), line: 1, message: hostile.into() };
        for shown in [e.to_string(), e.sentence(), warning.to_string()] {
            assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
            assert!(shown.contains("\u{241b}]0;x\u{2407}\u{240d}\u{240a}"), "{shown:?}");
        }
        // A character for a character: the mark stands where it stood.
        assert!(e.to_string().contains("1 | name = \"a\u{241b}[2J\u{fffd}\u{fffd}b\"\n  |        ^^"), "{e}");
    }

    #[test]
    fn any_span_of_any_text_is_safe() {
        let text = "é\nß\t\u{1F600}x";
        for start in 0..text.len() + 3 {
            for end in 0..text.len() + 3 {
                let _ = Error::span("f", text, start, end, "m").to_string();
            }
        }
        let long = "x".repeat(10_000);
        let shown = Error::span("f", &long, 5_000, 9_000, "m").to_string();
        assert!(shown.len() < 1_000, "{}", shown.len());
    }
}
