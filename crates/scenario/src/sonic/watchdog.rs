//! The PFC watchdog of a port: its row of `PFC_WD`.

use super::json::{ConfigDb, Place, Row};
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
#[derive(Clone, Copy)]
pub(super) struct PortWatchdog {
    pub settings: Times,
    pub at: Place,
}

/// Its settings.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Times {
    detection_ms: u64,
    restoration_ms: u64,
    action: WatchdogAction,
}

impl PortWatchdog {
    /// The keys of `[pfc.watchdog]`.
    pub fn keys(&self) -> [(&'static str, Value); 3] {
        let Times { detection_ms, restoration_ms, action } = self.settings;
        let time = |ms: u64| Value::Text(format!("{ms} ms"));
        [
            ("detection_time", time(detection_ms)),
            ("restoration_time", time(restoration_ms)),
            ("action", Value::Text(action.name().into())),
        ]
    }
}

/// The watchdog of a port with this row; none without a row.
///
/// # Errors
/// A time out of range or missing, an unknown action.
pub(super) fn of_row(db: &ConfigDb, row: Option<&Row>) -> Result<Option<PortWatchdog>> {
    row.map(|row| Ok(PortWatchdog { settings: times(db, row)?, at: row.key.at })).transpose()
}

fn times(db: &ConfigDb, row: &Row) -> Result<Times> {
    let time = |name: &str, limits: RangeInclusive<u64>| {
        row.get(name).map(|text| db.number(text, name, *limits.start(), *limits.end())).transpose()
    };
    let Some(detection_ms) = time("detection_time", DETECTION_MS)? else {
        let error = db.error(row.key.at, format!("PFC_WD|{} has no detection_time", shown(&row.key.value)));
        return Err(error.expected("milliseconds, from 100 to 5000"));
    };
    // `pfcwd start` takes twice the detection time.
    let restoration_ms = time("restoration_time", RESTORATION_MS)?.unwrap_or(2 * detection_ms);
    let action = match row.get("action") {
        None => WatchdogAction::Drop,
        Some(text) => {
            let known = WatchdogAction::ALL.iter().find(|action| action.name() == text.value);
            *known.ok_or_else(|| {
                db.error(text.at, format!("unknown action `{}`", shown(&text.value))).expected("drop, forward, alert")
            })?
        }
    };
    Ok(Times { detection_ms, restoration_ms, action })
}
