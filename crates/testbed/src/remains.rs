//! What runs of this project left on the machine, and how it is gone.

use super::files::Place;
use super::live::end_programs;
use sluicenet_dataplane::kernel::netns;
use sluicenet_dataplane::remains::{self, Cleaned};
use std::io::{self, ErrorKind};

/// Removes what runs left that have ended: programs of a testbed, namespaces, files. What belongs to a process that lives is kept,
/// and so are namespaces of which nothing says who made them.
///
/// # Errors
/// What could not be removed.
pub fn clean() -> io::Result<Cleaned> {
    let place = Place::of_the_machine();
    let (in_use, written_down) = remains::namespaces()?;
    let of_the_testbed = std::fs::read_to_string(place.namespaces()).unwrap_or_default();
    let mut cleaned = Cleaned::default();
    // One that `testbed up` left belongs to nobody; who runs a testbed for itself, as `testbed pa`, holds its namespaces.
    if !of_the_testbed.lines().any(|name| in_use.contains(name)) {
        cleaned.gone = end_programs(&place);
        match std::fs::remove_dir_all(place.folder()) {
            Ok(()) => cleaned.gone.push(place.folder().display().to_string()),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    let others = remains::clean(|_| true)?;
    cleaned.gone.extend(others.gone);
    cleaned.kept = others.kept;
    for name in netns::named()?.into_iter().filter(|name| !written_down.contains(name)) {
        cleaned
            .kept
            .push(format!("namespace {name}: nothing says who made it; `ip netns del {name}` if it is nobody's"));
    }
    Ok(cleaned)
}
