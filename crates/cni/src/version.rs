//! Versions of the specification.

use super::error::{DECODE, Error, INCOMPATIBLE_VERSION};
use serde_json::{Value, json};

/// A version of the specification that this plugin speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 0.4.0: addresses say their family; CHECK, and the earlier result for DEL.
    V040,
    /// 1.0.0.
    V100,
    /// 1.1.0: STATUS and GC; MTUs of interfaces, attributes of routes.
    V110,
}

impl Version {
    /// All of them, the oldest first.
    pub const ALL: [Version; 3] = [Version::V040, Version::V100, Version::V110];
    /// The newest one, for errors that happen before a configuration says another.
    pub const NEWEST: Version = Version::V110;

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Version::V040 => "0.4.0",
            Version::V100 => "1.0.0",
            Version::V110 => "1.1.0",
        }
    }

    /// The version of a configuration. The specification's first version had no such key.
    pub fn of(config: &serde_json::Map<String, Value>) -> Result<Version, Error> {
        let text = match config.get("cniVersion") {
            None => "0.1.0",
            Some(Value::String(text)) => text,
            Some(other) => {
                return Err(Error::new(DECODE, "invalid version", format!("key \"cniVersion\": {other} is no text")));
            }
        };
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if text.split('.').count() != 3 || !text.split(['-', '+']).next().unwrap_or_default().split('.').all(digits) {
            let details = format!("key \"cniVersion\": {text:?} is no version; expected: as \"1.0.0\"");
            return Err(Error::new(DECODE, "invalid version", details));
        }
        Version::ALL.into_iter().find(|version| version.name() == text).ok_or_else(|| {
            let missing = if config.contains_key("cniVersion") { "" } else { " (the key \"cniVersion\" is missing)" };
            let details =
                format!("the configuration has version {text}{missing}; this plugin supports {}", names().join(", "));
            Error::new(INCOMPATIBLE_VERSION, "incompatible CNI version", details)
        })
    }

    /// Refuses a command that this version does not have.
    pub fn requires(self, least: Version, command: &str) -> Result<(), Error> {
        match self >= least {
            true => Ok(()),
            false => {
                let details = format!(
                    "{command} needs version {} at least, and the configuration has {}",
                    least.name(),
                    self.name()
                );
                Err(Error::new(INCOMPATIBLE_VERSION, "incompatible CNI version", details))
            }
        }
    }
}

fn names() -> [&'static str; 3] {
    Version::ALL.map(Version::name)
}

/// The answer to VERSION. It repeats the version of the request, if there is one.
pub fn answer(request: &[u8]) -> Value {
    let request: Value = serde_json::from_slice(request).unwrap_or_default();
    let version = request.get("cniVersion").and_then(Value::as_str).unwrap_or(Version::NEWEST.name());
    json!({ "cniVersion": version, "supportedVersions": names() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: &str) -> Result<Version, u32> {
        let config: Value = serde_json::from_str(config).unwrap();
        Version::of(config.as_object().unwrap()).map_err(|e| e.code)
    }

    #[test]
    fn versions_are_read() {
        for version in Version::ALL {
            assert_eq!(of(&format!(r#"{{"cniVersion": "{}"}}"#, version.name())), Ok(version));
        }
        for (config, code) in [
            ("{}", INCOMPATIBLE_VERSION),
            (r#"{"cniVersion": "0.3.1"}"#, INCOMPATIBLE_VERSION),
            (r#"{"cniVersion": "1.2.0"}"#, INCOMPATIBLE_VERSION),
            (r#"{"cniVersion": "1.1.0-rc1"}"#, INCOMPATIBLE_VERSION),
            (r#"{"cniVersion": "1.0"}"#, DECODE),
            (r#"{"cniVersion": "one"}"#, DECODE),
            (r#"{"cniVersion": 1}"#, DECODE),
        ] {
            assert_eq!(of(config), Err(code), "{config}");
        }
    }

    #[test]
    fn the_versions_are_told_and_the_asked_one_is_repeated() {
        let all = json!(["0.4.0", "1.0.0", "1.1.0"]);
        let asked = answer(br#"{"cniVersion": "1.0.0"}"#);
        assert_eq!(asked, json!({"cniVersion": "1.0.0", "supportedVersions": all}));
        assert_eq!(answer(b""), json!({"cniVersion": "1.1.0", "supportedVersions": all}));
    }
}
