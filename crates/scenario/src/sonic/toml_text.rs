//! Keys as the text of a scenario.

use crate::tree::{Node, Table, Value};
use core::fmt::Write;

/// Sections with their keys as TOML.
pub fn toml_text(sections: &Table) -> String {
    let mut text = String::new();
    for section in &sections.entries {
        match &section.node.value {
            Value::Table(table) => table_text(&section.key, table, &mut text),
            Value::List(tables) => list_text(&section.key, tables, &mut text),
            value => _ = writeln!(text, "{} = {}", section.key, value_text(value)),
        }
    }
    text
}

fn table_text(name: &str, table: &Table, text: &mut String) {
    let is_list = |value: &Value| matches!(value, Value::List(list) if list.iter().any(is_table));
    let is_section = |value: &Value| is_list(value) || matches!(value, Value::Table(_));
    let plain: Vec<_> = table.entries.iter().filter(|e| !is_section(&e.node.value)).collect();
    if !plain.is_empty() {
        let _ = writeln!(text, "[{name}]");
        plain.iter().for_each(|e| _ = writeln!(text, "{} = {}", e.key, value_text(&e.node.value)));
        text.push('\n');
    }
    for e in &table.entries {
        if let Value::List(list) = &e.node.value
            && is_list(&e.node.value)
        {
            list_text(&format!("{name}.{}", e.key), list, text);
        }
        if let Value::Table(table) = &e.node.value {
            table_text(&format!("{name}.{}", e.key), table, text);
        }
    }
}

fn list_text(name: &str, tables: &[Node], text: &mut String) {
    for node in tables {
        let Value::Table(table) = &node.value else { continue };
        let _ = writeln!(text, "[[{name}]]");
        table.entries.iter().for_each(|e| _ = writeln!(text, "{} = {}", e.key, value_text(&e.node.value)));
        text.push('\n');
    }
}

fn is_table(node: &Node) -> bool {
    matches!(node.value, Value::Table(_))
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Text(text) => format!("{text:?}"),
        Value::Int(n) => n.to_string(),
        Value::Float(n) => format!("{n:?}"),
        Value::Bool(b) => b.to_string(),
        Value::List(list) => format!("[{}]", list.iter().map(|n| value_text(&n.value)).collect::<Vec<_>>().join(", ")),
        Value::Table(_) | Value::Date => String::new(),
    }
}
