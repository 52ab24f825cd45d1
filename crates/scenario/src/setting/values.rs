//! The types of values.

use core::ops::RangeInclusive;

use super::{Kind, Section, Setting};
use crate::error::Result;
use crate::tree::{Node, Value};
use crate::units::{BYTES_MAX, Bytes, Canonical, DURATION_MAX, LENGTH_MAX, Length, PACKETS_MAX, Packets, RATE_MAX};
use serde::{Serialize, Serializer};
use sluicenet_proto::time::Duration;
use sluicenet_proto::units::Rate;

impl Setting for bool {
    type Limits = ();
    const ANY: () = ();

    fn kind(_: &()) -> Kind {
        Kind::Bool
    }

    fn read(s: &Section<'_>, _: &str, node: &Node, _: &()) -> Result<bool> {
        match node.value {
            Value::Bool(b) => Ok(b),
            _ => Err(s.wrong(node, "true or false")),
        }
    }
}

impl Setting for String {
    type Limits = ();
    const ANY: () = ();

    fn kind(_: &()) -> Kind {
        Kind::Text
    }

    fn read(s: &Section<'_>, _: &str, node: &Node, _: &()) -> Result<String> {
        s.text_of(node).map(str::to_owned)
    }
}

macro_rules! whole_numbers {
    ($($int:ty),+) => {$(
        impl Setting for $int {
            type Limits = RangeInclusive<$int>;
            const ANY: RangeInclusive<$int> = <$int>::MIN..=<$int>::MAX;

            fn kind(limits: &Self::Limits) -> Kind {
                Kind::Count(u64::from(*limits.start()), u64::from(*limits.end()))
            }

            fn read(s: &Section<'_>, name: &str, node: &Node, limits: &Self::Limits) -> Result<$int> {
                let Value::Int(n) = node.value else { return Err(s.wrong(node, "a whole number")) };
                match <$int>::try_from(n) {
                    Ok(n) if limits.contains(&n) => Ok(n),
                    _ => Err(s.out_of_range(node, name, n, (limits.start(), limits.end()))),
                }
            }
        }

        impl Setting for Vec<$int> {
            type Limits = RangeInclusive<$int>;
            const ANY: RangeInclusive<$int> = <$int>::MIN..=<$int>::MAX;

            fn kind(limits: &Self::Limits) -> Kind {
                Kind::Counts(u64::from(*limits.start()), u64::from(*limits.end()))
            }

            fn read(s: &Section<'_>, name: &str, node: &Node, limits: &Self::Limits) -> Result<Vec<$int>> {
                let Value::List(list) = &node.value else { return Err(s.wrong(node, "a list of whole numbers")) };
                list.iter().map(|node| <$int>::read(s, name, node, limits)).collect()
            }
        }
    )+};
}
whole_numbers!(u8, u16, u32, u64);

/// Never NaN.
impl Setting for f64 {
    type Limits = RangeInclusive<f64>;
    const ANY: RangeInclusive<f64> = f64::MIN..=f64::MAX;

    fn kind(limits: &Self::Limits) -> Kind {
        Kind::Number(*limits.start(), *limits.end())
    }

    fn read(s: &Section<'_>, name: &str, node: &Node, limits: &Self::Limits) -> Result<f64> {
        let n = match node.value {
            Value::Int(n) => n as f64,
            Value::Float(n) => n,
            _ => return Err(s.wrong(node, "a number")),
        };
        if limits.contains(&n) { Ok(n) } else { Err(s.out_of_range(node, name, n, (limits.start(), limits.end()))) }
    }
}

macro_rules! quantities {
    ($($quantity:ident: $kind:ident from $zero:expr, to $max:expr;)+) => {$(
        impl Setting for $quantity {
            type Limits = RangeInclusive<$quantity>;
            const ANY: RangeInclusive<$quantity> = $zero..=$max;

            fn kind(limits: &Self::Limits) -> Kind {
                Kind::$kind(*limits.start(), *limits.end())
            }

            fn read(s: &Section<'_>, name: &str, node: &Node, limits: &Self::Limits) -> Result<$quantity> {
                s.quantity_of(node, name, limits)
            }
        }
    )+};
}
quantities!(
    Duration: Duration from Duration(0), to DURATION_MAX;
    Rate: Rate from Rate(0), to RATE_MAX;
    Bytes: Size from Bytes(0), to BYTES_MAX;
    Packets: Packets from Packets(1), to PACKETS_MAX;
    Length: Length from Length { mm: 0 }, to LENGTH_MAX;
);

/// One of several words, as [`choices!`](crate::choices) declares them.
pub trait Choice: Copy + 'static {
    /// All of them.
    const ALL: &'static [Self];
    /// Other words for them that files may have.
    const SYNONYMS: &'static [(&'static str, Self)];
    /// As in a file.
    fn word(self) -> &'static str;
}

fn words<T: Choice>() -> Vec<&'static str> {
    T::ALL.iter().map(|choice| choice.word()).chain(T::SYNONYMS.iter().map(|(word, _)| *word)).collect()
}

impl<T: Choice> Setting for T {
    type Limits = ();
    const ANY: () = ();

    fn kind(_: &()) -> Kind {
        Kind::Choice(words::<T>())
    }

    fn read(s: &Section<'_>, name: &str, node: &Node, _: &()) -> Result<T> {
        let text = s.text_of(node)?;
        let found = T::ALL.iter().copied().find(|choice| choice.word() == text);
        let found = found.or_else(|| T::SYNONYMS.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice));
        found.ok_or_else(|| s.unknown(node, name, text, &words::<T>()))
    }
}

impl<T: Choice> Canonical for T {
    fn canonical<S: Serializer>(&self, s: S) -> core::result::Result<S::Ok, S::Error> {
        self.word().serialize(s)
    }
}

/// None where the key is not given.
impl<T: Setting> Setting for Option<T> {
    type Limits = T::Limits;
    const ANY: T::Limits = T::ANY;

    fn kind(limits: &T::Limits) -> Kind {
        T::kind(limits)
    }

    fn read(s: &Section<'_>, name: &str, node: &Node, limits: &T::Limits) -> Result<Option<T>> {
        T::read(s, name, node, limits).map(Some)
    }

    fn absent(_: &Section<'_>, _: &str) -> Result<Option<T>> {
        Ok(None)
    }
}

/// A value, or a word instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Or<T, W> {
    /// The value.
    Value(T),
    /// The word.
    Word(W),
}

impl<T, W> Or<T, W> {
    /// The value, unless it is the word.
    pub fn value(self) -> Option<T> {
        match self {
            Or::Value(value) => Some(value),
            Or::Word(_) => None,
        }
    }
}

impl<T: Setting, W: Choice> Setting for Or<T, W> {
    type Limits = T::Limits;
    const ANY: T::Limits = T::ANY;

    fn kind(limits: &T::Limits) -> Kind {
        Kind::OrWord(Box::new(T::kind(limits)), words::<W>())
    }

    fn read(s: &Section<'_>, name: &str, node: &Node, limits: &T::Limits) -> Result<Or<T, W>> {
        let word = match &node.value {
            Value::Text(text) => W::ALL.iter().find(|choice| choice.word() == text),
            _ => None,
        };
        match (word, &node.value, T::kind(limits)) {
            (Some(word), ..) => Ok(Or::Word(*word)),
            (None, Value::Text(_), Kind::Count(min, max)) => {
                Err(s.wrong(node, &format!("{min} to {max}, or \"{}\"", words::<W>().join("\", \""))))
            }
            _ => T::read(s, name, node, limits).map(Or::Value),
        }
    }
}
