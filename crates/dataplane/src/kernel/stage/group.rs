//! Datagrams for groups: multicast, and broadcast.
//!
//! The kernel gives such a datagram to every socket at its port that it fits, so the datagram goes when all of them have room.
//! - The kernel is asked for all sockets at the port. These are at least the receivers: without a membership of its own, a
//!   socket receives the datagrams of any group that its host has joined (`IP_MULTICAST_ALL`).
//! - A datagram takes room in one socket after the other, in one order for all groups. So two groups with common sockets never
//!   wait for each other. A socket in which there is none keeps the next room for it. Where several groups wait, and datagrams
//!   for that socket alone, they take turns.
//! - An isolated socket holds back no group; it loses its copies in the kernel.
//! - A socket that is opened later has room for [`NEWCOMER`] bytes; so much goes to a group between two questions.

use super::socket_queue::{Kind, SocketQueue};
use super::{Host, SOCKETS_MOST, Socket, Stage};
use sluicenet_proto::time::{Duration, Instant};
use sluicenet_wire::flow::Flow;
use std::io;
use std::net::IpAddr;

/// Groups that the stage remembers; beyond, datagrams for another one stay with their senders.
pub(super) const GROUPS_MOST: usize = 256;
/// Sockets of a group that are waited for; beyond, sockets get their copies without credit.
const MEMBERS_MOST: usize = 256;
/// Bytes for a socket that was opened after the last question: half of the default receive buffer (`net.core.rmem_default`).
const NEWCOMER: i64 = 106_496;
/// How long a group with sockets is remembered after the last question.
const GROUP_LASTS: Duration = Duration::from_secs(1);
/// Questions about groups take at most one in so many parts of this process's time, however many sockets there are.
const ASK_COST: u64 = 5;

/// A group as the kernel's lookup sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GroupKey {
    address: IpAddr,
    port: u16,
    lite: bool,
}

impl GroupKey {
    pub fn of(flow: &Flow) -> GroupKey {
        GroupKey { address: flow.destination, port: flow.destination_port, lite: flow.lite }
    }
}

/// A socket at a group's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Receiver {
    /// The socket.
    pub socket: Socket,
    /// The only sender from which it receives, if it is connected.
    pub peer: Option<(IpAddr, u16)>,
}

impl Receiver {
    fn fits(peer: Option<(IpAddr, u16)>, flow: &Flow) -> bool {
        peer.is_none_or(|(address, port)| {
            (address == flow.source || address.is_unspecified()) && (port == flow.source_port || port == 0)
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Member {
    queue: usize,
    peer: Option<(IpAddr, u16)>,
    /// Whether it is waited for: it is not isolated.
    counts: bool,
}

/// A datagram at the front of a group's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Datagram {
    need: i64,
    flow: Flow,
}

/// What is known about a group.
#[derive(Debug)]
pub(super) struct Group {
    /// In the order of their queues.
    members: Vec<Member>,
    /// Datagrams at the front for which all members have room.
    granted: usize,
    /// How many members have room for the datagram behind those.
    partly: usize,
    /// The member whose next room is kept for that datagram, and the bytes.
    waits_at: Option<(usize, i64)>,
    /// The datagram of which some frames have gone.
    begun: Option<Datagram>,
    /// Room for sockets that were opened since the last question; none before the first one.
    newcomers: i64,
    asked: Instant,
}

impl Group {
    fn new() -> Group {
        Group {
            members: Vec::new(),
            granted: 0,
            partly: 0,
            waits_at: None,
            begun: None,
            newcomers: 0,
            asked: Instant::ZERO,
        }
    }

    /// Whether room in its members is taken for datagrams that have not gone.
    pub fn holds_room(&self) -> bool {
        self.granted > 0 || self.partly > 0 || self.begun.is_some()
    }

    /// The socket for whose room it waits.
    pub fn waits_for(&self) -> Option<usize> {
        let (at, _) = self.waits_at?;
        Some(self.members.get(at)?.queue)
    }

    /// The queues of its members.
    pub fn queues(&self) -> impl Iterator<Item = usize> {
        self.members.iter().map(|member| member.queue)
    }
}

/// The datagram that starts at frame `at` of a queue, and its frames.
fn datagram(queue: &SocketQueue, at: usize) -> Option<(Datagram, usize)> {
    let first = queue.frames.get(at)?;
    let len = 1 + queue.frames.iter().skip(at + 1).take_while(|waiting| waiting.follows).count();
    Some((Datagram { need: first.need, flow: first.flow? }, len))
}

impl Stage {
    /// The queue of a group, if there may be one.
    pub(super) fn group_queue(&mut self, now: Instant, flow: &Flow) -> Option<usize> {
        let key = GroupKey::of(flow);
        if let Some(&queue) = self.groups_by_key.get(&key) {
            return Some(queue);
        }
        if !self.may_have_group(now, flow) {
            return None;
        }
        let group = self.groups.iter().position(Option::is_none).unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.groups[group] = Some(Group::new());
        let queue = self.vacant_queue(SocketQueue::new(Kind::Group(group)));
        self.groups_by_key.insert(key, queue);
        Some(queue)
    }

    /// Whether there is a queue for a group, or may be one.
    pub(super) fn may_have_group(&mut self, now: Instant, flow: &Flow) -> bool {
        let has_slot = self.groups_by_key.len() < GROUPS_MOST || self.groups_by_key.contains_key(&GroupKey::of(flow));
        if !has_slot {
            self.forget_idle_groups(now);
        }
        has_slot || self.groups_by_key.len() < GROUPS_MOST
    }

    /// Forgets groups without frames. Those with sockets stay for a while, however many others are invented.
    fn forget_idle_groups(&mut self, now: Instant) {
        // A flow's queue may become another one's.
        self.flows.clear();
        let Stage { groups_by_key, groups, queues, vacant, .. } = self;
        groups_by_key.retain(|_, &mut queue| {
            let Kind::Group(group) = queues[queue].kind else { return false };
            let is_used = |it: &Group| it.holds_room() || !it.members.is_empty() && now.since(it.asked) < GROUP_LASTS;
            let keep = !queues[queue].frames.is_empty() || groups[group].as_ref().is_some_and(is_used);
            if !keep {
                groups[group] = None;
                vacant.push(queue);
            }
            keep
        });
    }

    /// Groups that hold no room no longer know their sockets, which may be forgotten.
    pub(super) fn forget_members(&mut self) {
        let Stage { groups, queues, .. } = self;
        for (group, it) in groups.iter_mut().enumerate().filter_map(|(group, it)| Some((group, it.as_mut()?))) {
            if !it.holds_room() {
                keep_no_room(it, group, queues);
                it.members.clear();
                it.newcomers = 0;
            }
        }
    }

    /// Frames of a group's queue that may go now.
    pub(super) fn offer_to_group(
        &mut self,
        now: Instant,
        queue: usize,
        host: &mut impl Host,
        most: usize,
        buffers: &mut Vec<u32>,
        release: &mut impl FnMut(u32),
    ) -> io::Result<()> {
        let Kind::Group(group) = self.queues[queue].kind else { return Ok(()) };
        for _ in 0..2 {
            self.drop_for_isolated(queue, group, release);
            let frames = self.grant(now, queue, group, most);
            if frames > 0 {
                buffers.extend(self.queues[queue].frames.iter().take(frames).map(|waiting| waiting.frame.buffer));
                return Ok(());
            }
            if self.queues[queue].frames.is_empty() || now < self.queues[queue].ask_next.max(self.ask_groups_next) {
                break;
            }
            self.ask_about(now, queue, group, host)?;
        }
        self.watch_member(group, release);
        let it = &mut self.queues[queue];
        it.ask_next = it.ask_next.max(self.ask_groups_next);
        Ok(())
    }

    /// Takes room in the members for datagrams at the front. Returns how many frames, up to `most`, may go.
    fn grant(&mut self, now: Instant, queue: usize, group: usize, most: usize) -> usize {
        let Stage { queues, groups, .. } = self;
        let Some(it) = &mut groups[group] else { return 0 };
        // The rest of what has begun goes first.
        let mut frames = queues[queue].frames.iter().take_while(|waiting| waiting.follows).count();
        let mut counted = 0;
        while frames < most
            && let Some((datagram, len)) = datagram(&queues[queue], frames)
        {
            if counted == it.granted {
                if it.newcomers < datagram.need.min(NEWCOMER) {
                    break;
                }
                while let Some(member) = it.members.get(it.partly) {
                    let counts = member.counts && Receiver::fits(member.peer, &datagram.flow);
                    let socket = &mut queues[member.queue];
                    if counts && !socket.take_room(now, group, datagram.need) {
                        break;
                    }
                    if it.waits_at.is_some_and(|(at, _)| at == it.partly) {
                        it.waits_at = None;
                    }
                    it.partly += 1;
                }
                if let Some(member) = it.members.get(it.partly).copied() {
                    if it.waits_at.is_none_or(|(at, _)| at != it.partly) {
                        keep_no_room(it, group, queues);
                        it.waits_at = Some((it.partly, datagram.need));
                        queues[member.queue].keep_room(group, datagram.need);
                    }
                    break;
                }
                it.newcomers -= datagram.need;
                (it.granted, it.partly) = (it.granted + 1, 0);
            }
            counted += 1;
            frames += len;
        }
        frames.min(most)
    }

    /// Asks the kernel for the sockets of a group and their room.
    fn ask_about(&mut self, now: Instant, queue: usize, group: usize, host: &mut impl Host) -> io::Result<()> {
        let front = datagram(&self.queues[queue], 0).map(|(datagram, _)| datagram);
        let Stage { groups, queues, .. } = self;
        let Some(it) = &mut groups[group] else { return Ok(()) };
        let Some(front) = front.filter(|_| it.granted == 0 && it.begun.is_none()) else { return Ok(()) };
        // What was taken for the front datagram is taken again. It keeps its turn where it waits.
        let waits_for = it.waits_for();
        for member in &it.members[..it.partly] {
            if member.counts && Receiver::fits(member.peer, &front.flow) {
                queues[member.queue].give_room_back(front.need);
            }
        }
        it.partly = 0;
        it.members.clear();
        self.counters.queries += 1;
        let in_flight = host.in_flight()?;
        let mut receivers = std::mem::take(&mut self.receivers);
        receivers.clear();
        let took = host.find_group(&front.flow, &mut receivers)?;
        self.ask_groups_next = now.saturating_add(took.saturating_mul(ASK_COST));
        receivers.truncate(MEMBERS_MOST);
        if self.sockets.len() + receivers.len() > SOCKETS_MOST {
            self.forget_idle();
        }
        let mut members = Vec::with_capacity(receivers.len());
        for Receiver { socket, peer } in &receivers {
            let member = match self.sockets.get(&socket.cookie) {
                Some(&member) => member,
                None => self.add_queue(socket.cookie),
            };
            let margin = self.charges.largest();
            let it = &mut self.queues[member];
            it.learn(now, socket, in_flight, self.sent, margin);
            members.push(Member { queue: member, peer: *peer, counts: !it.isolated });
        }
        self.receivers = receivers;
        members.sort_unstable_by_key(|member| member.queue);
        // The slowest one that has just moved, or has stopped last, may have room soonest.
        let soonest =
            members.iter().filter(|member| member.counts).map(|member| self.queues[member.queue].longest_pause());
        let soonest = soonest.min().unwrap_or_default();
        self.queues[queue].ask_again(now, soonest);
        if let Some(it) = &mut self.groups[group] {
            let waits_at = members.iter().position(|member| Some(member.queue) == waits_for && member.counts);
            if let (Some(queue), None) = (waits_for, waits_at) {
                self.queues[queue].keep_no_room(group, front.need);
            }
            it.waits_at = waits_at.map(|at| (at, front.need));
            it.members = members;
            it.newcomers = NEWCOMER;
            it.asked = now;
        }
        Ok(())
    }

    /// Drops datagrams at the front whose receivers are all isolated.
    fn drop_for_isolated(&mut self, queue: usize, group: usize, release: &mut impl FnMut(u32)) {
        loop {
            let Stage { groups, queues, .. } = self;
            let Some(it) = &mut groups[group] else { return };
            if it.granted > 0 || it.begun.is_some() || it.members.is_empty() {
                return;
            }
            let Some((front, _)) = datagram(&queues[queue], 0) else { return };
            let mut fitting = it.members.iter().filter(|member| Receiver::fits(member.peer, &front.flow)).peekable();
            if fitting.peek().is_none() || fitting.any(|member| member.counts) {
                return;
            }
            keep_no_room(it, group, queues);
            it.partly = 0;
            let mut count = 0;
            queues[queue].drop_first(&mut |waiting| {
                count += 1;
                release(waiting.frame.buffer);
            });
            self.counters.watchdog += count as u64;
            self.left(queue, count);
        }
    }

    /// The member for whose room a group waits is watched like a socket with frames of its own.
    fn watch_member(&mut self, group: usize, release: &mut impl FnMut(u32)) {
        let Some((at, _)) = self.groups[group].as_ref().and_then(|it| it.waits_at) else { return };
        let Some(member) = self.groups[group].as_ref().and_then(Group::waits_for) else { return };
        if !self.queues[member].isolated {
            self.watch(member, release);
        }
        if self.queues[member].isolated
            && let Some(it) = &mut self.groups[group]
        {
            keep_no_room(it, group, &mut self.queues);
            it.members[at].counts = false;
        }
    }

    /// A frame of a group has gone; `sent` bytes were then sent in all. Called after it was taken out of the queue.
    pub(super) fn sent_to_group(&mut self, queue: usize, group: usize, first: Option<(i64, Flow)>) {
        let more = self.queues[queue].frames.front().is_some_and(|next| next.follows);
        let sent = self.sent;
        let Stage { groups, queues, .. } = self;
        let Some(it) = &mut groups[group] else { return };
        let several = first.is_none() || more;
        if let Some((need, flow)) = first {
            it.granted = it.granted.saturating_sub(1);
            it.begun = Some(Datagram { need, flow });
        }
        if !more && let Some(Datagram { need, flow }) = it.begun.take() {
            for member in it.members.iter().filter(|member| member.counts && Receiver::fits(member.peer, &flow)) {
                queues[member.queue].use_room(need, several, sent);
            }
        }
    }

    /// The datagrams of a group's queue will not go, or not from there: all room taken for them is given back. `begun`: also
    /// that of a datagram of which some frames have gone.
    pub(super) fn give_back_grants(&mut self, queue: usize, begun: bool) {
        let Kind::Group(group) = self.queues[queue].kind else { return };
        let Stage { groups, queues, .. } = self;
        let Some(it) = &mut groups[group] else { return };
        keep_no_room(it, group, queues);
        let begun = if begun { it.begun.take() } else { None };
        let mut held: Vec<(Datagram, usize)> = begun.map(|begun| (begun, it.members.len())).into_iter().collect();
        let mut at = queues[queue].frames.iter().take_while(|waiting| waiting.follows).count();
        for k in 0..=it.granted {
            let Some((datagram, len)) = datagram(&queues[queue], at) else { break };
            held.push((datagram, if k < it.granted { it.members.len() } else { it.partly }));
            at += len;
        }
        for (Datagram { need, flow }, members) in held {
            for member in it.members[..members].iter().filter(|m| m.counts && Receiver::fits(m.peer, &flow)) {
                queues[member.queue].give_room_back(need);
            }
        }
        (it.granted, it.partly) = (0, 0);
    }
}

/// No longer keeps the next room of a member.
fn keep_no_room(it: &mut Group, group: usize, queues: &mut [SocketQueue]) {
    if let Some((at, need)) = it.waits_at.take()
        && let Some(member) = it.members.get(at)
    {
        queues[member.queue].keep_no_room(group, need);
    }
}
