//! A part of a sweep's cells, for a machine or a task of a job array.

use std::fmt;
use std::str::FromStr;

/// Part `number` of `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub number: usize,
    /// At least `number`.
    pub of: usize,
}

impl Shard {
    /// Its cells, from all cells in the order to start them: as in dealing cards, so that every part has long and short
    /// ones. Of several parts no two have a cell in common.
    pub fn cells(self, order: &[usize]) -> Vec<usize> {
        order.iter().copied().skip(self.number - 1).step_by(self.of).collect()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;
    fn from_str(text: &str) -> Result<Shard, String> {
        let parts = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number, of)) if 1 <= number && number <= of => Ok(Shard { number, of }),
            _ => Err("a part of a sweep is K/N with K from 1 to N, as 3/20".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_in_one_part() {
        let order = [4, 2, 0, 1, 3];
        let part = |number| Shard { number, of: 3 }.cells(&order);
        assert_eq!([part(1), part(2), part(3)], [vec![4, 1], vec![2, 3], vec![0]]);
        assert_eq!(Shard { number: 7, of: 9 }.cells(&order), Vec::<usize>::new());
        assert_eq!("3/20".parse(), Ok(Shard { number: 3, of: 20 }));
        for wrong in ["0/3", "4/3", "3", "a/b", "1/0", "-1/2", "1/2/3", ""] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
