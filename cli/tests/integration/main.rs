//! Integration tests, in one program.

mod bench_checkpoint;
mod bench_loader;
mod devices;
mod doctor;
mod index;
mod manual;
mod usage;
