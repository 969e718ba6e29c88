//! NVMe over Fabrics target: exports files, block devices and memory over RDMA.
//!
//! Two halves meet in [`controller`]. *What NVMe is*: [`config`] says what to export, [`export`] opens it into a
//! [`registry`] of subsystems, namespaces and ports, and a [`controller::Queue`] per connection decides what each
//! command means. *How bytes move*: a [`poll_group`] per core drives its [`transport`]s and its [`storage`], with
//! buffers of the [`pool`]; [`backend`]s know bytes and offsets alone. [`target`] starts threads around both,
//! [`stepped`] a simulator; [`daemon`] is the process.
//!
//! Not here: authentication, reservations, ANA and multipath policy, namespace management, metadata and
//! protection information, zoned namespaces, other transports than RDMA, changes of what is exported while it
//! runs.

mod admission;
pub mod assembly;
pub mod backend;
mod chatter;
mod clock;
pub mod config;
pub mod controller;
mod crowd;
pub mod daemon;
#[doc(hidden)]
pub mod deliberate_bugs;
pub mod directory;
mod doorbell;
pub mod export;
pub mod host;
pub mod identity;
pub mod limits;
pub mod namespace;
pub mod nsid_file;
mod patience;
pub mod peer_errors;
pub mod poll_group;
pub mod pool;
pub mod port;
pub mod protection;
pub mod registry;
mod request;
pub mod runtime;
pub mod state_file;
pub mod stats;
pub mod stepped;
pub mod storage;
pub mod subsystem;
mod sync;
pub mod tally;
pub mod target;
pub mod transport;
mod watch;
