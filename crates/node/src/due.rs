//! A handful of deadlines, the earliest at hand.

use alloc::vec::Vec;
use sluicenet_proto::time::Instant;

/// What is due when: a short list, latest first, because there are few and the earliest is wanted most.
#[derive(Clone, Debug, Default)]
pub struct Due {
    list: Vec<(Instant, u8)>,
}

impl Due {
    /// Adds a deadline for `what`.
    #[inline(always)]
    pub fn insert(&mut self, at: Instant, what: u8) {
        let mut i = self.list.len();
        self.list.push((at, what));
        while i > 0 && self.list[i - 1] < (at, what) {
            self.list[i] = self.list[i - 1];
            i -= 1;
        }
        self.list[i] = (at, what);
    }

    /// The earliest deadline; [`Instant::MAX`] when there is none.
    #[inline(always)]
    pub fn first(&self) -> Instant {
        self.list.last().map_or(Instant::MAX, |d| d.0)
    }

    /// Takes what is due at `now`, one at a time.
    #[inline(always)]
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, u8)> {
        match self.list.last() {
            Some(&due) if due.0 <= now => {
                self.list.pop();
                Some(due)
            }
            _ => None,
        }
    }

    /// What is due before `until`, the earliest first.
    #[inline(always)]
    pub fn before(&self, until: Instant) -> impl Iterator<Item = u8> {
        self.list.iter().rev().take_while(move |d| d.0 < until).map(|d| d.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_come_in_order_and_ties_by_what() {
        let mut d = Due::default();
        for (at, what) in [(5, 1), (3, 2), (9, 0), (3, 1), (4, 7)] {
            d.insert(Instant(at), what);
        }
        assert_eq!(d.first(), Instant(3));
        assert_eq!(d.before(Instant(5)).collect::<Vec<_>>(), [1, 2, 7]);
        let mut order = Vec::new();
        while let Some((at, what)) = d.pop(Instant(5)) {
            order.push((at.0, what));
        }
        assert_eq!(order, [(3, 1), (3, 2), (4, 7), (5, 1)]);
        assert_eq!(d.first(), Instant(9));
    }
}
