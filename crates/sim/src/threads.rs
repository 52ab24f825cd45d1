//! Several threads that simulate one world together.
//!
//! In each phase a thread simulates first its *border*, the boxes with links to other threads, then its other boxes. Frames
//! pass only from border to border. Before a phase a thread needs what the borders of other threads sent in the phase before.
//! Message metadata passes from server to server, and so from one phase of their colour to the next one. So a thread can be
//! ahead of another by the work of more than a phase, and phases in which one thread has more work even out.

use crate::shard::Shard;
use crate::step::Parcel;
use sluicenet_node::server::App;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::Scope;

/// Spins of a waiting thread before it sleeps: waking a thread costs more than most waits last.
const PATIENCE: u32 = 20_000;

/// Spins after which a waiting thread yields its core: the thread it waits for may have no core if cores are scarce.
const TURNS_BETWEEN_OFFERS: u32 = 64;

/// The half of a phase that a thread has simulated.
#[derive(Clone, Copy)]
enum Half {
    Border = 0,
    Interior = 1,
}

/// Rounds whose mail may be under way at once, a power of two: a thread begins a round when all others have ended the one two
/// rounds before, and takes their mail of that one only then.
const ROUNDS: u64 = 4;

/// What a thread tells the others. Only it writes here; no other thread's data shares the pair of cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Progress {
    /// The last round whose border is simulated, and the last one that is simulated. A round is a phase that is run.
    done: [AtomicU64; 2],
    /// Its next phase with an event after a round, by the parity of the round.
    offers: [AtomicU64; 2],
}

/// Where threads meet: how far each is, and the parcels between them.
pub struct Meeting {
    progress: Vec<Progress>,
    /// By half, round modulo [`ROUNDS`], sender and receiver.
    mail: Vec<Mutex<Vec<Parcel>>>,
    failed: AtomicBool,
    /// Whether a thread has no number left for a frame: then all threads end.
    is_full: AtomicBool,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

/// The contents of a lock, also after a thread failed: then all threads end.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether `is_done` becomes true while a thread waits without sleeping.
fn spin(mut is_done: impl FnMut() -> bool) -> bool {
    for turn in 1..=PATIENCE {
        if is_done() {
            return true;
        }
        if turn % TURNS_BETWEEN_OFFERS == 0 {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
    false
}

impl Meeting {
    pub fn new(threads: usize) -> Meeting {
        Meeting {
            progress: (0..threads).map(|_| Progress::default()).collect(),
            mail: (0..2 * ROUNDS as usize * threads * threads).map(|_| Mutex::new(Vec::new())).collect(),
            failed: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    fn slot(&self, half: Half, round: u64, from: usize, to: usize) -> &Mutex<Vec<Parcel>> {
        let threads = self.progress.len();
        let of_round = half as usize * ROUNDS as usize + (round % ROUNDS) as usize;
        &self.mail[(of_round * threads + from) * threads + to]
    }

    /// The other threads.
    fn others(&self, me: usize) -> impl Iterator<Item = usize> {
        (0..self.progress.len()).filter(move |&thread| thread != me)
    }

    /// Thread `me` has simulated half of a round's phase; `outboxes` has its parcels for each thread.
    fn end(&self, half: Half, round: u64, me: usize, outboxes: &mut [Vec<Parcel>]) {
        for to in self.others(me) {
            if outboxes[to].is_empty() {
                continue;
            }
            let mut slot = lock(self.slot(half, round, me, to));
            debug_assert!(slot.is_empty());
            std::mem::swap(&mut *slot, &mut outboxes[to]);
        }
        // In one order with the count of sleepers: a thread that is about to sleep either sees this or is woken.
        self.progress[me].done[half as usize].store(round, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
    }

    /// A thread has no number left for a frame and goes no further.
    fn end_all(&self) {
        self.is_full.store(true, Ordering::SeqCst);
        let _sleep = lock(&self.sleep);
        self.wake.notify_all();
    }

    /// Waits until all other threads have simulated this half of a round's phase. Returns whether they have: not if one goes no
    /// further.
    fn wait(&self, half: Half, round: u64, me: usize) -> bool {
        for thread in self.others(me) {
            let done = &self.progress[thread].done[half as usize];
            let is_over = |order| done.load(order) >= round || self.is_full.load(order);
            if spin(|| is_over(Ordering::Acquire)) {
                continue;
            }
            let mut sleep = lock(&self.sleep);
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            while !is_over(Ordering::SeqCst) {
                assert!(!self.failed.load(Ordering::Relaxed), "another thread of the simulation failed");
                sleep = self.wake.wait(sleep).unwrap_or_else(|e| e.into_inner());
            }
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
        !self.is_full.load(Ordering::SeqCst)
    }

    /// Waits for this half of a round's phase and passes on the parcels that came for thread `me`. Returns false if a thread
    /// goes no further.
    fn collect(
        &self,
        half: Half,
        round: u64,
        me: usize,
        parcels: &mut Vec<Parcel>,
        mut take: impl FnMut(&mut Vec<Parcel>),
    ) -> bool {
        if !self.wait(half, round, me) {
            return false;
        }
        for from in self.others(me) {
            std::mem::swap(&mut *lock(self.slot(half, round, from, me)), parcels);
            if !parcels.is_empty() {
                take(parcels);
            }
        }
        true
    }

    /// The next phase with an event after a round, once every thread has simulated it.
    fn agreed(&self, round: u64) -> u64 {
        let offers = self.progress.iter().map(|p| p.offers[(round & 1) as usize].load(Ordering::Relaxed));
        offers.min().unwrap_or(u64::MAX)
    }
}

/// Releases the other threads when a thread panics.
struct FailGuard<'a>(&'a Meeting);

impl Drop for FailGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.failed.store(true, Ordering::Relaxed);
            let _sleep = lock(&self.0.sleep);
            self.0.wake.notify_all();
        }
    }
}

/// A stretch of time, for all threads alike.
#[derive(Clone, Copy)]
struct Stretch {
    /// The window of the first event.
    first: u64,
    /// The time up to which all boxes are simulated.
    end: u64,
    /// Rounds before it.
    round: u64,
}

/// One thread's share of a stretch. Returns the rounds so far, or `None` if a thread has no number left for a frame.
fn run_stretch<A: App>(shard: &mut Shard<A>, meeting: &Meeting, stretch: Stretch) -> Option<u64> {
    let _guard = FailGuard(meeting);
    let me = shard.me as usize;
    let mut parcels = Vec::new();
    let mut collect = |shard: &mut Shard<A>, half, round, phase| {
        let oldest = shard.timing.oldest(phase, stretch.end);
        meeting.collect(half, round, me, &mut parcels, |parcels| shard.take_in(oldest, parcels)).then_some(())
    };
    let Stretch { first: mut phase, end, mut round } = stretch;
    // Metadata is sent to the next phase at the earliest, or to the one after it.
    let rounds_before = shard.timing.metadata_windows - 1;
    while shard.timing.begin(phase) < end {
        collect(shard, Half::Interior, round.saturating_sub(rounds_before), phase)?;
        collect(shard, Half::Border, round, phase)?;
        shard.arrange(phase, end);
        round += 1;
        shard.sweep_border(phase, end);
        meeting.end(Half::Border, round, me, &mut shard.outboxes);
        shard.sweep_interior(phase, end);
        if shard.is_full {
            meeting.end_all();
            return None;
        }
        let offer = shard.next_phase(phase);
        meeting.progress[me].offers[(round & 1) as usize].store(offer, Ordering::Relaxed);
        meeting.end(Half::Interior, round, me, &mut shard.outboxes);
        phase += 1;
        if offer != phase {
            meeting.wait(Half::Interior, round, me).then_some(())?;
            phase = meeting.agreed(round);
            // If phases are skipped, metadata of this round may arrive in the next one.
            collect(shard, Half::Interior, round, phase)?;
        }
    }
    // Between stretches nothing is under way between threads.
    for (half, round) in [(Half::Border, round), (Half::Interior, round.saturating_sub(1)), (Half::Interior, round)] {
        collect(shard, half, round, phase)?;
    }
    Some(round)
}

/// The way of a shard to a thread, with the stretch to run, and its way back.
struct Worker<A> {
    tasks: Sender<(Shard<A>, Stretch)>,
    done: Receiver<Shard<A>>,
}

/// The threads besides the caller's. They live as long as a run; in between its stretches they have no shard.
pub struct Crew<'scope, A> {
    meeting: &'scope Meeting,
    others: Vec<Worker<A>>,
    round: u64,
}

impl<'scope, A: App + 'scope> Crew<'scope, A> {
    pub fn new(scope: &'scope Scope<'scope, '_>, meeting: &'scope Meeting) -> Crew<'scope, A> {
        let employ = |_| {
            let (tasks, receiver) = channel();
            let (sender, done) = channel();
            scope.spawn(move || {
                while let Some((mut shard, stretch)) = receive(&receiver) {
                    run_stretch(&mut shard, meeting, stretch);
                    if sender.send(shard).is_err() {
                        return;
                    }
                }
            });
            Worker { tasks, done }
        };
        Crew { meeting, others: (1..meeting.progress.len()).map(employ).collect(), round: 0 }
    }
}

impl<A: App> Crew<'_, A> {
    /// Runs all boxes up to time `end`; the first event is at time `next`.
    pub fn run(&mut self, shards: &mut Vec<Shard<A>>, next: u64, end: u64) {
        let stretch = Stretch { first: next / shards[0].timing.window, end, round: self.round };
        let others = shards.split_off(1);
        for (shard, worker) in others.into_iter().zip(&self.others) {
            // A thread that is gone has failed, and is noticed below.
            let _ = worker.tasks.send((shard, stretch));
        }
        self.round = run_stretch(&mut shards[0], self.meeting, stretch).unwrap_or(self.round);
        for worker in &self.others {
            let Some(shard) = receive(&worker.done) else { panic!("another thread of the simulation failed") };
            shards.push(shard);
        }
    }
}

/// The next message, or `None` if its sender is gone.
fn receive<T>(from: &Receiver<T>) -> Option<T> {
    let mut message = Err(TryRecvError::Empty);
    spin(|| {
        message = from.try_recv();
        !matches!(message, Err(TryRecvError::Empty))
    });
    match message {
        Err(TryRecvError::Empty) => from.recv().ok(),
        known => known.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicenet_node::packet::{Address, FlowKey, Packet};

    /// A parcel that names its sender and its round.
    fn parcel(from: usize, round: u64) -> Parcel {
        let flow = FlowKey { src: Address::new(1, 0), dst: Address::new(2, 0), sport: 5, dport: 6 };
        Parcel { at: round, node: from as u32, port: 0, packet: Packet::metadata(flow, [0; 3]) }
    }

    #[test]
    fn every_thread_has_the_parcels_of_the_rounds_before() {
        const THREADS: usize = 3;
        let meeting = Meeting::new(THREADS);
        let run = |me: usize| {
            let (mut outboxes, mut parcels) = (vec![Vec::new(); THREADS], Vec::new());
            let others: Vec<usize> = meeting.others(me).collect();
            for round in 1..=2_000u64 {
                for (half, back) in [(Half::Interior, 2), (Half::Border, 1)] {
                    let mut seen = Vec::new();
                    let before = round.saturating_sub(back);
                    meeting.collect(half, before, me, &mut parcels, |parcels| {
                        seen.extend(parcels.drain(..).map(|p| (p.node as usize, p.at)));
                    });
                    let expected: Vec<(usize, u64)> = others.iter().map(|&from| (from, before)).collect();
                    assert_eq!(seen, if before == 0 { vec![] } else { expected });
                }
                // Now and then a thread is so late that the others sleep.
                if round % 500 == me as u64 {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
                for half in [Half::Border, Half::Interior] {
                    others.iter().for_each(|&to| outboxes[to].push(parcel(me, round)));
                    meeting.end(half, round, me, &mut outboxes);
                }
                let ended = |thread: usize| meeting.progress[thread].done[1].load(Ordering::SeqCst);
                assert!(others.iter().all(|&other| ended(other) + 2 >= ended(me)));
            }
        };
        std::thread::scope(|scope| {
            (0..THREADS).for_each(|me| {
                drop(scope.spawn({
                    let run = &run;
                    move || run(me)
                }))
            });
        });
        assert_eq!(meeting.sleepers.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_thread_that_is_full_ends_the_others_wherever_they_wait() {
        for half in [Half::Border, Half::Interior] {
            let meeting = Meeting::new(3);
            let have_come = std::thread::scope(|scope| {
                let waiting = [1, 2].map(|me| {
                    let meeting = &meeting;
                    scope.spawn(move || meeting.collect(half, 7, me, &mut Vec::new(), |_| {}))
                });
                // Long enough for one that sleeps.
                std::thread::sleep(std::time::Duration::from_millis(20));
                meeting.end_all();
                waiting.map(|w| w.join().unwrap())
            });
            assert_eq!(have_come, [false, false]);
            assert_eq!(meeting.sleepers.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_thread_that_fails_ends_the_others() {
        let meeting = Meeting::new(2);
        let failed = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let _guard = FailGuard(&meeting);
                meeting.wait(Half::Border, 1, 0);
            });
            let failing = scope.spawn(|| {
                let _guard = FailGuard(&meeting);
                panic!("as the test wants");
            });
            [waiting.join().is_err(), failing.join().is_err()]
        });
        assert_eq!(failed, [true, true]);
    }
}
