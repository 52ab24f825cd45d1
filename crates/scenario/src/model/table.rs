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

/// What a table's rows or columns are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableAxis {
    /// The swept key.
    pub key: String,
    /// Its values as variants name them, each once: those of the sweep, or the one that an override fixes it to.
    pub values: Vec<String>,
    /// Whether it is fixed: variants do not name its value then.
    pub is_fixed: bool,
}

/// A figure over two axes of the sweep, the mean over all others of them: seeds.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// What stands above it.
    pub title: String,
    /// What it shows.
    pub figure: Figure,
    /// Its rows; one row where absent.
    pub rows: Option<TableAxis>,
    /// Its columns.
    pub columns: TableAxis,
    /// What the source has, row by row; none where it has nothing.
    pub source: Vec<Vec<Option<f64>>>,
}
