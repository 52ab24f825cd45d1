//! `run --profile`: the shares of a run's stages in its CPU time, as a table.

use super::failure::Failure;
use super::table::{Table, count};
use sluicenet_profile::Profiler;
use sluicenet_records::Profile;

/// Samples below which shares say little: one of 1 % is then off by half of itself.
const FEW_SAMPLES: u64 = 400;

/// Starts to profile this process.
pub(super) fn start() -> Result<Profiler, Failure> {
    let function = sluicenet_experiment::run::run as *const ();
    Profiler::start(function).map_err(|e| Failure::Input(format!("--profile: {e}")))
}

/// The table on the terminal.
pub(super) fn table(profile: &Profile) -> String {
    let mut t = Table::new(1, ["stage", "share", "samples"]);
    for stage in &profile.stages {
        t.row([stage.stage.clone(), format!("{:.1} %", 100.0 * stage.share), count(stage.samples)]);
    }
    t.rule();
    t.row(["CPU time of the run".to_owned(), "100.0 %".into(), count(profile.samples)]);
    let few = match profile.samples {
        0..FEW_SAMPLES => "  few samples: a longer run has more precise shares\n",
        _ => "",
    };
    format!("\n{}{few}", t.text())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_records::StageShare;

    #[test]
    fn the_table_has_shares_and_says_when_they_are_rough() {
        let of = |samples: u64| {
            let stages = vec![StageShare { stage: "TCP".into(), samples: samples / 2, share: 0.5 }];
            table(&Profile { samples, stages })
        };
        assert!(of(1_000).contains("50.0 %") && of(1_000).contains("1,000") && !of(1_000).contains("few"));
        assert!(of(10).contains("few samples"));
        assert!(table(&Profile::default()).contains("few samples"));
    }
}
