mod errors;
mod faults;
mod memory;
mod operations;
mod pair;
mod sharing;
