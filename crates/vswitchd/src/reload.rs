//! The settings that may change while a switch runs, and those that may not.

use super::config::{Config, OverlayConfig, UplinkConfig};
use sluicenet_dataplane::port::OverlayChange;
use std::net::Ipv4Addr;

/// The changes of the overlay from the file `old` to `new`.
///
/// # Errors
/// The first setting that cannot change, by its name in the file.
pub(super) fn overlay_change(old: &Config, new: &Config) -> Result<OverlayChange, String> {
    refuse(&[
        ("control", new.control == old.control),
        ("name", new.name == old.name),
        ("ports", new.ports_max == old.ports_max),
        ("slots", new.vale.slots == old.vale.slots),
        ("lossless", new.vale.lossless == old.vale.lossless),
        ("stations", new.vale.stations == old.vale.stations),
        ("stations_per_port", new.vale.stations_per_port == old.vale.stations_per_port),
        ("user", new.user == old.user),
        ("sandbox", new.sandbox == old.sandbox),
        ("socket_folders", new.socket_folders == old.socket_folders),
        ("socket_group", new.socket_group == old.socket_group),
        ("metrics", new.metrics == old.metrics),
        ("log", new.log == old.log),
        ("[uplink]", new.uplink.is_some() == old.uplink.is_some()),
    ])?;
    match (&old.uplink, &new.uplink) {
        (Some(old), Some(new)) => uplink_change(old, new),
        _ => Ok(OverlayChange::default()),
    }
}

fn refuse(all: &[(&str, bool)]) -> Result<(), String> {
    match all.iter().find(|(_, same)| !same) {
        Some((what, _)) => Err(refused(&format!("`{what}`"))),
        None => Ok(()),
    }
}

fn refused(what: &str) -> String {
    format!("{what} cannot change while the switch runs; nothing was changed")
}

fn uplink_change(old: &UplinkConfig, new: &UplinkConfig) -> Result<OverlayChange, String> {
    refuse(&[
        ("uplink.device", new.device == old.device),
        ("uplink.netns", new.netns == old.netns),
        ("uplink.mac", new.mac == old.mac),
        ("uplink.rate", new.rate == old.rate),
        ("uplink.response", new.response == old.response),
        ("uplink.lossless", new.lossless == old.lossless),
        ("[qcn]", new.limiting == old.limiting),
        ("[ets]", new.ets == old.ets),
        ("[xco]", new.xco == old.xco),
        ("uplink.buffer", new.buffer == old.buffer),
        ("uplink.segmentation", new.segmentation == old.segmentation),
        ("[overlay]", new.overlay.is_some() == old.overlay.is_some()),
    ])?;
    match (&old.overlay, &new.overlay) {
        (Some(old), Some(new)) => networks_change(old, new),
        _ => Ok(OverlayChange::default()),
    }
}

fn networks_change(old: &OverlayConfig, new: &OverlayConfig) -> Result<OverlayChange, String> {
    refuse(&[
        ("overlay.address", new.address == old.address),
        ("overlay.controller", new.controller == old.controller),
        ("overlay.listen", new.listen == old.listen),
        ("overlay.controller_netns", new.controller_netns == old.controller_netns),
        ("overlay.key", new.key == old.key),
        ("[zcredit]", new.credits == old.credits),
        ("[zbridge]", new.zbridge == old.zbridge),
        ("[tcp_tunnel]", new.tcp_tunnel == old.tcp_tunnel),
    ])?;
    // A network's endpoints are announced under its number, and frames for them are in flight.
    if let Some((tenant, vni)) = old.networks.iter().find(|network| !new.networks.contains(network)) {
        return Err(refused(&format!("[[network]] {vni} of tenant {tenant}")));
    }
    let added = |network: &&(u16, u32)| !old.networks.contains(network);
    let known = |server: &Ipv4Addr| new.servers.iter().any(|(s, _)| s == server);
    Ok(OverlayChange {
        admitted: new.servers.iter().filter(|server| !old.servers.contains(server)).copied().collect(),
        expelled: old.servers.iter().map(|(server, _)| *server).filter(|server| !known(server)).collect(),
        bound: new.networks.iter().filter(added).copied().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const FILE: &str = r#"
        [uplink]
        device = "up0"
        mac = "02:00:00:00:01:01"
        rate = "1 Gb/s"
        [overlay]
        address = "172.16.0.1"
        controller = "172.17.0.1:49789"
        key = "KEY"
        [[network]]
        tenant = 1
        vni = 100
        [[server]]
        address = "172.16.0.2"
        mac = "02:00:00:00:01:02"
        [[server]]
        address = "172.16.0.3"
        mac = "02:00:00:00:01:03"
    "#;

    fn parse(text: &str, folder: &Path) -> Config {
        let key = folder.join("key");
        std::fs::write(&key, "0".repeat(64)).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        Config::parse(Path::new("vs.toml"), &text.replace("KEY", key.to_str().unwrap())).unwrap()
    }

    #[test]
    fn servers_come_and_go_networks_come_and_the_rest_is_named() {
        let folder = std::env::temp_dir().join(format!("sluicenet-reload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let old = parse(FILE, &folder);
        let change = |from: &str, to: &str| {
            assert!(FILE.contains(from), "{from}");
            overlay_change(&old, &parse(&FILE.replacen(from, to, 1), &folder))
        };
        assert_eq!(change("100", "100"), Ok(OverlayChange::default()));
        let two = [172, 16, 0, 2].into();
        assert_eq!(
            change("01:02", "01:42"),
            Ok(OverlayChange { admitted: vec![(two, [2, 0, 0, 0, 1, 0x42])], ..OverlayChange::default() })
        );
        assert_eq!(
            change("172.16.0.2", "172.16.0.4"),
            Ok(OverlayChange {
                admitted: vec![([172, 16, 0, 4].into(), [2, 0, 0, 0, 1, 2])],
                expelled: vec![two],
                bound: vec![]
            })
        );
        assert_eq!(
            change(
                "[[network]]",
                "[[network]]
tenant = 2
vni = 200
[[network]]"
            ),
            Ok(OverlayChange { bound: vec![(2, 200)], ..OverlayChange::default() })
        );
        for (from, to, named) in [
            ("vni = 100", "vni = 101", "[[network]] 100 of tenant 1 cannot"),
            ("tenant = 1", "tenant = 7", "[[network]] 100 of tenant 1 cannot"),
            ("172.16.0.1", "172.16.0.9", "`overlay.address` cannot"),
            (":49789", ":49790", "`overlay.controller` cannot"),
            ("1 Gb/s", "2 Gb/s", "`uplink.rate` cannot"),
            ("up0", "up1", "`uplink.device` cannot"),
        ] {
            let refused = change(from, to).unwrap_err();
            assert!(refused.starts_with(named), "{refused}");
        }
        let none = Config::parse(Path::new("vs.toml"), "").unwrap();
        assert!(overlay_change(&old, &none).unwrap_err().starts_with("`[uplink]` cannot"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
