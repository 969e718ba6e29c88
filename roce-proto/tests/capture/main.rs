//! What two Linux machines said to each other, packet by packet: see `tests/data`. One is an NVMe
//! over Fabrics host, the other a target; both use the kernel's software RoCE.

mod data;
mod mads;
mod nvme;
mod packets;
mod pcap;
mod session;
