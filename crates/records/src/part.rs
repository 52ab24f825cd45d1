//! Encoding of a part as Parquet bytes, and decoding.
//!
//! The `parquet` crate's column writers are used without Arrow, which would triple the build time. Both callers of this
//! code have rows. All sources of differences between files are fixed here: properties, creator, no times.

use std::sync::Arc;

use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as PhysicalType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::{ColumnPath, Type, TypePtr};

use super::column::{Column, Columns, Data};
use super::sheet::{SheetColumn, SheetValues};
use super::tables::{ColumnSpec, TableSpec};
use super::value::{Kind, Text};

/// The `created_by` of files. It has no version, so that a release that changes no row changes no byte.
const CREATED_BY: &str = "sluicenet";

/// Encodes the rows as a complete Parquet file of one row group.
pub(super) fn encode(part: &Columns) -> Result<Vec<u8>> {
    let mut file = SerializedFileWriter::new(Vec::new(), schema(part.table)?, Arc::new(properties(part.table)))?;
    if part.rows > 0 {
        let mut group = file.next_row_group()?;
        for column in &part.columns {
            write_column(&mut group, column, part.rows)?;
        }
        group.close()?;
    }
    file.into_inner()
}

/// Decodes a file written by [`encode`]: the columns must be exactly those of `table`.
pub(super) fn decode(table: &'static TableSpec, bytes: Vec<u8>) -> Result<Columns> {
    // The library trusts some fields of a damaged file and panics. Unwinding leaves none of our data half changed.
    std::panic::catch_unwind(|| decode_believing(table, bytes))
        .unwrap_or_else(|_| Err(ParquetError::General("the file is damaged".into())))
}

fn decode_believing(table: &'static TableSpec, bytes: Vec<u8>) -> Result<Columns> {
    let file = SerializedFileReader::new(bytes::Bytes::from(bytes))?;
    let found = file.metadata().file_metadata().schema_descr();
    let expected = schema(table)?;
    if found.root_schema().get_fields() != expected.get_fields() {
        let names = |t: &Type| t.get_fields().iter().map(|f| f.name().to_owned()).collect::<Vec<_>>().join(", ");
        return Err(ParquetError::General(format!(
            "the columns are not those of table {}: expected {}; found {}",
            table.name,
            names(&expected),
            names(found.root_schema())
        )));
    }
    let mut part = Columns::new(table);
    for group in 0..file.num_row_groups() {
        let group = file.get_row_group(group)?;
        for column in group.metadata().columns() {
            let places = [column.data_page_offset(), column.compressed_size()];
            if places.into_iter().chain(column.dictionary_page_offset()).any(|place| place < 0) {
                // The parquet crate would panic.
                return Err(ParquetError::General(format!(
                    "column {}: it begins or ends before the file",
                    column.column_path()
                )));
            }
        }
        let rows = group.metadata().num_rows() as usize;
        for (index, (column, spec)) in part.columns.iter_mut().zip(table.columns).enumerate() {
            read_column(group.get_column_reader(index)?, column, spec, part.rows, rows)
                .map_err(|e| ParquetError::General(format!("column {}: {e}", spec.name)))?;
        }
        part.rows += rows;
    }
    Ok(part)
}

fn schema(table: &TableSpec) -> Result<TypePtr> {
    let fields = table.columns.iter().map(|c| column_type(c).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Type::group_type_builder(table.name).with_fields(fields).build()?))
}

fn column_type(spec: &ColumnSpec) -> Result<Type> {
    let unsigned = |bit_width| Some(LogicalType::integer(bit_width, false));
    let (physical, logical) = match spec.kind {
        Kind::U8 => (PhysicalType::INT32, unsigned(8)),
        Kind::U16 => (PhysicalType::INT32, unsigned(16)),
        Kind::U32 => (PhysicalType::INT32, unsigned(32)),
        Kind::U64 => (PhysicalType::INT64, unsigned(64)),
        Kind::F64 => (PhysicalType::DOUBLE, None),
        Kind::Bool => (PhysicalType::BOOLEAN, None),
        Kind::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
    };
    let repetition = if spec.nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    Type::primitive_type_builder(spec.name, physical).with_repetition(repetition).with_logical_type(logical).build()
}

fn properties(table: &TableSpec) -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_created_by(CREATED_BY.into())
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for column in table.columns {
        let path = ColumnPath::from(column.name);
        builder = match column.kind {
            Kind::Text => builder.set_column_dictionary_enabled(path, true),
            // Times and counters of neighbouring rows are close: their differences take a fraction of the bytes.
            Kind::U8 | Kind::U16 | Kind::U32 | Kind::U64 => {
                builder.set_column_encoding(path, Encoding::DELTA_BINARY_PACKED)
            }
            Kind::F64 | Kind::Bool => builder,
        };
    }
    builder.build()
}

fn write_column(group: &mut SerializedRowGroupWriter<'_, Vec<u8>>, column: &Column, rows: usize) -> Result<()> {
    let mut writer =
        group.next_column()?.ok_or_else(|| ParquetError::General("the schema has fewer columns".into()))?;
    match (writer.untyped(), &column.data) {
        (ColumnWriter::Int32ColumnWriter(w), Data::Int32(slots)) => write_slots(w, column, slots, rows),
        (ColumnWriter::Int64ColumnWriter(w), Data::Int64(slots)) => write_slots(w, column, slots, rows),
        (ColumnWriter::DoubleColumnWriter(w), Data::Real(slots)) => write_slots(w, column, slots, rows),
        (ColumnWriter::BoolColumnWriter(w), Data::Bool(slots)) => write_slots(w, column, slots, rows),
        (ColumnWriter::ByteArrayColumnWriter(w), Data::Text(slots, pool)) => {
            let strings: Vec<ByteArray> = pool.strings.iter().map(|text| ByteArray::from(&**text)).collect();
            // A clone shares the bytes, so that rows need no allocation.
            let slots: Vec<ByteArray> = slots.iter().map(|&id| strings[id as usize].clone()).collect();
            write_slots(w, column, &slots, rows)
        }
        _ => unreachable!("the schema is made from the same columns"),
    }?;
    writer.close()
}

fn write_slots<T: DataType>(
    writer: &mut parquet::column::writer::ColumnWriterImpl<'_, T>,
    column: &Column,
    slots: &[T::T],
    rows: usize,
) -> Result<()> {
    if column.defined.is_empty() {
        // A required column ignores the levels; an optional one needs a level per row.
        writer.write_batch(slots, Some(&vec![1; rows]), None)?;
    } else {
        let values: Vec<T::T> =
            slots.iter().zip(&column.defined).filter(|(_, defined)| **defined == 1).map(|(v, _)| v.clone()).collect();
        writer.write_batch(&values, Some(&column.defined), None)?;
    }
    Ok(())
}

/// Encodes columns that no table of ours has as a complete Parquet file of one row group; each may have nulls.
pub(super) fn sheet_bytes(columns: &[SheetColumn]) -> Result<Vec<u8>> {
    let fields = columns.iter().map(|column| sheet_type(column).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    let schema = Arc::new(Type::group_type_builder("runs").with_fields(fields).build()?);
    let properties = WriterProperties::builder()
        .set_created_by(CREATED_BY.into())
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    let mut file = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build()))?;
    if columns.iter().all(|column| column.values.is_empty()) {
        return file.into_inner();
    }
    let mut group = file.next_row_group()?;
    for column in columns {
        let mut writer =
            group.next_column()?.ok_or_else(|| ParquetError::General("the schema has fewer columns".into()))?;
        match (writer.untyped(), &column.values) {
            (ColumnWriter::BoolColumnWriter(w), SheetValues::Bool(v)) => write_nullable(w, v, |&x| x),
            (ColumnWriter::Int64ColumnWriter(w), SheetValues::Int(v)) => write_nullable(w, v, |&x| x),
            // Parquet has unsigned numbers as their bit pattern.
            (ColumnWriter::Int64ColumnWriter(w), SheetValues::Count(v)) => write_nullable(w, v, |&x| x as i64),
            (ColumnWriter::DoubleColumnWriter(w), SheetValues::Real(v)) => write_nullable(w, v, |&x| x),
            (ColumnWriter::ByteArrayColumnWriter(w), SheetValues::Text(v)) => {
                write_nullable(w, v, |text| ByteArray::from(text.as_str()))
            }
            _ => unreachable!("the schema is made from the same columns"),
        }?;
        writer.close()?;
    }
    group.close()?;
    file.into_inner()
}

fn sheet_type(column: &SheetColumn) -> Result<Type> {
    let (physical, logical) = match column.values {
        SheetValues::Bool(_) => (PhysicalType::BOOLEAN, None),
        SheetValues::Int(_) => (PhysicalType::INT64, None),
        SheetValues::Count(_) => (PhysicalType::INT64, Some(LogicalType::integer(64, false))),
        SheetValues::Real(_) => (PhysicalType::DOUBLE, None),
        SheetValues::Text(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
    };
    Type::primitive_type_builder(&column.name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(logical)
        .build()
}

fn write_nullable<V, T: DataType>(
    writer: &mut parquet::column::writer::ColumnWriterImpl<'_, T>,
    values: &[Option<V>],
    convert: impl Fn(&V) -> T::T,
) -> Result<()> {
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let present: Vec<T::T> = values.iter().flatten().map(convert).collect();
    writer.write_batch(&present, Some(&levels), None).map(|_| ())
}

/// Appends `rows` slots to `column`, which already has `before` slots.
fn read_column(reader: ColumnReader, column: &mut Column, spec: &ColumnSpec, before: usize, rows: usize) -> Result<()> {
    let mut levels = Vec::new();
    match (reader, &mut column.data) {
        (ColumnReader::Int32ColumnReader(r), Data::Int32(slots)) => {
            slots.extend(read_slots(r, rows, spec, &mut levels, 0)?);
        }
        (ColumnReader::Int64ColumnReader(r), Data::Int64(slots)) => {
            slots.extend(read_slots(r, rows, spec, &mut levels, 0)?);
        }
        (ColumnReader::DoubleColumnReader(r), Data::Real(slots)) => {
            slots.extend(read_slots(r, rows, spec, &mut levels, 0.0)?);
        }
        (ColumnReader::BoolColumnReader(r), Data::Bool(slots)) => {
            slots.extend(read_slots(r, rows, spec, &mut levels, false)?);
        }
        (ColumnReader::ByteArrayColumnReader(r), Data::Text(slots, pool)) => {
            for value in read_slots(r, rows, spec, &mut levels, ByteArray::from(""))? {
                let text = value.as_utf8()?;
                slots.push(pool.intern_with(text, || Text::from(text.to_owned())));
            }
        }
        _ => return Err(ParquetError::General("unexpected physical type".into())),
    }
    if levels.contains(&0) || !column.defined.is_empty() {
        column.defined.resize(before, 1);
        column.defined.extend(levels);
    }
    Ok(())
}

/// The next `rows` slots, with `zero` for nulls; `levels` tells which slots are null.
fn read_slots<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    rows: usize,
    spec: &ColumnSpec,
    levels: &mut Vec<i16>,
    zero: T::T,
) -> Result<Vec<T::T>> {
    let mut values = Vec::with_capacity(rows.min(1 << 20));
    let (records, _, _) = reader.read_records(rows, spec.nullable.then_some(&mut *levels), None, &mut values)?;
    if records != rows {
        return Err(ParquetError::General(format!("expected {rows} rows, found {records}")));
    }
    if !spec.nullable {
        levels.resize(rows, 1);
        return Ok(values);
    }
    let mut values = values.into_iter();
    let slot = |level: &i16| if *level == 1 { values.next().unwrap_or_else(|| zero.clone()) } else { zero.clone() };
    Ok(levels.iter().map(slot).collect())
}
