//! ADD: an address, and the attachment.

use super::super::attachments::{control, error, find, note, port_name};
use super::super::config::Config;
use super::super::environment::Command;
use super::super::error::{DELEGATED, Error, INVALID_CONFIG, KERNEL, REFUSED, UNKNOWN_CONTAINER};
use super::super::outcome::{Dns, Interface, Ip, Outcome};
use super::Call;
use sluicenet_dataplane::kernel::link::Link;
use sluicenet_vswitchd::attach::{Attach, AttachError, Attached, Prefix, Route, attach, configure_later, detach};
use sluicenet_vswitchd::config::port_from_words;
use sluicenet_vswitchd::status::mac_text;
use std::path::Path;

impl Call<'_> {
    /// Attaches the container: all of it, or nothing.
    pub fn add(&self) -> Result<Outcome, Error> {
        let config = self.network.config()?;
        let control = control(self.network)?;
        let mac = self.mac(&config)?;
        self.namespace()?.map_err(|e| Error::new(UNKNOWN_CONTAINER, "the container has gone", e.to_string()))?;
        // The address of an attachment that exists must not be given back if this one fails.
        if let Some(there) = find(self.network, &self.attachment())? {
            let details = format!("it is attached already, as port {}; DEL comes first", there.record.port);
            return Err(Error::new(REFUSED, "the switch does not take the container", details));
        }
        let ipam = self.ipam()?;
        let (attached, mut given) = match ipam {
            None => (self.attach(&control, &config, mac, &Outcome::default())?, Outcome::default()),
            Some(ipam) if self.asks_over_the_device() => {
                let attached = self.attach(&control, &config, mac, &Outcome::default())?;
                let give_back = || detach(&control, &attached.port).map(drop).map_err(error);
                let given = ipam.add(self.input).map_err(|error| error.and(give_back()))?;
                self.configure(&given).map_err(|why| why.and(ipam.tell(Command::Del, self.input)).and(give_back()))?;
                (attached, given)
            }
            Some(ipam) => {
                let given = ipam.add(self.input)?;
                let attached = usable(&given).and_then(|()| self.attach(&control, &config, mac, &given));
                (attached.map_err(|error| error.and(ipam.tell(Command::Del, self.input)))?, given)
            }
        };
        given.interfaces = vec![interface(attached.device, &self.environment.netns)];
        given.ips.iter_mut().for_each(|ip| ip.interface = Some(0));
        if config.dns != Dns::default() {
            given.dns = config.dns;
        }
        let mut outcome = config.previous.unwrap_or_default();
        outcome.add(given);
        Ok(outcome)
    }

    fn attach(
        &self,
        control: &Path,
        config: &Config,
        mac: Option<[u8; 6]>,
        given: &Outcome,
    ) -> Result<Attached, Error> {
        let (network, attachment) = (&self.network.name, self.attachment());
        let wanted = Attach {
            netns: self.environment.netns.clone(),
            port: Some(port_name(network, &attachment, self.environment.pod.as_deref())),
            device: Some(self.environment.ifname.clone()),
            addresses: addresses(given),
            routes: routes(given),
            mac,
            mtu: config.mtu,
            unlocked: config.unlocked,
            settings: config.settings.clone(),
            note: Some(note(network, &attachment)),
            ..Attach::default()
        };
        attach(control, &wanted).map_err(error)
    }

    /// Gives the attached device what came over it.
    fn configure(&self, given: &Outcome) -> Result<(), Error> {
        usable(given)?;
        let (netns, device) = (&self.environment.netns, &self.environment.ifname);
        configure_later(netns, device, &addresses(given), &routes(given)).map_err(|why| match why {
            AttachError::Kernel(why) => Error::new(KERNEL, "the kernel refused a request", why.to_string()),
            other => error(other),
        })
    }

    /// The address of the container's device: the runtime's, or that of the arguments.
    fn mac(&self, config: &Config) -> Result<Option<[u8; 6]>, Error> {
        let Some(mac) = config.mac.as_ref().or(self.environment.mac.as_ref()) else { return Ok(None) };
        let words = ["kind=veth".to_owned(), "tenant_netns=any".to_owned(), format!("mac={}", serde_json::json!(mac))];
        match port_from_words("any", &words) {
            Ok(port) => Ok(port.mac),
            Err(e) => Err(Error::new(
                INVALID_CONFIG,
                "invalid network configuration",
                format!("the MAC address: {}", e.sentence()),
            )),
        }
    }
}

/// The container's device. The switch's end is in no namespace of the runtime's, and runtimes take every device with a
/// `sandbox` for one of the container.
fn interface(device: Link, netns: &str) -> Interface {
    Interface {
        mac: mac_text(device.mac),
        name: device.name,
        mtu: Some(device.mtu),
        sandbox: netns.to_owned(),
        ..Interface::default()
    }
}

/// Refuses a result without addresses, or with addresses that no device can have.
fn usable(given: &Outcome) -> Result<(), Error> {
    let wrong = |why: String| Error::new(DELEGATED, "the plugin of `ipam` gave no usable address", why);
    if given.ips.is_empty() {
        return Err(wrong("its result has no `ips`".into()));
    }
    given.ips.iter().try_for_each(|ip| ip.address.of_a_device().map(drop).map_err(wrong))
}

fn addresses(given: &Outcome) -> Vec<Prefix> {
    given.ips.iter().map(|Ip { address, .. }| *address).collect()
}

fn routes(given: &Outcome) -> Vec<Route> {
    let route = |route: &super::super::outcome::Route| Route {
        to: route.dst,
        via: given.next_hop(route),
        mtu: route.mtu,
        advmss: route.advmss,
        priority: route.priority,
        table: route.table,
        scope: route.scope,
    };
    given.routes.iter().map(route).collect()
}
