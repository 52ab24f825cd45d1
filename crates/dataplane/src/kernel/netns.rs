//! Network namespaces: created, entered and deleted as `ip netns` does, so that both see the same ones.

use super::error::{KernelError, OWN_NAMESPACE, Tried};
use crate::leftovers::{self, Leftover};
use rustix::fs::{CWD, FlockOperation};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The folder of named namespaces.
const NAMED: &str = "/run/netns";

/// How long `ip netns` may need to make the folder a mount.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// The prefix of the names of all namespaces that this project creates.
pub const PREFIX: &str = "sluice-";

/// A network namespace, with its own devices, addresses and sockets.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    name: String,
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Namespace {
    /// Makes a namespace with its loopback device up. Its name must begin with [`PREFIX`] and be a file name. It is recorded: it
    /// does not outlive this process for long.
    pub fn create(name: &str) -> Result<Namespace, KernelError> {
        if !name.starts_with(PREFIX) {
            let why = format!("its name must begin with `{PREFIX}`");
            return Err(KernelError::new(making(name), io::Error::new(io::ErrorKind::InvalidInput, why)));
        }
        let thing = Leftover::Namespace(name.to_owned());
        // If the namespace exists already, its entry in the record stays.
        let is_new = leftovers::add(thing.clone()).tried(|| making(name))?;
        Namespace::create_lasting(name).inspect_err(|_| {
            if is_new {
                leftovers::forget(&thing)
            }
        })
    }

    /// Makes a namespace of any name, with its loopback device up. It stays until it is deleted, as that of `ip netns add`.
    pub fn create_lasting(name: &str) -> Result<Namespace, KernelError> {
        let what = || making(name);
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) || name.len() > 200 {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "its name must be a file name");
            return Err(KernelError::new(what(), why));
        }
        prepare_folder().tried(what)?;
        let path = Path::new(NAMED).join(name);
        File::options().write(true).create_new(true).open(&path).tried(what)?;
        let made = on_a_thread(|| {
            // Only this thread enters the namespace, and it ends here.
            #[allow(deprecated)]
            rustix::thread::unshare(UnshareFlags::NEWNET)?;
            rustix::mount::mount_bind("/proc/thread-self/ns/net", &path)?;
            Ok(())
        });
        if let Err(why) = made {
            let _ = std::fs::remove_file(&path);
            return Err(KernelError::new(what(), why));
        }
        let namespace = Namespace::open(name)?;
        namespace.enter(|| super::link::Links::open()?.up("lo"))??;
        Ok(namespace)
    }

    /// A namespace by its name, or by a path such as `/proc/1234/ns/net`.
    pub fn open(name: &str) -> Result<Namespace, KernelError> {
        let path = if name.starts_with('/') { PathBuf::from(name) } else { Path::new(NAMED).join(name) };
        let file = File::open(&path).tried(|| format!("the network namespace {}", path.display()))?;
        Ok(Namespace { file, name: name.to_owned() })
    }

    /// The namespace of this thread, by its name if it has one: another program, `clean` for example, finds it by that.
    pub fn current() -> Result<Namespace, KernelError> {
        let own = Namespace::open(OWN_NAMESPACE)?;
        let same = |name: &String| Namespace::open(name).is_ok_and(|named| named.is(&own).unwrap_or(false));
        Ok(match all_named().unwrap_or_default().into_iter().find(same) {
            Some(name) => Namespace { name, ..own },
            None => own,
        })
    }

    /// The namespace of this name or path; without one, that of this thread.
    pub fn named(name: Option<&str>) -> Result<Namespace, KernelError> {
        name.map_or_else(Namespace::current, Namespace::open)
    }

    /// The device and the number of its file: another namespace that exists at the same time has others.
    pub fn identity(&self) -> Result<(u64, u64), KernelError> {
        let stat = rustix::fs::fstat(&self.file).tried(|| format!("the network namespace {}", self.name))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The identity of the namespace that has this name or path now. This takes no privileges.
    pub fn identity_of(name: &str) -> io::Result<(u64, u64)> {
        let path = if name.starts_with('/') { PathBuf::from(name) } else { Path::new(NAMED).join(name) };
        std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino()))
    }

    /// Whether both are the same namespace, even under different names.
    pub fn is(&self, other: &Namespace) -> Result<bool, KernelError> {
        Ok(self.identity()? == other.identity()?)
    }

    /// The same namespace.
    pub(super) fn try_clone(&self) -> Result<Namespace, KernelError> {
        let file = self.file.try_clone().tried(|| format!("the network namespace {}", self.name))?;
        Ok(Namespace { file, name: self.name.clone() })
    }

    /// Its name, or its path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Deletes a namespace by name, with its devices. Its sockets live until they are closed.
    pub fn delete(name: &str) -> Result<(), KernelError> {
        let path = Path::new(NAMED).join(name);
        // A namespace that was never mounted is only a file.
        let _ = rustix::mount::unmount(&path, UnmountFlags::DETACH);
        std::fs::remove_file(&path).tried(|| format!("deleting the network namespace {name}"))?;
        leftovers::forget(&Leftover::Namespace(name.to_owned()));
        Ok(())
    }

    /// Disables IPv6 for devices that are created here from now on: without neighbour and router discovery, only frames of the
    /// experiment cross them.
    pub fn silence(&self) -> Result<(), KernelError> {
        let write = |of: &str| {
            let name = format!("net/ipv6/conf/{of}/disable_ipv6");
            if Path::new("/proc/sys").join(&name).exists() { set_sysctl(&name, "1") } else { Ok(()) }
        };
        self.enter(|| ["default", "all"].into_iter().try_for_each(write))?
    }

    /// Runs `inside` in the namespace, on a thread of its own; sockets it opens stay there.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T, KernelError> {
        on_a_thread(|| {
            rustix::thread::move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(inside())
        })
        .tried(|| format!("entering the network namespace {}", self.name))
    }

    /// Runs `inside` in the namespace, with its `/sys/class/net` instead of ours.
    pub fn enter_with_sysfs<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> Result<T, KernelError> {
        self.enter(|| -> io::Result<T> {
            // The mounts of this thread only.
            #[allow(deprecated)]
            rustix::thread::unshare(UnshareFlags::NEWNS)?;
            rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            match rustix::mount::mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None) {
                // It is mounted already: the namespace is that of our own `/sys`.
                Err(Errno::BUSY) => {}
                other => other?,
            }
            Ok(inside())
        })?
        .tried(|| format!("the devices of {} in /sys", self.name))
    }
}

fn making(name: &str) -> String {
    format!("making the network namespace {name}")
}

/// Makes the folder of named namespaces a mount of its own, as `ip netns` does. If `ip netns` did so after a namespace was
/// mounted, it would hide that mount, and nobody could delete the namespace.
fn prepare_folder() -> io::Result<()> {
    std::fs::create_dir_all(NAMED)?;
    let folder = File::open(NAMED)?;
    // `ip netns` holds the same lock meanwhile; it ends with the file. Anybody may hold it for ever: then we go on without.
    let until = Instant::now() + LOCK_PATIENCE;
    while rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive).is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let shared = || rustix::mount::mount_change(NAMED, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match shared() {
        // It is no mount.
        Err(Errno::INVAL) => {
            rustix::mount::mount_bind_recursive(NAMED, NAMED)?;
            // A mount is enough: `ip netns` shares it when it needs to.
            let _ = shared();
            Ok(())
        }
        other => Ok(other?),
    }
}

fn on_a_thread<T: Send>(inside: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| match scope.spawn(inside).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Writes a setting of this thread's namespace, such as `net/ipv6/conf/all/disable_ipv6`.
pub(super) fn set_sysctl(name: &str, value: &str) -> Result<(), KernelError> {
    std::fs::write(Path::new("/proc/sys").join(name), value).tried(|| format!("setting {name} to {value}"))
}

/// The existing namespaces whose names have the prefix of this project.
pub fn named() -> Result<Vec<String>, KernelError> {
    Ok(all_named()?.into_iter().filter(|name| name.starts_with(PREFIX)).collect())
}

fn all_named() -> Result<Vec<String>, KernelError> {
    let entries = match std::fs::read_dir(NAMED) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.tried(|| NAMED.to_owned())?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.tried(|| NAMED.to_owned())?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Deletes the namespaces of one run, whose names continue with `tag`, with their devices; returns their names.
///
/// A TAP ends with the process that created it. All other devices of this project are in such namespaces.
pub fn clean_up(tag: &str) -> Result<Vec<String>, KernelError> {
    let of_the_run = |name: &String| name.strip_prefix(PREFIX).is_some_and(|rest| rest.starts_with(tag));
    let gone: Vec<String> = named()?.into_iter().filter(of_the_run).collect();
    gone.iter().try_for_each(|name| Namespace::delete(name))?;
    Ok(gone)
}

/// Whether this process may create namespaces; the error if not.
pub fn may_make_namespaces() -> Result<(), KernelError> {
    on_a_thread(|| {
        #[allow(deprecated)]
        rustix::thread::unshare(UnshareFlags::NEWNET | UnshareFlags::NEWNS)?;
        rustix::fs::accessat(
            CWD,
            "/proc/thread-self/ns/net",
            rustix::fs::Access::READ_OK,
            rustix::fs::AtFlags::empty(),
        )?;
        Ok(())
    })
    .tried(|| "a network namespace of one's own".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_devices_of_our_own_namespace_are_those_in_our_sys() {
        let own = Namespace::current().unwrap();
        if let Err(e) = may_make_namespaces() {
            println!("skipped: {e}");
            return;
        }
        let names =
            || -> Vec<_> { std::fs::read_dir("/sys/class/net").unwrap().map(|e| e.unwrap().file_name()).collect() };
        assert_eq!(own.enter_with_sysfs(names).unwrap(), names());
    }

    #[test]
    fn the_namespace_of_a_thread_has_its_name() {
        if let Err(e) = may_make_namespaces() {
            println!("skipped: {e}");
            return;
        }
        let name = format!("sluice-name{}", std::process::id());
        let namespace = Namespace::create(&name).unwrap();
        let found = namespace.enter(|| Namespace::current().map(|own| own.name().to_owned())).unwrap();
        Namespace::delete(&name).unwrap();
        assert_eq!(found.unwrap(), name);
    }

    #[test]
    fn what_ip_netns_does_first_hides_no_namespace() {
        if let Err(e) = may_make_namespaces() {
            println!("skipped: {e}");
            return;
        }
        // A machine on which nobody made a namespace yet, for this thread and its programs.
        let done = on_a_thread(|| {
            #[allow(deprecated)]
            rustix::thread::unshare(UnshareFlags::NEWNS)?;
            rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            rustix::mount::mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
            let ours = format!("{PREFIX}first-{}", std::process::id());
            let ip = |verb: &str| std::process::Command::new("ip").args(["netns", verb, "sluice-second"]).status();
            drop(Namespace::create(&ours)?);
            let Ok(status) = ip("add") else { return Ok(()) };
            assert!(status.success());
            assert_eq!(named()?, [ours.clone(), "sluice-second".into()]);
            Namespace::delete(&ours)?;
            assert!(ip("del")?.success());
            assert_eq!(named()?, Vec::<String>::new());
            Ok(())
        });
        done.unwrap();
    }
}
