//! NVMe over Fabrics target: exports files, block devices and memory over RDMA.
//!
//! Two halves meet in [`controller`]. *What NVMe is*: [`config`] says what to export, the
//! [`inventory`] opens it as subsystems, namespaces and ports, and a [`controller::Queue`] per
//! connection decides what each command means. *How bytes move*: a [`poll_group`] per core drives
//! its [`transport`]s and its [`storage`], with the time, storage and buffers of its
//! [`core_context`]; [`backend`]s know bytes and offsets alone. [`target`] starts the threads of
//! [`driver`] around both, [`driver::stepped`] is for a simulator; [`daemon`] is the process.
//!
//! Not here: authentication, reservations, ANA and multipath policy, namespace management, metadata
//! and protection information, zoned namespaces, other transports than RDMA, changes of what is
//! exported while it runs.

pub mod backend;
pub mod config;
pub mod controller;
pub mod core_context;
pub mod daemon;
#[doc(hidden)]
pub mod deliberate_bugs;
pub mod derived_ids;
mod doorbell;
pub mod driver;
pub mod inventory;
pub mod limits;
pub mod metrics;
pub mod poll_group;
pub mod storage;
mod sync;
pub mod target;
pub mod transport;
