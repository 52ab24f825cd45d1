//! Light sockets of hosts at one switch, in this process.

mod common;
mod datagrams;
mod memory;
mod streams;
mod switch_ends;
mod trouble;
