//! Integration tests, in one program.

mod allocations;
mod conformance;
mod descriptors;
mod shm_crash;
