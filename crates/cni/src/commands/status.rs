//! STATUS: whether containers can be attached.

use super::super::attachments::{all, control};
use super::super::environment::Command;
use super::super::error::{Error, LIMITED, TRY_AGAIN, UNAVAILABLE};
use super::super::version::Version;
use super::Call;
use sluicenet_vswitchd::control::{Answer, Request, ask};

impl Call<'_> {
    /// Asks the switch, and the plugin that manages addresses.
    pub fn status(&self) -> Result<(), Error> {
        self.network.version.requires(Version::V110, Command::Status.name())?;
        self.network.config()?;
        self.switch().map_err(|why| match why.code {
            // Without the switch, its containers do not reach each other either.
            TRY_AGAIN => {
                let attached = all(self.network).is_ok_and(|attached| !attached.is_empty());
                let code = if attached { LIMITED } else { UNAVAILABLE };
                Error::new(code, "the switch is not available", why.details)
            }
            _ => why,
        })?;
        self.tell_ipam(Command::Status)
    }

    fn switch(&self) -> Result<(), Error> {
        let control = control(self.network)?;
        let about = match ask(&control, &Request::About) {
            Ok(Answer::About(about)) => about,
            Ok(other) => {
                return Err(Error::new(UNAVAILABLE, "the switch is not available", format!("it answers {other:?}")));
            }
            Err(e) => return Err(Error::new(TRY_AGAIN, "no switch", e.to_string())),
        };
        match about.ports_free {
            0 => Err(Error::new(
                UNAVAILABLE,
                "the switch takes no more containers",
                format!("all ports of switch {} are in use", about.name),
            )),
            _ => Ok(()),
        }
    }
}
