//! The files of a process that forwards frames (Landlock). It executes none, opens no TCP connection, sends no signal to other
//! processes and nothing to their abstract sockets. Files and sockets that are open already are not affected.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::io;
use std::path::{Path, PathBuf};

/// The version whose rights are known here: that of Linux 6.12. An older kernel enforces those that it knows.
const KNOWN: ABI = ABI::V6;
/// Rights that a later version of Landlock began to limit, and the kernel of that version.
const LATER: [(ABI, &str); 4] = [
    (ABI::V3, "emptying files (Linux 6.2)"),
    (ABI::V4, "TCP (Linux 6.7)"),
    (ABI::V5, "requests to devices (Linux 6.10)"),
    (ABI::V6, "signals and abstract sockets (Linux 6.12)"),
];

/// The folders that the process may use, with all that is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folders {
    /// It reads files here.
    pub read: Vec<PathBuf>,
    /// It removes files here.
    pub remove: Vec<PathBuf>,
    /// It makes sockets here, and files beside them.
    pub sockets: Vec<PathBuf>,
}

/// Limits this thread to `folders`; returns the rights that this kernel does not limit, or `None` if it limits nothing. Of a
/// folder that does not exist yet, the next existing one above it counts, unless that is the root.
pub(super) fn limit(folders: &Folders) -> io::Result<Option<Vec<&'static str>>> {
    let sockets = AccessFs::MakeSock
        | AccessFs::MakeReg
        | AccessFs::ReadFile
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::RemoveFile;
    let rules: [(&[PathBuf], BitFlags<AccessFs>); 3] = [
        (&folders.read, AccessFs::ReadFile | AccessFs::ReadDir),
        (&folders.remove, AccessFs::RemoveFile.into()),
        (&folders.sockets, sockets),
    ];
    let paths = rules.iter().flat_map(|(paths, access)| paths.iter().map(|path| (existing(path), *access)));
    restrict(paths.filter(|(path, _)| path.parent().is_some())).map_err(io::Error::other)
}

fn restrict(
    rules: impl Iterator<Item = (PathBuf, BitFlags<AccessFs>)>,
) -> Result<Option<Vec<&'static str>>, RulesetError> {
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(KNOWN))?
        .handle_access(AccessNet::from_all(KNOWN))?
        .scope(Scope::from_all(KNOWN))?
        .create()?;
    for (path, access) in rules {
        // A folder that was removed meanwhile needs no rule.
        if let Ok(folder) = PathFd::new(&path) {
            ruleset = ruleset.add_rule(PathBeneath::new(folder, access))?;
        }
    }
    let status = ruleset.restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, _) => None,
        (RulesetStatus::FullyEnforced, _) => Some(Vec::new()),
        (_, LandlockStatus::Available { effective_abi, .. }) => Some(unlimited(effective_abi)),
        (..) => None,
    })
}

/// The rights that a kernel with this version of Landlock does not limit.
fn unlimited(version: ABI) -> Vec<&'static str> {
    LATER.into_iter().filter(|(since, _)| (version as i32) < *since as i32).map(|(_, right)| right).collect()
}

/// The path itself, or the next existing folder above it. An empty path is the current folder.
fn existing(path: &Path) -> PathBuf {
    let whole = std::path::absolute(if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let mut at = whole.unwrap_or_else(|_| path.to_owned());
    while !at.exists() && at.pop() {}
    at
}

/// The folder that a file is in: the current one, if its path names none.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Whether a process with these folders may make a socket at `path`.
pub fn may_make_socket(folders: &Folders, path: &Path) -> bool {
    let whole = |path: &Path| {
        let folder = existing(path);
        folder.canonicalize().unwrap_or(folder)
    };
    let at = path.parent().map(whole);
    at.is_some_and(|at| folders.sockets.iter().any(|folder| at.starts_with(whole(folder))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

    /// A folder with the folders `own`, `guests` and `other`; removed when dropped.
    struct Places(PathBuf);

    impl Places {
        fn new(test: &str) -> Places {
            let places = Places(std::env::temp_dir().join(format!("sluicenet-files-{test}-{}", std::process::id())));
            let _ = fs::remove_dir_all(&places.0);
            for folder in ["own", "guests", "other"] {
                fs::create_dir_all(places.0.join(folder)).unwrap();
                fs::write(places.0.join(folder).join("file"), folder).unwrap();
            }
            places
        }

        fn folders(&self) -> Folders {
            let at = |name: &str| vec![self.0.join(name)];
            Folders { read: at("own"), remove: Vec::new(), sockets: at("guests") }
        }
    }

    impl Drop for Places {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn is_refused<T>(tried: io::Result<T>) -> bool {
        matches!(&tried, Err(e) if e.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Runs a test on a thread that is limited.
    fn limited(folders: &Folders, test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            scope.spawn(|| match limit(folders).unwrap() {
                Some(_) => test(),
                None => println!("skipped: this kernel limits no files"),
            });
        });
    }

    #[test]
    fn only_the_named_folders_are_left() {
        let places = Places::new("left");
        let at = |name: &str| places.0.join(name);
        limited(&places.folders(), || {
            assert_eq!(fs::read_to_string(at("own/file")).unwrap(), "own");
            assert!(is_refused(fs::write(at("own/file"), "")));
            assert!(is_refused(fs::remove_file(at("own/file"))));
            let _listener = UnixListener::bind(at("guests/socket")).unwrap();
            fs::write(at("guests/socket.inflight"), "record").unwrap();
            fs::remove_file(at("guests/socket")).unwrap();
            fs::remove_file(at("guests/socket.inflight")).unwrap();
            assert!(is_refused(UnixListener::bind(at("other/socket"))));
            assert!(is_refused(fs::read(at("other/file"))));
            assert!(is_refused(fs::read_dir(at("other"))));
            assert!(is_refused(fs::create_dir(at("guests/folder"))));
            assert!(is_refused(fs::read("/proc/self/environ")));
            assert!(is_refused(std::process::Command::new("/bin/sh").spawn()));
            assert!(is_refused(std::net::TcpListener::bind("127.0.0.1:0")) || !net_is_limited());
        });
        // Other threads are not limited.
        fs::read(at("other/file")).unwrap();
    }

    #[test]
    fn an_older_kernel_limits_a_part_of_it() {
        assert_eq!(unlimited(KNOWN), Vec::<&str>::new());
        let [files, tcp, devices, scopes] = LATER.map(|(_, right)| right);
        assert_eq!(unlimited(ABI::V5), [scopes]);
        assert_eq!(unlimited(ABI::V3), [tcp, devices, scopes]);
        // Debian 12 has Linux 6.1.
        assert_eq!(unlimited(ABI::V2), [files, tcp, devices, scopes]);
    }

    #[test]
    fn abstract_sockets_and_processes_outside_are_out_of_reach() {
        let name = format!("sluicenet-files-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let outside = UnixDatagram::bind_addr(&address).unwrap();
        let before = UnixDatagram::unbound().unwrap();
        before.connect_addr(&address).unwrap();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&other);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let unlimited = limit(&Folders::default()).unwrap();
                if unlimited.is_none_or(|rights| !rights.is_empty()) {
                    return println!("skipped: this kernel limits neither (Linux 6.12)");
                }
                let after = UnixDatagram::unbound().unwrap();
                assert!(is_refused(after.connect_addr(&address)));
                assert!(is_refused(after.send_to_addr(b"x", &address)));
                before.send(b"still").unwrap();
                let killed = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                assert!(is_refused(killed.map_err(io::Error::from)));
            });
        });
        drop((other.kill(), other.wait(), outside));
    }

    /// Whether this kernel limits TCP: since Linux 6.7.
    fn net_is_limited() -> bool {
        use landlock::{CompatLevel, Compatible};
        let strict = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        strict.handle_access(AccessNet::from_all(KNOWN)).is_ok()
    }

    #[test]
    fn a_folder_that_does_not_exist_yet_counts_with_the_next_one_above_it() {
        let places = Places::new("yet");
        let folders = Folders { sockets: vec![places.0.join("guests/later/still")], ..Folders::default() };
        let at = |name: &str| places.0.join(name);
        for (path, may) in [("guests/a", true), ("guests/later/still/a", true), ("other/a", false), ("a", false)] {
            assert_eq!(may_make_socket(&folders, &at(path)), may, "{path}");
        }
        limited(&folders, || {
            drop(UnixListener::bind(at("guests/a")).unwrap());
            assert!(is_refused(UnixListener::bind(at("other/a"))));
        });
        // The root is never meant.
        let nowhere = Folders { sockets: vec!["/sluicenet-no-such-folder".into()], ..Folders::default() };
        limited(&nowhere, || assert!(is_refused(UnixListener::bind(at("guests/b")))));
    }
}
