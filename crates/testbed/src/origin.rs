//! The origin of a variant of a scenario: the arguments for programs that read the scenario themselves, on this machine
//! or in a guest.

use sluicenet_scenario::Loaded;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// The folder of scenarios in guests.
const GUEST_FOLDER: &str = "/scenario";

/// A variant of a scenario: its file, the settings that override it, its number, and the files that it names.
#[derive(Clone, Debug)]
pub struct Origin {
    file: PathBuf,
    source: Arc<[u8]>,
    overrides: Vec<String>,
    /// None for the scenario without its sweep.
    number: Option<usize>,
    inputs: Vec<(PathBuf, Arc<[u8]>)>,
}

impl Origin {
    /// Variant `number` of the scenario `loaded` from `file`; default the base of all variants.
    pub fn new(file: &Path, loaded: &Loaded, number: Option<usize>) -> Origin {
        Origin {
            file: file.canonicalize().unwrap_or_else(|_| file.to_owned()),
            source: loaded.source.as_bytes().into(),
            overrides: loaded.overrides.clone(),
            number,
            inputs: loaded.inputs().into_iter().map(|i| (i.path.into(), i.bytes)).collect(),
        }
    }

    /// The arguments for a program of this machine.
    pub fn words(&self) -> Vec<String> {
        self.words_at(&self.file)
    }

    /// The arguments for a program in a guest that has the [files](Origin::guest_files).
    pub fn guest_words(&self) -> Vec<String> {
        self.words_at(&in_guest(&self.file))
    }

    fn words_at(&self, file: &Path) -> Vec<String> {
        let overrides = self.overrides.iter().flat_map(|o| ["--set".to_owned(), o.clone()]);
        let number = self.number.into_iter().flat_map(|n| ["--number".into(), n.to_string()]);
        [file.display().to_string()].into_iter().chain(overrides).chain(number).collect()
    }

    /// The scenario and the files that it names, with their paths in a guest.
    pub fn guest_files(&self) -> Vec<(PathBuf, Arc<[u8]>)> {
        let folder = self.file.parent().unwrap_or(Path::new("/"));
        let inputs = self.inputs.iter().map(|(path, bytes)| {
            // Absolute paths stay the same in the guest; relative ones start from the scenario's folder.
            let at = if path.is_absolute() { path.clone() } else { in_guest(&folder.join(path)) };
            (at, bytes.clone())
        });
        [(in_guest(&self.file), self.source.clone())].into_iter().chain(inputs).collect()
    }
}

/// The path in a guest for a file of this machine.
fn in_guest(path: &Path) -> PathBuf {
    let mut at = PathBuf::from(GUEST_FOLDER);
    for part in path.components() {
        match part {
            Component::Normal(name) => at.push(name),
            // Stay within the folder.
            Component::ParentDir if at != Path::new(GUEST_FOLDER) => _ = at.pop(),
            _ => {}
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_finds_files_where_the_scenario_names_them() {
        assert_eq!(in_guest(Path::new("/a/b/../c/x.txt")), Path::new("/scenario/a/c/x.txt"));
        assert_eq!(in_guest(Path::new("/../../x.txt")), Path::new("/scenario/x.txt"));
        let origin = Origin {
            file: "/a/b/s.toml".into(),
            source: Arc::from(&b"s"[..]),
            overrides: vec!["x=it's".into()],
            number: Some(3),
            inputs: vec![("../x.txt".into(), Arc::from(&b"x"[..])), ("/y.txt".into(), Arc::from(&b"y"[..]))],
        };
        assert_eq!(origin.guest_words(), ["/scenario/a/b/s.toml", "--set", "x=it's", "--number", "3"]);
        let names: Vec<PathBuf> = origin.guest_files().into_iter().map(|f| f.0).collect();
        assert_eq!(names, [Path::new("/scenario/a/b/s.toml"), Path::new("/scenario/a/x.txt"), Path::new("/y.txt")]);
    }
}
