//! Rows as columns in memory: the contents of a part before writing and after reading.

use std::collections::HashMap;

use super::tables::{ColumnSpec, Row, TableSpec};
use super::value::{Kind, Text, Value};

/// Rows for which the first one reserves room: memory of this size comes from the system, which moves it without copying when
/// a column grows, and provides it only as it is used.
const FIRST_ROWS: usize = 1 << 15;

/// Strings of a pool that are compared one by one before a hash is computed.
const FEW_TEXTS: usize = 8;

/// The rows of a part, with a vector for each column.
pub(super) struct Columns {
    /// The table of the rows.
    pub table: &'static TableSpec,
    /// The number of rows.
    pub rows: usize,
    /// The columns, in the order of the table.
    pub columns: Vec<Column>,
}

impl Columns {
    pub fn new(table: &'static TableSpec) -> Columns {
        Columns { table, rows: 0, columns: table.columns.iter().map(Column::new).collect() }
    }

    pub fn push<R: Row>(&mut self, row: &R) {
        if self.rows == 0 {
            self.columns.iter_mut().for_each(|column| column.data.reserve(FIRST_ROWS));
        }
        // The type of a value is known where it is visited: nothing is left to be chosen but the column's width.
        row.visit(&mut |column, value| match value {
            Value::Int(n) => self.columns[column].push_int(n),
            other => self.columns[column].push(other, self.rows),
        });
        self.rows += 1;
    }

    /// Row `index` as its struct. The error is the index of a column with an invalid value.
    #[inline]
    pub fn row<R: Row>(&self, index: usize) -> Result<R, usize> {
        R::from_values(&|column| self.columns[column].get(index))
    }

    /// Header and rows in the format of RFC 4180; an absent value is an empty field.
    pub fn to_csv(&self) -> String {
        let mut out = self.table.columns.iter().map(|c| c.name).collect::<Vec<_>>().join(",");
        out.push('\n');
        for row in 0..self.rows {
            for (i, column) in self.columns.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                push_csv_field(&mut out, column.get(row));
            }
            out.push('\n');
        }
        out
    }
}

fn push_csv_field(out: &mut String, value: Value<'_>) {
    use std::fmt::Write;
    match value {
        Value::Null => {}
        Value::Text(text) if text.contains([',', '"', '\n', '\r']) => {
            out.push('"');
            out.push_str(&text.replace('"', "\"\""));
            out.push('"');
        }
        // Writing to a `String` cannot fail.
        other => write!(out, "{other}").unwrap_or_default(),
    }
}

/// A column: a slot for each row, and the null slots.
pub(super) struct Column {
    /// For each row 1 if it has a value, else 0 (Parquet's definition level). Empty when the column has no nulls.
    pub defined: Vec<i16>,
    /// The slots; a null one holds zero.
    pub data: Data,
}

/// The slots of a column, in Parquet's physical types.
pub(super) enum Data {
    /// Integers of up to 32 bits, as their bit pattern.
    Int32(Vec<i32>),
    /// Integers of 64 bits, as their bit pattern.
    Int64(Vec<i64>),
    /// Doubles.
    Real(Vec<f64>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Indexes into the strings of the part.
    Text(Vec<u32>, TextPool),
}

impl Column {
    pub fn new(spec: &ColumnSpec) -> Column {
        let data = match spec.kind {
            Kind::U8 | Kind::U16 | Kind::U32 => Data::Int32(Vec::new()),
            Kind::U64 => Data::Int64(Vec::new()),
            Kind::F64 => Data::Real(Vec::new()),
            Kind::Bool => Data::Bool(Vec::new()),
            Kind::Text => Data::Text(Vec::new(), TextPool::default()),
        };
        Column { defined: Vec::new(), data }
    }

    /// Appends a number.
    #[inline(never)]
    fn push_int(&mut self, n: u64) {
        match &mut self.data {
            Data::Int32(slots) => slots.push(n as u32 as i32),
            Data::Int64(slots) => slots.push(n as i64),
            _ => unreachable!("a row's own schema does not accept a whole number"),
        }
        if !self.defined.is_empty() {
            self.defined.push(1);
        }
    }

    /// Appends the value of row `row`, if it is no whole number.
    #[inline(never)]
    fn push(&mut self, value: Value<'_>, row: usize) {
        let is_null = matches!(value, Value::Null);
        match (&mut self.data, value) {
            (Data::Real(slots), Value::Real(x)) => slots.push(x),
            (Data::Bool(slots), Value::Bool(b)) => slots.push(b),
            (Data::Text(slots, pool), Value::Text(text)) => slots.push(pool.intern(text)),
            (data, Value::Null) => data.push_zero(),
            (_, other) => unreachable!("a row's own schema does not accept {other:?}"),
        }
        if is_null || !self.defined.is_empty() {
            self.defined.resize(row, 1);
            self.defined.push(!is_null as i16);
        }
    }

    #[inline(always)]
    pub fn get(&self, row: usize) -> Value<'_> {
        if self.defined.get(row) == Some(&0) {
            return Value::Null;
        }
        match &self.data {
            Data::Int32(slots) => Value::Int(slots[row] as u32 as u64),
            Data::Int64(slots) => Value::Int(slots[row] as u64),
            Data::Real(slots) => Value::Real(slots[row]),
            Data::Bool(slots) => Value::Bool(slots[row]),
            Data::Text(slots, pool) => Value::Text(&pool.strings[slots[row] as usize]),
        }
    }
}

impl Data {
    fn reserve(&mut self, rows: usize) {
        match self {
            Data::Int32(slots) => slots.reserve(rows),
            Data::Int64(slots) => slots.reserve(rows),
            Data::Real(slots) => slots.reserve(rows),
            Data::Bool(slots) => slots.reserve(rows),
            Data::Text(slots, _) => slots.reserve(rows),
        }
    }

    fn push_zero(&mut self) {
        match self {
            Data::Int32(slots) => slots.push(0),
            Data::Int64(slots) => slots.push(0),
            Data::Real(slots) => slots.push(0.0),
            Data::Bool(slots) => slots.push(false),
            Data::Text(slots, pool) => slots.push(pool.intern(&Text::Static(""))),
        }
    }
}

/// The distinct strings of a column, in order of first use.
#[derive(Default)]
pub(super) struct TextPool {
    /// The strings.
    pub strings: Vec<Text>,
    index: HashMap<Text, u32>,
    last: u32,
}

impl TextPool {
    pub fn intern(&mut self, text: &Text) -> u32 {
        self.intern_with(text, || text.clone())
    }

    /// The index of `text`. Only the first time, `own` makes an owned string of it.
    pub fn intern_with(&mut self, text: &str, own: impl FnOnce() -> Text) -> u32 {
        // Neighbouring rows mostly repeat the string, and most pools have few: some comparisons instead of a hash.
        if self.strings.get(self.last as usize).is_some_and(|last| **last == *text) {
            return self.last;
        }
        if let Some(id) = self.strings.iter().take(FEW_TEXTS).position(|known| **known == *text) {
            self.last = id as u32;
            return self.last;
        }
        self.last = match self.index.get(text) {
            Some(&id) => id,
            None => {
                let id = self.strings.len() as u32;
                let owned = own();
                self.strings.push(owned.clone());
                self.index.insert(owned, id);
                id
            }
        };
        self.last
    }
}
