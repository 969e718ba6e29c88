//! NVMe over Fabrics host (initiator) over RDMA: reads and writes byte ranges of namespaces of any
//! target (Feedrail, Linux, SPDK), directly to and from registered memory, with many ranges in
//! flight. It needs no root privileges, no kernel module and no huge pages.
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
//! // One registered mebibyte, split into 64 samples. Each is moved into the batch and returned
//! // with its result.
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
//! # Which call to use
//!
//! | Call | Reads | Into | For |
//! |---|---|---|---|
//! | [`Namespace::read_at`] | one range | any `&mut [u8]`, copied | headers, footers |
//! | [`Host::read_many`] | a list of ranges | a [`RegionSlice`] each | occasional ranges |
//! | [`Host::ring`] | single ranges, many in flight | a [`RegionSlice`] each | streams, writes |
//! | [`Host::submit`] | a plan of any [`Shards`] | one [`Region`] | batches of training loops |
//! | [`Host::submit_write`] | writes a plan | from one [`Region`] | checkpoints |
//!
//! A plan is the list of entries that is passed to [`Host::submit`]. It allocates no memory per
//! range, can be read from several replicas of a shard, and returns an outcome of 8 bytes for each
//! range:
//!
//! ```no_run
//! # use feedrail_initiator::{Entry, Grant, Host, Namespace, Region, Shards, Submit};
//! # fn rows(host: &Host, namespace: Namespace) -> Result<(), Box<dyn std::error::Error>> {
//! let shards = Shards::new([namespace])?;
//! let region = Region::allocate(480 * 2_050, Grant::Persistent)?;
//! let row = |i: u64| Entry { shard: 0, length: 2_050, offset: i * 1_000_003, dst: i * 2_050 };
//! let plan: Vec<Entry> = (0..480).map(row).collect();
//! let ticket = host.submit(&shards, &plan, &region, Submit::default())?;
//! // The ranges are in progress: the previous batch can be used here.
//! if ticket.wait(ticket.len(), None).failed > 0 {
//!     let failed = (0..ticket.len()).find_map(|entry| ticket.error(entry));
//!     return Err(failed.expect("one has failed").into());
//! }
//! let mut batch = vec![0; region.len()];
//! region.copy_out(0, &mut batch)?;
//! # Ok(())
//! # }
//! ```
//!
//! # Waiting
//! [`Pending`] is a future for any runtime; [`Pending::wait`] blocks instead. A waiting caller
//! drives the connections; while no caller waits, a thread of the [`Host`] does. A
//! [polled](Host::polled) host has no thread. [`Ring`] keeps ranges in flight without allocating.
//!
//! With tokio or any other runtime, without a feature flag:
//!
//! ```no_run
//! # use feedrail_initiator::{Host, Nsid, SubsystemAddress};
//! # fn read(host: Host, target: SubsystemAddress) -> Result<(), Box<dyn std::error::Error>> {
//! let runtime = tokio::runtime::Builder::new_current_thread().build()?;
//! let (head, tail) = runtime.block_on(async {
//!     let shard = host.connect(target).await?.namespace(Nsid(1)).await?;
//!     // Both are in progress before either is awaited.
//!     let head = shard.read_to_vec(0, 4096);
//!     let tail = shard.read_to_vec(shard.size_bytes() - 512, 512);
//!     Ok::<_, feedrail_initiator::Error>((head.await?, tail.await?))
//! })?;
//! # let _ = (head, tail);
//! # Ok(())
//! # }
//! ```
//!
//! Without a thread, in an event loop of the program that polls descriptors:
//!
//! ```no_run
//! # use std::{pin::Pin, task::{Context, Poll, Waker}};
//! # use rustix::event::{PollFd, PollFlags, Timespec, poll};
//! # use feedrail_initiator::{EngineTurn, Host, SubsystemAddress};
//! # fn connect(target: SubsystemAddress) -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::polled()?;
//! let mut connecting = host.connect(target);
//! let mut context = Context::from_waker(Waker::noop());
//! let controller = loop {
//!     // Before the turn, so that later events wake the poll.
//!     host.arm();
//!     let turn = host.turn(Host::now());
//!     if let Poll::Ready(controller) = Pin::new(&mut connecting).poll(&mut context) {
//!         break controller?;
//!     }
//!     let EngineTurn::SleepUntil(due) = turn else { continue };
//!     let timeout = due.map(|due| due.saturating_duration_since(Host::now()));
//!     let timeout = timeout.map(Timespec::try_from).transpose()?;
//!     // Other descriptors of the program go here as well.
//!     poll(&mut [PollFd::new(&host.fd(), PollFlags::IN)], timeout.as_ref())?;
//!     host.acknowledge();
//! };
//! # let _ = controller;
//! # Ok(())
//! # }
//! ```
//!
//! # Retries
//! Few are necessary: ranges that a lost connection interrupts, or that fail with a status that
//! permits a retry, are retried until [`ControllerOptions::io_timeout`] or their deadline. If they
//! fail then, [`Error::is_retryable`] says whether they may succeed later:
//!
//! ```no_run
//! # use feedrail_initiator::{Error, Namespace};
//! fn read_patiently(shard: &Namespace, offset: u64, into: &mut [u8]) -> Result<(), Error> {
//!     for _ in 0..10 {
//!         match shard.read_at(offset, into) {
//!             Err(error) if error.is_retryable() => eprintln!("again: {error}"),
//!             result => return result,
//!         }
//!     }
//!     shard.read_at(offset, into)
//! }
//! ```
//!
//! # Writing
//! Offsets and lengths may have any alignment, but **if two hosts write different parts of one
//! block at the same time, bytes are lost without an error**: [several
//! writers](Namespace#several-writers). A successful write is durable after [`Namespace::flush`],
//! or immediately with [`Ring::write_durable`] and [`Host::submit_write_durable`].
//!
//! # Closing
//! A connection ends when the last handle of its controller and of its namespaces is dropped,
//! including tickets and rings. Dropping the last handle of the host waits for that, for up to half
//! a second:
//!
//! ```no_run
//! # use feedrail_initiator::{Controller, Error, Host, Namespace};
//! # fn end(host: Host, controller: Controller, shard: Namespace) -> Result<(), Error> {
//! shard.flush().wait()?;
//! drop((shard, controller));
//! drop(host);
//! # Ok(())
//! # }
//! ```
//!
//! # Lost targets
//! A connection is lost if the target sends no response for [`ControllerOptions::silence_timeout`]
//! while commands are in flight. It is established again: immediately, then after pauses that grow
//! up to [`ControllerOptions::reconnect_delay`]. If writes were in flight, the target may still
//! execute them. The host then reconnects when the target has confirmed the end of the old
//! connection, or must have detected it by the lack of Keep Alive (two timeouts and a second, and
//! the target's Command Quiesce Time). Ranges wait for the connection until
//! [`ControllerOptions::io_timeout`]. After [`ControllerOptions::loss_timeout`] all operations fail
//! immediately with an [`Error`] that names the target, until it is connected again; each new plan
//! starts an attempt to connect. Ranges with other replicas ([`Shards`]) do not wait, but are read
//! there. A namespace whose identity, size or generation differs after a reconnect, or changes
//! during a connection, fails with [`ErrorKind::Changed`], and never returns other bytes. Memory is
//! returned only when the target can no longer write to it: when the command has completed, or all
//! queue pairs of the connection are closed.
//!
//! # Authentication
//! A target may require that the host prove who it is (DH-HMAC-CHAP). With
//! [`ControllerOptions::dhchap_secret`] each queue authenticates when it is connected, also at
//! reconnects, and again with [`Controller::reauthenticate`] or
//! [`ControllerOptions::reauth_period`]. With [`ControllerOptions::dhchap_ctrl_secret`] the target
//! has to prove who it is as well. Exponentiations run on threads of their own, so that other
//! connections of the host continue. A failure is [`ErrorKind::Authentication`]; it ends the
//! controller, except that a response that is refused at a reconnect is tried again until
//! [`ControllerOptions::loss_timeout`], since a target with too much to compute refuses too.
//! Authentication does not encrypt or sign what is transferred afterwards.
//!
//! # Several paths
//! [`Host::find_paths`] reads the ports of a subsystem from a discovery service, and
//! [`Host::connect_paths`] connects to all of them. [`SubsystemPaths::multipath_namespace`] returns
//! one [`Namespace`] over all paths, for batches, rings, plans and writes: each range takes a path
//! that Asymmetric Namespace Access permits, and continues on another if that one is lost.
//! [`Host::follow_paths`] also uses ports that are added later. A namespace that was opened over a
//! [`Controller`] has only that path.
//!
//! # Forks
//! A host belongs to the process that opened it. In a process forked from it, such as a worker of a
//! data loader, each call on an inherited handle fails immediately with [`ErrorKind::Forked`], and
//! dropping a handle sends nothing to any target: the parent's connections are not affected. A
//! worker opens a [`Host`] of its own after the fork. Memory is copied as by any fork, and results
//! of the parent's reads do not reach the child's copy. On RDMA devices, kernels before 5.12 need
//! `ibv_fork_init` (`RDMAV_FORK_SAFE=1`) in the parent before it opens a host, and then registered
//! memory does not exist in the child at all.
//!
//! # Not implemented
//! Encryption, the fused Compare and Write operation, reservations, metadata and
//! protection information, GPU memory, block devices for the kernel, and transports other than
//! RDMA.

/// The examples of the README, which are tested as part of the documentation.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod api;
mod driver;
mod engine;
mod memory;
mod types;

pub use api::batch::{ReadRange, WriteRange};
pub use api::controller::{CommandAnswer, CommandData, Controller};
pub use api::discovery::{DiscoveryController, DiscoveryLog};
pub use api::followed_paths::FollowedPaths;
pub use api::host::Host;
pub use api::host_builder::HostBuilder;
pub use api::namespace::Namespace;
pub use api::path::NamespaceInfo;
pub use api::pending::Pending;
pub use api::ring::{Ring, RingFull};
pub use api::shards::{ChangedReplica, Shards, UnlikeReplica};
pub use api::submit::RangeOutcome;
pub use api::subsystem_paths::SubsystemPaths;
pub use api::ticket::Ticket;
pub use engine::completion::RangeCompletion;
pub use engine::limits::ControllerLimits;
pub use engine::shard_routes::ReplicaPolicy;
pub use feedrail_auth::{HostAuthError, InvalidSecret, KeyFileError, Secret};
pub use memory::plan_region::Region;
pub use memory::region::{Grant, RegionSlice};
pub use nvme_proto::{HostId, HostNqn, Nqn, Nsid};
pub use types::authentication_failure::AuthenticationFailure;
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
