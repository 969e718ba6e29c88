//! Fuzz targets: all parsers and state machines that read bytes of a peer, and all parsers of files
//! with training data and of checkpoint volumes, each as one function of bytes.
//!
//! A target decodes its input into actions of a peer, a network and a caller, and checks properties
//! that must hold for all of them; it panics where one does not. `README.md` says how to run them.

mod allocations;
pub mod auth;
pub mod capsule;
pub mod checkpoint;
mod clockwork;
pub mod connection;
pub mod corpus;
pub mod dataset;
pub mod hostile_host;
pub mod hostile_target;
pub mod input;
pub mod mad;
pub mod mutate;
pub mod packet;
pub mod pages;
pub mod queue_pair;
pub mod run;
pub mod shared_memory;

/// One thing to fuzz.
#[derive(Clone, Copy, Debug)]
pub struct FuzzTarget {
    /// Name of the target, which is also that of its corpus and of its entry point for
    /// coverage-guided fuzzers.
    pub name: &'static str,
    /// The function that decodes and runs one input.
    pub run: fn(&[u8]),
    /// Length of the records that inputs consist of: an operation, or a word of a wire format.
    pub record_bytes: usize,
    /// The longest input worth trying.
    pub limit_bytes: usize,
    /// Mutations that `cargo test` runs.
    pub test_executions: u64,
}

/// Every fuzz target, in the order of `all`.
pub const TARGETS: [FuzzTarget; 18] = [
    target("packet", packet::run, 4, 4200, 50_000),
    target("mad", mad::run, 4, 256, 50_000),
    target("capsule", capsule::run, 4, 4300, 50_000),
    target("pages", pages::run, 4, 8200, 2_000),
    target("queue_pair", queue_pair::run, 8, 3204, 5_000),
    target("connection", connection::run, 8, 3200, 5_000),
    target("hostile_host", hostile_host::run, 16, 640, 2_000),
    target("hostile_target", hostile_target::run, 16, 640, 2_000),
    target("shared_memory", shared_memory::run, 16, 960, 5_000),
    target("shard", dataset::shard::run, 8, 20_000, 20_000),
    target("index", dataset::index::run, 4, 1_000, 20_000),
    target("manifest", dataset::manifest::run, 1, 4_000, 20_000),
    target("state", dataset::state::run, 4, 400, 20_000),
    target("url", dataset::url::run, 1, 400, 50_000),
    target("checkpoint", checkpoint::run, 8, 12_000, 10_000),
    target("auth_message", auth::message::run, 4, 1400, 50_000),
    target("auth_controller", auth::controller::run, auth::controller::RECORD_BYTES, 2400, 20_000),
    target("auth_host", auth::host::run, auth::host::RECORD_BYTES, 2400, 20_000),
];

const fn target(
    name: &'static str,
    run: fn(&[u8]),
    record_bytes: usize,
    limit_bytes: usize,
    test_executions: u64,
) -> FuzzTarget {
    FuzzTarget { name, run, record_bytes, limit_bytes, test_executions }
}
