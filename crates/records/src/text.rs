//! Formatting of counts and changes for people.

/// A count with separators of thousands.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A change in per cent with its sign. A change that rounds to zero has no sign.
pub fn percent_change(percent: f64) -> String {
    let text = format!("{percent:+.2} %");
    let is_nothing = !text.contains(|c: char| ('1'..='9').contains(&c));
    if is_nothing { text[1..].to_string() } else { text }
}

/// A count and its noun, as "1 query" or "2,000 queries".
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([counted(1, "query", "queries"), counted(2000, "query", "queries")], ["1 query", "2,000 queries"]);
    }

    #[test]
    fn a_change_of_nothing_has_no_sign() {
        let shown = [0.0, -0.0, -0.004, 0.004, -0.006, 12.345, -100.0].map(percent_change);
        assert_eq!(shown, ["0.00 %", "0.00 %", "0.00 %", "0.00 %", "-0.01 %", "+12.35 %", "-100.00 %"]);
    }
}
