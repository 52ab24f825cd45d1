//! Tools of tests. A line belongs here when the tests of several crates need it.
#![forbid(unsafe_code)]

pub mod netns;

use sluicenet_proto::rng::Rng;
use std::path::{Path, PathBuf};

/// A directory of a test's own; gone with it, but for a test that failed.
pub struct Dir(pub PathBuf);

impl Dir {
    /// A new and empty one.
    pub fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("sluicenet-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    /// A path in it, as text.
    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, text: &str) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        self.path(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Compiles a program in C for a bump, with `netbump.h`; returns the path of the library.
pub fn netbump_program(dir: &Dir, name: &str, source: &str) -> PathBuf {
    let (source, library) = (dir.file(&format!("{name}.c"), source), dir.0.join(format!("{name}.so")));
    // Rust needs a C compiler to link: there is one.
    let compiler = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-std=c99"])
        .arg("-I")
        .arg(repository("crates/netbump/include"))
        .arg("-o")
        .args([library.as_os_str(), source.as_ref()])
        .output()
        .unwrap();
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
    library
}

/// `valid` with up to four bytes changed, stretches cut out, ends cut off, or one of `words` put in.
pub fn mutated(valid: &[u8], words: &[&str], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = valid.to_vec();
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(4) {
            0 => bytes[at] = rng.below(256) as u8,
            1 => drop(bytes.drain(at..(at + rng.below(30) as usize).min(bytes.len()))),
            2 if !words.is_empty() => {
                drop(bytes.splice(at..at, words[rng.below(words.len() as u64) as usize].bytes()));
            }
            _ => bytes.truncate(at),
        }
    }
    bytes
}
