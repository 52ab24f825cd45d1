//! The cache against a controller that the test plays.

use super::*;
use alloc::vec::Vec;

const HERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const THERE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

fn cache(config: CacheConfig) -> Cache {
    Cache::new(config, HERE, Rng::from_words(&[1]))
}
fn question(vni: u32, n: u32) -> Question {
    Question { vni, by: By::Mac(MacAddress::local(n)) }
}
/// The controller's answer to a question.
fn answer(question: &Repr, version: u64, known: bool) -> Repr {
    let status = if known { Status::Done } else { Status::Unknown };
    let location = if known { THERE } else { Ipv4Addr::UNSPECIFIED };
    Repr { kind: Kind::Answer, status, location, epoch: 9, version, ..*question }
}
fn us(n: u64) -> Instant {
    Instant::ZERO + Duration::from_us(n)
}

/// Time of a miss of tenant 1 while tenant 2 asks about `flood` unknown stations every 100 us; the controller takes 30 us
/// for an answer (Crisan 2014, line 1234).
fn miss_time(flood: u32) -> u64 {
    let mut cache = cache(CacheConfig::default());
    let mut invented = 0;
    let (mut total, mut misses) = (0, 0);
    let mut busy_until = 0;
    let mut answers: VecDeque<(u64, Repr)> = VecDeque::new();
    let mut waiting = None;
    for now in (0..2_000_000u64).step_by(10) {
        if now % 100 == 0 {
            for _ in 0..flood {
                invented += 1;
                cache.lookup(us(now), question(2, invented));
            }
        }
        if now % 20_000 == 0 {
            misses += 1;
            waiting = Some(now);
            assert_eq!(cache.lookup(us(now), question(1, misses as u32)), Found::Asked);
        }
        cache.handle_timeout(us(now));
        // The controller answers one question at a time; its socket queues the others.
        while let Some(message) = cache.poll_transmit(us(now)) {
            busy_until = busy_until.max(now) + 30;
            answers.push_back((busy_until, answer(&message, 1, message.vni == 1)));
        }
        while answers.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, message)) = answers.pop_front() else { break };
            cache.handle(us(now), &message);
        }
        while let Some((question, ended)) = cache.poll_resolved() {
            if question.vni == 1 {
                assert!(ended.mapping().is_some());
                total += now - waiting.take().unwrap();
            }
        }
    }
    assert_eq!(waiting, None);
    assert!(cache.tenants.values().all(|t| t.failed.len() <= 1_024 && t.failures.len() <= 1_024 && t.open <= 64));
    total / misses
}

#[test]
fn hostile_24_a_million_unknown_destinations_cost_others_little() {
    let quiet = miss_time(0);
    let flooded = miss_time(50);
    assert!(flooded <= 2 * quiet, "a miss takes {flooded} us instead of {quiet} us");
}

#[test]
fn a_tenant_that_asks_too_much_is_limited_and_bounded() {
    let mut cache = cache(CacheConfig { open: 4, per_second: 100, failures: 8, ..CacheConfig::default() });
    let found = |cache: &mut Cache, now, n| cache.lookup(now, question(2, n));
    assert!((0..4).all(|n| found(&mut cache, us(0), n) == Found::Asked));
    assert!((4..100).all(|n| found(&mut cache, us(0), n) == Found::Limited));
    assert_eq!(found(&mut cache, us(0), 3), Found::Asked, "it is being asked about already");
    assert_eq!(cache.lookup(us(0), question(1, 4)), Found::Asked, "another tenant");
    // All questions fail, and the last eight failures are remembered.
    let mut at = 0;
    for n in 0..40 {
        at += 10_000;
        found(&mut cache, us(at), n);
        while let Some(message) = cache.poll_transmit(us(at)) {
            cache.handle(us(at), &answer(&message, 1, false));
        }
    }
    let remembered = (0..40).filter(|&n| found(&mut cache, us(at), n) == Found::Unknown).count();
    assert_eq!(remembered, 8);
    assert_eq!(cache.counters().unknown, 41);
}

#[test]
fn a_full_table_takes_the_oldest_of_the_tenant_with_most() {
    let mut cache = cache(CacheConfig { entries: 8, ..CacheConfig::default() });
    let learn = |cache: &mut Cache, vni, n| {
        cache.lookup(us(n), question(vni, n as u32));
        while let Some(message) = cache.poll_transmit(us(n)) {
            assert!(cache.handle(us(n), &answer(&message, n, true)));
        }
    };
    learn(&mut cache, 1, 1);
    learn(&mut cache, 1, 2);
    (10..50).for_each(|n| learn(&mut cache, 2, n));
    assert!(cache.peek(question(1, 1)).is_some() && cache.peek(question(1, 2)).is_some());
    let kept: Vec<u32> = (10..50).filter(|&n| cache.peek(question(2, n)).is_some()).collect();
    assert_eq!(kept, [44, 45, 46, 47, 48, 49]);
    assert_eq!((cache.len(), cache.counters().evicted), (8, 34));
}

#[test]
fn only_the_answer_to_an_open_question_counts() {
    let mut cache = cache(CacheConfig::default());
    cache.lookup(us(0), question(1, 5));
    let asked = cache.poll_transmit(us(0)).unwrap();
    let right = answer(&asked, 7, true);
    for wrong in [
        Repr { request: right.request ^ 1, ..right },
        Repr { mac: MacAddress::local(6), ..right },
        Repr { vni: 2, ..right },
        Repr { kind: Kind::ResolveMac, ..right },
        asked,
    ] {
        assert!(!cache.handle(us(1), &wrong), "{wrong:?}");
    }
    // Neither a status without a question nor a mapping without a location counts.
    for wrong in [Repr { status: Status::Busy, ..right }, Repr { location: Ipv4Addr::UNSPECIFIED, ..right }] {
        cache.handle(us(1), &wrong);
    }
    assert!(cache.peek(question(1, 5)).is_none() && cache.poll_resolved().is_none());
    assert!(cache.handle(us(2), &right));
    assert!(!cache.handle(us(2), &right), "a replay");
    assert_eq!(cache.peek(question(1, 5)).unwrap().location, THERE);
}

#[test]
fn an_answer_that_was_overtaken_by_news_is_stale() {
    let mut cache = cache(CacheConfig::default());
    cache.lookup(us(0), question(1, 5));
    let asked = cache.poll_transmit(us(0)).unwrap();
    cache.handle(us(1), &answer(&asked, 7, true));
    // The mapping is old and asked about again; meanwhile the station moves.
    let later = us(60_000_000);
    cache.lookup(later, question(1, 5));
    let again = cache.poll_transmit(later).unwrap();
    let change = Repr { kind: Kind::Changed, location: HERE, version: 9, request: 3, ..answer(&again, 9, true) };
    cache.handle(later, &change);
    cache.handle(later, &answer(&again, 8, true));
    assert_eq!(cache.peek(question(1, 5)).map(|m| (m.location, m.version)), Some((HERE, 9)));
    let heard = cache.poll_transmit(later).unwrap();
    assert_eq!((heard.kind, heard.request), (Kind::Heard, 3));
    assert_eq!(cache.counters().stale, 1);
}

#[test]
fn a_slow_controller_is_asked_again_and_answers_count_once() {
    let mut cache = cache(CacheConfig::default());
    cache.lookup(us(0), question(1, 5));
    let mut answers = VecDeque::new();
    let mut resolved = Vec::new();
    // The controller takes 25 ms for each answer.
    for ms in 0..100 {
        let now = us(ms * 1_000);
        cache.handle_timeout(now);
        while let Some(message) = cache.poll_transmit(now) {
            answers.push_back((ms + 25, answer(&message, 1, true)));
        }
        while answers.front().is_some_and(|(at, _)| *at <= ms) {
            let Some((_, message)) = answers.pop_front() else { break };
            cache.handle(now, &message);
        }
        while let Some((question, ended)) = cache.poll_resolved() {
            resolved.push((ms, question, ended.mapping().map(|m| m.location)));
        }
    }
    assert_eq!(resolved, [(25, question(1, 5), Some(THERE))]);
    let counters = cache.counters();
    assert_eq!((counters.misses, counters.repeated, counters.silent), (1, 2, 0));
}
