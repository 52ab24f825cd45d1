//! The order of cells: long ones start first, so that none is alone at the end.

use super::cell::Cell;
use crate::estimate::expected_bytes;

/// The cells in the order to start them: those with most expected work first, others in the order of the sweep.
pub fn longest_first<'a>(cells: impl IntoIterator<Item = &'a Cell>) -> Vec<usize> {
    let costs: Vec<f64> = cells.into_iter().map(|cell| expected_bytes(&cell.job.scenario)).collect();
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by(|&a, &b| costs[b].total_cmp(&costs[a]));
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::cells;
    use sluicenet_scenario::Scenario;

    #[test]
    fn the_longest_starts_first_and_equal_ones_keep_their_order() {
        let text = "[scenario]\nparameters = \"plain\"\n[topology]\nkind = \"single-switch\"\nhosts = 5\n\
                    [[workload]]\nkind = \"incast\"\nsenders = 4\nreceiver = 4\nbytes = \"10 KB\"\n[sweep]\n\
                    \"workload.0.rounds\" = [2, 9, 5]\n\"scenario.seed\" = [1, 2]\n";
        let loaded = Scenario::parse(text, "test").unwrap();
        assert_eq!(longest_first(&cells(&loaded, None).unwrap()), [2, 3, 4, 5, 0, 1]);
    }
}
