//! What a start of a switch would find on this machine. Nothing is opened for longer than a look, and nothing changes.

use super::config::{Config, PortConfig, PortKind, UplinkConfig};
use super::helper::device::{Device, Pair};
use super::opened::{is_alone, may_open};
use super::privileges::{Becomes, TO_OPEN, group, missing, own};
use rustix::fs::Access;
use serde::Serialize;
use sluicenet_dataplane::confine::files::folder_of;
use sluicenet_dataplane::kernel::KernelError;
use sluicenet_dataplane::kernel::link::Links;
use sluicenet_dataplane::kernel::netns::Namespace;
use sluicenet_dataplane::vhost::{Socket, not_shared};
use std::fs::File;
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The findings of a look at this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Reasons for which the switch would not start.
    pub errors: Vec<String>,
    /// Ports that would be absent, and why.
    pub absent: Vec<String>,
}

/// Looks for everything that the file names on this machine.
pub fn look(config: &Config) -> Findings {
    let mut found = Findings::default();
    let becomes = match Becomes::of_switch(config.user.as_deref()) {
        Ok(user) => user,
        Err(e) => {
            found.errors.push(e.to_string());
            None
        }
    };
    let group = match config.socket_group.as_deref().map(group).transpose() {
        Ok(group) => group,
        Err(e) => {
            found.errors.push(e.to_string());
            None
        }
    };
    if UnixStream::connect(&config.control).is_ok() {
        found.errors.push(format!("control socket {}: a program answers there already", config.control.display()));
    }
    if let Some(metrics) = config.metrics
        && let Err(e) = TcpListener::bind(metrics)
    {
        found.errors.push(format!("`metrics` {metrics}: {e}"));
    }
    if let Some(uplink) = &config.uplink
        && let Err(e) = look_at_uplink(uplink)
    {
        found.errors.push(format!("uplink: {e}"));
    }
    for file in config.files() {
        // Whoever looks here has read them.
        let denied = |e: &io::Error| e.kind() == io::ErrorKind::PermissionDenied;
        if let (Some(user), Err(e)) = (&becomes, as_user(becomes.as_ref(), || File::open(file)))
            && denied(&e)
        {
            let (file, user) = (file.display(), user.name());
            found.errors.push(format!("{file}: the user {user} cannot read it, as a reload does: {e}"));
        }
    }
    for (i, port) in config.ports.iter().enumerate() {
        let lacking = may_open(&port.kind, None);
        let fault = lacking.map_or_else(|| is_alone(port, config.ports[..i].iter()), Err);
        let add = |to: &mut Vec<String>, why: String| to.push(format!("port {}: {why}", port.name));
        match fault {
            Err(why) => add(&mut found.errors, why),
            Ok(()) => {
                let looked = look_at_port(port, becomes.as_ref());
                if let Err(why) = looked.and_then(|()| look_at_group(port, group)) {
                    add(&mut found.absent, why);
                }
            }
        }
    }
    found
}

fn look_at_uplink(uplink: &UplinkConfig) -> Result<(), String> {
    if let Some(missing) = missing("uplink", TO_OPEN, own()) {
        return Err(missing);
    }
    device(&uplink.netns, &uplink.device).map_err(|e| e.to_string())?;
    match uplink.overlay.as_ref().and_then(|overlay| overlay.controller_netns.as_ref()) {
        Some(name) => Namespace::open(name).map(drop).map_err(|e| e.to_string()),
        None => Ok(()),
    }
}

fn look_at_port(port: &PortConfig, becomes: Option<&Becomes>) -> Result<(), String> {
    let looked = match &port.kind {
        PortKind::Shm { .. } | PortKind::VhostUser { socket: Socket::Connect(_), .. } => return Ok(()),
        PortKind::VhostUser { socket: Socket::Listen(path), .. } => {
            let who = becomes.map_or("this user".to_owned(), |user| format!("the user {}", user.name()));
            return as_user(becomes, || Ok(look_at_socket(path, &who))).unwrap_or_else(|e| Err(e.to_string()));
        }
        PortKind::Veth { .. } => {
            let pair = Device::of(port).map_or(Ok(None), |device| Pair::of(&device));
            pair.and_then(|pair| pair.map_or(Ok(()), |pair| pair.veth().look()))
        }
        PortKind::Packet { device: name, netns } => device(netns, name),
        PortKind::Tap { device, tenant_netns, .. } => {
            let there =
                Namespace::open(tenant_netns).and_then(|tenant| tenant.enter(|| Links::open()?.find(device))?);
            match there {
                Ok(Some(_)) => return Err(format!("the device {device} in {tenant_netns}: it exists already")),
                other => other.map(drop),
            }
        }
    };
    looked.map_err(|e| e.to_string())
}

fn device(netns: &Option<String>, name: &str) -> Result<(), KernelError> {
    let namespace = Namespace::named(netns.as_deref())?;
    namespace.enter(|| Links::open()?.get(name))?.map(drop).map_err(|e| e.within(namespace.name()))
}

/// Whether the switch could make a socket for a guest.
fn look_at_socket(path: &Path, who: &str) -> Result<(), String> {
    let folder = folder_of(path);
    let meta = std::fs::metadata(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    if !meta.is_dir() {
        return Err(format!("{}: this is no folder", folder.display()));
    }
    if UnixStream::connect(path).is_ok() {
        return Err(format!("{}: somebody listens there", path.display()));
    }
    if std::fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
        return Err(format!("{}: there is a file that is no socket", path.display()));
    }
    match rustix::fs::access(folder, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Ok(()),
        Err(_) => Err(format!("{}: {who} may not write there", folder.display())),
    }
}

/// Looks at files as the user that the switch becomes, with all that this user may and may not do. Only the thread that looks
/// becomes this user.
fn as_user<T: Send>(becomes: Option<&Becomes>, look: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let Some(user) = becomes else { return look() };
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            user.take_over_thread()?;
            look()
        });
        looking.join().unwrap_or_else(|e| std::panic::resume_unwind(e))
    })
}

/// Whether the folder of a guest's socket gives it to the group that may connect.
fn look_at_group(port: &PortConfig, group: Option<u32>) -> Result<(), String> {
    let (Some(group), Some(path)) = (group, port.kind.socket()) else { return Ok(()) };
    let folder = folder_of(path);
    let meta = std::fs::metadata(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    match meta.gid() == group && meta.mode() & 0o2010 == 0o2010 {
        true => Ok(()),
        false => Err(not_shared(path, group)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_testkit::Dir;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn found(folder: &Dir, file: &str) -> Findings {
        let text = file.replace("FOLDER", folder.0.to_str().unwrap());
        look(
            &Config::parse(Path::new("vs.toml"), &format!("[switch]\ncontrol = \"{}\"\n{text}", folder.path("c")))
                .unwrap(),
        )
    }

    /// The switch reads its file, and makes the sockets of guests, as the user that it becomes.
    #[test]
    fn it_is_looked_with_the_rights_of_the_user() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root can become another user");
        }
        let folder = Dir::new("here-user");
        let mode = |path: &str, mode| {
            std::fs::set_permissions(folder.0.join(path), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode("", 0o755);
        std::fs::create_dir_all(folder.0.join("closed/open")).unwrap();
        let guest = "[[port]]\nname = \"g\"\nkind = \"vhost-user\"\nsocket = \"FOLDER/closed/open/g.sock\"\n";
        let text = format!("[switch]\nuser = \"nobody\"\ncontrol = \"FOLDER/c\"\n{guest}");
        let file = folder.file("vs.toml", &text.replace("FOLDER", folder.0.to_str().unwrap()));
        let looked = || look(&Config::load(Path::new(&file)).unwrap());
        mode("closed/open", 0o777);
        mode("vs.toml", 0o644);
        assert_eq!(looked(), Findings::default());
        // Its bits do not help where its own folder is closed.
        mode("closed", 0o700);
        mode("vs.toml", 0o600);
        let Findings { errors, absent } = looked();
        let [unread] = &errors[..] else { panic!("{errors:?}") };
        assert!(
            unread.contains("vs.toml: the user nobody cannot read it, as a reload does: Permission denied"),
            "{unread}"
        );
        let [closed] = &absent[..] else { panic!("{absent:?}") };
        assert!(closed.starts_with("port g: ") && closed.contains("/closed/open: Permission denied"), "{closed}");
        // Everything else is done with the rights of the caller.
        assert!(rustix::process::geteuid().is_root() && File::open(&file).is_ok());
    }

    #[test]
    fn what_a_start_would_find_is_found() {
        let folder = Dir::new("here");
        // Root would become a user without rights.
        std::fs::set_permissions(&folder.0, Permissions::from_mode(0o777)).unwrap();
        let guest = |name: &str, socket: &str| {
            format!("[[port]]\nname = \"{name}\"\nkind = \"vhost-user\"\nsocket = \"FOLDER/{socket}\"\n")
        };
        assert_eq!(found(&folder, &guest("a", "a.sock")), Findings::default());
        folder.file("plain", "");
        let ports =
            guest("a", "missing/a.sock") + &guest("b", "plain/b.sock") + &guest("c", "plain") + &guest("d", "d.sock");
        let looked = found(&folder, &ports);
        assert_eq!(looked.errors, Vec::<String>::new());
        let [a, b, c] = &looked.absent[..] else { panic!("{looked:?}") };
        assert!(a.starts_with("port a: ") && a.contains("/missing: No such file"), "{a}");
        assert!(b.starts_with("port b: ") && b.contains("/plain: this is no folder"), "{b}");
        assert!(c.starts_with("port c: ") && c.contains("/plain: there is a file that is no socket"), "{c}");
        let user = found(&folder, "user = \"no-such-user-here\"\n");
        assert_eq!(user.errors, ["`user`: there is no user no-such-user-here"]);
        let group = found(&folder, "socket_group = \"no-such-group-here\"\n");
        assert_eq!(group.errors, ["`socket_group`: there is no group no-such-group-here"]);
        std::fs::create_dir(folder.0.join("guests")).unwrap();
        std::fs::set_permissions(folder.0.join("guests"), Permissions::from_mode(0o777)).unwrap();
        let group = found(&folder, &("socket_group = \"root\"\n".to_owned() + &guest("g", "guests/g.sock")));
        assert!(group.absent[0].contains("group 0 of `socket_group` could not connect"), "{group:?}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let metrics = found(&folder, &format!("metrics = \"{port}\"\n"));
        assert!(metrics.errors[0].starts_with(&format!("`metrics` 127.0.0.1:{port}: Address")), "{metrics:?}");
        let _answers = std::os::unix::net::UnixListener::bind(folder.0.join("c")).unwrap();
        assert!(found(&folder, "").errors[0].ends_with("a program answers there already"));
        // A namespace that does not exist, if this process may look for devices at all.
        let veth = "[[port]]\nname = \"v\"\nkind = \"veth\"\ntenant_netns = \"sluice-no-such\"\n";
        let looked = found(&folder, &format!("{veth}[watchdog]\n"));
        let found = [looked.errors, looked.absent].concat();
        assert!(
            found.iter().any(|f| f.contains("sluice-no-such: No such file") || f.contains("CAP_NET_ADMIN")),
            "{found:?}"
        );
    }
}
