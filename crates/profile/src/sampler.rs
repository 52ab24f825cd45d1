//! The samples: a timer of the process's CPU time, its signal, and a thread that gathers the stacks.
//!
//! The `unsafe` of this crate is here: no crate has a safe wrapper of a signal's handler, which has to read the registers of
//! the interrupted function. A handler stores a stack into a slot of its own and allocates nothing.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Addresses to return to, the innermost function first.
pub(crate) type Stack = Vec<usize>;

/// Time between two samples, of the CPU time of all threads together. Most kernels give no more than 250 or 1,000 a second.
const INTERVAL_US: libc::suseconds_t = 1_003;
/// Functions of a stack that are kept, inlined ones not counted: stages lie within.
const DEPTH: usize = 48;
/// Stacks that wait to be gathered; a second's even on a hundred cores.
const SLOTS: usize = 4_096;
/// How often they are gathered.
const GATHER: Duration = Duration::from_millis(50);

/// A stack in the making; only one handler has it at a time.
struct Slot {
    /// Addresses that are valid; zero while the slot is free.
    depth: AtomicUsize,
    addresses: [AtomicUsize; DEPTH],
}

static STACKS: [Slot; SLOTS] =
    [const { Slot { depth: AtomicUsize::new(0), addresses: [const { AtomicUsize::new(0) }; DEPTH] } }; SLOTS];
/// The next slot.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Whether a sampler is at work; a late signal is ignored.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// There is one timer in a process, so one sampler at a time.
static ONE: Mutex<()> = Mutex::new(());

/// A timer at work, and the thread that gathers.
pub(crate) struct Sampler {
    gatherer: Option<JoinHandle<HashMap<Stack, u64>>>,
    stop: Arc<AtomicBool>,
    _one: MutexGuard<'static, ()>,
}

impl Sampler {
    /// Starts the timer.
    ///
    /// # Errors
    /// A system that refuses the signal, the timer or a thread, or another kind of processor.
    pub fn start() -> io::Result<Sampler> {
        if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "only Linux on x86-64 and on ARM64 is supported"));
        }
        let one = ONE.lock().unwrap_or_else(|e| e.into_inner());
        // The first walk over a stack prepares what later walks need, in a handler too.
        backtrace::trace(|_| true);
        let stop = Arc::new(AtomicBool::new(false));
        let gatherer = std::thread::Builder::new().name("profile".into()).spawn({
            let stop = stop.clone();
            move || gather_until(&stop)
        })?;
        let sampler = Sampler { gatherer: Some(gatherer), stop, _one: one };
        handle_signals()?;
        IS_ON.store(true, Ordering::SeqCst);
        set_timer(INTERVAL_US)?;
        Ok(sampler)
    }

    /// Stops; how often each stack was seen.
    pub fn finish(mut self) -> HashMap<Stack, u64> {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<HashMap<Stack, u64>> {
        let _ = set_timer(0);
        IS_ON.store(false, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        self.gatherer.take()?.join().ok()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.end();
    }
}

/// Gathers the stacks of the handlers until `stop`.
fn gather_until(stop: &AtomicBool) -> HashMap<Stack, u64> {
    let mut stacks = HashMap::new();
    loop {
        let is_last = stop.load(Ordering::SeqCst);
        for slot in &STACKS {
            let depth = slot.depth.load(Ordering::Acquire);
            if depth > 0 {
                let stack = slot.addresses[..depth].iter().map(|address| address.load(Ordering::Relaxed)).collect();
                slot.depth.store(0, Ordering::Release);
                *stacks.entry(stack).or_default() += 1;
            }
        }
        if is_last {
            return stacks;
        }
        std::thread::sleep(GATHER);
    }
}

/// Installs the handler. It stays: without one, a late signal of the timer would end the process.
fn handle_signals() -> io::Result<()> {
    // SAFETY: `sigaction` is plain numbers, for which zeros are a value.
    let mut action = unsafe { std::mem::zeroed::<libc::sigaction>() };
    action.sa_sigaction = on_timer as *const () as usize;
    // System calls go on after it.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler only does work that is allowed in one, and both structures live through the call.
    match unsafe { libc::sigaction(libc::SIGPROF, &action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Interrupts the process each time that it used so much CPU time, in microseconds; never with 0.
fn set_timer(interval_us: libc::suseconds_t) -> io::Result<()> {
    let interval = libc::timeval { tv_sec: 0, tv_usec: interval_us };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: the structure lives through the call.
    match unsafe { libc::setitimer(libc::ITIMER_PROF, &timer, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Notes the stack of the interrupted thread. Does only work that is allowed in a signal handler: atomics, and a walk over
/// the stack as the system's unwinder does it.
extern "C" fn on_timer(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !IS_ON.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: the calling thread's errno, which the interrupted function may be about to read.
    let errno = unsafe { *libc::__errno_location() };
    let slot = &STACKS[(NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS as u64) as usize];
    if slot.depth.load(Ordering::Acquire) == 0 {
        let interrupted = interrupted(context);
        // Others are addresses to return to, one behind.
        slot.addresses[0].store(interrupted + 1, Ordering::Relaxed);
        let (mut depth, mut is_below) = (1, false);
        let mut frame = |frame: &backtrace::Frame| {
            let address = frame.ip() as usize;
            if is_below {
                slot.addresses[depth].store(address, Ordering::Relaxed);
                depth += 1;
            }
            // Above stands this handler.
            is_below |= address == interrupted;
            depth < DEPTH
        };
        // SAFETY: this walk shares no state with others: it resolves no symbols.
        unsafe { backtrace::trace_unsynchronized(&mut frame) };
        slot.depth.store(depth, Ordering::Release);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The address that the signal interrupted.
fn interrupted(context: *mut libc::c_void) -> usize {
    // SAFETY: the kernel passes the context of the interrupted thread to a handler with SA_SIGINFO.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    return context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    return context.uc_mcontext.pc as usize;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return {
        let _ = context;
        0
    };
}
