//! Tables for terminals.
pub(super) use sluicenet_records::text::{count, counted, percent_change};

/// In place of a number that there is not.
pub(super) const NONE: &str = "–";

/// A table: names to the left, numbers to the right.
#[derive(Debug, Default)]
pub(super) struct Table {
    head: Vec<String>,
    /// Leading columns of names.
    names: usize,
    rows: Vec<Row>,
}

#[derive(Debug)]
enum Row {
    Cells(Vec<String>),
    Rule,
}

impl Table {
    /// A table with these headings, of which the first `names` are over names.
    pub fn new(names: usize, head: impl IntoIterator<Item = impl Into<String>>) -> Table {
        Table { head: head.into_iter().map(Into::into).collect(), names, rows: Vec::new() }
    }

    /// Adds a line.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(Row::Cells(cells.into_iter().map(Into::into).collect()));
    }

    /// Adds a thin rule.
    pub fn rule(&mut self) {
        self.rows.push(Row::Rule);
    }

    /// Leaves out the columns of numbers in which no line has one.
    pub fn without_empty(mut self) -> Table {
        let lines = || self.rows.iter().filter_map(|row| if let Row::Cells(cells) = row { Some(cells) } else { None });
        let has = |column: usize| {
            lines().filter_map(|cells| cells.get(column)).any(|cell| !matches!(cell.as_str(), "" | NONE))
        };
        let kept: Vec<bool> = (0..self.head.len()).map(|column| column < self.names || has(column)).collect();
        let of_kept = |cells: &mut Vec<String>| {
            let mut column = 0;
            cells.retain(|_| {
                column += 1;
                kept.get(column - 1).is_none_or(|kept| *kept)
            });
        };
        of_kept(&mut self.head);
        for row in &mut self.rows {
            if let Row::Cells(cells) = row {
                of_kept(cells);
            }
        }
        self
    }

    /// The text, each line indented by two spaces.
    pub fn text(&self) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|h| h.chars().count()).collect();
        for row in &self.rows {
            if let Row::Cells(cells) = row {
                widths.resize(widths.len().max(cells.len()), 0);
                for (width, cell) in widths.iter_mut().zip(cells) {
                    *width = (*width).max(cell.chars().count());
                }
            }
        }
        let line = |cells: &[String]| {
            let cell = |(i, text): (usize, &String)| {
                let pad = " ".repeat(widths[i] - text.chars().count());
                if i < self.names { format!("{text}{pad}") } else { format!("{pad}{text}") }
            };
            let cells: Vec<String> = cells.iter().enumerate().map(cell).collect();
            format!("  {}\n", cells.join("  ").trim_end())
        };
        let rule = format!("  {}\n", "─".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)));
        let mut out = String::new();
        if self.head.iter().any(|h| !h.is_empty()) {
            out += &line(&self.head);
            out += &rule;
        }
        for row in &self.rows {
            out += &match row {
                Row::Cells(cells) => line(cells),
                Row::Rule => rule.clone(),
            };
        }
        out
    }
}

/// A duration given in microseconds, in the unit that suits it, to three digits.
pub(super) fn time(us: f64) -> String {
    let (value, unit) = match us.abs() {
        0.0 => return "0".into(),
        x if x < 0.9995 => (us * 1e3, "ns"),
        x if x < 999.5 => (us, "µs"),
        x if x < 999.5e3 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    let places = if value.abs() < 9.995 {
        2
    } else if value.abs() < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.places$} {unit}")
}

/// A number with a decimal prefix, as "18.3 M".
pub(super) fn short(x: f64) -> String {
    let (value, unit) = match x {
        x if x < 999.5 => return format!("{x:.0} "),
        x if x < 999.5e3 => (x / 1e3, "k"),
        x if x < 999.5e6 => (x / 1e6, "M"),
        x if x < 999.5e9 => (x / 1e9, "G"),
        x if x < 999.5e12 => (x / 1e12, "T"),
        // Few know further prefixes.
        x => return format!("{x:.1e} "),
    };
    format!("{value:.1} {unit}")
}

/// A time of waiting in the largest unit of which it has two, without digits that nobody needs.
pub(super) fn lasting(seconds: f64) -> String {
    const UNITS: [(f64, &str); 5] =
        [(365.0 * 86_400.0, "years"), (86_400.0, "days"), (3_600.0, "h"), (60.0, "min"), (1.0, "s")];
    let (unit, name) = UNITS.into_iter().find(|unit| seconds >= 2.0 * unit.0).unwrap_or((1.0, "s"));
    let digits = if seconds < 1.0 { 1 } else { 0 };
    match seconds / unit {
        n if n < 1e4 => format!("{n:.digits$} {name}"),
        n if n < 1e9 => format!("{} {name}", count(n as u64)),
        n => format!("{n:.1e} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_and_numbers_right() {
        let mut t = Table::new(1, ["", "mean"]);
        t.row(["LL", "1.00 ms"]);
        t.rule();
        t.row(["lossless", "5 µs"]);
        assert_eq!(
            t.text(),
            "               mean\n  ─────────────────\n  LL        1.00 ms\n  ─────────────────\n  lossless     5 µs\n"
        );
    }

    #[test]
    fn columns_without_a_number_are_left_out() {
        let mut t = Table::new(1, ["", "mean", "gain", "lost"]);
        t.row(["LL", NONE, "", "0"]);
        t.rule();
        t.row(["ZZ", NONE, "1.2", "3"]);
        let rule = "─".repeat(14);
        let wanted = format!("      gain  lost\n  {rule}\n  LL           0\n  {rule}\n  ZZ   1.2     3\n");
        assert_eq!(t.without_empty().text(), wanted);
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            [0.0, 0.5, 12.34, 999.6, 123_456.0, 2e6].map(time),
            ["0", "500 ns", "12.3 µs", "1.00 ms", "123 ms", "2.00 s"]
        );
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([0.0, 1234.0, 18.34e6].map(short), ["0 ", "1.2 k", "18.3 M"]);
        assert_eq!([2.5e9, 1.118e14, 1.118e17].map(short), ["2.5 G", "111.8 T", "1.1e17 "]);
    }

    #[test]
    fn long_times_are_in_years() {
        const YEAR: f64 = 365.0 * 86_400.0;
        assert_eq!([0.2, 40.0, 9e5, YEAR].map(lasting), ["0.2 s", "40 s", "10 days", "365 days"]);
        assert_eq!([3.0 * YEAR, 12_345.0 * YEAR].map(lasting), ["3 years", "12,345 years"]);
    }
}
