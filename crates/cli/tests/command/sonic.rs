//! `sonic` and `headroom` as a user meets them.

use crate::command::{expect, json, repository};
use sluicenet_testkit::Dir;

/// A leaf and spine of 100 Gb/s with the QoS of a switch.
fn scenario(dir: &Dir) -> String {
    std::fs::copy(repository("crates/scenario/tests/data/config_db.json"), dir.path("config_db.json")).unwrap();
    dir.file(
        "fabric.toml",
        "[topology]\nkind = \"xgft\"\nm = [4, 2]\nw = [1, 2]\nlink_rate = \"100 Gb/s\"\ncable = \"40 m\"\nrouting = \"ecmp\"\n\
         [[topology.level]]\nlevel = 2\ncable = \"300 m\"\n[switch]\nsonic = \"config_db.json\"\n[[workload]]\nkind = \"incast\"\n\
         senders = \"0-6\"\nreceiver = 7\nbytes = \"256 KB\"\ntransport = \"roce\"\ndscp = 26\n",
    )
}

#[test]
fn a_switch_s_file_makes_a_lossless_fabric_and_comes_back() {
    let dir = Dir::new("cli-sonic");
    let file = scenario(&dir);
    let figures = json(0, &["run", &file, "-q"]);
    assert_eq!((&figures["queries"]["finished"], &figures["messages"][0]), (&1.into(), &7.into()), "{figures}");
    let valid = json(0, &["validate", &file]);
    let headrooms = |name: &str| {
        let kinds = valid["links_by_kind"].as_array().unwrap();
        kinds.iter().find(|kind| kind["name"] == name).unwrap()["headroom_bytes"].clone()
    };
    assert_eq!(
        (headrooms("host to level 1"), headrooms("level 1 to level 2")),
        (45_056.into(), 110_592.into()),
        "{valid}"
    );
    assert!(
        valid["warnings"].to_string().contains("and ignored: PFC_WD (POLL_INTERVAL); PORT (alias, lanes, mtu)"),
        "{valid}"
    );
    // Written for a leaf and read again: the same keys.
    expect(0, &["sonic", "write", &file, "-q", "-o", &dir.path("written.json")]);
    let (_, error) = expect(2, &["sonic", "write", &file, "-q", "-o", &dir.path("written.json")]);
    assert!(error.contains("this file exists") && error.contains("--force"), "{error}");
    expect(0, &["sonic", "write", &file, "-q", "--force", "-o", &dir.path("written.json")]);
    let (first, _) = expect(0, &["sonic", "read", &dir.path("config_db.json"), "-q"]);
    let (second, _) = expect(0, &["sonic", "read", &dir.path("written.json"), "-q"]);
    assert_eq!(first, second);
    let written = json(0, &["sonic", "write", &file, "-q", "--switch", "3"]);
    assert_eq!(written["CABLE_LENGTH"]["AZURE"]["Ethernet4"], "300m", "a spine");
    let (_, error) = expect(2, &["sonic", "write", &file, "--switch", "4"]);
    assert!(error.contains("the network has 4, counted from 0"), "{error}");
    let (_, error) = expect(2, &["sonic", "read", &dir.path("config_db.json"), "--port", "Ethernet9"]);
    assert!(error.contains("no port `Ethernet9`"), "{error}");
    let (_, error) = expect(2, &["sonic", "read", &dir.file("none.json", "{}"), "--shared", "2 MB"]);
    assert!(error.contains("none.json has no pool: remove --shared 2 MB"), "{error}");
}

#[test]
fn headroom_is_that_of_a_scenario() {
    let dir = Dir::new("cli-headroom");
    let file = dir.file(
        "two.toml",
        "[topology]\nkind = \"single-switch\"\nhosts = 2\nlink_rate = \"100 Gb/s\"\ncable = \"300 m\"\n[pfc]\nenabled = true\n\
         [[workload]]\nkind = \"flow\"\nsrc = 0\ndst = 1\nbytes = \"1 KB\"\n",
    );
    let bytes = json(0, &["headroom", "--rate", "100G", "--cable", "300m"])["bytes"].clone();
    assert_eq!(bytes, json(0, &["validate", &file])["links_by_kind"][0]["headroom_bytes"]);
    let (text, _) = expect(0, &["headroom", "--rate", "100G", "--cable", "300m", "--cell", "96"]);
    for part in ["67,414", "response of the peer", "headroom in cells", "Spectrum-2", "104,448"] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}
