//! GC: attachments of a network that the runtime does not know any more.

use super::super::attachments::{Attached, all};
use super::super::environment::Command;
use super::super::error::Error;
use super::super::version::Version;
use super::Call;

impl Call<'_> {
    /// Undoes all attachments of the network but the valid ones.
    pub fn gc(&self) -> Result<(), Error> {
        self.network.version.requires(Version::V110, Command::Gc.name())?;
        let valid = self.network.valid()?;
        let stale = all(self.network)?.into_iter().filter(|attached| !valid.contains(&attached.attachment));
        let detached: Vec<Result<(), Error>> = stale.map(|attached| Attached::detach(&attached)).collect();
        super::all_of(detached.into_iter().chain([self.tell_ipam(Command::Gc)]))
    }
}
