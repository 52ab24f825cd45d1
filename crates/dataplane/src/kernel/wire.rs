//! A wire in the kernel between two devices, for the time that no program serves them.
//!
//! A program at each device redirects all arriving frames to the other one. It is attached without a process, so that it stays
//! when its maker dies. A live bump puts a second program in front of it, which keeps the frames for the bump's packet sockets.
//! The kernel removes the second program together with the process, however that ends. So no heartbeat and no timeout decides
//! whether the bump is alive: the first frame after its death takes the wire.

use super::error::{KernelError, Tried};
use super::link::Links;
use super::netns::Namespace;
use super::sys;
use crate::leftovers::{self, Leftover};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The names of the two programs, by which they are found again.
const REDIRECTS: &str = "sluicenet_wire";
const KEEPS: &str = "sluicenet_bump";

/// A wire that is laid, and is not used as long as this value lives.
#[derive(Debug)]
pub struct Wire {
    _kept: [OwnedFd; 2],
}

impl Wire {
    /// Lays a wire between two devices of a namespace, anew if there is one, and takes their frames: from now on they reach only
    /// packet sockets. `ready` is called for each end just before its frames are taken: the frames that its socket has by then
    /// went over the old wire.
    ///
    /// # Errors
    /// A device does not exist, or the kernel has no such programs (Linux 6.6).
    pub fn lay(
        namespace: &Namespace,
        devices: [&str; 2],
        mut ready: impl FnMut(usize) + Send,
    ) -> Result<Wire, KernelError> {
        let what = || format!("a wire between {} and {} (Linux 6.6, CONFIG_NET_XGRESS)", devices[0], devices[1]);
        for device in devices {
            leftovers::add(entry(namespace, device)).tried(what)?;
        }
        let kept = namespace.enter(|| -> Result<[OwnedFd; 2], KernelError> {
            let mut links = Links::open()?;
            let [a, b] = [links.get(devices[0])?.index, links.get(devices[1])?.index];
            // The slow part first, while an old wire still carries frames: each change waits until no processor uses the old
            // programs.
            for (device, to) in [(a, b), (b, a)] {
                let lay = || -> io::Result<()> {
                    let old = sys::attached(device, REDIRECTS)?;
                    sys::redirect_all(device, to, REDIRECTS)?;
                    old.iter().try_for_each(|program| sys::detach(device, program.as_fd()))
                };
                lay().tried(what)?;
            }
            ready(0);
            let first = sys::keep_all(a, KEEPS).map(closed_first).tried(what)?;
            ready(1);
            Ok([first, sys::keep_all(b, KEEPS).map(closed_first).tried(what)?])
        })??;
        Ok(Wire { _kept: kept })
    }

    /// Removes the wire at a device; returns whether there was one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(namespace: &Namespace, device: &str) -> Result<bool, KernelError> {
        let removed = namespace.enter(|| -> Result<bool, KernelError> {
            let Some(link) = Links::open()?.find(device)? else { return Ok(false) };
            let remove = || -> io::Result<bool> {
                let programs = sys::attached(link.index, REDIRECTS)?;
                programs.iter().try_for_each(|program| sys::detach(link.index, program.as_fd()))?;
                Ok(!programs.is_empty())
            };
            match remove() {
                // A kernel without such programs has none attached.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(false),
                other => other.tried(|| format!("removing the wire at {device}")),
            }
        })??;
        leftovers::forget(&entry(namespace, device));
        Ok(removed)
    }
}

/// The same descriptor with a high number: the kernel closes the descriptors of a dead process from the highest to the lowest,
/// and each packet socket takes it milliseconds.
fn closed_first(fd: OwnedFd) -> OwnedFd {
    // Below the usual limit of 1,024. With a lower one the number stays.
    rustix::io::fcntl_dupfd_cloexec(&fd, 1_000).unwrap_or(fd)
}

fn entry(namespace: &Namespace, device: &str) -> Leftover {
    let (namespace, device) = (namespace.name().to_owned(), device.to_owned());
    Leftover::Wire(Box::new(leftovers::Device { namespace, device }))
}
