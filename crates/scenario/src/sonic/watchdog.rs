//! The PFC watchdog of a port: its row of `PFC_WD`.

use super::json::{ConfigDb, Row, Text};
use crate::Result;
use crate::model::WatchdogAction;
use crate::setting::{Choice, shown};
use crate::tree::Value;
use core::ops::RangeInclusive;

/// Detection times in milliseconds (sonic-pfcwd.yang).
pub(super) const DETECTION_MS: RangeInclusive<u64> = 100..=5_000;
/// Restoration times in milliseconds (sonic-pfcwd.yang).
pub(super) const RESTORATION_MS: RangeInclusive<u64> = 100..=60_000;

/// The watchdog of a port.
#[derive(PartialEq)]
pub(super) struct PortWatchdog {
    detection_ms: u64,
    restoration_ms: u64,
    action: WatchdogAction,
}

impl PortWatchdog {
    /// That of a port with this row.
    ///
    /// # Errors
    /// A time out of range or missing, an unknown action.
    pub fn of(db: &ConfigDb, row: &Row) -> Result<PortWatchdog> {
        let time = |name: &str, limits: RangeInclusive<u64>| {
            row.get(name).map(|text| db.number(text, name, *limits.start(), *limits.end())).transpose()
        };
        let Some(detection_ms) = time("detection_time", DETECTION_MS)? else {
            let error = db.error(row.key.at, format!("PFC_WD|{} has no detection_time", shown(&row.key.value)));
            let (least, most) = DETECTION_MS.into_inner();
            return Err(error.expected(format!("milliseconds, from {least} to {most}")));
        };
        // `pfcwd start` takes twice the detection time.
        let restoration_ms = time("restoration_time", RESTORATION_MS)?.unwrap_or(2 * detection_ms);
        let action = row.get("action").map_or(Ok(WatchdogAction::Drop), |text| action(db, text))?;
        Ok(PortWatchdog { detection_ms, restoration_ms, action })
    }

    /// The keys of `[pfc.watchdog]`.
    pub fn keys(&self) -> [(&'static str, Value); 3] {
        let time = |ms: u64| Value::Text(format!("{ms} ms"));
        [
            ("detection_time", time(self.detection_ms)),
            ("restoration_time", time(self.restoration_ms)),
            ("action", Value::Text(self.action.name().into())),
        ]
    }
}

fn action(db: &ConfigDb, text: &Text) -> Result<WatchdogAction> {
    let known = WatchdogAction::ALL.iter().copied().find(|action| action.name() == text.value);
    known.ok_or_else(|| {
        let error = db.error(text.at, format!("unknown action `{}`", shown(&text.value)));
        let names: Vec<&str> = WatchdogAction::ALL.iter().map(|action| action.name()).collect();
        error.none_of(&text.value, &names)
    })
}
