//! The screen: 80 columns and 24 lines are enough, colour and Unicode where the terminal has them.

use super::view::{Row, Sort, View, headline, number};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style as Look};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as TableRow, Table};
use sluicenet_vswitchd::watch::{held, lost, queued};
use std::time::Duration;

/// Capabilities of the terminal.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub colour: bool,
    pub ascii: bool,
}

impl Style {
    /// As the environment says: NO_COLOR (no-color.org), TERM and the locale.
    pub fn of_this_terminal() -> Style {
        let set = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let locale = set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).unwrap_or_default();
        let utf8 = ["UTF-8", "utf8", "UTF8", "utf-8"].iter().any(|name| locale.ends_with(name));
        let dumb = set("TERM").is_none_or(|term| term == "dumb" || term == "vt100");
        Style { colour: set("NO_COLOR").is_none() && !dumb, ascii: !utf8 }
    }

    fn colour(self, colour: Color) -> Look {
        if self.colour { Look::new().fg(colour) } else { Look::new() }
    }

    /// How full a queue is, in one character.
    pub fn bar(self, len: u32, slots: u32) -> char {
        let levels: [char; 9] = match self.ascii {
            false => ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            true => ['.', '1', '2', '3', '4', '5', '6', '7', '#'],
        };
        let eighths = (u64::from(len) * 8).div_ceil(u64::from(slots.max(1))).min(8);
        // Full is full, and nothing less is.
        levels[if len < slots { eighths.min(7) } else { 8 } as usize]
    }
}

/// State of the screen, besides the view.
pub struct Screen {
    pub style: Style,
    pub sort: Sort,
    pub scroll: usize,
    pub paused: bool,
    pub interval: Duration,
}

/// Lines at most for the switches, for waiting ports, and for drops.
const HEADS_MAX: usize = 4;
const WAITS_MAX: usize = 8;
const DROPS_MAX: usize = 4;

impl Screen {
    pub fn draw(&self, frame: &mut Frame<'_>, view: &View) {
        let mut waits = view.waits(self.style.ascii);
        waits.extend(view.virtual_queues());
        let absent = view.absent();
        let drops: Vec<String> = view
            .rows
            .iter()
            .filter(|r| lost(&r.port) > 0)
            .map(|r| format!("{}: {}", view.name(r), r.drops().join(", ")))
            .collect();
        let heads = (view.switches.len() + view.errors.len()).min(HEADS_MAX) as u16;
        let part = |lines: &[String], most: usize| match lines.len() {
            0 => 0,
            n => n.min(most) as u16 + 1,
        };
        let [head, ports, missing, waiting, dropped, keys] = Layout::vertical([
            Constraint::Length(heads),
            Constraint::Min(3),
            Constraint::Length(part(&absent, DROPS_MAX)),
            Constraint::Length(part(&waits, WAITS_MAX)),
            Constraint::Length(part(&drops, DROPS_MAX)),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        self.heads(frame, head, view);
        self.ports(frame, ports, view);
        self.list(frame, missing, "NOBODY THERE", &absent, Color::Red);
        self.list(frame, waiting, "WHO WAITS FOR WHOM", &waits, Color::Yellow);
        self.list(frame, dropped, "DROPPED", &drops, Color::Red);
        self.keys(frame, keys);
    }

    fn heads(&self, frame: &mut Frame<'_>, area: Rect, view: &View) {
        let bold = Look::new().add_modifier(Modifier::BOLD);
        let switches = view.switches.iter().map(|head| Line::styled(headline(head), bold));
        let errors = view.errors.iter().map(|error| Line::styled(error.clone(), self.style.colour(Color::Red)));
        frame.render_widget(Paragraph::new(switches.chain(errors).collect::<Vec<_>>()), area);
    }

    fn ports(&self, frame: &mut Frame<'_>, area: Rect, view: &View) {
        let name = view.rows.iter().map(|r| view.name(r).len()).max().unwrap_or(0).clamp(8, 16) as u16;
        let widths = [name, 6, 6, 6, 6, 8, 6, 6, 6, 8].map(Constraint::Length);
        let titles = ["PORT", "IN/s", "b/s", "OUT/s", "b/s", "01234567", "QUEUED", "HELD", "PAUSES", "STATE"];
        let title = |(i, text): (usize, &str)| Cell::from(if is_number(i) { right(text, 6) } else { text.into() });
        let header = TableRow::new(titles.into_iter().enumerate().map(title))
            .style(Look::new().add_modifier(Modifier::REVERSED));
        let rows = view.rows.iter().skip(self.scroll).map(|row| self.row(view, row));
        frame.render_widget(Table::new(rows, widths).header(header), area);
    }

    fn row(&self, view: &View, row: &Row) -> TableRow<'static> {
        let state = row.state();
        let look = match state {
            "ISOLATED" => self.style.colour(Color::Red).add_modifier(Modifier::BOLD),
            "full" => self.style.colour(Color::Red),
            "waits" => self.style.colour(Color::Yellow),
            "absent" => self.style.colour(Color::DarkGray),
            _ => Look::new(),
        };
        let bars = row.port.output.iter().map(|&len| {
            let look = match (len, len * 2 > row.slots) {
                (0, _) => self.style.colour(Color::DarkGray),
                (_, false) => self.style.colour(Color::Green),
                (_, true) => self.style.colour(Color::Red),
            };
            Span::styled(self.style.bar(len, row.slots).to_string(), look)
        });
        let r = &row.rates;
        TableRow::new([
            Cell::from(view.name(row)),
            Cell::from(right(&number(r.frames_from), 6)),
            Cell::from(right(&number(r.bits_from), 6)),
            Cell::from(right(&number(r.frames_to), 6)),
            Cell::from(right(&number(r.bits_to), 6)),
            Cell::from(Line::from(bars.collect::<Vec<_>>())),
            Cell::from(right(&number(queued(&row.port) as f64), 6)),
            Cell::from(right(&number(held(&row.port) as f64), 6)),
            Cell::from(right(&row.pauses().map_or("-".into(), |n| number(n as f64)), 6)),
            Cell::from(Span::styled(state, look)),
        ])
    }

    fn list(&self, frame: &mut Frame<'_>, area: Rect, title: &str, lines: &[String], colour: Color) {
        if lines.is_empty() || area.height == 0 {
            return;
        }
        let mut text = vec![Line::styled(title.to_owned(), self.style.colour(colour).add_modifier(Modifier::BOLD))];
        let room = area.height as usize - 1;
        // Lines without room are counted, not hidden.
        let shown = if lines.len() > room { room.saturating_sub(1) } else { lines.len() };
        text.extend(lines[..shown].iter().map(|line| Line::raw(format!(" {line}"))));
        if shown < lines.len() {
            text.push(Line::raw(format!(" and {} more lines", lines.len() - shown)));
        }
        frame.render_widget(Paragraph::new(text), area);
    }

    fn keys(&self, frame: &mut Frame<'_>, area: Rect) {
        let state = if self.paused { "PAUSED".into() } else { format!("every {} s", self.interval.as_secs_f64()) };
        let text = format!("{state} by {}  q quit  p pause  sort: n i o u h d (see --help)", self.sort.name());
        frame.render_widget(Paragraph::new(Line::styled(text, self.style.colour(Color::Cyan))), area);
    }
}

fn is_number(column: usize) -> bool {
    !matches!(column, 0 | 5 | 9)
}

fn right(text: &str, width: usize) -> String {
    format!("{text:>width$}")
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::congestion;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(style: Style, width: u16, height: u16) -> (Vec<String>, bool) {
        let (before, now) = congestion();
        let view = View::new(Some(&before), &now, Sort::Name);
        let interval = Duration::from_secs(1);
        let screen = Screen { style, sort: Sort::Name, scroll: 0, paused: false, interval };
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame, &view)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        let coloured = buffer.content().iter().any(|cell| cell.fg != Color::Reset);
        ((0..height).map(line).collect(), coloured)
    }

    #[test]
    fn all_of_it_fits_in_80_by_24() {
        let (lines, coloured) = screen(Style { colour: true, ascii: false }, 80, 24);
        assert!(coloured);
        let expected = [
            "vs up 12 s: 1,520,000 accepted = 0 delivered + 0 dropped + 0 queued",
            "PORT       IN/s    b/s  OUT/s    b/s 01234567 QUEUED   HELD PAUSES STATE",
            "a          1.5M  18.0G      0      0 ········      0     90      - waits",
            "b         20.0k 240.0M      0      0 ········      0     80      - waits",
            "c             0      0   1.0k      0 █··▄···▁    151      0      - full",
            "d             0      0      0      0 ········      0      0      - ISOLATED",
        ];
        assert_eq!(lines[..6], expected, "{lines:#?}");
        let tree = [
            "WHO WAITS FOR WHOM",
            " c holds others up: 151 frames wait for it",
            " ├─ a waits for c",
            " └─ b waits for c",
            "DROPPED",
            " d: 1,234 watchdog",
            "every 1 s by name  q quit  p pause  sort: n i o u h d (see --help)",
        ];
        assert_eq!(lines[17..], tree, "{lines:#?}");
    }

    #[test]
    fn without_colour_and_unicode_it_says_the_same() {
        let (lines, coloured) = screen(Style { colour: false, ascii: true }, 80, 24);
        assert!(!coloured && lines.iter().all(|l| l.is_ascii()), "{lines:#?}");
        assert!(lines[4].contains(" #..4...1 "), "{lines:#?}");
        assert!(lines.contains(&" |- a waits for c".to_owned()));
    }

    #[test]
    fn no_size_breaks_it() {
        for (width, height) in [(1, 1), (20, 5), (80, 8), (300, 100)] {
            screen(Style { colour: true, ascii: false }, width, height);
        }
    }

    #[test]
    fn a_bar_is_full_when_the_queue_is() {
        let style = Style { colour: false, ascii: true };
        let bars: String = [0, 1, 13, 50, 99, 100, 1000].map(|len| style.bar(len, 100)).into_iter().collect();
        assert_eq!(bars, ".1247##");
    }
}
