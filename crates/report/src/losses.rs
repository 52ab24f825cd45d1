//! The page of a loss sweep: received and lost rates over the sent rate.

use super::charts::{Plotted, plot};
use super::format::{digits, escape};
use super::page;
use super::scale::Scale;

/// The losses over one switch, as the page shows them.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The switch.
    pub switch: Switch,
    /// The highest rate received.
    pub peak_mbps: f64,
    /// The rate received at the highest rate sent.
    pub last_mbps: f64,
    /// The lowest rate sent at which a datagram was lost.
    pub first_loss_at_mbps: Option<f64>,
    /// The largest fraction lost.
    pub lost_percent_max: f64,
    /// One for each rate sent.
    pub points: Vec<Point>,
}

/// A switch that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// Ours.
    Ours,
    /// The Linux bridge.
    Bridge,
    /// Open vSwitch.
    Ovs,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// The rate that the senders try to send.
    pub target_mbps: f64,
    /// The rate received.
    pub received_mbps: f64,
    /// The fraction lost.
    pub lost_percent: f64,
}

/// The page; `rerun` is the command that makes it again.
pub fn html(title: &str, curves: &[Curve], rerun: &str) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let rates = Scale::linear(points().map(|p| p.target_mbps));
    let received = Scale::linear(points().map(|f| f.received_mbps));
    let share = |p: &Point| p.lost_percent / 100.0;
    let lines = |value: &dyn Fn(&Point) -> f64, also_zero: bool| {
        let plotted = |curve: &Curve| Plotted {
            name: name(curve.switch),
            colour: colour(curve.switch),
            points: curve
                .points
                .iter()
                .filter(|p| also_zero || value(p) > 0.0)
                .map(|p| (p.target_mbps, value(p)))
                .collect(),
        };
        curves.iter().map(plotted).collect::<Vec<_>>()
    };
    let x = (rates, "both senders together were to send, Mb/s");
    let panels = [
        ("Received, Mb/s", plot("Received over sent", x, (received, number), lines(&|p| p.received_mbps, true))),
        (
            "Share lost",
            plot("Share lost over sent", x, (Scale::linear([1.0].into_iter()), percent), lines(&share, true)),
        ),
        (
            "Share lost, logarithmic",
            plot(
                "Share lost over sent, logarithmic",
                x,
                (Scale::for_curves(points().map(share)), percent),
                lines(&share, false),
            ),
        ),
    ];
    let figures: String = panels
        .iter()
        .map(|(caption, svg)| format!("<figure><figcaption>{caption}</figcaption>{svg}</figure>"))
        .collect();
    let legend: String = curves.iter().map(legend).collect();
    let note = "Measured between programs: from send() to recv(). A sender over a switch that holds it back sends less than it \
                was to.";
    let body = format!(
        "<header><p class=\"kicker\">loss sweep</p><h1>{}</h1></header><section><p class=\"note\">{note}</p>\
         <ul class=\"legend\">{legend}</ul><div class=\"panels\">{figures}</div></section>\
         <section><h2>Again</h2><pre>{}</pre></section>",
        escape(title),
        escape(rerun)
    );
    page::document(&escape(title), &body)
}

fn legend(curve: &Curve) -> String {
    let lost = match curve.first_loss_at_mbps {
        None => "nothing lost".to_owned(),
        Some(at) => format!("loses from {at:.0} Mb/s on, up to {:.1} %", curve.lost_percent_max),
    };
    format!(
        "<li><i class=\"swatch {}\"></i><b>{}</b> up to {:.0} Mb/s received, {:.0} in the end; {lost}</li>",
        colour(curve.switch),
        name(curve.switch),
        curve.peak_mbps,
        curve.last_mbps
    )
}

fn name(switch: Switch) -> &'static str {
    match switch {
        Switch::Ours => "ours",
        Switch::Bridge => "bridge",
        Switch::Ovs => "Open vSwitch",
    }
}

fn colour(switch: Switch) -> &'static str {
    match switch {
        Switch::Ours => "c-zz",
        Switch::Bridge => "c-ll",
        Switch::Ovs => "c0",
    }
}

fn number(x: f64) -> String {
    super::format::number_tick(x)
}

fn percent(share: f64) -> String {
    let text = digits(share * 100.0);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}\u{202f}%")
}
