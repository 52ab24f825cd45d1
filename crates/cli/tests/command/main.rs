//! The command as a user runs it, without root.

mod cli;
mod cli_input;
mod cli_memory;
mod cli_parts;
mod cli_speed;
mod cli_stopped;
mod cli_sweep;
mod command;
mod docs;
mod export;
mod fat_tree;
mod packaging;
mod sonic;
