//! The macros that declare tables, their keys and the words of their choices.

/// Declares a table: its struct, its keys ([`Settings::SPEC`](crate::setting::Settings)) and its reader `read`.
///
/// ```text
/// settings! {
///     /// every adapter
///     pub model struct Adapter in "adapter" (s, set: ParameterSet) {
///         /// its transmit buffer
///         buffer: Bytes [BUFFER] = Bytes(512_000),
///     }
/// }
/// ```
///
/// A doc comment is the help text of the reference page and of errors: a phrase, without a full stop. The default is an
/// expression over the arguments of `read`, whose first is the [`Section`](crate::setting::Section), and over the keys
/// above it. A key without a default must be given, unless its type is an `Option`. The forms of an item:
///
/// | item | is |
/// |---|---|
/// | `name: Type [limits] = default,` | a key and a field; limits and default may be left out |
/// | `let name: Type [limits] = default,` | a key that only the items below use |
/// | `name: Type as (kind) = value,` | a key and a field that `value` reads by hand |
/// | `let name as (kind),` | a key that an item below reads by hand |
/// | `field name: Type = value,` | a field that is no key |
///
/// A `model` is part of the canonical form of a scenario and is serialised; its quantities are in base units. With
/// `in kind "name"` the table is one of several kinds.
#[macro_export]
macro_rules! settings {
    (
        $(#[doc = $doc:literal])+ $(#[derive($($derive:ident),+)])?
        $vis:vis model struct $name:ident in $($rest:tt)+
    ) => {
        $crate::settings! { @table
            [$(#[doc = $doc])+ #[derive(Clone, Debug, PartialEq, serde::Serialize)] $(#[derive($($derive),+)])?]
            [#[serde(serialize_with = "crate::units::canonical")]] [$($doc)+] $vis $name $($rest)+ }
    };
    (
        $(#[doc = $doc:literal])+ $(#[derive($($derive:ident),+)])?
        $vis:vis struct $name:ident $(<$generic:ident>)? in $($rest:tt)+
    ) => {
        $crate::settings! { @table
            [$(#[doc = $doc])+ #[derive(Clone, Debug)] $(#[derive($($derive),+)])?]
            [] [$($doc)+] $vis $name $(<$generic>)? $($rest)+ }
    };
    (@table $attrs:tt $form:tt $doc:tt $vis:vis $name:ident $(<$generic:ident>)? kind $section:literal
        ($s:ident $($args:tt)*) { $($body:tt)* }
    ) => {
        $crate::settings! { @item [$s $form $attrs $doc [$vis] $name [$($generic)?] $section [$($args)*]] []
            [$crate::setting::Key { name: "kind", doc: "the kind", kind: || $crate::setting::Kind::Text },]
            [] $($body)* }
    };
    (@table $attrs:tt $form:tt $doc:tt $vis:vis $name:ident $(<$generic:ident>)? $section:literal
        ($s:ident $($args:tt)*) { $($body:tt)* }
    ) => {
        $crate::settings! { @item [$s $form $attrs $doc [$vis] $name [$($generic)?] $section [$($args)*]] [] [] []
            $($body)* }
    };

    // A field that is no key.
    (@item $head:tt [$($fields:tt)*] $keys:tt [$($reads:tt)*]
        $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])*
        field $name:ident : $ty:ty = $value:expr, $($rest:tt)*
    ) => {
        $crate::settings! { @item $head
            [$($fields)* { $(#[doc = $doc])* $(#[serde($($serde)*)])* } $name [$ty]] $keys
            [$($reads)* let $name: $ty = $value;] $($rest)* }
    };
    // A key that another item reads by hand.
    (@item $head:tt $fields:tt [$($keys:tt)*] $reads:tt
        $(#[doc = $doc:literal])* let $name:ident as ($kind:expr), $($rest:tt)*
    ) => {
        $crate::settings! { @item $head $fields [$($keys)* $crate::settings!(@key $name [$($doc)*] $kind),] $reads
            $($rest)* }
    };
    // A key that only the items below use.
    (@item [$s:ident $($head:tt)*] $fields:tt [$($keys:tt)*] [$($reads:tt)*]
        $(#[doc = $doc:literal])* let $name:ident : $ty:ty $([$limits:expr])? $(= $default:expr)?, $($rest:tt)*
    ) => {
        $crate::settings! { @item [$s $($head)*] $fields
            [$($keys)* $crate::settings!(@key $name [$($doc)*] $crate::settings!(@kind [$ty] $([$limits])?)),]
            [$($reads)* let $name: $ty = $crate::settings!(@read $s $name [$ty] [$($limits)?] [$($default)?]);]
            $($rest)* }
    };
    // A key and a field that are read by hand.
    (@item $head:tt [$($fields:tt)*] [$($keys:tt)*] [$($reads:tt)*]
        $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])*
        $name:ident : $ty:ty as ($kind:expr) = $value:expr, $($rest:tt)*
    ) => {
        $crate::settings! { @item $head
            [$($fields)* { $(#[doc = $doc])* $(#[serde($($serde)*)])* } $name [$ty]]
            [$($keys)* $crate::settings!(@key $name [$($doc)*] $kind),]
            [$($reads)* let $name: $ty = $value;] $($rest)* }
    };
    // A key and a field.
    (@item [$s:ident [$($form:tt)*] $($head:tt)*] [$($fields:tt)*] [$($keys:tt)*] [$($reads:tt)*]
        $(#[doc = $doc:literal])* $(#[serde($($serde:tt)*)])*
        $name:ident : $ty:ty $([$limits:expr])? $(= $default:expr)?, $($rest:tt)*
    ) => {
        $crate::settings! { @item [$s [$($form)*] $($head)*]
            [$($fields)* { $(#[doc = $doc])* $(#[serde($($serde)*)])* $($form)* } $name [$ty]]
            [$($keys)* $crate::settings!(@key $name [$($doc)*] $crate::settings!(@kind [$ty] $([$limits])?)),]
            [$($reads)* let $name: $ty = $crate::settings!(@read $s $name [$ty] [$($limits)?] [$($default)?]);]
            $($rest)* }
    };
    (@item
        [$s:ident $form:tt [$($attrs:tt)*] [$($doc:literal)+] [$vis:vis] $name:ident [$($generic:ident)?]
            $section:literal [$(, $arg:ident : $argty:ty)* $(,)?]]
        [$({ $($field_attrs:tt)* } $field:ident [$fty:ty])*] [$($keys:tt)*] [$($reads:tt)*]
    ) => {
        $($attrs)*
        $vis struct $name $(<$generic>)? { $($($field_attrs)* pub $field: $fty,)* }

        impl $(<$generic: $crate::Quantity + $crate::setting::Setting>)? $crate::setting::Settings
            for $name $(<$generic>)?
        {
            const SPEC: &'static $crate::setting::Spec = &$crate::setting::Spec {
                name: $section,
                doc: concat!($($doc),+).trim_ascii_start(),
                keys: &[$($keys)*],
            };
        }

        impl $(<$generic: $crate::Quantity + $crate::setting::Setting>)? $name $(<$generic>)? {
            /// The values that the table gives, and the defaults of the others.
            pub(crate) fn read($s: &$crate::setting::Section<'_> $(, $arg: $argty)*) -> $crate::Result<Self> {
                $($reads)*
                Ok(Self { $($field),* })
            }
        }
    };

    (@key $name:ident [$($doc:literal)*] $kind:expr) => {
        $crate::setting::Key {
            name: stringify!($name),
            doc: concat!($($doc),*).trim_ascii_start(),
            kind: || $kind,
        }
    };
    (@kind [$ty:ty]) => { <$ty as $crate::setting::Setting>::kind(&<$ty as $crate::setting::Setting>::ANY) };
    (@kind [$ty:ty] [$limits:expr]) => { <$ty as $crate::setting::Setting>::kind(&$limits) };
    (@read $s:ident $name:ident [$ty:ty] [$($limits:expr)?] [$($default:expr)?]) => {
        match $s.get(stringify!($name)) {
            Some(node) => <$ty as $crate::setting::Setting>::read(
                $s,
                stringify!($name),
                node,
                &$crate::settings!(@limits [$ty] $([$limits])?),
            )?,
            None => $crate::settings!(@default $s $name [$ty] $([$default])?),
        }
    };
    (@limits [$ty:ty]) => { <$ty as $crate::setting::Setting>::ANY };
    (@limits [$ty:ty] [$limits:expr]) => { $limits };
    (@default $s:ident $name:ident [$ty:ty]) => {
        <$ty as $crate::setting::Setting>::absent($s, stringify!($name))?
    };
    (@default $s:ident $name:ident [$ty:ty] [$default:expr]) => { $default };
}

/// Declares a table whose keys are all tables, without a struct: `tables! { /// help  "name" key: kind, ... }`.
#[macro_export]
macro_rules! tables {
    ($(#[doc = $doc:literal])+ $name:literal $($(#[doc = $key_doc:literal])* $key:ident: $kind:expr,)+) => {
        $crate::setting::Spec {
            name: $name,
            doc: concat!($($doc),+).trim_ascii_start(),
            keys: &[$($crate::settings!(@key $key [$($key_doc)*] $kind)),+],
        }
    };
}

/// Declares an enumeration as the words that a key takes, each with its variant.
#[macro_export]
macro_rules! choices {
    ($(#[doc = $doc:literal])+ $vis:vis enum $name:ident {
        $($(#[doc = $word_doc:literal])+ $variant:ident = $word:literal $(| $synonym:literal)*,)+
    }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[doc = $word_doc])+ $variant,)+ }

        impl $name {
            /// As in a file.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl $crate::setting::Choice for $name {
            const ALL: &'static [$name] = &[$($name::$variant),+];
            const SYNONYMS: &'static [(&'static str, $name)] = &[$($(($synonym, $name::$variant),)*)+];
            fn word(self) -> &'static str {
                self.name()
            }
        }
    };
}
