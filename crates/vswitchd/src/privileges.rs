//! Privileges: a switch that was started as root drops all of them, and the user, once its helper has opened the ports of its
//! file.
//! On Linux each thread has its own privileges, and new threads inherit them. So the switch drops privileges while it
//! has only one thread.

use nix::unistd::{Group, User};
use rustix::process::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;

/// The capabilities that a kind of port needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The capabilities to open the port.
    pub open: CapabilitySet,
    /// The capabilities that a bump keeps for the open port.
    pub run: CapabilitySet,
}

/// The capabilities to open a namespace and its devices.
pub const TO_OPEN: CapabilitySet =
    CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::SYS_ADMIN);

impl Rights {
    /// No capabilities.
    pub const NONE: Rights = Rights { open: CapabilitySet::empty(), run: CapabilitySet::empty() };
}

/// The remaining privileges of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
    /// The capabilities, by name.
    pub capabilities: String,
}

/// The account of a switch that root starts without `user`, if it exists: that of `packaging/sysusers.d`.
const PACKAGED: &str = "sluicenet";
/// The account otherwise. Every system has it, and it owns no file; other services may use it, too.
const SHARED: &str = "nobody";
/// The number of this account and of its group, where no file names them.
const SHARED_ID: u32 = 65_534;

/// A user that the switch can become.
#[derive(Clone, Debug)]
pub struct Becomes {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl Becomes {
    /// The user of a switch: the one that its file names, otherwise an account without rights, if root starts it. `None` if it
    /// remains who it is.
    ///
    /// # Errors
    /// Those of [`Becomes::user`].
    pub fn of_switch(named: Option<&str>) -> io::Result<Option<Becomes>> {
        match named {
            Some(name) => Becomes::user(name),
            None if rustix::process::geteuid().is_root() => Ok(Some(Becomes::without_rights(PACKAGED))),
            None => Ok(None),
        }
    }

    /// The user of this name, or the shared one if there is none.
    fn without_rights(name: &str) -> Becomes {
        let lookup = |name| Becomes::user(name).ok().flatten();
        let id = (Uid::from_raw(SHARED_ID), Gid::from_raw(SHARED_ID));
        let shared = || Becomes { name: SHARED.to_owned(), uid: id.0, gid: id.1 };
        lookup(name).or_else(|| lookup(SHARED)).unwrap_or_else(shared)
    }

    /// Whether other services may run as this user.
    pub fn is_shared(&self) -> bool {
        self.name == SHARED
    }

    /// Looks up a user; `None` if the switch is that user already.
    ///
    /// # Errors
    /// There is no such user, or only root could become it.
    pub fn user(name: &str) -> io::Result<Option<Becomes>> {
        let user = User::from_name(name).map_err(io::Error::from)?;
        let user = user.ok_or_else(|| io::Error::other(format!("`user`: there is no user {name}")))?;
        let (uid, gid) = (Uid::from_raw(user.uid.as_raw()), Gid::from_raw(user.gid.as_raw()));
        let own = rustix::process::geteuid();
        if own == uid {
            return Ok(None);
        }
        if !own.is_root() {
            return Err(io::Error::other(format!("`user`: only root can become {name}")));
        }
        Ok(Some(Becomes { name: name.to_owned(), uid, gid }))
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Makes this thread the user's, in no group but the user's own.
    ///
    /// # Errors
    /// The system refuses.
    pub fn take_over_thread(&self) -> io::Result<()> {
        use rustix::thread as own;
        let Becomes { name, uid, gid } = self;
        let context = |e: rustix::io::Errno| io::Error::other(format!("`user`: cannot become {name}: {e}"));
        own::set_thread_groups(&[]).map_err(context)?;
        own::set_thread_res_gid(*gid, *gid, *gid).map_err(context)?;
        own::set_thread_res_uid(*uid, *uid, *uid).map_err(context)
    }
}

/// The number of a group by its name.
///
/// # Errors
/// There is no such group.
pub fn group(name: &str) -> io::Result<u32> {
    let group = Group::from_name(name).map_err(io::Error::from)?;
    let missing = || io::Error::other(format!("`socket_group`: there is no group {name}"));
    group.map(|group| group.gid.as_raw()).ok_or_else(missing)
}

/// Changes the user, if wanted, and gives up every capability except `keep` for good.
///
/// # Errors
/// The system refuses.
pub fn drop_all_but(keep: CapabilitySet, becomes: Option<&Becomes>) -> io::Result<Left> {
    // A joined thread disappears from this list a moment later.
    let threads = || std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while threads() > 1 && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(threads(), 1, "privileges are dropped before threads are started");
    use rustix::thread as own;
    let had = own::capabilities(None)?;
    let keep = keep & had.permitted;
    if had.effective.contains(CapabilitySet::SETPCAP) {
        for capability in all().filter(|c| !keep.contains(*c)) {
            if own::capability_is_in_bounding_set(capability).unwrap_or(false) {
                own::remove_capability_from_bounding_set(capability)?;
            }
        }
    }
    if let Some(user) = becomes {
        // Without this, a change from root to another user drops all capabilities.
        own::set_keep_capabilities(true)?;
        user.take_over_thread()?;
        own::set_keep_capabilities(false)?;
    }
    own::set_capabilities(
        None,
        CapabilitySets { effective: keep, permitted: keep, inheritable: CapabilitySet::empty() },
    )?;
    own::set_no_new_privs(true)?;
    Ok(Left {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        capabilities: names(own::capabilities(None)?.effective),
    })
}

/// Describes the missing capabilities among `needed` for a port of `kind`.
pub fn missing(kind: &str, needed: CapabilitySet, has: CapabilitySet) -> Option<String> {
    let missing = needed - has;
    (!missing.is_empty()).then(|| {
        format!(
            "to open a {kind} takes {}, which this process does not have: a switch has it when it is started as root, or it has a helper (--helper)",
            names(missing)
        )
    })
}

/// The capabilities of this thread.
pub fn own() -> CapabilitySet {
    rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

fn all() -> impl Iterator<Item = CapabilitySet> {
    (0..64).map(|n| CapabilitySet::from_bits_retain(1 << n))
}

fn names(capabilities: CapabilitySet) -> String {
    let known: Vec<String> = capabilities.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    if known.is_empty() { "none".into() } else { known.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let needed = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
        assert_eq!(missing("veth", needed, needed | CapabilitySet::CHOWN), None);
        let text = missing("veth", needed, CapabilitySet::NET_RAW).unwrap();
        assert!(text.starts_with("to open a veth takes CAP_NET_ADMIN, which"), "{text}");
        assert_eq!(missing("shm", Rights::NONE.open, CapabilitySet::empty()), None);
    }

    #[test]
    fn nobody_becomes_a_user_that_is_not_there() {
        let error = Becomes::user("no-such-user-here").unwrap_err().to_string();
        assert!(error.contains("there is no user no-such-user-here"), "{error}");
    }

    #[test]
    fn root_never_remains_root_unless_the_file_says_so() {
        if !rustix::process::geteuid().is_root() {
            assert!(Becomes::of_switch(None).unwrap().is_none());
            return println!("the rest is skipped: only root becomes another user");
        }
        let own = Becomes::of_switch(None).unwrap().unwrap();
        assert!(!own.uid.is_root() && !own.gid.is_root() && (own.name() == PACKAGED || own.is_shared()), "{own:?}");
        let shared = Becomes::without_rights("no-such-user-here");
        assert!(shared.is_shared() && !shared.uid.is_root() && !shared.gid.is_root(), "{shared:?}");
        assert!(Becomes::of_switch(Some("root")).unwrap().is_none());
    }
}
