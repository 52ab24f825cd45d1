//! The thread at a vhost-user socket: it checks the frontend's messages and hands the switch whole, checked queues.
//!
//! The crate `vhost` reads messages and checks their sizes; their meaning is decided here. An invalid message ends the
//! connection, and closes every file descriptor that came through it; the frontend may connect again.

use super::guest::MAX_PAIRS;
use super::header::{EVENT_IDX, INDIRECT_DESC, OFFERED, PROTOCOL_FEATURES};
use super::memory::{Layout, MAX_REGIONS, Memory, Ring};
use super::queue::{MAX_SIZE, Setup};
use super::record::{self, Record};
use super::{Gone, Handle, SHARED_WITH, Socket, not_shared};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

const QUEUES: usize = 2 * MAX_PAIRS;

/// How long to wait before connecting again to a frontend that listens.
const RETRY_MS: i64 = 200;

/// Starts the thread.
pub fn spawn(socket: Socket, handle: Handle) -> io::Result<std::thread::JoinHandle<()>> {
    let listener = match &socket {
        Socket::Listen(path) => Some(listen(path, SHARED_WITH.get().copied())?),
        Socket::Connect(_) => None,
    };
    std::thread::Builder::new().name("vhost-user".into()).spawn(move || {
        while !handle.shared.closed.load(Ordering::Acquire) {
            let connection = match &listener {
                Some(listener) => accept(listener, &handle),
                None => connect(socket.path(), &handle),
            };
            if let Some(connection) = connection {
                serve(connection, &handle, &socket);
                if listener.is_none() {
                    // A frontend that hangs up each time is not called without pause.
                    wait(&handle, None, Some(RETRY_MS));
                }
            }
        }
        if listener.is_some() {
            // New frontends learn at once that the switch does not listen. An error means that the file is gone already.
            let _ = std::fs::remove_file(socket.path());
        }
    })
}

/// A socket that only its owner, and a group, may connect to.
fn listen(path: &Path, group: Option<u32>) -> io::Result<UnixListener> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    if is_in_use(path)? {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{}: somebody listens there", path.display())));
    }
    if std::fs::symlink_metadata(path).is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type())) {
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The mode is set before the socket has a name, so that at no time another user may connect.
    let shared = if group.is_some() { Mode::RGRP | Mode::WGRP } else { Mode::empty() };
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR | shared)?;
    let named = |e: rustix::io::Errno| {
        let e = io::Error::from(e);
        io::Error::new(e.kind(), format!("{}: {e}", path.display()))
    };
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).map_err(named)?).map_err(named)?;
    // Until it listens, nobody can connect.
    group.map_or(Ok(()), |group| check_group(path, group)).inspect_err(|_| drop(std::fs::remove_file(path)))?;
    rustix::net::listen(&socket, 8).map_err(named)?;
    Ok(UnixListener::from(socket))
}

/// Whether a new socket has the group that may connect. A switch may give it no other group than its folder does.
fn check_group(path: &Path, group: u32) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if meta.gid() == group && meta.mode() & 0o060 == 0o060 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, not_shared(path, group)))
}

/// Whether an open socket has this path. A switch may connect to none any more: a datagram tells it, too, which reaches nobody,
/// because the socket is of another type.
fn is_in_use(path: &Path) -> io::Result<bool> {
    use rustix::io::Errno;
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
    let Ok(address) = SocketAddrUnix::new(path) else { return Ok(false) };
    let datagrams = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let sent = rustix::net::sendto(&datagrams, &[], SendFlags::DONTWAIT, &address);
    Ok(matches!(sent, Ok(_) | Err(Errno::PROTOTYPE | Errno::AGAIN)))
}

/// Waits for the port to be closed, and for `other` if there is one; at most `wait_ms`, if given.
fn wait(handle: &Handle, other: Option<&UnixListener>, wait_ms: Option<i64>) {
    let mut fds = vec![PollFd::new(&handle.shared.close_bell, PollFlags::IN)];
    fds.extend(other.map(|other| PollFd::new(other, PollFlags::IN)));
    let timeout = wait_ms.map(|ms| rustix::event::Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 });
    // Interrupted or not: the caller looks again.
    let _ = rustix::event::poll(&mut fds, timeout.as_ref());
}

fn accept(listener: &UnixListener, handle: &Handle) -> Option<UnixStream> {
    wait(handle, Some(listener), None);
    match listener.accept() {
        Ok((connection, _)) => Some(connection),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => None,
        Err(_) => {
            // Out of file descriptors, most likely.
            wait(handle, None, Some(RETRY_MS));
            None
        }
    }
}

fn connect(path: &Path, handle: &Handle) -> Option<UnixStream> {
    let connection = UnixStream::connect(path).ok();
    if connection.is_none() {
        wait(handle, None, Some(RETRY_MS));
    }
    connection
}

/// Serves a connection until it ends.
fn serve(connection: UnixStream, handle: &Handle, socket: &Socket) {
    let shared = &handle.shared;
    let Ok(again) = connection.try_clone() else { return };
    *shared.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(again);
    // A port that was closed just before did not see the connection.
    if !shared.closed.load(Ordering::Acquire) && connection.set_nonblocking(false).is_ok() {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        shared.connected.store(true, Ordering::Relaxed);
        let session = Arc::new(Mutex::new(Session::new(handle.clone(), socket)));
        let early = connection.try_clone();
        let mut requests = BackendReqHandler::from_stream(connection, session.clone());
        let why = loop {
            let handled = match &early {
                Ok(early) if is_enabled_early(early, &session) => enable_early(early, &session),
                _ => requests.handle_request(),
            };
            if let Err(why) = handled {
                break why;
            }
        };
        if !matches!(why, Error::Disconnected | Error::SocketBroken(_)) {
            shared.bad_messages.fetch_add(1, Ordering::Relaxed);
        }
        // Without the port there is nothing to detach from.
        let _ = handle.run(|guest| guest.detach());
        shared.connected.store(false, Ordering::Relaxed);
    }
    *shared.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The fields of `VHOST_USER_SET_VRING_ENABLE`: request, flags, size, index, value.
const ENABLE: u32 = 18;
const ENABLE_BYTES: usize = 20;
const VERSION: u32 = 1;
const IS_REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;

/// Whether the next message enables a queue before features were agreed on. QEMU does that when it realises its device
/// (7.2 at least), having seen that protocol features are offered; the crate insists on features first.
fn is_enabled_early(connection: &UnixStream, session: &Mutex<Session>) -> bool {
    use rustix::net::RecvFlags;
    if session.lock().unwrap_or_else(PoisonError::into_inner).features != 0 {
        return false;
    }
    let mut request = [0; 4];
    let peeked = rustix::net::recv(connection, &mut request[..], RecvFlags::PEEK | RecvFlags::WAITALL);
    peeked.is_ok_and(|(n, _)| n == 4) && u32::from_le_bytes(request) == ENABLE
}

fn enable_early(mut connection: &UnixStream, session: &Mutex<Session>) -> Result<()> {
    let mut bytes = [0; ENABLE_BYTES];
    connection.read_exact(&mut bytes).map_err(Error::SocketBroken)?;
    let [request, flags, size, index, value] =
        std::array::from_fn(|k| u32::from_le_bytes(std::array::from_fn(|i| bytes[4 * k + i])));
    if flags & !NEED_REPLY != VERSION || size != 8 || value > 1 {
        return Err(Error::InvalidMessage);
    }
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    session.set_vring_enable(index, value == 1)?;
    if flags & NEED_REPLY != 0 && session.protocol_features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0 {
        let answer = [request, VERSION | IS_REPLY, 8, 0, 0].map(u32::to_le_bytes).concat();
        connection.write_all(&answer).map_err(Error::SocketBroken)?;
    }
    Ok(())
}

/// The settings of a queue so far, from the frontend's messages.
#[derive(Debug, Default)]
struct Vring {
    size: u16,
    /// Descriptors, available, used: as the frontend counts.
    addresses: Option<[u64; 3]>,
    next: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    error: Option<OwnedFd>,
    enabled: bool,
    running: bool,
}

/// The settings of a connection so far, from the frontend's messages.
struct Session {
    handle: Handle,
    /// The file of the record of chains in flight, unless the frontend keeps it.
    own_record: Option<PathBuf>,
    record: Option<(File, u64, u16)>,
    features: u64,
    protocol_features: u64,
    memory: Arc<Memory>,
    vrings: [Vring; QUEUES],
}

impl From<Gone> for Error {
    fn from(_: Gone) -> Error {
        Error::BackendInternalError
    }
}

impl Session {
    fn new(handle: Handle, socket: &Socket) -> Session {
        Session {
            handle,
            own_record: socket.record(),
            record: None,
            features: 0,
            protocol_features: 0,
            memory: Arc::default(),
            vrings: std::array::from_fn(|_| Vring::default()),
        }
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        self.vrings.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    fn stopped(&mut self, index: u32) -> Result<&mut Vring> {
        let vring = self.vring(index)?;
        if vring.running { Err(Error::InvalidOperation("the queue is running")) } else { Ok(vring) }
    }

    fn record(&self, index: usize, size: u16) -> io::Result<Option<Record>> {
        if index % 2 == 0 {
            // Chains of a receive queue are filled and given back in one round: they are never in flight.
            return Ok(None);
        }
        if let Some((file, offset, frontends_size)) = &self.record {
            if size > *frontends_size {
                return Err(io::Error::other("a record too small for the queue"));
            }
            let at = offset + record::record_bytes(*frontends_size) * index as u64;
            return Record::open(file, at, size).map(Some);
        }
        let Some(path) = &self.own_record else { return Ok(None) };
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        let room = record::record_bytes(MAX_SIZE);
        let len = room * QUEUES as u64;
        if (rustix::fs::fstat(&file)?.st_size as u64) < len {
            rustix::fs::ftruncate(&file, len)?;
        }
        Record::open(&file, room * index as u64, size).map(Some)
    }

    /// Starts a queue whose settings are complete.
    fn start(&mut self, index: usize) -> Result<()> {
        let vring = &self.vrings[index];
        let (Some([desc, avail, used]), 1..) = (vring.addresses, vring.size) else {
            return Err(Error::InvalidOperation("a queue of which not all was said"));
        };
        let ring = Ring::new(&self.memory, vring.size, desc, avail, used).ok_or(Error::InvalidParam)?;
        let copy =
            |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose().map_err(Error::ReqHandlerError);
        let setup = Setup {
            ring,
            next: vring.next,
            call: copy(&vring.call)?,
            kick: copy(&vring.kick)?,
            error: copy(&vring.error)?,
            event_idx: self.features & EVENT_IDX != 0,
            indirect: self.features & INDIRECT_DESC != 0,
            enabled: vring.enabled || self.features & PROTOCOL_FEATURES == 0,
            record: self.record(index, vring.size).map_err(Error::ReqHandlerError)?,
        };
        let (memory, features) = (self.memory.clone(), self.features);
        self.handle.run(move |guest| {
            guest.set_memory(memory);
            guest.set_features(features);
            guest.start(index, setup);
        })?;
        self.vrings[index].running = true;
        Ok(())
    }

    fn stop(&mut self, index: usize) -> Result<()> {
        if std::mem::take(&mut self.vrings[index].running)
            && let Some(next) = self.handle.run(move |guest| guest.stop(index))?
        {
            self.vrings[index].next = next;
        }
        Ok(())
    }

    /// Puts other memory in place, under queues that run.
    fn replace_memory(&mut self, memory: Memory) -> Result<()> {
        let running: Vec<usize> = (0..QUEUES).filter(|&k| self.vrings[k].running).collect();
        for &index in &running {
            self.stop(index)?;
        }
        self.handle.run(|guest| guest.set_memory(Arc::default()))?;
        self.memory = Arc::new(memory);
        for &index in &running {
            self.start(index)?;
        }
        Ok(())
    }

    fn stop_all(&mut self) -> Result<()> {
        (0..QUEUES).try_for_each(|index| self.stop(index))
    }
}

/// An event of the frontend's that the switch may read and write without being held up.
fn event(file: Option<File>) -> Result<Option<OwnedFd>> {
    let Some(file) = file else { return Ok(None) };
    let kind = rustix::fs::readlink(format!("/proc/self/fd/{}", file.as_raw_fd()), Vec::new());
    if !kind.is_ok_and(|kind| kind.as_bytes() == b"anon_inode:[eventfd]") {
        return Err(Error::IncorrectFds);
    }
    let flags = rustix::fs::fcntl_getfl(&file).map_err(|e| Error::ReqHandlerError(e.into()))?;
    rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(|e| Error::ReqHandlerError(e.into()))?;
    Ok(Some(file.into()))
}

/// Refuses a request for a feature that was not offered.
fn refuse<T>() -> Result<T> {
    Err(Error::InvalidOperation("not offered"))
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all()?;
        self.vrings.iter_mut().for_each(|v| v.enabled = false);
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(OFFERED)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !OFFERED != 0 {
            return refuse();
        }
        if features != self.features && self.vrings.iter().any(|v| v.running) {
            return Err(Error::InvalidOperation("queues are running"));
        }
        self.features = features;
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let memory = regions.iter().zip(files).try_fold(Memory::default(), |memory, (region, file)| {
            memory.with(
                Layout {
                    guest: region.guest_phys_addr,
                    user: region.user_addr,
                    len: region.memory_size,
                    offset: region.mmap_offset,
                },
                file,
            )
        });
        self.replace_memory(memory.map_err(Error::ReqHandlerError)?)?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let layout = Layout {
            guest: region.guest_phys_addr,
            user: region.user_addr,
            len: region.memory_size,
            offset: region.mmap_offset,
        };
        let memory = self.memory.with(layout, file).map_err(Error::ReqHandlerError)?;
        self.replace_memory(memory)?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let without = self.memory.without(region.guest_phys_addr, region.user_addr, region.memory_size);
        self.replace_memory(without.ok_or(Error::InvalidParam)?)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let vring = self.stopped(index)?;
        let size = u16::try_from(num).ok().filter(|n| n.is_power_of_two() && *n <= MAX_SIZE);
        vring.size = size.ok_or(Error::InvalidParam)?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        if !flags.is_empty() {
            return refuse();
        }
        let addresses = Some([descriptor, available, used]);
        if self.vring(index)?.addresses == addresses {
            return Ok(());
        }
        self.stopped(index)?.addresses = addresses;
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.stopped(index)?.next = u16::try_from(base).map_err(|_| Error::InvalidParam)?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.vring(index)?;
        self.stop(index as usize)?;
        let vring = self.vring(index)?;
        // The frontend sets the queue's addresses again before it starts the queue.
        (vring.size, vring.addresses, vring.kick) = (0, None, None);
        Ok(VhostUserVringState::new(index, vring.next.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = event(fd)?;
        let index = usize::from(index);
        let vring = self.vring(index as u32)?;
        vring.kick = kick;
        if !vring.running {
            return self.start(index);
        }
        let kick = vring.kick.as_ref().map(OwnedFd::try_clone).transpose().map_err(Error::ReqHandlerError)?;
        Ok(self.handle.run(move |guest| guest.queue_mut(index).map(|q| q.setup.kick = kick)).map(drop)?)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = event(fd)?;
        let index = usize::from(index);
        let vring = self.vring(index as u32)?;
        let copy = call.as_ref().map(OwnedFd::try_clone).transpose().map_err(Error::ReqHandlerError)?;
        vring.call = call;
        if vring.running {
            self.handle.run(move |guest| guest.queue_mut(index).map(|q| q.setup.call = copy))?;
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = event(fd)?;
        let index = usize::from(index);
        let vring = self.vring(index as u32)?;
        let copy = error.as_ref().map(OwnedFd::try_clone).transpose().map_err(Error::ReqHandlerError)?;
        vring.error = error;
        if vring.running {
            self.handle.run(move |guest| guest.queue_mut(index).map(|q| q.setup.error = copy))?;
        }
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let vring = self.vring(index)?;
        vring.enabled = enable;
        if vring.running {
            self.handle.run(move |guest| guest.enable(index as usize, enable))?;
        }
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !self.get_protocol_features()?.bits() != 0 {
            return refuse();
        }
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        // Pairs, as frontends of network devices count.
        Ok(MAX_PAIRS as u64)
    }

    fn get_inflight_fd(&mut self, inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        if usize::from(queues) > QUEUES || size > MAX_SIZE || !size.is_power_of_two() {
            return Err(Error::InvalidParam);
        }
        let file = record::create(queues, size).map_err(Error::ReqHandlerError)?;
        let bytes = record::record_bytes(size) * u64::from(queues);
        Ok((VhostUserInflight::new(bytes, 0, queues, size), file.into()))
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        if self.vrings.iter().any(|v| v.running) {
            return Err(Error::InvalidOperation("queues are running"));
        }
        let needed = record::record_bytes(size) * u64::from(queues);
        if usize::from(queues) > QUEUES || size > MAX_SIZE || inflight.mmap_size < needed {
            return Err(Error::InvalidParam);
        }
        self.record = Some((file, inflight.mmap_offset, size));
        Ok(())
    }

    fn get_config(&mut self, _offset: u32, _size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        refuse()
    }
    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        refuse()
    }
    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        refuse()
    }
    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        refuse()
    }
    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        refuse()
    }
    fn check_device_state(&mut self) -> Result<()> {
        refuse()
    }
    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        refuse()
    }
    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        refuse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_group_may_connect_if_the_folder_gives_it_to_the_socket() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root gives folders to other groups");
        }
        const GROUP: u32 = 65_534;
        let folder = std::env::temp_dir().join(format!("sluicenet-shared-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("vm.sock");
        let of_it = |path: &Path| std::fs::metadata(path).map(|meta| (meta.gid(), meta.mode() & 0o777)).unwrap();
        let own = listen(&path, None).unwrap();
        assert_eq!(of_it(&path), (0, 0o600));
        drop(own);
        let refused = listen(&path, Some(GROUP)).unwrap_err();
        assert!(refused.to_string().contains("could not connect; the folder has to give it"), "{refused}");
        assert!(!path.exists());
        std::os::unix::fs::chown(&folder, None, Some(GROUP)).unwrap();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o2750)).unwrap();
        // As the switch does at its start.
        let mask = rustix::process::umask(Mode::RWXO);
        let shared = listen(&path, Some(GROUP));
        rustix::process::umask(mask);
        drop(shared.unwrap());
        assert_eq!(of_it(&path), (GROUP, 0o660));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
