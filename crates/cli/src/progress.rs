//! Progress on stderr: simulated time, packet-hops a second, an estimate of the time left.

use super::table::{lasting, short, time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sluicenet_experiment::run::Progress;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Steps of a full bar.
const STEPS: u64 = 1_000;
/// How often a bar is redrawn at most.
const REDRAW: Duration = Duration::from_millis(100);

/// A bar over one run or over several beside each other.
pub(super) struct Bar {
    bar: ProgressBar,
    start: Instant,
    state: Mutex<State>,
}

struct State {
    cells: Vec<Cell>,
    drawn: Instant,
    /// The time that was expected before the start, which stands until there is a better one.
    expected_s: Option<f64>,
}

#[derive(Clone, Copy, Default)]
struct Cell {
    /// How much is done, 0 to 1.
    done: f64,
    /// Its part of all work, in any unit.
    weight: f64,
    hops: u64,
    finished: bool,
}

impl Bar {
    /// A bar over runs with these parts of all work, in any unit; none is drawn where stderr is no terminal, or with
    /// `quiet`.
    pub fn new(weights: &[f64], quiet: bool) -> Bar {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr_with_hz(10) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(STEPS), target);
        if let Ok(style) = ProgressStyle::with_template("  {bar:30.cyan/dim} {percent:>3} %  {msg}") {
            bar.set_style(style.progress_chars("━━─"));
        }
        let start = Instant::now();
        let cells = weights.iter().map(|&weight| Cell { weight, ..Cell::default() }).collect();
        let state = State { cells, drawn: start, expected_s: None };
        Bar { bar, start, state: Mutex::new(state) }
    }

    /// So many seconds are expected, if that is known: the bar shows them until a part of the work is done.
    pub fn expect(&self, seconds: Option<f64>) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        state.expected_s = seconds;
    }

    /// A run says how far it is.
    pub fn update(&self, cell: usize, p: &Progress) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let state = &mut *state;
        let by_time = p.until.map(|u| p.now.as_ps() as f64 / u.as_ps().max(1) as f64);
        let by_work = 1.0 - p.remaining as f64 / p.total.max(1) as f64;
        let done = by_time.unwrap_or(by_work).clamp(0.0, 1.0);
        state.cells[cell] = Cell { done, hops: p.hops, finished: false, ..state.cells[cell] };
        if state.drawn.elapsed() < REDRAW {
            return;
        }
        state.drawn = Instant::now();
        let simulated = (state.cells.len() == 1).then(|| format!("{} simulated, ", time(p.now.as_ps() as f64 / 1e6)));
        self.draw(state, &simulated.unwrap_or_default());
    }

    /// Work that is no run says which part of it is done, from 0 to 1.
    pub fn share(&self, done: f64) {
        let elapsed = self.start.elapsed().as_secs_f64();
        self.bar.set_position((done * STEPS as f64) as u64);
        self.bar.set_message(left(done, elapsed));
    }

    /// A run has ended, or there was nothing to do.
    pub fn finished(&self, cell: usize) {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        state.cells[cell] = Cell { done: 1.0, finished: true, ..state.cells[cell] };
        self.draw(&state, "");
    }

    fn draw(&self, state: &State, simulated: &str) {
        let cells = &state.cells;
        let elapsed = self.start.elapsed().as_secs_f64();
        let all: f64 = cells.iter().map(|c| c.weight).sum();
        let done = cells.iter().map(|c| c.weight * c.done).sum::<f64>() / all.max(f64::MIN_POSITIVE);
        let hops: u64 = cells.iter().map(|c| c.hops).sum();
        // Others have no part in this work.
        let cell = match cells.iter().filter(|c| c.weight > 0.0).count() {
            1 => String::new(),
            n => format!("{} of {n} runs, ", cells.iter().filter(|c| c.finished).count()),
        };
        let left = match left(done, elapsed) {
            left if left.is_empty() => expected(state.expected_s),
            left => format!(", {left}"),
        };
        self.bar.set_position((done * STEPS as f64) as u64);
        self.bar.set_message(format!("{cell}{simulated}{}hops/s{left}", short(hops as f64 / elapsed.max(0.001))));
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// The expected time, if it is known and long enough to be read.
fn expected(seconds: Option<f64>) -> String {
    seconds.filter(|&s| s >= 1.0).map_or(String::new(), |s| format!(", about {} expected", lasting(s)))
}

/// The time left; nothing in the first moments, when an estimate would be wild.
fn left(done: f64, elapsed_s: f64) -> String {
    match done > 0.01 && elapsed_s > 0.5 {
        true => format!("{} left", lasting(elapsed_s * (1.0 - done) / done)),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_not_expected() {
        assert_eq!([None, Some(0.02)].map(expected), ["", ""]);
        assert_eq!(expected(Some(32.0)), ", about 32 s expected");
    }
}
