//! Whole worlds, from a scenario to its records.

mod building;
mod bumps;
mod congestion;
mod days;
mod fat_tree_routing;
mod field;
mod fingerprints;
mod flow_level;
mod headroom;
mod hostile;
mod idle;
mod links;
mod lossless;
mod ranges;
mod recorded;
mod roce;
mod threads;
mod times;
mod vnics;
mod worlds;
mod xco;
mod zfabric;
