//! Removes the leftovers of killed runs from this machine.

use super::files::TestbedDir;
use super::live::end_programs;
use sluicenet_dataplane::kernel::netns;
use sluicenet_dataplane::leftovers::clean::{self, Cleaned};
use sluicenet_dataplane::leftovers::namespaces;
use std::io::{self, ErrorKind};

/// Removes the leftovers of runs that have ended: programs of a testbed, namespaces, files. It keeps everything that belongs to
/// a running process, and namespaces whose owner is not recorded.
///
/// # Errors
/// A record or a folder cannot be read or written.
pub fn clean() -> io::Result<Cleaned> {
    let dir = TestbedDir::of_the_machine();
    let (in_use, recorded) = namespaces()?;
    let of_the_testbed = std::fs::read_to_string(dir.namespaces()).unwrap_or_default();
    let mut cleaned = Cleaned::default();
    // The testbed of `testbed up` belongs to no process. A command that runs its own testbed, such as `testbed pa`, has
    // recorded its namespaces.
    if !of_the_testbed.lines().any(|name| in_use.contains(name)) {
        cleaned.gone = end_programs(&dir);
        match std::fs::remove_dir_all(dir.folder()) {
            Ok(()) => cleaned.gone.push(dir.folder().display().to_string()),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    let others = clean::clean(|_| true)?;
    cleaned.gone.extend(others.gone);
    (cleaned.kept, cleaned.failed) = (others.kept, others.failed);
    for name in netns::named()?.into_iter().filter(|name| !recorded.contains(name)) {
        cleaned.kept.push(format!("namespace {name}: its owner is unknown; `ip netns del {name}` removes it"));
    }
    Ok(cleaned)
}
