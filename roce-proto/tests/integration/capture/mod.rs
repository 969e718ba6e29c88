//! The packets that two Linux machines exchanged: see `tests/data`. One is an NVMe over Fabrics
//! host, the other a target; both use the kernel's software RoCE.

mod data;
mod mads;
mod nvme;
mod packets;
mod pcap;
mod session;
