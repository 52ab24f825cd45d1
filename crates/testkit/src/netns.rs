//! Namespaces for tests that need root: gone with the value that made them, also when a test fails.

use std::process::Command;

/// Runs `ip`, or another tool of the system.
pub fn system(line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let out = Command::new(words.next().unwrap()).args(words).output().map_err(|e| format!("{line}: {e}"))?;
    match out.status.success() {
        true => Ok(()),
        false => Err(format!("{line}: {}", String::from_utf8_lossy(&out.stderr).trim())),
    }
}

/// Says what a test that needs namespaces lacks here.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".into());
    }
    ["ip -V", "ethtool --version"].iter().find_map(|tool| system(tool).err())
}

/// Namespaces.
pub struct Namespaces(pub Vec<String>);

impl Namespaces {
    /// New ones, called `sluice-`, the process, `test` and a number; the loopback devices are up.
    pub fn new(test: &str, count: usize) -> Namespaces {
        let name = |n| format!("sluice-{}-{test}{n}", std::process::id());
        let all = Namespaces((0..count).map(name).collect());
        for name in &all.0 {
            system(&format!("ip netns add {name}")).unwrap();
            system(&format!("ip -n {name} link set lo up")).unwrap();
        }
        all
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = system(&format!("ip netns del {name}"));
        }
    }
}
