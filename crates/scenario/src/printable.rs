//! Foreign text, for a terminal. Characters that would move its cursor, turn its writing round or set its title are
//! shown, and have no effect.

use std::borrow::Cow;

/// As many characters, on one line. Control characters but tabs are shown as their pictures, so that text below stays
/// aligned.
pub fn line(text: &str) -> Cow<'_, str> {
    shown(text, |c| c == '\t')
}

/// As `line`, for text that has lines.
pub fn lines(text: &str) -> Cow<'_, str> {
    shown(text, |c| c == '\t' || c == '\n')
}

fn shown(text: &str, keeps: impl Fn(char) -> bool) -> Cow<'_, str> {
    let show = |c: char| if keeps(c) { c } else { picture(c) };
    match text.chars().any(|c| show(c) != c) {
        true => text.chars().map(show).collect(),
        false => text.into(),
    }
}

fn picture(c: char) -> char {
    const CONTROL_PICTURES: u32 = 0x2400;
    match c {
        '\0'..='\x1f' => char::from_u32(CONTROL_PICTURES + c as u32).unwrap_or(char::REPLACEMENT_CHARACTER),
        '\x7f' => '\u{2421}',
        // A character that turns the direction of writing hides text as well as one that moves the cursor.
        '\u{80}'..='\u{9f}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            char::REPLACEMENT_CHARACTER
        }
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_shown_and_text_is_left_alone() {
        let text = "┌ two words\tÜ 漢 😀 ─";
        assert!(matches!(line(text), Cow::Borrowed(same) if same == text));
        assert_eq!(line("a\u{1b}]0;x\u{7}\r\nb\u{7f}\u{9b}\u{202e}"), "a␛]0;x␇␍␊b␡\u{fffd}\u{fffd}");
        assert_eq!(lines("a\u{1b}\n\tb\r\n"), "a␛\n\tb␍\n");
    }
}
