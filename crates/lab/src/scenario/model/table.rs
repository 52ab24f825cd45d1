//! Tables that a scenario shows of its variants.

/// What of a run is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// What flows without an end come to together, in percent of what the links of all hosts carry.
    Bandwidth,
    /// What flows that ended come to: the sum of their bytes over their times, in GB/s.
    Goodput,
    /// The mean time of queries, or of flows where there are none, in ms.
    Mean,
    /// The longest of these, in ms.
    Longest,
}

impl Figure {
    /// All of them, each with its name.
    pub const ALL: [(&'static str, Figure); 4] = [
        ("bandwidth", Figure::Bandwidth),
        ("goodput", Figure::Goodput),
        ("mean", Figure::Mean),
        ("longest", Figure::Longest),
    ];

    /// What it is in.
    pub fn unit(self) -> &'static str {
        match self {
            Figure::Bandwidth => "%",
            Figure::Goodput => "GB/s",
            Figure::Mean | Figure::Longest => "ms",
        }
    }
}

/// A figure over two axes of the sweep, the mean over all others of them: seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What stands above it.
    pub title: String,
    /// What it shows.
    pub figure: Figure,
    /// The key of its rows; one row where absent.
    pub rows: Option<String>,
    /// The key of its columns.
    pub columns: String,
    /// What the source has, row by row; none where it has nothing.
    pub source: Vec<Vec<Option<f64>>>,
}
