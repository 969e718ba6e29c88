//! NVMe over Fabrics target: exports files, block devices and memory over RDMA.

pub mod backend;
pub mod pool;
pub mod storage;
