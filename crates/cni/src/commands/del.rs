//! DEL: everything of an attachment that still exists.

use super::super::attachments::{Attached, find};
use super::super::environment::Command;
use super::super::error::Error;
use super::Call;

impl Call<'_> {
    /// Undoes an attachment, also one of which nothing is left.
    pub fn del(&self) -> Result<(), Error> {
        let attached = find(self.network, &self.attachment())?;
        let detach = || attached.as_ref().map_or(Ok(()), Attached::detach);
        if self.asks_over_the_device() {
            // The lease is given back over the device, if both still exist.
            let told = self.tell_ipam(Command::Del);
            return super::all_of([detach(), told]);
        }
        // A device that could not be removed may still use the address.
        detach()?;
        self.tell_ipam(Command::Del)
    }
}
