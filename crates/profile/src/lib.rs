//! Profiles of runs. A line belongs here when it knows a stage of a run, or how a running thread is interrupted.
//!
//! A timer of CPU time interrupts the threads of this process and notes their stacks. The functions of a stack, inlined ones
//! too, and so their source files, come from the program's line tables after the run. Without a [`Profiler`] there is no
//! timer: a run executes the same instructions as if this crate did not exist.

mod sampler;
mod stages;

use sampler::{Sampler, Stack};
use sluicenet_records::{Profile, StageShare};
use stages::Stage;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;

/// A profiler at work.
pub struct Profiler(Sampler);

/// A profile, and the stacks behind it.
pub struct Profiled {
    /// The shares of the stages.
    pub profile: Profile,
    /// A line for each stack, `stage;outer;inner count`, as flame graphs are drawn from.
    pub folded: String,
}

/// Why nothing can be profiled.
#[derive(Debug)]
pub enum ProfileError {
    /// The functions of this program have no source files: their stages are unknown.
    NoLineTables,
    /// The system refuses the timer or its signal.
    Timer(std::io::Error),
}

impl core::fmt::Display for ProfileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ProfileError::NoLineTables => f.write_str(
                "this program has no line tables, from which stages are known: it was stripped, or built without debug \
                 information; `cargo build --release` in a checkout keeps them",
            ),
            ProfileError::Timer(e) => write!(f, "this system has no timer of CPU time: {e}"),
        }
    }
}

impl std::error::Error for ProfileError {}

impl Profiler {
    /// Starts to sample all threads of this process, until [`Profiler::finish`]. `function` is a function of the program
    /// that has to have a source file.
    ///
    /// # Errors
    /// A program without line tables, or a system without the timer.
    pub fn start(function: *const ()) -> Result<Profiler, ProfileError> {
        // An address is taken for one to return to, behind its call.
        if functions(function as usize + 1).iter().all(|function| function.file.is_none()) {
            return Err(ProfileError::NoLineTables);
        }
        Sampler::start().map(Profiler).map_err(ProfileError::Timer)
    }

    /// Stops, and attributes the samples to stages.
    pub fn finish(self) -> Profiled {
        profiled(&self.0.finish())
    }
}

/// A function, inlined or not, at an address of the program.
struct Function {
    name: String,
    file: Option<String>,
}

/// The functions at an address to return to, inlined ones first.
fn functions(address: usize) -> Vec<Function> {
    let mut found = Vec::new();
    backtrace::resolve(address as *mut c_void, |symbol| {
        let name = symbol.name().map_or_else(|| "?".to_owned(), |name| format!("{name:#}"));
        found.push(Function { name, file: symbol.filename().map(|path| path.to_string_lossy().into_owned()) });
    });
    found
}

/// The profile of stacks with their samples.
fn profiled(stacks: &HashMap<Stack, u64>) -> Profiled {
    let mut known: HashMap<usize, Vec<Function>> = HashMap::new();
    let (mut stages, mut folded) = (BTreeMap::<Stage, u64>::new(), BTreeMap::<String, u64>::new());
    for (stack, &samples) in stacks {
        for &address in stack {
            known.entry(address).or_insert_with(|| functions(address));
        }
        let functions: Vec<&Function> = stack.iter().flat_map(|address| &known[address]).collect();
        let stage = stages::stage(functions.iter().filter_map(|function| function.file.as_deref()));
        *stages.entry(stage).or_default() += samples;
        *folded.entry(fold(stage, &functions)).or_default() += samples;
    }
    let folded = folded.iter().map(|(stack, samples)| format!("{stack} {samples}\n")).collect();
    Profiled { profile: profile(&stages), folded }
}

/// The shares of stages; the largest first.
fn profile(stages: &BTreeMap<Stage, u64>) -> Profile {
    let samples: u64 = stages.values().sum();
    let share = |of: u64| of as f64 / samples.max(1) as f64;
    let row = |(stage, &of): (&Stage, &u64)| StageShare { stage: stage.name().into(), samples: of, share: share(of) };
    let mut stages: Vec<StageShare> = stages.iter().map(row).collect();
    stages.sort_by_key(|stage| std::cmp::Reverse(stage.samples));
    Profile { samples, stages }
}

/// The line of a stack without its count: the stage, then the functions from the outermost on.
fn fold(stage: Stage, functions: &[&Function]) -> String {
    // The format separates functions by semicolons; types have them, too.
    let names = functions.iter().rev().map(|function| function.name.replace(';', ","));
    std::iter::once(stage.name().to_owned()).chain(names).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn shares_sum_to_one_and_the_largest_stands_first() {
        let profile = profile(&[(Stage::Events, 5), (Stage::Tcp, 7), (Stage::Other, 1)].into());
        assert_eq!(profile.samples, 13);
        assert!((profile.stages.iter().map(|stage| stage.share).sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!((profile.stages[0].stage.as_str(), profile.stages[0].samples), ("TCP", 7));
    }

    #[test]
    fn nothing_sampled_is_no_division_by_zero() {
        assert_eq!(profile(&BTreeMap::new()), Profile::default());
    }

    #[test]
    fn a_line_of_a_stack_is_a_stage_and_functions_from_the_outermost_on() {
        let function = |name: &str| Function { name: name.into(), file: None };
        let (inner, outer) = (function("core::array::<[u8; 4]>"), function("main"));
        assert_eq!(fold(Stage::Tcp, &[&inner, &outer]), "TCP;main;core::array::<[u8, 4]>");
    }

    /// Work of some tenths of a CPU second, in a function that a profile can name.
    const TURNS: u64 = 100_000_000;

    #[inline(never)]
    fn works_for(turns: u64) -> u64 {
        let (mut left, mut x) = (turns, 1u64);
        while left > 0 {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            left -= 1;
        }
        x
    }

    #[test]
    fn threads_at_work_are_sampled_and_their_functions_known() {
        let sampler = Sampler::start().unwrap();
        let other = std::thread::spawn(|| works_for(TURNS));
        works_for(TURNS);
        other.join().unwrap();
        let stacks = sampler.finish();
        let samples: u64 = stacks.values().sum();
        // A tick is at most 10 ms of CPU time.
        assert!(samples >= 5, "{samples}");
        let named: u64 = stacks
            .iter()
            .filter(|(stack, _)| stack.iter().flat_map(|&at| functions(at)).any(|f| f.name.contains("works_for")))
            .map(|(_, &samples)| samples)
            .sum();
        assert!(named * 2 > samples, "{named} of {samples} samples are in the function that works");
        // It can be started again.
        let again = Sampler::start().unwrap();
        works_for(TURNS);
        assert!(again.finish().values().sum::<u64>() > 0);
    }
}
