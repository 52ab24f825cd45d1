//! `bench overload`: two tenants at full speed into one sink; what is lost over which switch, and where.

use sluicenet_dataplane::kernel::netns;
use std::path::Path;
use std::process::Command;

/// What the command prints, if namespaces can be made.
fn figures(switch: &str) -> Option<serde_json::Value> {
    if let Err(e) = netns::may_make_namespaces() {
        eprintln!("SKIPPED: {e}");
        return None;
    }
    let out = Command::new(env!("CARGO_BIN_EXE_sluicenet"))
        .args(["bench", "overload", "--switch", switch, "--seconds", "0.5", "--json"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let number = |name: &str| figures[name].as_u64().unwrap();
    assert!(number("received") > 0);
    assert_eq!(number("sent"), number("received") + number("lost"));
    let at: u64 = figures["lost_at"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
    assert_eq!(number("lost"), at, "every loss has a place: {figures}");
    Some(figures)
}

#[test]
fn over_ours_nothing_is_lost() {
    if let Some(figures) = figures("ours") {
        assert_eq!((figures["lost"].as_u64(), figures["disordered"].as_u64()), (Some(0), Some(0)), "{figures}");
    }
}

#[test]
fn over_the_linux_bridge_every_loss_has_a_place() {
    figures("bridge");
}

#[test]
fn over_open_vswitch_every_loss_has_a_place() {
    if Path::new("/usr/share/openvswitch").exists() {
        figures("ovs");
    } else {
        eprintln!("SKIPPED: the package openvswitch-switch is not installed");
    }
}
