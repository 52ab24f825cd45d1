//! Several applications in one bump, each for the packets that its filter chooses (Al-Fares 2012, 5.1.1).

use super::{
    App, BumpCongestionPoint, BumpReactionPoint, CongestionPointState, Dctcp, Filter, Found, L4s, Notice, Packet,
    QueueId, ReactionPointState, Red, Verdict, VirtualQueue, red,
};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::units::Rate;
use alloc::vec::Vec;

/// An application that comes with sluicenet.
#[derive(Clone, Debug)]
pub enum Stock {
    /// RED.
    Red(Red),
    /// DCTCP.
    Dctcp(Dctcp),
    /// The ramp of L4S.
    L4s(L4s),
    /// QCN's congestion point.
    CongestionPoint(BumpCongestionPoint),
    /// QCN's reaction point.
    ReactionPoint(BumpReactionPoint),
}

/// The state of an application that comes with sluicenet.
#[derive(Clone, Debug)]
pub enum StockState<F> {
    /// RED's.
    Red(red::State),
    /// DCTCP's.
    Dctcp(Duration),
    /// That of the ramp of L4S.
    L4s(Rng),
    /// That of QCN's congestion point.
    CongestionPoint(CongestionPointState<F>),
    /// That of QCN's reaction point.
    ReactionPoint(ReactionPointState<F>),
}

/// An application and the packets that it acts on.
#[derive(Clone, Debug)]
pub struct Link {
    /// The application.
    pub app: Stock,
    /// The packets.
    pub filter: Filter,
}

/// Applications that act on a packet one after the other, until one of them does not forward it.
#[derive(Clone, Debug, Default)]
pub struct Chain(pub Vec<Link>);

/// The states of the applications, in their order.
pub type ChainState<F> = Vec<StockState<F>>;

/// Calls a method of the application of a link with its state.
macro_rules! each {
    ($app:expr, $state:expr, $a:ident, $s:ident => $call:expr) => {
        match ($app, $state) {
            (Stock::Red($a), StockState::Red($s)) => $call,
            (Stock::Dctcp($a), StockState::Dctcp($s)) => $call,
            (Stock::L4s($a), StockState::L4s($s)) => $call,
            (Stock::CongestionPoint($a), StockState::CongestionPoint($s)) => $call,
            (Stock::ReactionPoint($a), StockState::ReactionPoint($s)) => $call,
            _ => unreachable!("the state of another application"),
        }
    };
}

impl<P: Packet> App<P> for Chain {
    type State = ChainState<P::Flow>;

    fn init(&self, queue: QueueId, rate: Rate) -> Self::State {
        let state = |link: &Link| match &link.app {
            Stock::Red(app) => StockState::Red(App::<P>::init(app, queue, rate)),
            Stock::Dctcp(app) => StockState::Dctcp(App::<P>::init(app, queue, rate)),
            Stock::L4s(app) => StockState::L4s(App::<P>::init(app, queue, rate)),
            Stock::CongestionPoint(app) => StockState::CongestionPoint(App::<P>::init(app, queue, rate)),
            Stock::ReactionPoint(app) => StockState::ReactionPoint(App::<P>::init(app, queue, rate)),
        };
        self.0.iter().map(state).collect()
    }

    fn process(
        &self,
        states: &mut Self::State,
        now: Instant,
        packet: &mut P,
        queue: &mut VirtualQueue,
        found: Found,
        notices: &mut Vec<Notice<P::Flow>>,
    ) -> Verdict {
        for (link, state) in self.0.iter().zip(states) {
            if !link.filter.is_all() && !link.filter.matches(&packet.fields()) {
                continue;
            }
            let verdict = each!(&link.app, state, app, state => app.process(state, now, packet, queue, found, notices));
            if verdict != Verdict::Forward {
                return verdict;
            }
        }
        Verdict::Forward
    }

    fn gauges(&self, states: &Self::State, show: &mut dyn FnMut(&'static str, f64)) {
        for (link, state) in self.0.iter().zip(states) {
            each!(&link.app, state, app, state => App::<P>::gauges(app, state, show));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Fields;
    use super::super::testing::{Bump, Frame};
    use super::*;
    use sluicenet_wire::ipv4::Ecn;

    #[test]
    fn applications_act_one_after_the_other_on_the_packets_they_choose() {
        let only_tcp = Filter { protocol: Some(6), ..Filter::default() };
        let chain = Chain(alloc::vec![
            Link { app: Stock::Dctcp(Dctcp { threshold: 1_000 }), filter: only_tcp },
            Link { app: Stock::CongestionPoint(BumpCongestionPoint::alfares2012(1, 1)), filter: Filter::default() },
        ]);
        let mut bump = Bump::new(chain, Rate::gbps(1));
        bump.slot.queue.arrive(Instant::ZERO, 80_000);
        let of_protocol = |protocol| Frame { fields: Fields { protocol, ..Fields::default() }, ..Frame::default() };
        for n in 0..1_000 {
            let protocol = if n % 2 == 0 { 6 } else { 17 };
            let (_, packet) = bump.pass(Instant(n * 12_304_000), of_protocol(protocol));
            assert_eq!(packet.ecn == Ecn::Ce, protocol == 6);
        }
        assert!(bump.notices.len() > 100);
    }

    #[test]
    fn an_application_behind_one_that_drops_does_not_see_the_packet() {
        let drops = Red {
            config: crate::aqm::RedConfig { min_threshold: 0, max_threshold: 1, ..Red::alfares2012(1.0) },
            seed: 1,
        };
        let chain = Chain(alloc::vec![
            Link { app: Stock::Red(drops), filter: Filter::default() },
            Link { app: Stock::CongestionPoint(BumpCongestionPoint::alfares2012(1, 1)), filter: Filter::default() },
        ]);
        let mut bump = Bump::new(chain, Rate::gbps(1));
        bump.slot.queue.arrive(Instant::ZERO, 80_000);
        (0..100).for_each(|n| _ = bump.pass(Instant(n), Frame::default()));
        assert_eq!((bump.slot.counts.dropped, bump.notices.len()), (100, 0));
        assert!(bump.bytes() <= 80_000, "{}", bump.bytes());
    }
}
