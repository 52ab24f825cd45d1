//! Tenants whose packets can be too large for the overlay. The switch cuts or refuses such packets, so it warns before it
//! starts.

use super::config::{Config, LimitersOf, OverlayConfig, PortKind, UplinkConfig};
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_proto::overlay::bridge::ENCAPSULATION_BYTES;
use sluicenet_wire::ipv6::MIN_MTU;
use sluicenet_wire::{qcn, zbridge};
use std::collections::BTreeSet;

/// The warnings for this machine as it is now. A device that cannot be looked at has none.
pub fn warnings(config: &Config) -> Vec<String> {
    of(config, &mut |netns, device| {
        let namespace = Namespace::named(netns.as_deref()).ok()?;
        let link = namespace.enter(|| Links::open()?.get(device)).ok()?.ok()?;
        Some(link.mtu)
    })
}

/// The warnings, if `mtu` tells the MTU of a device in a namespace.
fn of(config: &Config, mtu: &mut dyn FnMut(&Option<String>, &str) -> Option<u32>) -> Vec<String> {
    let Some((uplink, overlay)) = config.uplink.as_ref().and_then(|u| Some((u, u.overlay.as_ref()?))) else {
        return Vec::new();
    };
    let Some(of_link) = mtu(&uplink.netns, &uplink.device) else { return Vec::new() };
    let taken = of_link.min(taken_by_headers(uplink, overlay));
    let carries = of_link - taken;
    let mut warnings = Vec::new();
    if carries < u32::from(MIN_MTU) {
        warnings.push(format!(
            "the overlay carries packets of {carries} bytes, and IPv6 needs {MIN_MTU}: {} sets the MTU of the uplink",
            set(&uplink.netns, &uplink.device, u32::from(MIN_MTU) + taken)
        ));
    }
    let tenants: BTreeSet<u16> = overlay.networks.iter().map(|&(tenant, _)| tenant).collect();
    for port in config.ports.iter().filter(|p| tenants.contains(&p.access.domain.unwrap_or(0))) {
        let (own, remedy) = match &port.kind {
            PortKind::Veth { device, netns, tenant_device, tenant_netns, .. } => {
                let Some(own) = mtu(netns, device) else { continue };
                let both = [(netns.clone(), device), (Some(tenant_netns.clone()), tenant_device)];
                (own, both.map(|(netns, device)| set(&netns, device, carries)).join(" and "))
            }
            PortKind::Tap { mtu, .. } => (*mtu, format!("`mtu = {carries}` in its [[port]]")),
            PortKind::Packet { device, netns } => {
                let Some(own) = mtu(netns, device) else { continue };
                (own, set(netns, device, carries))
            }
            PortKind::Shm { .. } | PortKind::VhostUser { .. } => continue,
        };
        if own > carries {
            warnings.push(format!(
                "port {}: packets of its tenant have up to {own} bytes, and the overlay carries {carries}: the switch cuts \
                 larger ones, or refuses them and tells their sender; the MTU of the tenant is set by {remedy}, that of the \
                 uplink by {}",
                port.name,
                set(&uplink.netns, &uplink.device, own + taken)
            ));
        }
    }
    warnings
}

/// Bytes of a datagram between servers that are no tenant's packet.
fn taken_by_headers(uplink: &UplinkConfig, overlay: &OverlayConfig) -> u32 {
    let tags = uplink.limiting.as_ref().is_some_and(|l| l.limiters == LimitersOf::Flow);
    let numbers = if overlay.zbridge.is_some() { zbridge::GROWTH } else { 0 };
    u32::from(ENCAPSULATION_BYTES) + numbers as u32 + if tags { qcn::TAG_LEN as u32 } else { 0 }
}

/// The command that sets the MTU of a device.
fn set(netns: &Option<String>, device: &str, mtu: u32) -> String {
    let place = netns.as_ref().map(|name| format!("-n {name} ")).unwrap_or_default();
    format!("`ip {place}link set {device} mtu {mtu}`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn config(more: &str) -> Config {
        let key = std::env::temp_dir().join(format!("sluicenet-mtu-{}-{}.key", std::process::id(), more.len()));
        std::fs::write(&key, "11".repeat(32)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let text = format!(
            "[[port]]\nname = \"a\"\nkind = \"veth\"\ndevice = \"va\"\ntenant_netns = \"red1\"\ntenant = 7\n\
             [[port]]\nname = \"b\"\nkind = \"tap\"\nmac = \"02:00:00:00:00:0b\"\ndevice = \"tb\"\ntenant_netns = \"red2\"\nmtu = 1400\ntenant = 7\n\
             [[port]]\nname = \"c\"\nkind = \"veth\"\ndevice = \"vc\"\ntenant_netns = \"blue\"\ntenant = 8\n\
             [uplink]\ndevice = \"up0\"\nnetns = \"hw\"\nmac = \"02:00:00:00:01:01\"\nrate = \"1 Gb/s\"\n{more}\
             [overlay]\naddress = \"172.16.0.1\"\ncontroller = \"172.17.0.1:49789\"\nkey = \"{}\"\n\
             [[network]]\ntenant = 7\nvni = 5\n",
            key.display()
        );
        let config = Config::parse(Path::new("vs.toml"), &text);
        std::fs::remove_file(key).unwrap();
        config.unwrap()
    }

    #[test]
    fn a_tenant_whose_packets_are_too_large_is_named_with_both_remedies() {
        let with = |config: &Config, link: u32| {
            of(config, &mut |_, device| match device {
                "up0" => Some(link),
                "va" => Some(1_500),
                _ => panic!("{device} is in no network"),
            })
        };
        let warnings = with(&config(""), 1_500);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        for part in [
            "port a: packets of its tenant have up to 1500 bytes, and the overlay carries 1446",
            "the MTU of the tenant is set by `ip link set va mtu 1446` and `ip -n red1 link set eth0 mtu 1446`",
            "that of the uplink by `ip -n hw link set up0 mtu 1554`",
        ] {
            assert!(warning.contains(part), "{warning}");
        }
        assert_eq!(with(&config(""), 1_554), [""; 0]);
        let numbered = with(&config(""), 1_400);
        assert_eq!(numbered.len(), 2, "the device of the TAP has an MTU of 1400: {numbered:?}");
        assert!(numbered[1].contains("`mtu = 1346` in its [[port]]"));
        // CN-TAGs take four bytes.
        assert_eq!(with(&config("[qcn]\nlimiters = \"flow\"\n"), 1_557).len(), 1);
        assert_eq!(with(&config("[qcn]\nlimiters = \"flow\"\n"), 1_558).len(), 0);
        let narrow = with(&config(""), 1_300);
        assert!(narrow[0].contains("carries packets of 1246 bytes, and IPv6 needs 1280"), "{narrow:?}");
        // A device that cannot be looked at.
        assert_eq!(of(&config(""), &mut |_, _| None), [""; 0]);
    }
}
