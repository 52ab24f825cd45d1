//! Values of table cells: the types of columns, and repeated strings without allocation.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A string that repeats over many rows: cloning it never allocates.
///
/// Make the name of a node once (`Text::from(format!("switch {i}"))`) and clone it into its rows. A literal
/// (`"query".into()`) needs no allocation at all.
#[derive(Clone)]
pub enum Text {
    /// A name known at compile time.
    Static(&'static str),
    /// A name made at run time, shared by its rows.
    Shared(Arc<str>),
}

impl Deref for Text {
    type Target = str;
    fn deref(&self) -> &str {
        match self {
            Text::Static(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl Default for Text {
    fn default() -> Text {
        Text::Static("")
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Text {
        Text::Static(text)
    }
}

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text::Shared(text.into())
    }
}

// A literal and a shared string with the same characters are the same text.
impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        **self == **other
    }
}

impl PartialOrd for Text {
    fn partial_cmp(&self, other: &Text) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Text {
    fn cmp(&self, other: &Text) -> std::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl std::hash::Hash for Text {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl std::borrow::Borrow<str> for Text {
    fn borrow(&self) -> &str {
        self
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Unsigned 8 bits.
    U8,
    /// Unsigned 16 bits.
    U16,
    /// Unsigned 32 bits.
    U32,
    /// Unsigned 64 bits.
    U64,
    /// IEEE 754 double.
    F64,
    /// True or false.
    Bool,
    /// UTF-8 string.
    Text,
}

/// The value of one cell, without its column's exact width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// Not measured, or not finished.
    Null,
    /// Any unsigned integer.
    Int(u64),
    /// A double.
    Real(f64),
    /// True or false.
    Bool(bool),
    /// A string.
    Text(&'a Text),
}

impl Value<'_> {
    /// The value as a number, for sums and differences.
    pub fn as_f64(self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(n as f64),
            Value::Real(x) => Some(x),
            Value::Bool(b) => Some(b as u8 as f64),
            Value::Null | Value::Text(_) => None,
        }
    }

    /// Compares two values bit for bit: a NaN is identical to itself, unlike with `==`.
    pub fn is_identical(self, other: Value<'_>) -> bool {
        match (self, other) {
            (Value::Real(a), Value::Real(b)) => a.to_bits() == b.to_bits(),
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Int(n) => n.fmt(f),
            Value::Real(x) => x.fmt(f),
            Value::Bool(b) => b.fmt(f),
            Value::Text(t) => t.fmt(f),
        }
    }
}

/// A type that can be a field of a row.
pub trait Cell: Sized {
    /// The column's type.
    const KIND: Kind;
    /// Whether the column may hold nulls.
    const NULLABLE: bool = false;
    /// The field as a value.
    fn value(&self) -> Value<'_>;
    /// The field from a value; `None` when it has another type or does not fit.
    fn from_value(value: Value<'_>) -> Option<Self>;
}

macro_rules! integer_cells {
    ($($type:ty = $kind:ident),*) => {$(
        impl Cell for $type {
            const KIND: Kind = Kind::$kind;
            #[inline]
            fn value(&self) -> Value<'_> {
                Value::Int(*self as u64)
            }
            #[inline]
            fn from_value(value: Value<'_>) -> Option<$type> {
                match value {
                    Value::Int(n) => n.try_into().ok(),
                    _ => None,
                }
            }
        }
    )*};
}
integer_cells!(u8 = U8, u16 = U16, u32 = U32, u64 = U64);

impl Cell for f64 {
    const KIND: Kind = Kind::F64;
    #[inline]
    fn value(&self) -> Value<'_> {
        Value::Real(*self)
    }
    #[inline]
    fn from_value(value: Value<'_>) -> Option<f64> {
        match value {
            Value::Real(x) => Some(x),
            _ => None,
        }
    }
}

impl Cell for bool {
    const KIND: Kind = Kind::Bool;
    #[inline]
    fn value(&self) -> Value<'_> {
        Value::Bool(*self)
    }
    #[inline]
    fn from_value(value: Value<'_>) -> Option<bool> {
        match value {
            Value::Bool(b) => Some(b),
            _ => None,
        }
    }
}

impl Cell for Text {
    const KIND: Kind = Kind::Text;
    #[inline]
    fn value(&self) -> Value<'_> {
        Value::Text(self)
    }
    #[inline]
    fn from_value(value: Value<'_>) -> Option<Text> {
        match value {
            Value::Text(t) => Some(t.clone()),
            _ => None,
        }
    }
}

impl<C: Cell> Cell for Option<C> {
    const KIND: Kind = C::KIND;
    const NULLABLE: bool = true;
    #[inline]
    fn value(&self) -> Value<'_> {
        self.as_ref().map_or(Value::Null, C::value)
    }
    #[inline]
    fn from_value(value: Value<'_>) -> Option<Option<C>> {
        match value {
            Value::Null => Some(None),
            other => C::from_value(other).map(Some),
        }
    }
}
