//! The JSON schema of a scenario, from the declarations of its keys.

use serde_json::{Map, Value, json};

use super::model::ROOT;
use super::patterns::{EXAMPLES, PATTERNS};
use super::setting::{Kind, Spec};
use super::units::Quantity;

/// A JSON schema (draft 2020-12) of scenario files, for editors that check and complete TOML.
pub fn json_schema() -> Value {
    let mut schema = table(&ROOT, None);
    if let Some(map) = schema.as_object_mut() {
        map.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        map.insert("title".into(), json!("sluicenet scenario"));
        map.insert("required".into(), json!(["topology", "workload"]));
    }
    schema
}

/// A table; `kind` fixes its key of that name.
pub fn table(spec: &Spec, kind: Option<&str>) -> Value {
    let mut properties = Map::new();
    for key in spec.keys {
        let mut value = match kind {
            Some(kind) if key.name == "kind" => json!({ "const": kind }),
            _ => of(&(key.kind)()),
        };
        if let Some(map) = value.as_object_mut() {
            map.insert("description".into(), json!(key.help()));
        }
        properties.insert(key.name.into(), value);
    }
    let mut out = json!({
        "type": "object",
        "description": spec.doc,
        "additionalProperties": false,
        "properties": properties,
    });
    if let (Some(_), Some(map)) = (kind, out.as_object_mut()) {
        map.insert("required".into(), json!(["kind"]));
    }
    out
}

/// A quantity: text with a unit, or 0.
fn quantity<T: Quantity>() -> Value {
    let units: Vec<&str> = T::UNITS.iter().map(|u| u.0).collect();
    let pattern = format!("^\\s*[0-9][0-9_]*(\\.[0-9_]+)?\\s*({})\\s*$", units.join("|"));
    json!({ "anyOf": [{ "type": "string", "pattern": pattern }, { "const": 0 }] })
}

fn distribution(of_value: &Kind, specs: &[&Spec]) -> Value {
    let mut any: Vec<Value> = specs.iter().map(|spec| table(spec, Some(spec.name))).collect();
    any.push(of(of_value));
    json!({ "anyOf": any })
}

fn of(kind: &Kind) -> Value {
    match kind {
        Kind::Text => json!({ "type": "string" }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Count(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Counts(min, max) => {
            json!({ "type": "array", "items": { "type": "integer", "minimum": min, "maximum": max } })
        }
        Kind::Number(min, max) => json!({ "type": "number", "minimum": min, "maximum": max }),
        Kind::Rate(..) => quantity::<sluicenet_proto::units::Rate>(),
        Kind::Size(..) => quantity::<super::Bytes>(),
        Kind::Packets(..) => quantity::<super::units::Packets>(),
        Kind::Duration(..) => quantity::<sluicenet_proto::time::Duration>(),
        Kind::Length(..) => quantity::<super::Length>(),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Hosts => json!({ "anyOf": [
            { "type": "integer", "minimum": 1 },
            { "type": "array", "items": { "type": "integer", "minimum": 0 }, "minItems": 1, "uniqueItems": true },
            { "type": "string", "pattern": "^ *[0-9]+ *(- *[0-9]+ *)?(, *[0-9]+ *(- *[0-9]+ *)?)*$" },
        ] }),
        Kind::Ports => {
            let pattern = "^(host [0-9]+|switch [0-9]+( port [0-9]+)?)$";
            json!({ "type": "array", "items": { "type": "string", "pattern": pattern } })
        }
        Kind::Texts => json!({ "type": "array", "items": { "type": "string" } }),
        Kind::TextOrTexts => json!({ "anyOf": [of(&Kind::Text), of(&Kind::Texts)] }),
        Kind::Distribution(value, specs) => distribution(value, specs),
        Kind::Points(value) => json!({
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "array",
                "prefixItems": [of(value), { "type": "number", "minimum": 0, "maximum": 100 }],
                "minItems": 2,
                "maxItems": 2,
            },
        }),
        Kind::Table(spec) => table(spec, None),
        Kind::Tables([spec]) => json!({ "type": "array", "items": table(spec, None) }),
        Kind::Tables(specs) => {
            let any: Vec<Value> = specs.iter().map(|s| table(s, Some(s.name))).collect();
            json!({ "type": "array", "minItems": 1, "items": { "oneOf": any } })
        }
        Kind::Pattern => {
            let names: Vec<&str> = PATTERNS.iter().map(|p| p.0).collect();
            let bare: Vec<&str> = PATTERNS.iter().map(|p| p.0).filter(|name| *name != "staggered").collect();
            let pattern = format!("^({})\\([-+.0-9e, ]*\\)$", names.join("|"));
            json!({ "anyOf": [{ "enum": bare }, { "type": "string", "pattern": pattern, "examples": EXAMPLES }] })
        }
        Kind::Matrix => {
            let cell = json!({ "anyOf": [{ "type": "number" }, { "const": "" }] });
            json!({ "type": "array", "items": { "type": "array", "items": cell } })
        }
        Kind::Either(one, other) => json!({ "anyOf": [of(one), of(other)] }),
        Kind::Axes => json!({ "type": "object" }),
        Kind::OrWord(kind, words) => json!({ "anyOf": [of(kind), { "enum": words }] }),
    }
}
