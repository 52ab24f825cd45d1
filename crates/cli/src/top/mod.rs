//! `top`: traffic through the switches of this machine, and the ports that wait for others.

mod draw;
mod view;

use super::failure::Failure;
use super::{Global, output};
use draw::{Screen, Style};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use sluicenet_vswitchd::config::default_control;
use sluicenet_vswitchd::control::{Answer, Request, ask, running};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use view::{Look, Sort, View};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Top {
    /// The control socket of a switch; default all running switches
    #[arg(long, value_name = "PATH")]
    control: Vec<PathBuf>,
    /// The name of a switch
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Seconds between two updates
    #[arg(long, short, value_name = "S", default_value_t = 1.0)]
    interval: f64,
    /// Print one table and end; with --json, one object
    #[arg(long)]
    once: bool,
}

const HELP: &str = "\
Keys:
    q        quit                         arrows   scroll
    p        pause, and go on             n i o u h d   sort by name, frames in, frames out,
                                                        queue, held back, drops
QUEUED are frames that wait for the port, a bar a priority (0 to 7) how full each of those queues is; HELD are frames of the
port itself that wait for others. Without colour: NO_COLOR=1.";

/// Where the switches are, looked for anew each time.
struct Switches {
    chosen: Vec<PathBuf>,
}

impl Switches {
    fn control_sockets(&self) -> Vec<PathBuf> {
        if !self.chosen.is_empty() {
            return self.chosen.clone();
        }
        let place = default_control("any");
        running(place.parent().unwrap_or(&place)).into_iter().map(|(_, path)| path).collect()
    }

    fn look(&self) -> Look {
        let each = |path: PathBuf| match ask(&path, &Request::Show) {
            Ok(Answer::Status(status)) => Ok(*status),
            Ok(Answer::Error(text) | Answer::Refused { error: text, .. }) => Err(format!("{}: {text}", path.display())),
            Ok(_) => Err(format!("{}: not the answer of a switch", path.display())),
            Err(e) => Err(e.to_string()),
        };
        let mut switches: Vec<_> = self.control_sockets().into_iter().map(each).collect();
        if switches.is_empty() {
            let place = default_control("any");
            let folder = place.parent().unwrap_or(&place).display();
            switches.push(Err(format!("no switch runs in {folder}; say where with --control")));
        }
        Look { at: Instant::now(), switches }
    }
}

impl Top {
    pub fn main(self, global: Global) -> Result<(), Failure> {
        if !(self.interval >= 0.1 && self.interval <= 3600.0) {
            return Err(Failure::Input(format!("--interval {}: from 0.1 to 3600", self.interval)));
        }
        let interval = Duration::from_secs_f64(self.interval);
        let mut chosen = self.control;
        chosen.extend(self.name.iter().map(|name| default_control(name)));
        let switches = Switches { chosen };
        let first = switches.look();
        if let (true, Some(Err(error))) = (first.switches.iter().all(Result::is_err), first.switches.first()) {
            return Err(Failure::Input(error.clone()));
        }
        if self.once || global.json {
            std::thread::sleep(interval);
            let view = View::new(Some(&first), &switches.look(), Sort::Name);
            if global.json {
                output::json(&view);
            } else {
                output::print(&view.text());
            }
            return Ok(());
        }
        if !std::io::IsTerminal::is_terminal(&std::io::stdout()) {
            return Err(Failure::Input("stdout is no terminal; --once prints a table, --json an object".into()));
        }
        let mut terminal =
            ratatui::try_init().map_err(|e| Failure::Failed(format!("the terminal cannot be used: {e}")))?;
        let outcome = live(&mut terminal, &switches, interval, first);
        ratatui::restore();
        outcome.map_err(|e| Failure::Failed(format!("the terminal: {e}")))
    }
}

fn live(
    terminal: &mut ratatui::DefaultTerminal,
    switches: &Switches,
    interval: Duration,
    first: Look,
) -> std::io::Result<()> {
    let mut screen = Screen { style: Style::of_this_terminal(), sort: Sort::Name, scroll: 0, paused: false, interval };
    let (mut before, mut now) = (None, first);
    loop {
        let view = View::new(before.as_ref(), &now, screen.sort);
        screen.scroll = screen.scroll.min(view.rows.len().saturating_sub(1));
        terminal.draw(|frame| screen.draw(frame, &view))?;
        let next = now.at + interval;
        let wait =
            if screen.paused { Duration::from_secs(3600) } else { next.saturating_duration_since(Instant::now()) };
        if event::poll(wait)? {
            let Event::Key(key) = event::read()? else { continue };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                KeyCode::Char('p' | ' ') => screen.paused = !screen.paused,
                KeyCode::Down | KeyCode::PageDown => screen.scroll += 1,
                KeyCode::Up | KeyCode::PageUp => screen.scroll = screen.scroll.saturating_sub(1),
                KeyCode::Char(c) => screen.sort = Sort::of_key(c).unwrap_or(screen.sort),
                _ => {}
            }
        } else if !screen.paused {
            before = Some(std::mem::replace(&mut now, switches.look()));
        }
    }
}
