//! NVMe over Fabrics over RDMA, from the side that reads: namespaces of any target (Feedrail,
//! Linux, SPDK), straight into registered memory, many byte ranges at a time. No root, no kernel
//! module, no huge pages.
//!
//! ```no_run
//! use feedrail_initiator::{Grant, Host, Nsid, ReadRange, RegionSlice, SubsystemAddress};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::new()?;
//! let target = SubsystemAddress {
//!     address: "192.0.2.7:4420".parse()?,
//!     nqn: "nqn.2024-01.org.example:shards".parse()?,
//! };
//! let shard = host.connect(target).wait()?.namespace(Nsid(1)).wait()?;
//! // One registered megabyte, cut into 64 samples. Each is moved into the batch and comes back
//! // with it.
//! let samples = RegionSlice::allocate(1 << 20, Grant::Persistent)?.chunks(16 << 10);
//! let batch = samples.enumerate().map(|(i, into)| {
//!     ReadRange { namespace: shard.clone(), offset: i as u64 * 100_003, into }
//! });
//! for sample in host.read_many(batch).wait() {
//!     sample.result?;
//!     println!("{:02x?}", &sample.slice.bytes()[..8]);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//! [`Pending`] is a future for any runtime; [`Pending::wait`] is the same, blocking. A caller that
//! waits drives the connections; while none does a thread of the [`Host`]'s keeps them alive. A
//! [polled](Host::polled) host has no thread. [`Ring`] keeps a fixed number of ranges in flight
//! without allocating.
//!
//! # Losing a target
//! A target that owes answers and sends none for [`ControllerOptions::silence_timeout`] has lost
//! its connection. A connection that is lost is made again: at once, then after pauses that grow up
//! to [`ControllerOptions::reconnect_delay`]. If writes were under way it is made when the target
//! has confirmed the end of the old one, or must have found out by the lack of Keep Alive (two
//! timeouts and a second), since it might carry them out until then. Ranges wait for it until
//! [`ControllerOptions::io_timeout`]; after [`ControllerOptions::loss_timeout`] everything fails at
//! once with an [`Error`] that names the target, until it is back; a plan has connecting tried once
//! more. Ranges with replicas elsewhere ([`Shards`]) do not wait: they are read there. A namespace
//! that comes back with another identity, size or generation, or changes while it is connected, is
//! [`ErrorKind::Changed`], never other bytes. Memory is handed back only when the target can no
//! longer write to it: the command has ended, or all queue pairs of the connection have.
//!
//! # Several paths
//! [`Host::find_paths`] asks a discovery service for the ports of a subsystem,
//! [`Host::connect_paths`] connects to all of them, and plans read over the paths that serve, as
//! Asymmetric Namespace Access has it. [`Host::follow_paths`] takes those that come or go later,
//! too. Batches, rings and writes use the one path of their [`Namespace`].
//!
//! # Forks
//! A host belongs to the process that opened it. In a process forked from it, such as a data
//! loader's worker, each call to what was inherited ends at once with [`ErrorKind::Forked`], and
//! dropping it says nothing to any target: the parent's connections stay as they are. A worker
//! opens a [`Host`] of its own after the fork. Memory is copied as by any fork, and results of the
//! parent's reads do not reach the child's copy. On RDMA devices, kernels before 5.12 need
//! `ibv_fork_init` (`RDMAV_FORK_SAFE=1`) in the parent before it opens a host, and then registered
//! memory does not exist in the child at all.
//!
//! # Not here
//! Authentication, metadata and protection information, reservations, and other transports than
//! RDMA.

mod api;
mod driver;
mod engine;
mod memory;
mod types;

pub use api::batch::{RangeOutcome, ReadRange, WriteRange};
pub use api::controller::{CommandAnswer, CommandData, Controller};
pub use api::discovery::{DiscoveryController, DiscoveryLog};
pub use api::followed_paths::FollowedPaths;
pub use api::host::{Host, HostBuilder};
pub use api::namespace::Namespace;
pub use api::namespace_handle::NamespaceInfo;
pub use api::pending::Pending;
pub use api::ring::{Ring, RingFull};
pub use api::shards::{ChangedReplica, Shards, UnlikeReplica};
pub use api::subsystem_paths::SubsystemPaths;
pub use api::ticket::Ticket;
pub use engine::controller::ControllerLimits;
pub use engine::results::RangeCompletion;
pub use engine::shard_routes::ReplicaPolicy;
pub use memory::plan_region::Region;
pub use memory::region::{Grant, RegionSlice};
pub use nvme_proto::{HostId, HostNqn, Nqn, Nsid};
pub use types::counters::{HostCounters, ProviderStats};
pub use types::error::{
    Error, ErrorFamily, ErrorKind, RefusedField, SubsystemAddress, UnreachableCause,
};
pub use types::host_trace::{HostTrace, SentCommand};
pub use types::options::{BatchOptions, Class, ControllerOptions};
pub use types::plan::{Entry, Outcome, PlanError, PlanProgress, Submit};
pub use types::provider::RdmaProvider;
pub use types::time::MonotonicTime;
pub use types::turn::EngineTurn;
