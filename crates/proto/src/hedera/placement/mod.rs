//! Paths for elephants that do not collide: Global First Fit and Simulated Annealing (Al-Fares 2012, 4.2.3 and 4.2.4).

pub mod annealing;
pub mod first_fit;
