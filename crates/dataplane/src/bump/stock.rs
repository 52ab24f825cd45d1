//! The loops of the applications that come with sluicenet.

use super::program::Mode;
use super::{Bump, Frame, Loop, Own, Settings, Shared, slots};
use sluicenet_proto::netbump::{
    App, Chain, Filter, Found, Link, Notice, Packet, Port, QueueId, Stock, Verdict, VirtualQueue,
};
use sluicenet_proto::time::Instant;
use sluicenet_proto::units::Rate;

/// No application: the bump estimates, and forwards.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoApp;

impl<P: Packet> App<P> for NoApp {
    type State = ();

    fn init(&self, _queue: QueueId, _rate: Rate) {}

    #[inline(always)]
    fn process(
        &self,
        _state: &mut (),
        _now: Instant,
        _packet: &mut P,
        _queue: &mut VirtualQueue,
        _found: Found,
        _notices: &mut Vec<Notice<P::Flow>>,
    ) -> Verdict {
        Verdict::Forward
    }
}

/// Applications, one after the other, each with the packets that it acts on.
pub type Applications = Vec<(Stock, Filter)>;

/// The loops of a bump, one for each of `settings`, over one table of the virtual queues of `ports`. A single application for
/// all packets has a loop that is compiled for it.
pub fn loops(mut applications: Applications, ports: &[Port], settings: Vec<Settings>) -> Vec<Box<dyn Loop>> {
    if applications.is_empty() {
        return compiled(NoApp, ports, settings);
    }
    if let [(_, filter)] = &applications[..]
        && filter.is_all()
        && let Some((app, _)) = applications.pop()
    {
        return match app {
            Stock::Red(app) => compiled(app, ports, settings),
            Stock::Dctcp(app) => compiled(app, ports, settings),
            Stock::L4s(app) => compiled(app, ports, settings),
            Stock::CongestionPoint(app) => compiled(app, ports, settings),
            Stock::ReactionPoint(app) => compiled(app, ports, settings),
        };
    }
    let chain = applications.into_iter().map(|(app, filter)| Link { app, filter }).collect();
    compiled(Chain(chain), ports, settings)
}

/// The loops of a bump with a program from outside: a mode for each of `settings`, each with one link.
pub fn loops_with(modes: Vec<Mode>, ports: &[Port], settings: Vec<Settings>) -> Vec<Box<dyn Loop>> {
    let table = Shared::new(slots(&NoApp, ports));
    let one = |(mode, settings)| Box::new(Bump::with_program(NoApp, table.clone(), settings, mode)) as Box<dyn Loop>;
    modes.into_iter().zip(settings).map(one).collect()
}

/// The loops of one application. One loop has the table for itself; several lock each queue.
fn compiled<A>(app: A, ports: &[Port], mut settings: Vec<Settings>) -> Vec<Box<dyn Loop>>
where
    A: App<Frame> + Clone + Send + 'static,
    A::State: 'static,
{
    let slots = slots(&app, ports);
    if settings.len() == 1
        && let Some(settings) = settings.pop()
    {
        return vec![Box::new(Bump::new(app, Own(slots), settings))];
    }
    let table = Shared::new(slots);
    let one = |settings| Box::new(Bump::new(app.clone(), table.clone(), settings)) as Box<dyn Loop>;
    settings.into_iter().map(one).collect()
}
