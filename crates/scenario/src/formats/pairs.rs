//! Pairs of hosts: `src dst` a line.

use super::lines::Reader;
use crate::{Error, Result, Warning};

/// Pairs a file may hold.
const PAIRS_MAX: usize = 1 << 22;

/// A source and a destination.
pub type Pair = (u32, u32);

/// Reads lines of a source and a destination among `hosts` hosts; `#` starts a comment.
///
/// # Errors
/// A line that is not two hosts of the network, or twice the same.
pub fn parse_pairs(file: &str, bytes: &[u8], hosts: u32) -> Result<(Vec<Pair>, Vec<Warning>)> {
    let mut reader = Reader::new(file, bytes);
    let pairs = read(&mut reader, hosts);
    reader.ended(pairs)
}

fn read(reader: &mut Reader<'_>, hosts: u32) -> Result<Vec<Pair>> {
    let file = reader.file;
    let mut pairs = Vec::new();
    while let Some(line) = reader.next_line()? {
        let text = line.text.split('#').next().unwrap_or("");
        let words: Vec<&str> = text.split_whitespace().take(3).collect();
        let (src_word, dst_word) = match words[..] {
            [] => continue,
            [src, dst] => (src, dst),
            _ => return Err(Error::line(file, line.number, line.text, "this line is not a pair").expected("src dst")),
        };
        let host_max = u64::from(hosts.max(1) - 1);
        let src = reader.number_in(line, src_word, "a source host", host_max)? as u32;
        let dst = reader.number_in(line, dst_word, "a destination host", host_max)? as u32;
        if src == dst {
            return Err(reader.at(line, dst_word, format!("host {src} sends to itself")));
        }
        if pairs.len() == PAIRS_MAX {
            return Err(Error::line(file, line.number, line.text, format!("more than {PAIRS_MAX} pairs")));
        }
        pairs.push((src, dst));
    }
    if pairs.is_empty() {
        return Err(Error::file(file, "this file has no pairs").expected("src dst, a line each"));
    }
    Ok(pairs)
}
