//! Quantities as people write them: "10 Gb/s", "100 KB", "9.5 us"; parsed in integers, never through a float.
//!
//! K, M, G and T are powers of 1000; Ki, Mi and Gi of 1024. Bits are `b`, bytes `B`.

use core::fmt;
use core::ops::RangeInclusive;
use serde::{Serialize, Serializer};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// As a number.
    pub const fn as_bytes(self) -> u64 {
        self.0
    }
}

/// A number of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packets(pub u32);

/// The length of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Length {
    /// In millimetres.
    pub mm: u64,
}

impl Length {
    /// The delay of a cable in which light takes `per_metre` for a metre, to the nearest picosecond; limited to
    /// [`DURATION_MAX`].
    pub fn delay(self, per_metre: Duration) -> Duration {
        let ps = (u128::from(self.mm) * u128::from(per_metre.as_ps()) + 500) / 1000;
        Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX)).min(DURATION_MAX)
    }
}

/// The longest time accepted, 2400 h: less than half of the range of a clock of picoseconds, so that sums of two never
/// overflow.
pub const DURATION_MAX: Duration = Duration(100 * 86_400 * 1_000_000_000_000);
/// The longest delay accepted of a link, a box or a stack, 1 h: light takes less to Jupiter. A run ends at
/// [`DURATION_MAX`] at the latest, and the rest of a clock's range has room for the delays of two thousand hops.
pub const DELAY_MAX: Duration = Duration(3_600 * 1_000_000_000_000);
const _: () = assert!(u64::MAX - DURATION_MAX.0 > 2_000 * DELAY_MAX.0);
/// The lowest rate of a link, 10 kb/s: the time of the largest frame, in fractions of a picosecond, still fits 64 bits.
pub const LINK_RATE_MIN: Rate = Rate(10_000);
/// The highest rate accepted, 100 Tb/s: a byte still takes time.
pub const RATE_MAX: Rate = Rate(100_000_000_000_000);
/// The largest buffer accepted, 1 GiB: a switch, an adapter and a socket count it in 32 bits, with room for headroom.
pub const BUFFER_MAX: Bytes = Bytes(1 << 30);
/// The longest queue accepted that is limited in packets.
pub const PACKETS_MAX: Packets = Packets(1_000_000);
/// The longest cable accepted, 10,000 km.
pub const LENGTH_MAX: Length = Length { mm: 10_000_000_000 };
/// The largest size accepted, 1024 GiB: a connection can count thousands of such messages.
pub const BYTES_MAX: Bytes = Bytes(1 << 40);

/// Times of more than zero.
pub const POSITIVE_TIME: RangeInclusive<Duration> = Duration(1)..=DURATION_MAX;
/// Delays of links, boxes and stacks.
pub const DELAY: RangeInclusive<Duration> = Duration(0)..=DELAY_MAX;
/// Rates of more than zero.
pub const POSITIVE_RATE: RangeInclusive<Rate> = Rate(1)..=RATE_MAX;
/// Rates of links.
pub const LINK_RATE: RangeInclusive<Rate> = LINK_RATE_MIN..=RATE_MAX;
/// Sizes of more than zero.
pub const POSITIVE_SIZE: RangeInclusive<Bytes> = Bytes(1)..=BYTES_MAX;
/// Sizes of buffers.
pub const BUFFER: RangeInclusive<Bytes> = Bytes(1)..=BUFFER_MAX;

const PS: &[(&str, u64)] = &[
    ("ps", 1),
    ("ns", 1_000),
    ("us", 1_000_000),
    ("\u{b5}s", 1_000_000),
    ("\u{3bc}s", 1_000_000),
    ("ms", 1_000_000_000),
    ("s", 1_000_000_000_000),
    ("min", 60_000_000_000_000),
    ("h", 3_600_000_000_000_000),
];
const BPS: &[(&str, u64)] = &[
    ("b/s", 1),
    ("kb/s", 1_000),
    ("Kb/s", 1_000),
    ("Mb/s", 1_000_000),
    ("Gb/s", 1_000_000_000),
    ("Tb/s", 1_000_000_000_000),
    ("bps", 1),
    ("kbps", 1_000),
    ("Kbps", 1_000),
    ("Mbps", 1_000_000),
    ("Gbps", 1_000_000_000),
    ("Tbps", 1_000_000_000_000),
];
const BYTE: &[(&str, u64)] = &[
    ("B", 1),
    ("KB", 1_000),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

const PACKET: &[(&str, u64)] = &[("packets", 1), ("packet", 1)];
const MM: &[(&str, u64)] = &[("mm", 1), ("cm", 10), ("m", 1_000), ("km", 1_000_000)];

/// Why a quantity is not one: a message, and a hint which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitError {
    /// The fault.
    pub message: String,
    /// Advice; may be empty.
    pub hint: String,
    /// Whether it is a quantity beyond the most that is accepted.
    pub is_too_large: bool,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.hint {
            "" => f.write_str(&self.message),
            hint => write!(f, "{}; {hint}", self.message),
        }
    }
}

impl core::error::Error for UnitError {}

/// A value that can be written as a number and a unit.
pub trait Quantity: Copy + PartialOrd + fmt::Debug {
    /// Name of the quantity, with its article.
    const NAME: &'static str;
    /// Two examples.
    const EXAMPLE: &'static str;
    /// Its units, each with how many base units it is.
    const UNITS: &'static [(&'static str, u64)];
    /// The most of it that is accepted, in base units.
    const MAX: u64;
    /// Whether a part of a base unit is refused rather than rounded: there is no half of a byte.
    const IS_WHOLE: bool = false;
    /// Base units of a value in a file of a distribution that names no unit; 0 where it must name one.
    const DEFAULT_FILE_UNIT: u64;
    /// From base units: picoseconds, bits per second, bytes.
    fn from_base(n: u64) -> Self;
    /// In base units.
    fn base(self) -> u64;

    /// From text.
    ///
    /// # Errors
    /// Anything but a decimal number of at least zero, a known unit, and a value within the limit.
    fn parse(text: &str) -> Result<Self, UnitError> {
        parse_base(text, Self::NAME, Self::EXAMPLE, Self::UNITS, Self::MAX, Self::IS_WHOLE).map(Self::from_base)
    }

    /// In base units: it can be read again, and nothing is lost.
    fn text(self) -> String {
        format!("{} {}", self.base(), Self::UNITS[0].0)
    }

    /// As people would write it: exact, in the unit that makes it shortest.
    fn written(self) -> String {
        if self.base() == 0 {
            return "0".into();
        }
        let in_unit = |&(unit, scale): &(&'static str, u64)| {
            let (thousandths, scale) = (u128::from(self.base()) * 1000, u128::from(scale));
            let (whole, rest) = (thousandths / scale / 1000, thousandths / scale % 1000);
            // "0.1 MB" is as short as "100 KB", but unusual.
            (thousandths % scale == 0 && whole > 0).then(|| {
                let number = format!("{whole}.{rest:03}");
                let number = number.trim_end_matches('0').trim_end_matches('.');
                let unit = if number == "1" { singular(unit, Self::UNITS) } else { unit };
                let text = format!("{number} {unit}");
                // Nor "1.5 KB" for "1500 B".
                (text.chars().count() + usize::from(whole < 10 && rest > 0), text)
            })
        };
        // Of the spellings of a unit, the first is the usual one. Of two texts of equal length, the one of the larger
        // unit stands.
        let is_usual = |(i, unit): &(usize, &(&str, u64))| Self::UNITS[..*i].iter().all(|other| other.1 != unit.1);
        let units = Self::UNITS.iter().enumerate().filter(is_usual).map(|(_, unit)| unit);
        units.rev().filter_map(in_unit).min_by_key(|(length, _)| *length).map(|(_, text)| text).unwrap_or_default()
    }
}

impl Quantity for Duration {
    const NAME: &'static str = "a duration";
    const EXAMPLE: &'static str = "\"9.5 us\" or \"20 ms\"";
    const UNITS: &'static [(&'static str, u64)] = PS;
    const MAX: u64 = DURATION_MAX.0;
    const DEFAULT_FILE_UNIT: u64 = 0;
    fn from_base(n: u64) -> Self {
        Duration(n)
    }
    fn base(self) -> u64 {
        self.0
    }
}

impl Quantity for Rate {
    const NAME: &'static str = "a rate";
    const EXAMPLE: &'static str = "\"10 Gb/s\" or \"100 Mb/s\"";
    const UNITS: &'static [(&'static str, u64)] = BPS;
    const MAX: u64 = RATE_MAX.0;
    const DEFAULT_FILE_UNIT: u64 = 0;
    fn from_base(n: u64) -> Self {
        Rate(n)
    }
    fn base(self) -> u64 {
        self.0
    }
}

impl Quantity for Bytes {
    const NAME: &'static str = "a size";
    const EXAMPLE: &'static str = "\"20 KB\" or \"1446 B\"";
    const UNITS: &'static [(&'static str, u64)] = BYTE;
    const MAX: u64 = BYTES_MAX.0;
    const IS_WHOLE: bool = true;
    const DEFAULT_FILE_UNIT: u64 = 1;
    fn from_base(n: u64) -> Self {
        Bytes(n)
    }
    fn base(self) -> u64 {
        self.0
    }
}

impl Quantity for Packets {
    const NAME: &'static str = "a number of packets";
    const EXAMPLE: &'static str = "\"200 packets\"";
    const UNITS: &'static [(&'static str, u64)] = PACKET;
    const MAX: u64 = PACKETS_MAX.0 as u64;
    const IS_WHOLE: bool = true;
    const DEFAULT_FILE_UNIT: u64 = 0;
    fn from_base(n: u64) -> Self {
        // At most `MAX`, as everything that is parsed.
        Packets(n as u32)
    }
    fn base(self) -> u64 {
        self.0.into()
    }
}

impl Quantity for Length {
    const NAME: &'static str = "a length";
    const EXAMPLE: &'static str = "\"40 m\" or \"2 km\"";
    const UNITS: &'static [(&'static str, u64)] = MM;
    const MAX: u64 = LENGTH_MAX.mm;
    const DEFAULT_FILE_UNIT: u64 = 0;
    fn from_base(mm: u64) -> Self {
        Length { mm }
    }
    fn base(self) -> u64 {
        self.mm
    }
}

/// Digits after the point beyond which nothing is measured; with them all products fit in 128 bits.
const FRACTION_DIGITS_MAX: usize = 18;

fn parse_base(
    text: &str,
    name: &str,
    example: &str,
    units: &[(&'static str, u64)],
    max: u64,
    is_whole: bool,
) -> Result<u64, UnitError> {
    let fail = |message: String, hint: String| Err(UnitError { message, hint, is_too_large: false });
    let shown: String = text.chars().take(40).collect();
    let trimmed = text.trim();
    let end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..end], trimmed[end..].trim());
    if number.is_empty() {
        if trimmed.starts_with('-') {
            return fail(format!("{name} cannot be negative: `{shown}`"), String::new());
        }
        return fail(format!("`{shown}` is not {name}"), format!("write a number and a unit, as {example}"));
    }
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit() || b == b'_');
    if whole.is_empty() || !digits(whole) || !digits(fraction) || (number.contains('.') && fraction.is_empty()) {
        return fail(format!("`{number}` is not a number"), format!("write {name} as {example}"));
    }
    if unit.is_empty() {
        return fail(format!("{name} needs a unit: `{shown}`"), format!("write it as {example}"));
    }
    let Some((_, scale)) = units.iter().find(|(u, _)| *u == unit) else {
        if let Some(hint) = bytes_a_second(number, unit, units) {
            return fail(format!("unknown unit `{unit}` for {name}"), hint);
        }
        let near = units.iter().find(|(u, _)| u.eq_ignore_ascii_case(unit)).map(|u| u.0);
        let near = near.or_else(|| closest(unit, units.iter().map(|u| u.0)));
        let shown: String = unit.chars().take(20).collect();
        let written = format!("{name} is written as {example}; its units are {}", usual(units).join(", "));
        return fail(
            format!("unknown unit `{shown}` for {name}"),
            match near {
                Some(u) => format!("did you mean `{u}`? {written}"),
                None => written,
            },
        );
    };
    let too_large = || UnitError {
        message: format!("{name} of `{shown}` is too large"),
        hint: limit_hint(name, units, max),
        is_too_large: true,
    };
    let plain = |s: &str| s.chars().filter(|c| *c != '_').collect::<String>();
    let (whole, fraction) = (plain(whole), plain(fraction));
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > FRACTION_DIGITS_MAX {
        return fail(
            format!("`{shown}` has more than {FRACTION_DIGITS_MAX} digits after the point"),
            "fewer digits say the same".into(),
        );
    }
    let whole = whole.trim_start_matches('0');
    if whole.len() > 20 {
        return Err(too_large());
    }
    let scale = u128::from(*scale);
    // At most 20 digits, and at most 18: neither parse nor product can overflow.
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| too_large())? };
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| too_large())? };
    let denominator = 10u128.pow(fraction.len() as u32);
    let base = whole * scale + (parts * scale + denominator / 2) / denominator;
    if base == 0 && (whole, parts) != (0, 0) {
        return fail(
            format!("{name} of `{shown}` is less than one {}", units.first().map_or("unit", |u| u.0)),
            String::new(),
        );
    }
    if base > u128::from(max) {
        return Err(too_large());
    }
    if is_whole && parts * scale % denominator != 0 {
        let (unit, below) = (units.first().map_or("", |u| u.0), whole * scale + parts * scale / denominator);
        return fail(
            format!("{name} of `{shown}` is not a whole number of {unit}"),
            format!("write {below} {} or {} {unit}", if below == 1 { singular(unit, units) } else { unit }, below + 1),
        );
    }
    u64::try_from(base).map_err(|_| too_large())
}

/// A hint for a rate in bytes a second, which is eight times as large as its letters would be as bits.
fn bytes_a_second(number: &str, unit: &str, units: &[(&'static str, u64)]) -> Option<String> {
    let prefix = unit.strip_suffix("B/s").or_else(|| unit.strip_suffix("Bps"))?;
    let (bits, _) =
        units.iter().find(|(u, _)| u.strip_suffix("b/s").is_some_and(|p| p.eq_ignore_ascii_case(prefix)))?;
    let eight = number.parse::<f64>().map_or(String::new(), |n| format!(", as {} {bits}", n * 8.0));
    Some(format!("rates are in bits: `{bits}` if you meant bits, and eight times as many if you meant bytes{eight}"))
}

/// Its units without other spellings of the same.
fn usual(units: &[(&'static str, u64)]) -> Vec<&'static str> {
    let is_first = |(i, unit): &(usize, &(&str, u64))| units[..*i].iter().all(|other| other.1 != unit.1);
    units.iter().enumerate().filter(is_first).map(|(_, unit)| unit.0).collect()
}

/// A unit as it is written behind 1: one of `packets` is a `packet`.
fn singular(unit: &'static str, units: &[(&'static str, u64)]) -> &'static str {
    let one = unit.strip_suffix('s').and_then(|one| units.iter().find(|(other, _)| *other == one));
    one.map_or(unit, |one| one.0)
}

fn limit_hint(name: &str, units: &[(&'static str, u64)], max: u64) -> String {
    let dividing = units.iter().rev().filter(|(_, s)| max % s == 0);
    let (unit, scale) = dividing.max_by_key(|u| u.1).copied().unwrap_or(("", 1));
    format!("{name} is at most {} {unit}", max / scale)
}

/// The closest of `names` to `name`, where one is close enough to have been meant; of several, one that begins like it.
pub fn closest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A key is short; a hostile one is not compared at all.
    if name.chars().count() > 64 {
        return None;
    }
    names
        .map(|n| (distance(&name.to_lowercase(), &n.to_lowercase()), n))
        .filter(|(d, n)| *d <= (n.len().max(name.len()) / 3).max(1))
        .min_by_key(|(d, n)| (*d, std::cmp::Reverse(name.chars().zip(n.chars()).take_while(|(a, b)| a == b).count())))
        .map(|(_, n)| n)
}

/// Edits (insert, delete, replace, swap of neighbours) between two short words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replace = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// A value in the canonical form of a scenario: quantities in base units, so that nothing is lost.
pub trait Canonical {
    /// Serialises it; null for an absent value.
    fn canonical<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error>;
}

macro_rules! canonical_quantities {
    ($($quantity:ty),+) => {$(
        impl Canonical for $quantity {
            fn canonical<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                self.text().serialize(s)
            }
        }
    )+};
}
canonical_quantities!(Duration, Rate, Bytes, Length, Packets);

/// Canonical forms of types that are serialised as they are.
macro_rules! canonical_as_they_are {
    ($($plain:ty),+) => {$(
        impl $crate::units::Canonical for $plain {
            fn canonical<S: serde::Serializer>(&self, s: S) -> core::result::Result<S::Ok, S::Error> {
                serde::Serialize::serialize(self, s)
            }
        }
    )+};
}
canonical_as_they_are!(bool, u8, u16, u32, u64, f64, String, Vec<u8>, Vec<u32>);
pub(crate) use canonical_as_they_are;

impl<T: Canonical> Canonical for Option<T> {
    fn canonical<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Some(value) => value.canonical(s),
            None => s.serialize_none(),
        }
    }
}

/// For `serialize_with`: the canonical form.
pub(crate) fn canonical<T: Canonical, S: Serializer>(value: &T, s: S) -> Result<S::Ok, S::Error> {
    value.canonical(s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_exact() {
        for (text, ps) in [
            ("9.5 us", 9_500_000),
            ("24us", 24_000_000),
            ("0.1 ms", 100_000_000),
            ("614.4 ns", 614_400),
            ("0 s", 0),
            ("1.0000000000004 s", 1_000_000_000_000),
            ("1.0000000000006 s", 1_000_000_000_001),
            ("3 \u{b5}s", 3_000_000),
            ("1_000 ns", 1_000_000),
            ("2 h", 7_200_000_000_000_000),
        ] {
            assert_eq!(Duration::parse(text), Ok(Duration(ps)), "{text}");
        }
        for (text, bps) in
            [("10 Gb/s", 10_000_000_000), ("106.67 Mb/s", 106_670_000), ("100Gbps", 100_000_000_000), ("1 b/s", 1)]
        {
            assert_eq!(Rate::parse(text), Ok(Rate(bps)), "{text}");
        }
        for (text, bytes) in
            [("100 KB", 100_000), ("25.6 KB", 25_600), ("1446 B", 1446), ("64 KiB", 65_536), ("1 MiB", 1 << 20)]
        {
            assert_eq!(Bytes::parse(text), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_quantity_says_why() {
        for (text, part) in [
            ("", "not a duration"),
            ("ms", "not a duration"),
            ("-1 ms", "negative"),
            ("NaN", "not a duration"),
            ("inf s", "not a duration"),
            ("5", "needs a unit"),
            ("1.2.3 s", "not a number"),
            (". s", "not a number"),
            ("5. s", "not a number"),
            ("1e3 s", "unknown unit `e3 s`"),
            ("5 parsec", "unknown unit"),
            ("5 MS", "unknown unit"),
            ("0.1 ps", "less than one ps"),
            ("101000000 s", "too large"),
            ("99999999999999999999999999 s", "too large"),
            ("18446744073709551615 h", "too large"),
            ("0.0000000000000000001 s", "more than 18 digits"),
            ("\u{1F600}", "not a duration"),
        ] {
            let e = Duration::parse(text).unwrap_err();
            assert!(e.message.contains(part), "{text}: {e:?}");
        }
        assert_eq!(
            Duration::parse("5 MS").unwrap_err().hint,
            "did you mean `ms`? a duration is written as \"9.5 us\" or \"20 ms\"; its units are ps, ns, us, ms, s, min, h"
        );
        assert!(Rate::parse("10 Gbit/s").unwrap_err().hint.contains("`Gb/s`"));
        for (text, both) in [("1.25 GBps", ["`Gb/s`", "10 Gb/s"]), ("100 MB/s", ["`Mb/s`", "800 Mb/s"])] {
            let hint = Rate::parse(text).unwrap_err().hint;
            assert!(both.iter().all(|b| hint.contains(b)), "{text}: {hint}");
        }
        assert!(Rate::parse("10 gbps").unwrap_err().hint.contains("`Gbps`"));
        assert!(Rate::parse("101 Tb/s").unwrap_err().hint.contains("at most 100 Tb/s"));
    }

    #[test]
    fn a_size_is_whole_bytes() {
        for (text, bytes) in [("1.5 KB", 1_500), ("1.0 B", 1), ("0.5 KiB", 512), ("2.000001 MB", 2_000_001)] {
            assert_eq!(Bytes::parse(text), Ok(Bytes(bytes)), "{text}");
        }
        for (text, hint) in [("1.5 B", "1 B or 2 B"), ("0.3 KiB", "307 B or 308 B"), ("1.0005 KB", "1000 B or 1001 B")]
        {
            let e = Bytes::parse(text).unwrap_err();
            assert!(
                e.message.contains("not a whole number of B") && e.hint == format!("write {hint}"),
                "{text}: {e:?}"
            );
        }
        assert!(Bytes::parse("0.4 B").unwrap_err().message.contains("less than one B"));
    }

    #[test]
    fn every_quantity_survives_its_canonical_text() {
        let mut x = 1u64;
        for _ in 0..10_000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let n = x >> (x % 64);
            let d = Duration(n % DURATION_MAX.0);
            assert_eq!(Duration::parse(&d.text()), Ok(d));
            let r = Rate(n % RATE_MAX.0);
            assert_eq!(Rate::parse(&r.text()), Ok(r));
            let b = Bytes(n % BYTES_MAX.0);
            assert_eq!(Bytes::parse(&b.text()), Ok(b));
        }
    }

    #[test]
    fn what_is_written_is_short_and_exact() {
        assert_eq!(
            [100_000, 1446, 1500, 65_536, 97_500, 0].map(|n| Bytes(n).written()),
            ["100 KB", "1446 B", "1500 B", "64 KiB", "97.5 KB", "0"]
        );
        assert_eq!(
            [9_500_000, 20_000_000_000, 614_400].map(|n| Duration(n).written()),
            ["9.5 us", "20 ms", "614.4 ns"]
        );
        assert_eq!([10_000_000_000, 106_670_000].map(|n| Rate(n).written()), ["10 Gb/s", "106.67 Mb/s"]);
        for n in [1, 999, 12_345_678_901, 86_400_000_000_000_000] {
            assert_eq!(Duration::parse(&Duration(n).written()), Ok(Duration(n)));
        }
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        let names = ["link_rate", "link_delay", "routing"];
        assert_eq!(closest("link_rat", names.into_iter()), Some("link_rate"));
        assert_eq!(closest("Routing", names.into_iter()), Some("routing"));
        assert_eq!(closest("zzz", names.into_iter()), None);
    }
}
