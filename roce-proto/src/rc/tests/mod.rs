//! Tests of the queue pair.

mod congestion;
mod errors;
mod faults;
mod goodput;
mod memory;
mod operations;
mod pair;
mod requests;
mod segmentation;
mod selective;
mod sharing;
mod silent;
mod starved;
