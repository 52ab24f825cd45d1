//! The use of this machine's processors by all programs.

use std::io;

/// Ticks of all processors since the machine booted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticks {
    /// Ticks used by this machine's programs and its kernel.
    pub busy: u64,
    /// Idle ticks.
    pub idle: u64,
    /// All ticks, including those that other machines took.
    pub all: u64,
}

impl Ticks {
    /// The ticks until now.
    pub fn now() -> io::Result<Ticks> {
        let text = std::fs::read_to_string("/proc/stat")?;
        Ticks::parse(&text).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "/proc/stat does not begin with the time of all cores")
        })
    }

    /// The ticks in the first line of `/proc/stat`; its first field includes the time of guests.
    fn parse(text: &str) -> Option<Ticks> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = fields.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, idle, waiting, irq, softirq, stolen, ..] = ticks[..] else { return None };
        let (busy, idle) = (user + nice + system + irq + softirq, idle + waiting);
        Some(Ticks { busy, idle, all: busy + idle + stolen })
    }

    /// The idle share of the time since `before`.
    pub fn idle_since(self, before: Ticks) -> f64 {
        self.idle.saturating_sub(before.idle) as f64 / self.all.saturating_sub(before.all).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_of_all_processors() {
        let at = |line: &str| Ticks::parse(&format!("{line}\ncpu0 1 1 1 1 1 1 1 1 0 0\n"));
        let before = at("cpu  100 10 20 500 30 4 6 50 90 0");
        assert_eq!(before, Some(Ticks { busy: 140, idle: 530, all: 720 }));
        let after = at("cpu  130 10 30 560 30 4 6 50 99 0");
        assert_eq!(after.zip(before).map(|(after, before)| after.idle_since(before)), Some(0.6));
        assert_eq!(before.map(|now| now.idle_since(now)), Some(0.0));
        for other in ["", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8 9 0", "cpu a b c d e f g h"] {
            assert_eq!(Ticks::parse(other), None, "{other}");
        }
    }
}
