mod memory;
mod operations;
mod pair;
