//! NVMe over Fabrics target: exports files, block devices and memory over RDMA.

pub mod backend;
pub mod config;
pub mod controller;
pub mod directory;
pub mod export;
pub mod host;
pub mod identity;
pub mod limits;
pub mod namespace;
pub mod nsid_file;
pub mod pool;
pub mod port;
pub mod registry;
pub mod stats;
pub mod storage;
pub mod subsystem;
