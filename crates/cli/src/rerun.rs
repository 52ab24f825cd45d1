//! The command that makes a result again, for its page.

use sluicenet_records::RunLog;
use std::path::{Path, PathBuf};

/// This process's own command, as a shell takes it, so that it runs a second time too.
pub(super) fn again() -> String {
    command(&std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>())
}

/// The command that made these results, where they say one and the same; a program of the user's own may have made them.
pub(super) fn of(dirs: &[PathBuf]) -> Vec<String> {
    let logged = |dir: &PathBuf| {
        let args = RunLog::read(dir).map(|log| log.command).unwrap_or_default();
        is_ours(&args).then(|| command(&args))
    };
    let mut all = dirs.iter().map(logged);
    let Some(Some(first)) = all.next() else { return Vec::new() };
    if all.all(|other| other.as_ref() == Some(&first)) { vec![first] } else { Vec::new() }
}

fn is_ours(args: &[String]) -> bool {
    args.first().is_some_and(|program| Path::new(program).file_stem().is_some_and(|name| name == "sluicenet"))
}

/// Options that change no result: which runs are made now, how many at a time, and the printing.
const WITHOUT_EFFECT: [&str; 6] = ["--resume", "--force", "--gather", "--quiet", "-q", "--json"];
/// Those of them with a value.
const WITHOUT_EFFECT_WITH_VALUE: [&str; 3] = ["--shard", "--build", "--workers"];

/// The command line of `args`, the same for the parts of a sweep and the call that gathers them. Existing results are
/// replaced, because the new ones are equal.
fn command(args: &[String]) -> String {
    let verb = args.iter().skip(1).find(|arg| !arg.starts_with('-')).map_or("", String::as_str);
    let replaces = ["run", "sweep"].contains(&verb);
    let mut is_value = false;
    let kept = args.iter().filter(|arg| {
        let name = arg.split('=').next().unwrap_or(arg);
        let has_value = WITHOUT_EFFECT_WITH_VALUE.contains(&name);
        let is_dropped = has_value || is_value || WITHOUT_EFFECT.contains(&arg.as_str());
        is_value = has_value && name == *arg;
        !is_dropped
    });
    let kept = kept.map(|arg| quoted(arg));
    kept.chain(replaces.then(|| "--force".into())).collect::<Vec<_>>().join(" ")
}

/// A word as a shell takes it.
pub(super) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.into();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Overrides, each `key=value`, as options of a command: nothing, or a space and the options.
pub(super) fn set_options(overrides: &[String]) -> String {
    overrides.iter().map(|o| format!(" --set {}", quoted(o))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_runs_a_second_time() {
        let line = |args: &[&str]| command(&args.iter().map(|a| a.to_string()).collect::<Vec<_>>());
        let demo = ["target/release/sluicenet", "demo", "-o", "out/demo"];
        assert_eq!(line(&demo), "target/release/sluicenet demo -o out/demo");
        let run = ["sluicenet", "run", "a b.toml", "-o", "x", "--set", "tcp.congestion='cubic'", "--resume"];
        assert_eq!(line(&run), r"sluicenet run 'a b.toml' -o x --set 'tcp.congestion='\''cubic'\''' --force");
        let gathered = ["sluicenet", "sweep", "s.toml", "-o", "x", "--gather"];
        assert_eq!(line(&gathered), "sluicenet sweep s.toml -o x --force");
        let sweep = ["sluicenet", "-q", "sweep", "--force", "s.toml", "-o", "x"];
        assert_eq!(line(&sweep), "sluicenet sweep s.toml -o x --force");
        let part = ["sluicenet", "-q", "sweep", "s.toml", "--workers", "2", "-o", "x", "--shard=1/3", "--json"];
        assert_eq!(line(&part), line(&gathered));
        assert_eq!(quoted(""), "''");
    }
}
