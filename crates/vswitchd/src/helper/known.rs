//! The devices that a helper may open. A switch whose process an attacker has taken over can ask for these and for no other:
//!
//! 1. those of the file that the helper has read at the start, or that the switch has [reloaded](Known::reloaded),
//! 2. those of the file as it is now,
//! 3. those of the [records](crate::attach::record) of commands: only root, or the user who started the switch, writes them.

use super::Device;
use super::in_force::InForce;
use crate::attach::record::Records;
use crate::config::{Config, UPLINK_NAME, port_from_words, text_of};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identifies a version of a file: device, number, size, and time of change in seconds and nanoseconds.
type Version = (u64, u64, u64, i64, i64);

/// The configuration of a switch, as its helper knows it.
#[derive(Debug)]
pub(super) struct Known {
    in_force: Config,
    /// A later version of the file, and its text.
    latest: Option<(Config, String)>,
    version: Option<Version>,
    /// Where the next worker finds the text.
    memory: Option<InForce>,
}

impl Known {
    /// The file as the switch obeys it, which may have changed since.
    pub fn new(config: Config, memory: Option<InForce>) -> Known {
        Known { in_force: config, latest: None, version: None, memory }
    }

    /// The switch obeys the file as it is now.
    pub fn reloaded(&mut self) {
        self.look();
        if let Some((latest, text)) = self.latest.take() {
            self.in_force = latest;
            // Without it, the next worker opens devices of the file before this one.
            self.memory.iter().for_each(|memory| drop(memory.keep(&text)));
        }
    }

    /// Whether a port has this device.
    ///
    /// # Errors
    /// The reason why not.
    pub fn allows(&mut self, port: &str, device: &Device) -> Result<(), String> {
        if device_in(&self.in_force, port).as_ref() == Some(device) {
            return Ok(());
        }
        self.look();
        let later = self.latest.as_ref().and_then(|(latest, _)| device_in(latest, port));
        let recorded = recorded(&self.in_force, port);
        match [&later, &recorded].into_iter().any(|named| named.as_ref() == Some(device)) {
            true => Ok(()),
            false if later.is_some() || recorded.is_some() || device_in(&self.in_force, port).is_some() => {
                Err("the file, or the command that added it, has changed meanwhile; reload the switch".into())
            }
            false => Err(
                "neither the file nor a command names it; `sluicenet switch add-port` and `attach` record the ports \
                          that they add"
                    .into(),
            ),
        }
    }

    /// Reads the file again if it has changed. As long as it has errors, the version before counts.
    fn look(&mut self) {
        let now = version(&self.in_force);
        if now != self.version {
            self.version = now;
            self.latest = read(&self.in_force.file).or(self.latest.take());
        }
    }
}

/// A file and its text, unless it has errors.
fn read(file: &Path) -> Option<(Config, String)> {
    let text = text_of(file).ok()?;
    Some((Config::parse_without_keys(file, &text).ok()?, text))
}

fn version(config: &Config) -> Option<Version> {
    let file = config.has_file().then(|| std::fs::metadata(&config.file).ok()).flatten()?;
    Some((file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec()))
}

/// The device of a port in a file.
fn device_in(config: &Config, port: &str) -> Option<Device> {
    match port {
        UPLINK_NAME => config.uplink.as_ref().map(Device::of_uplink),
        _ => config.ports.iter().find(|other| other.name == port).and_then(Device::of),
    }
}

/// The device of a port that a command adds, or has added.
fn recorded(config: &Config, port: &str) -> Option<Device> {
    let record = Records::at(&config.control).get(port).ok().flatten()?;
    port_from_words(&record.port, &record.settings).ok().as_ref().and_then(Device::of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attach::record::Record;
    use sluicenet_testkit::Dir;

    fn veth(device: &str) -> Device {
        Device::Veth {
            device: device.into(),
            netns: None,
            tenant_device: "eth0".into(),
            tenant_netns: "red1".into(),
            offload: true,
        }
    }

    fn file(folder: &Dir, device: &str) -> Config {
        let text = format!(
            "[switch]\ncontrol = \"{}\"\n[[port]]\nname = \"red1\"\nkind = \"veth\"\ndevice = \"{device}\"\n\
             tenant_netns = \"red1\"\n[[port]]\nname = \"a\"\nkind = \"shm\"\n",
            folder.path("vs.sock")
        );
        folder.file("vs.toml", &text);
        Config::load(&folder.0.join("vs.toml")).unwrap()
    }

    #[test]
    fn only_devices_of_the_file_and_of_records_are_opened() {
        let folder = Dir::new("helper-known");
        let mut known = Known::new(file(&folder, "red1"), Some(InForce::new().unwrap()));
        assert_eq!(known.allows("red1", &veth("red1")), Ok(()));
        let packet = Device::Packet { device: "eno1".into(), netns: None };
        for (port, device) in
            [("other", veth("red1")), ("a", veth("red1")), ("uplink", packet.clone()), ("../x", packet)]
        {
            let refused = known.allows(port, &device).unwrap_err();
            assert!(refused.starts_with("neither the file nor a command names it"), "{port}: {refused}");
        }
        assert!(known.allows("red1", &veth("red2")).unwrap_err().contains("has changed meanwhile"));
        // The file changes. Both versions count until the switch has reloaded it; one with errors does not.
        file(&folder, "other");
        assert_eq!(known.allows("red1", &veth("other")), Ok(()));
        assert_eq!(known.allows("red1", &veth("red1")), Ok(()));
        folder.file("vs.toml", "[switch");
        assert_eq!(known.allows("red1", &veth("other")), Ok(()));
        known.reloaded();
        assert_eq!(known.allows("red1", &veth("other")), Ok(()));
        assert!(known.allows("red1", &veth("red1")).is_err());
        // The next worker knows the file that was reloaded, whatever has become of it.
        let kept = known.memory.as_ref().unwrap().text().unwrap();
        let mut next = Known::new(Config::parse_without_keys(&folder.0.join("vs.toml"), &kept).unwrap(), None);
        assert_eq!(next.allows("red1", &veth("other")), Ok(()));
        // A record counts as long as it is there, and only for its own port.
        let records = Records::at(&folder.0.join("vs.sock"));
        drop(records.lock().unwrap());
        let settings = ["kind=veth", "tenant_netns=red1", "device=late"].map(str::to_owned).to_vec();
        records.write(&Record { port: "late".into(), settings, ..Record::default() }).unwrap();
        assert_eq!(known.allows("late", &veth("late")), Ok(()));
        assert!(known.allows("late", &veth("other")).is_err());
        assert!(known.allows("later", &veth("late")).is_err());
        records.remove("late").unwrap();
        assert!(known.allows("late", &veth("late")).is_err());
    }
}
