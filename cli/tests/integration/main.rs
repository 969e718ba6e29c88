//! Integration tests, in one program.

mod bench_checkpoint;
mod bench_loader;
mod devices;
mod dhchap_keys;
mod doctor;
mod index;
mod manual;
mod usage;
