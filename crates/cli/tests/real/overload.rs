//! `bench overload`: two tenants at full speed into one sink, and the number and places of losses over each switch.
//! `bench loss-sweep`: the losses at rising rates.
//!
//! With guests it needs the requirements of `sluicenet_testbed::guest`. The test reports a missing one, and is skipped.

use serde_json::Value;
use sluicenet_dataplane::kernel::netns;
use sluicenet_testbed::guest::{Nic, Parts};
use std::path::Path;
use std::process::Command;

/// Output of `bench`, if namespaces can be made.
fn bench(words: &[&str]) -> Option<Value> {
    if let Err(e) = netns::may_make_namespaces() {
        eprintln!("SKIPPED: {e}");
        return None;
    }
    let out = Command::new(env!("CARGO_BIN_EXE_sluicenet")).arg("bench").args(words).arg("--json").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(serde_json::from_slice(&out.stdout).unwrap())
}

fn figures(switch: &str, besides: &[&str]) -> Option<Value> {
    let figures = bench(&[&["overload", "--switch", switch, "--seconds", "0.5"], besides].concat())?;
    check(&figures);
    Some(figures)
}

/// Checks that hold over any switch.
fn check(figures: &Value) {
    let number = |name: &str| figures[name].as_u64().unwrap();
    assert!(number("received") > 0);
    assert_eq!(number("sent"), number("received") + number("lost"));
    let at: u64 = figures["lost_at"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum();
    assert_eq!(number("lost"), at, "every loss has a place: {figures}");
}

/// Output of `bench overload` with guests.
fn guests(switch: &str, nic: Nic, name: &str) -> Option<Value> {
    if let Err(e) = Parts::find(nic) {
        eprintln!("SKIPPED: {e}");
        return None;
    }
    figures(switch, &["--guests", "--nic", name])
}

/// Nothing is lost, and every point of measurement says so. At two of them the switch's own frames come by, too. At the
/// sink's device these are for an agent. At a sender's device, the sender's port sends them past the queue that it
/// holds.
fn nothing_is_lost(figures: &Value) {
    assert_eq!((figures["lost"].as_u64(), figures["disordered"].as_u64()), (Some(0), Some(0)), "{figures}");
    let (passed, sent) = (&figures["passed"], figures["sent"].as_u64());
    for point in ["sent", "switch_in", "switch_out", "received"] {
        assert_eq!(passed[point].as_u64(), sent, "{point}: {figures}");
    }
    for point in ["sender_device", "sink_device"] {
        assert!(passed[point].as_u64() >= sent, "{point}: {figures}");
    }
}

#[test]
fn over_ours_nothing_is_lost() {
    if let Some(figures) = figures("ours", &[]) {
        nothing_is_lost(&figures);
    }
}

#[test]
fn over_the_linux_bridge_every_loss_has_a_place() {
    figures("bridge", &[]);
}

#[test]
fn over_open_vswitch_every_loss_has_a_place() {
    if Path::new("/usr/share/openvswitch").exists() {
        figures("ovs", &[]);
    } else {
        eprintln!("SKIPPED: the package openvswitch-switch is not installed");
    }
}

#[test]
fn between_guests_over_ours_nothing_is_lost() {
    if let Some(figures) = guests("ours", Nic::Virtio, "virtio") {
        nothing_is_lost(&figures);
    }
}

#[test]
fn between_guests_whose_device_is_emulated_nothing_is_lost_over_ours() {
    if let Some(figures) = guests("ours", Nic::E1000, "e1000") {
        nothing_is_lost(&figures);
    }
}

#[test]
fn between_guests_over_the_linux_bridge_every_loss_has_a_place() {
    guests("bridge", Nic::Virtio, "virtio");
}

#[test]
fn a_sweep_measures_each_rate_over_each_switch_and_draws_them() {
    let page = std::env::temp_dir().join(format!("sluicenet-sweep-{}.html", std::process::id()));
    let file = page.display().to_string();
    let words = [
        "loss-sweep",
        "--quiet",
        "--switch",
        "ours,bridge",
        "--step",
        "20",
        "--to",
        "40",
        "--seconds",
        "0.2",
        "-o",
        &file,
    ];
    let Some(curves) = bench(&words) else { return };
    let drawn = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    let curves = curves.as_array().unwrap();
    let names: Vec<_> = curves.iter().map(|curve| curve["switch"].as_str().unwrap()).collect();
    assert_eq!(names, ["ours", "bridge"]);
    for curve in curves {
        let points = curve["points"].as_array().unwrap();
        points.iter().for_each(check);
        let targets: Vec<_> = points.iter().map(|point| point["target_mbps"].as_f64().unwrap()).collect();
        assert_eq!(targets, [40.0, 80.0], "both senders together");
        for (point, target) in points.iter().zip(targets) {
            // A sender that was held up sends less, and none sends more.
            assert!(
                point["sent"].as_f64().unwrap() * 1472.0 * 8.0 / 1e6
                    <= target * point["seconds"].as_f64().unwrap() + 1.0
            );
        }
    }
    assert_eq!(curves[0]["lost_percent_max"].as_f64(), Some(0.0), "{curves:?}");
    assert_eq!(drawn.matches("<svg").count(), 3);
    assert!(drawn.contains("nothing lost") && drawn.contains("loss-sweep --switch"));
}
