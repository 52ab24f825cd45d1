//! Programs from outside: called in this process, or served in a process of its own.

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::set_no_new_privs;
use sluicenet_dataplane::bump::program::{Callable, FRAME_MAX, Served, Starter, Work};
use sluicenet_extension::{Called, Library, LoadError, QueueState};
use sluicenet_proto::netbump::{Port, QueueId, Verdict, VirtualQueue};
use sluicenet_proto::rng::Rng;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use tracing::warn;

/// Memory that a program may use beside the memory of its process before it: address space, of which 1 GB is refused.
const MEMORY_MAX: u64 = 256 << 20;
/// The first user and group of processes of programs, if the bump may change them: half of all numbers, which no system gives to
/// people or services. Each lane has its own, so that no program can harm the process of another lane.
const USERS: u32 = 1 << 31;
/// Bits of a lane's number in its user: a bump has at most 256 lanes, from 1 on. The number of a process has 22 bits.
const LANE_BITS: u32 = 9;

/// A program that is called in this process.
pub struct InProcess {
    library: Arc<Library>,
    rng: Rng,
    /// The virtual queues that it knows, with the ports for which they began.
    queues: Vec<Option<(QueueState, Port)>>,
}

impl InProcess {
    /// A program that was loaded.
    pub fn new(library: Arc<Library>) -> InProcess {
        InProcess { rng: library.rng(), library, queues: Vec::new() }
    }

    /// Loads a program from its bytes.
    ///
    /// # Errors
    /// Those of [`Library::load`].
    pub fn load(bytes: &[u8], arguments: &[&str], seed: u64) -> Result<InProcess, LoadError> {
        Library::load(bytes, arguments, seed).map(|library| InProcess::new(Arc::new(library)))
    }
}

fn called<'a>(work: &Work, buffer: &'a mut [u8]) -> Called<'a> {
    let Work { len, wire_bytes, port, mapped, now, .. } = *work;
    Called { buffer, len, wire_bytes, port, mapped, now }
}

impl Callable for InProcess {
    fn chooses(&self) -> bool {
        self.library.classifies()
    }

    fn classify(&mut self, work: &Work, buffer: &mut [u8], queues: usize) -> Option<QueueId> {
        self.library.classify(&mut called(work, buffer), &mut self.rng, queues)
    }

    fn process(
        &mut self,
        work: &Work,
        buffer: &mut [u8],
        (id, queue): (QueueId, &mut VirtualQueue),
        send: &mut dyn FnMut(u16, &[u8]) -> bool,
    ) -> (Verdict, u32) {
        let at = usize::from(id);
        if self.queues.len() <= at {
            self.queues.resize_with(at + 1, || None);
        }
        // A queue begins with its first frame, and anew when a reload gives it another port.
        let port = Port { rate: queue.rate(), buffer_bytes: queue.limit_bytes() };
        let known = self.queues[at].take().filter(|(_, of)| *of == port);
        let (state, _) = self.queues[at].insert(known.unwrap_or_else(|| (self.library.init(id, port), port)));
        let outcome = self.library.process(&mut called(work, buffer), (state, queue), work.is_counted, send);
        (outcome.verdict, outcome.len)
    }
}

/// How processes of a program are started: by this program with `verb`, then the seed and the program's arguments.
pub fn starter(program: &[u8], verb: &[&str], arguments: &[&str], seed: u64) -> Starter {
    let own = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<String>>();
    let (verb, arguments) = (own(verb), own(arguments));
    let command = move |lane: u32| {
        // By this name even a user who may not enter its folder can run it.
        let mut command = Command::new("/proc/self/exe");
        command.args(&verb).arg(seed.to_string()).args(&arguments);
        let has = rustix::thread::capabilities(None).map_or(rustix::thread::CapabilitySet::empty(), |c| c.effective);
        if has.contains(RIGHTS) {
            let user = USERS | std::process::id() << LANE_BITS | lane & ((1 << LANE_BITS) - 1);
            command.uid(user).gid(user);
        }
        command
    };
    let said = |line: &str| warn!(line, "program says");
    Starter { program: program.into(), command: Arc::new(command), said: Arc::new(said) }
}

/// The capabilities by which a bump starts and ends processes of another user.
pub const RIGHTS: rustix::thread::CapabilitySet = rustix::thread::CapabilitySet::SETUID
    .union(rustix::thread::CapabilitySet::SETGID)
    .union(rustix::thread::CapabilitySet::KILL);

/// Serves a program in this process, whose standard input is the memory that it shares with a bump.
///
/// # Errors
/// The standard input is no such memory, or the system refuses a limit. A program that cannot be used is told to the bump.
pub fn serve(arguments: &[&str], seed: u64) -> io::Result<()> {
    let memory = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    let mut served = Served::open(memory)?;
    confine()?;
    let mut program = match InProcess::load(&served.program(), arguments, seed) {
        Ok(program) => program,
        Err(e) => {
            served.failed(&e.to_string());
            return Ok(());
        }
    };
    let chooses = program.chooses();
    let queue = |port: Port| VirtualQueue::new(port.rate, port.buffer_bytes);
    let mut queues: Vec<VirtualQueue> = served.ports().into_iter().map(queue).collect();
    let mut buffer = vec![0; FRAME_MAX];
    served.ready(chooses);
    while let Some(mut work) = served.next(&mut buffer) {
        if chooses {
            work.mapped = program.classify(&work, &mut buffer, queues.len());
        }
        let Some(id) = work.mapped.filter(|&id| usize::from(id) < queues.len()) else {
            served.answer(Verdict::Forward, None, &buffer[..work.len as usize]);
            continue;
        };
        let queue = &mut queues[usize::from(id)];
        if !chooses {
            // The bump keeps the estimate: other loops and other bumps add to it.
            queue.set_wait(work.now, work.found_wait);
        }
        let mut send = |port: u16, frame: &[u8]| served.send(port, frame);
        let (verdict, len) = program.process(&work, &mut buffer, (id, queue), &mut send);
        served.answer(verdict, Some(id), &buffer[..(len as usize).min(FRAME_MAX)]);
    }
    Ok(())
}

/// Limits the memory of this process, its core dumps and its privileges, and denies it children and threads: those would outlive
/// it and have memory of their own.
fn confine() -> io::Result<()> {
    set_no_new_privs(true)?;
    let limit = |resource, most| setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    limit(Resource::Core, 0)?;
    // It counts all processes of the user, so that only zero is the same for each user.
    limit(Resource::Nproc, 0)?;
    let pages = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = pages.split(' ').next().and_then(|n| n.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
    limit(Resource::As, pages * rustix::param::page_size() as u64 + MEMORY_MAX)?;
    Ok(())
}
