//! The commands of a runtime.

mod add;
mod check;
mod del;
mod gc;
mod status;

use super::config::{Attachment, Network};
use super::environment::{Command, Environment};
use super::error::{ENVIRONMENT, Error};
use super::ipam::Ipam;
use super::outcome::Outcome;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::netns::Namespace;

/// A call with its parameters.
#[derive(Debug)]
pub struct Call<'a> {
    /// The network.
    pub network: &'a Network,
    /// The parameters.
    pub environment: &'a Environment,
    /// The configuration as it came, for delegated plugins.
    pub input: &'a [u8],
}

impl Call<'_> {
    /// Executes a command. Only ADD has a result.
    pub fn execute(&self, command: Command) -> Result<Option<Outcome>, Error> {
        match command {
            Command::Add => return self.add().map(Some),
            Command::Del => self.del()?,
            Command::Check => self.check()?,
            Command::Status => self.status()?,
            Command::Gc => self.gc()?,
            Command::Version => {}
        }
        Ok(None)
    }

    fn attachment(&self) -> Attachment {
        Attachment { container: self.environment.container.clone(), ifname: self.environment.ifname.clone() }
    }

    /// The plugin that manages addresses, if there is one.
    fn ipam(&self) -> Result<Option<Ipam>, Error> {
        self.network.ipam.as_deref().map(|kind| Ipam::find(kind, self.environment)).transpose()
    }

    /// Tells the plugin that manages addresses, if there is one.
    fn tell_ipam(&self, command: Command) -> Result<(), Error> {
        self.ipam()?.map_or(Ok(()), |ipam| ipam.tell(command, self.input))
    }

    /// Whether the addresses come over the attachment itself, which must be there first.
    fn asks_over_the_device(&self) -> bool {
        self.network.ipam.as_deref() == Some("dhcp")
    }

    /// The container's namespace, which must not be that of this process.
    fn namespace(&self) -> Result<Result<Namespace, KernelError>, Error> {
        let netns = &self.environment.netns;
        let namespace = Namespace::open(netns);
        let own = Namespace::open("/proc/self/ns/net");
        if let (Ok(namespace), Ok(own)) = (&namespace, &own) {
            if namespace.is(own).unwrap_or(false) {
                let details = format!("CNI_NETNS: {netns:?} is the namespace of the host, not of a container");
                return Err(Error::new(ENVIRONMENT, "invalid environment variable", details));
            }
        }
        Ok(namespace)
    }
}

/// The outcome of several steps, of which each is tried.
fn all_of(steps: impl IntoIterator<Item = Result<(), Error>>) -> Result<(), Error> {
    let mut failed = steps.into_iter().filter_map(Result::err);
    let Some(first) = failed.next() else { return Ok(()) };
    Err(failed.fold(first, |first, next| Error { details: format!("{}; {}", first.details, next.sentence()), ..first }))
}
