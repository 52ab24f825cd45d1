//! The files of `packaging/`: units that systemd accepts and finds confined, and an example that the switch accepts.

use sluicenet_testkit::{Dir, repository};
use std::path::Path;
use std::process::Command;

/// The units, and the highest exposure that each may have.
const UNITS: [(&str, f64); 3] =
    [("sluicenet.service", 3.0), ("sluicenet-helper@.service", 4.0), ("sluicenet-wire.service", 6.5)];
const SOCKET: &str = "sluicenet-helper.socket";

fn unit(name: &str) -> String {
    std::fs::read_to_string(repository("packaging/systemd").join(name)).unwrap()
}

/// `systemd-analyze`, or why it is not there.
fn analyze() -> Result<Command, String> {
    let found =
        Command::new("systemd-analyze").arg("--version").output().map_err(|e| format!("systemd-analyze: {e}"))?;
    let version = String::from_utf8_lossy(&found.stdout).split_whitespace().nth(1).and_then(|v| v.parse().ok());
    // `--offline` is new in 250.
    match version {
        Some(250u32..) => Ok(Command::new("systemd-analyze")),
        other => Err(format!("systemd-analyze has version {other:?}, and 250 or later is needed")),
    }
}

/// The units as they would be installed, but with this build's command.
fn installed(dir: &Dir) -> Vec<String> {
    let file = |name: &str| {
        let text = unit(name).replace("/usr/local/bin/sluicenet ", concat!(env!("CARGO_BIN_EXE_sluicenet"), " "));
        // A script of the operator.
        dir.file(name, &text.replace("/usr/local/sbin/sluicenet-wire", "/bin/true"))
    };
    UNITS.iter().map(|(name, _)| *name).chain([SOCKET]).map(file).collect()
}

#[test]
fn systemd_accepts_the_units_and_finds_them_confined() {
    let mut verify = match analyze() {
        Ok(command) => command,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let dir = Dir::new("units");
    let verified = verify.arg("verify").args(installed(&dir)).output().unwrap();
    assert!(verified.status.success() && verified.stderr.is_empty(), "{}", String::from_utf8_lossy(&verified.stderr));
    for (name, most) in UNITS {
        let mut command = analyze().unwrap();
        command.args(["security", "--offline=true", "--no-pager"]).arg(dir.0.join(name));
        let report = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let last = report.lines().last().unwrap_or_default();
        let exposure = last.split_whitespace().find_map(|word| word.parse::<f64>().ok());
        println!("{name}: {exposure:?}");
        assert!(exposure.is_some_and(|exposure| exposure <= most), "{name}: at most {most}: {report}");
    }
}

#[test]
fn each_capability_of_a_unit_is_explained() {
    let page = std::fs::read_to_string(repository("docs/security.md")).unwrap();
    for (name, _) in UNITS {
        let unit = unit(name);
        let bounding = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}`"))).unwrap();
        for capability in bounding.split_whitespace() {
            let comment = format!("# {capability}");
            assert!(unit.lines().any(|line| line.starts_with(&comment)), "{name}: no comment begins with {capability}");
            assert!(
                row.contains(&format!("`{capability}`: ")),
                "docs/security.md does not explain {capability} of {name}"
            );
        }
    }
}

#[test]
fn the_example_is_a_valid_file_and_the_script_makes_what_it_names() {
    let example = repository("packaging/bridge.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicenet"));
    let checked = command.args(["switch", "run", "--check"]).arg(&example).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let (example, script) = (read(&example), read(&repository("packaging/sluicenet-wire")));
    // Guests have addresses of their own.
    let ports = example.split("[[port]]").skip(1).filter(|port| !port.contains("vhost-user"));
    let script: String =
        script.lines().filter(|line| !line.starts_with('#')).map(|line| line.to_owned() + "\n").collect();
    for port in ports {
        for key in ["netns", "tenant_netns", "device", "tenant_device", "mac", "ip"] {
            let prefix = format!("{key} = \"");
            for line in port.lines().filter_map(|line| line.strip_prefix(&prefix)) {
                let name = line.split('"').next().unwrap();
                // A number at its end comes from a loop.
                let (start, _) = name.split_at(name.len() - 1);
                assert!(script.contains(name) || script.contains(&format!("{start}$i")), "{key} {name}");
            }
        }
    }
    let checked = Command::new("sh").arg("-n").arg(repository("packaging/sluicenet-wire")).status().unwrap();
    assert!(checked.success());
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
