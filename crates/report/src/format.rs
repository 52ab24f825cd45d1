//! Numbers, text and colours for people.

pub use sluicenet_records::text::{count, counted};

/// Okabe and Ito's colours, which most people can tell apart.
pub(super) const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#333333"];

/// Text that is safe inside HTML, in attributes too.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

/// Three significant digits, without a tail of zeros behind the point.
pub(super) fn digits(x: f64) -> String {
    if x == 0.0 {
        return "0".into();
    }
    // The power of ten after rounding: 9.996 is "10.0", not "10.00".
    let exponent = format!("{x:.2e}").split_once('e').and_then(|(_, e)| e.parse::<i32>().ok()).unwrap_or(0);
    let places = (2 - exponent).clamp(0, 9) as usize;
    format!("{x:.places$}")
}

/// A duration in the unit that suits it.
pub(super) fn time(ps: f64) -> String {
    if ps == 0.0 {
        return "0".into();
    }
    let (scale, unit) = match ps.abs() {
        x if x < 0.9995e3 => (1.0, "ps"),
        x if x < 0.9995e6 => (1e3, "ns"),
        x if x < 0.9995e9 => (1e6, "\u{b5}s"),
        x if x < 0.9995e12 => (1e9, "ms"),
        _ => (1e12, "s"),
    };
    format!("{}\u{202f}{unit}", digits(ps / scale))
}

/// A duration on an axis: a round number without needless digits.
pub(super) fn time_tick(ps: f64) -> String {
    trim_zeros(&time(ps))
}

/// Bytes in powers of a thousand, spelled as scenarios spell them.
pub(super) fn bytes(n: f64) -> String {
    let (scale, unit) = match n {
        x if x < 1e3 => return format!("{n:.0}\u{202f}B"),
        x if x < 0.9995e6 => (1e3, "KB"),
        x if x < 0.9995e9 => (1e6, "MB"),
        x if x < 0.9995e12 => (1e9, "GB"),
        _ => (1e12, "TB"),
    };
    format!("{}\u{202f}{unit}", digits(n / scale))
}

/// Bytes on an axis.
pub(super) fn bytes_tick(n: f64) -> String {
    trim_zeros(&bytes(n))
}

/// A plain number on an axis.
pub(super) fn number_tick(x: f64) -> String {
    if x >= 1000.0 { count(x.round() as u64) } else { trim_zeros(&digits(x)) }
}

/// "1.00 ms" to "1 ms", "0.500" to "0.5", "100 ns" as it is.
fn trim_zeros(text: &str) -> String {
    let (number, unit) = text.split_once('\u{202f}').map_or((text, None), |(n, u)| (n, Some(u)));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    unit.map_or(number.to_owned(), |unit| format!("{number}\u{202f}{unit}"))
}

/// How many times, as "3.2\u{d7}".
pub(super) fn times(ratio: f64) -> String {
    format!("{}\u{d7}", trim_zeros(&if ratio < 10.0 { format!("{ratio:.1}") } else { format!("{ratio:.0}") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        let shown = [0.0, 0.01234, 1.0, 9.996, 99.96, 123.4, 123_456.0].map(digits);
        assert_eq!(shown, ["0", "0.0123", "1.00", "10.0", "100", "123", "123456"]);
        let shown = [999.4, 999.6, 1.5e6, 999_600_000.0, 2.0e9, 3.25e12].map(|ps| time(ps).replace('\u{202f}', " "));
        assert_eq!(shown, ["999 ps", "1.00 ns", "1.50 \u{b5}s", "1.00 ms", "2.00 ms", "3.25 s"]);
        let ticks = [1e9, 1e11, 5e8, 2.5e9].map(|ps| time_tick(ps).replace('\u{202f}', " "));
        assert_eq!(ticks, ["1 ms", "100 ms", "500 \u{b5}s", "2.5 ms"]);
        assert_eq!([1.04, 3.25, 9.96, 12.6].map(times), ["1\u{d7}", "3.2\u{d7}", "10\u{d7}", "13\u{d7}"]);
        assert_eq!([12.0, 1500.0, 2e6].map(|b| bytes(b).replace('\u{202f}', " ")), ["12 B", "1.50 KB", "2.00 MB"]);
    }

    #[test]
    fn nothing_has_no_sign() {
        assert_eq!([-0.0, 0.0].map(digits), ["0", "0"]);
        assert_eq!([-0.0, 0.0].map(time), ["0", "0"]);
    }

    #[test]
    fn names_cannot_break_out_of_the_page() {
        assert_eq!(escape("<a href='x'>\"&"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;");
    }
}
