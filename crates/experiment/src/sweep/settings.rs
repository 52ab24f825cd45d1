//! The values of axes with their types. Records have them as text.

/// A value of an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number of 64 bits.
    Int(i64),
    /// A real number.
    Real(f64),
    /// Any other, as `20 KB`.
    Text(String),
}

/// The values of one axis: bool, whole or real where all of them are, and text otherwise, so that a column has one type.
pub fn typed(values: &[&str]) -> Vec<Setting> {
    let all = |one: fn(&str) -> Option<Setting>| values.iter().map(|text| one(text)).collect::<Option<Vec<_>>>();
    all(boolean)
        .or_else(|| all(whole))
        .or_else(|| all(real))
        .unwrap_or_else(|| values.iter().map(|text| Setting::Text((*text).to_owned())).collect())
}

fn boolean(text: &str) -> Option<Setting> {
    text.parse().ok().map(Setting::Bool)
}

fn whole(text: &str) -> Option<Setting> {
    text.parse().ok().filter(|number: &i64| number.to_string() == text).map(Setting::Int)
}

/// A decimal number. "nan" and "007" are words, and a whole number beyond 64 bits would lose its end.
fn real(text: &str) -> Option<Setting> {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let digits = unsigned.bytes().take_while(u8::is_ascii_digit).count();
    let (before, after) = unsigned.split_at(digits);
    let begins_well = before == "0" || (digits > 0 && !before.starts_with('0'));
    let is_plain = after.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b)) && !after.ends_with('.');
    let fraction = after.strip_prefix('.').map_or(after, |rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    let has_fraction = !after.starts_with('.') || after.as_bytes().get(1).is_some_and(u8::is_ascii_digit);
    let ends_well = fraction.is_empty() || fraction.starts_with(['e', 'E']);
    let fits = !after.is_empty() || text.parse::<i64>().is_ok();
    let is_number = begins_well && is_plain && has_fraction && ends_well && fits;
    text.parse().ok().filter(|_| is_number).map(Setting::Real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_one_key_have_one_type() {
        use Setting::*;
        let text = |s: &str| Text(s.into());
        assert_eq!(typed(&["true", "false"]), [Bool(true), Bool(false)]);
        assert_eq!(typed(&["1", "-20"]), [Int(1), Int(-20)]);
        assert_eq!(typed(&["1", "0.5", "1e9", "-2.5E-3"]), [Real(1.0), Real(0.5), Real(1e9), Real(-0.0025)]);
        assert_eq!(typed(&["1", "auto"]), [text("1"), text("auto")]);
        assert_eq!(typed(&["true", "auto"]), [text("true"), text("auto")]);
        for word in ["007", "nan", "inf", "1_000", "18446744073709551615", "", "1.", ".5", "+1", "1e", "0x1", "01.5"] {
            assert_eq!(typed(&[word]), [text(word)]);
        }
        assert!(typed(&[]).is_empty());
    }
}
