//! Flow size distributions: a value and its cumulative percentage a line.

use super::lines::Reader;
use crate::distribution::{mean_of, quantile, uniform};
use crate::{Error, Result, Warning};

/// The most points a distribution may have.
const POINTS_MAX: usize = 1 << 20;
/// The largest value: one petabyte.
const VALUE_MAX: f64 = 1e15;

/// A cumulative distribution, linear between its points.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cdf {
    /// Value and cumulative probability; both ascend, the last probability is 1.
    pub points: Vec<(f64, f64)>,
}

impl Cdf {
    /// The value (bytes) at which `random`, read as a fraction of 2^64, is the cumulative probability.
    pub fn sample(&self, random: u64) -> f64 {
        quantile(self.points.iter().copied(), uniform(random))
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        mean_of(self.points.iter().copied())
    }
}

/// Reads lines of a value and a cumulative percentage (ending at 100) or probability (ending at 1).
///
/// # Errors
/// A line which is not two numbers, values or percentages that descend, or an end at neither 100 nor 1.
pub fn parse_cdf(file: &str, bytes: &[u8]) -> Result<(Cdf, Vec<Warning>)> {
    let mut reader = Reader::new(file, bytes);
    let cdf = read(&mut reader);
    reader.ended(cdf)
}

fn read(reader: &mut Reader<'_>) -> Result<Cdf> {
    let file = reader.file;
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut last = None;
    while let Some(line) = reader.next_line()? {
        let text = line.text.split('#').next().unwrap_or("");
        let mut words = text.split_whitespace();
        let Some(value_word) = words.next() else { continue };
        let Some(share_word) = words.next() else {
            return Err(Error::line(file, line.number, line.text, "this line has one number")
                .expected("a value and its cumulative percentage"));
        };
        if let Some(third) = words.next() {
            return Err(reader.at(line, third, "a third column").expected("a value and its cumulative percentage"));
        }
        let number = |word: &str, what: &str, max: f64| match word.parse::<f64>() {
            Ok(n) if (0.0..=max).contains(&n) => Ok(n),
            _ => {
                let shown: String = word.chars().take(40).collect();
                Err(reader.at(line, word, format!("`{shown}` is not {what}")).expected(format!("from 0 to {max}")))
            }
        };
        let value = number(value_word, "a value", VALUE_MAX)?;
        let share = number(share_word, "a cumulative percentage", 100.0)?;
        if let Some(&(v, c)) = points.last() {
            if value < v {
                return Err(reader.at(line, value_word, format!("the values descend: {value} after {v}")));
            }
            if share < c {
                return Err(reader.at(line, share_word, format!("the percentages descend: {share} after {c}")));
            }
            if value == v && share == c {
                reader.warn(line.number, "the same point twice: read once");
                continue;
            }
        } else if share > 0.0 {
            reader.warn(line.number, format!("the first percentage is {share}, not 0: so many samples are {value}"));
        }
        if points.len() == POINTS_MAX {
            return Err(Error::line(file, line.number, line.text, format!("more than {POINTS_MAX} points")));
        }
        points.push((value, share));
        last = Some((line, share_word, share));
    }
    let Some((line, word, share)) = last else {
        return Err(Error::file(file, "this distribution has no points").hint("a value and its percentage a line"));
    };
    let scale = match share {
        100.0 => 100.0,
        1.0 => 1.0,
        _ => {
            return Err(reader
                .at(line, word, format!("the distribution ends at {share}"))
                .expected("100 (percent), or 1")
                .hint("the last line must hold the largest value, with all of the distribution below it"));
        }
    };
    for point in &mut points {
        point.1 /= scale;
    }
    if points.last().is_some_and(|p| p.0 == 0.0) {
        return Err(reader.at(line, word, "every value of this distribution is 0"));
    }
    Ok(Cdf { points })
}
