//! NVMe over Fabrics target: exports files, block devices and memory over RDMA.

pub mod assembly;
pub mod backend;
mod clock;
pub mod config;
pub mod controller;
pub mod daemon;
pub mod directory;
mod doorbell;
pub mod export;
pub mod host;
pub mod identity;
pub mod limits;
pub mod namespace;
pub mod nsid_file;
pub mod peer_errors;
pub mod poll_group;
pub mod pool;
pub mod port;
pub mod registry;
mod request;
pub mod runtime;
pub mod stats;
pub mod stepped;
pub mod storage;
pub mod subsystem;
pub mod target;
pub mod transport;
