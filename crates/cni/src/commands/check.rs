//! CHECK: whether an attachment is as it was made.

use super::super::attachments::{Attached, find};
use super::super::environment::Command;
use super::super::error::{CHANGED, Error, KERNEL, TRY_AGAIN};
use super::super::outcome::Outcome;
use super::Call;
use sluicenet_dataplane::kernel::link::{Link, Links, MAIN_TABLE};
use sluicenet_vswitchd::attach::Prefix;
use sluicenet_vswitchd::control::{Answer, Request, ask};
use sluicenet_vswitchd::status::mac_text;
use std::net::IpAddr;

impl Call<'_> {
    /// Compares the attachment with the result of its ADD.
    pub fn check(&self) -> Result<(), Error> {
        let config = self.network.config()?;
        let expected = config.previous.ok_or_else(|| Error::key("prevResult", "it is missing"))?;
        let attached = find(self.network, &self.attachment())?;
        let attached = attached.ok_or_else(|| changed("no attachment of this container is recorded"))?;
        let (netns, ifname) = (&self.environment.netns, &self.environment.ifname);
        let Some((number, interface)) = expected.interface(ifname, netns) else {
            return Err(Error::key("prevResult", format!("it has no interface {ifname} in {netns}")));
        };
        let namespace = self.namespace()?.map_err(|e| changed(e.to_string()))?;
        let device = namespace
            .enter(|| Device::read(ifname))
            .and_then(|device| device)
            .map_err(|e| Error::new(KERNEL, "the kernel refused a request", e.to_string()))?
            .ok_or_else(|| changed(format!("there is no device {ifname} in {netns}")))?;
        let mac = mac_text(device.link.mac);
        if !device.link.up {
            return Err(changed(format!("the device {ifname} is down")));
        }
        if !interface.mac.is_empty() && !interface.mac.eq_ignore_ascii_case(&mac) {
            return Err(changed(format!("the device {ifname} has the address {mac}, and not {}", interface.mac)));
        }
        if let Some(mtu) = interface.mtu.filter(|mtu| *mtu != device.link.mtu) {
            return Err(changed(format!("the device {ifname} has an MTU of {}, and not of {mtu}", device.link.mtu)));
        }
        device.has(&expected, number)?;
        on_the_switch(&attached, &mac)?;
        self.tell_ipam(Command::Check)
    }
}

/// A container's device.
struct Device {
    link: Link,
    addresses: Vec<(IpAddr, u8)>,
    routes: Vec<sluicenet_dataplane::kernel::link::Route>,
}

impl Device {
    fn read(name: &str) -> Result<Option<Device>, sluicenet_dataplane::kernel::KernelError> {
        let mut links = Links::open()?;
        let Some(link) = links.find(name)? else { return Ok(None) };
        Ok(Some(Device { link, addresses: links.addresses(name)?, routes: links.routes(name)? }))
    }

    /// Compares addresses and routes.
    fn has(&self, expected: &Outcome, number: usize) -> Result<(), Error> {
        for Prefix { address, bits } in
            expected.ips.iter().filter(|ip| ip.interface == Some(number)).map(|ip| ip.address)
        {
            if !self.addresses.contains(&(address, bits)) {
                return Err(changed(format!("the device {} has no address {address}/{bits}", self.link.name)));
            }
        }
        let ours = |family: bool| {
            expected.ips.iter().any(|ip| ip.interface == Some(number) && ip.address.address.is_ipv4() == family)
        };
        for route in expected.routes.iter().filter(|route| ours(route.dst.address.is_ipv4())) {
            let (to, via) = ((route.dst.address, route.dst.bits), expected.next_hop(route));
            let kept = |wanted: Option<u32>, there: Option<u32>| wanted.is_none_or(|wanted| there == Some(wanted));
            let same = |there: &&sluicenet_dataplane::kernel::link::Route| {
                there.to == to
                    && there.via == via
                    && there.table == Some(route.table.unwrap_or(MAIN_TABLE))
                    && kept(route.mtu, there.mtu)
                    && kept(route.advmss, there.advmss)
                    && kept(route.priority, there.priority)
            };
            if self.routes.iter().find(same).is_none() {
                let via = via.map(|via| format!(" through {via}")).unwrap_or_default();
                return Err(changed(format!("the device {} has no route to {}{via}", self.link.name, route.dst)));
            }
        }
        Ok(())
    }
}

/// Whether the switch serves the port, and lets the container's device send.
fn on_the_switch(attached: &Attached, mac: &str) -> Result<(), Error> {
    let name = &attached.record.port;
    let status = match ask(&attached.control, &Request::Show) {
        Ok(Answer::Status(status)) => status,
        Ok(other) => return Err(Error::new(TRY_AGAIN, "no switch", format!("it answers {other:?}"))),
        Err(e) => return Err(Error::new(TRY_AGAIN, "no switch", e.to_string())),
    };
    let port = status.ports.iter().find(|port| port.name == *name);
    let port = port.ok_or_else(|| changed(format!("the switch {} has no port {name}", status.name)))?;
    if let Some(absent) = &port.absent {
        return Err(changed(format!("the switch does not serve the port {name}: {}", absent.reason)));
    }
    match &port.mac {
        Some(locked) if locked != mac => Err(changed(format!(
            "the port {name} takes frames of {locked} only, and the device has the address {mac}; `unlocked` allows others"
        ))),
        _ => Ok(()),
    }
}

fn changed(details: impl Into<String>) -> Error {
    Error::new(CHANGED, "the attachment is not as it was made", details)
}
