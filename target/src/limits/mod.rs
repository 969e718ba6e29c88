//! Limits of the target, all in one place.
//!
//! Constants are protocol bounds or protection against peers; an operator may set the [`Limits`].
//! These numbers bound what a peer can make the target hold.

pub(crate) mod connection_quota;
pub(crate) mod displacing_set;
pub(crate) mod log_rate;
pub(crate) mod peer;
pub(crate) mod turn;

use std::time::Duration;

/// Most entries of an admin queue. A host that requests more, as some do, gets this number.
pub(crate) const ADMIN_QUEUE_ENTRIES: u16 = 128;
/// Most associations with subsystems (controllers) that live in the process at a time.
pub(crate) const MAX_ASSOCIATIONS: usize = 4096;
/// Least value of [`Limits::discovery_controllers`], for a small [`Limits::connections`].
pub(crate) const DISCOVERY_CONTROLLERS_LEAST: usize = 64;
/// Lowest CNTLID that is assigned.
pub(crate) const CNTLID_FIRST: u16 = 1;
/// Highest CNTLID that is assigned (NVMe-oF reserves FFF0h and above).
pub(crate) const CNTLID_LAST: u16 = 0xFFEF;
/// Asynchronous Event Requests that one controller keeps (AERL + 1). Linux sends one.
pub(crate) const ASYNC_EVENT_REQUESTS: usize = 4;
/// Events that one controller keeps without an outstanding Asynchronous Event Request; further ones
/// are dropped.
pub(crate) const ASYNC_EVENTS_PENDING: usize = 8;
/// Outstanding Abort commands of one controller (ACL + 1); a further one fails with Abort Command
/// Limit Exceeded.
pub(crate) const ABORTS: usize = 4;
/// Entries of a controller's error log, 64 bytes each (ELPE + 1).
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;
/// NSIDs of a Changed Namespace List before it only reports an overflow (NVMe Base, log page 04h).
pub(crate) const CHANGED_NAMESPACES: usize = 1024;
/// ANA groups (ANAGRPMAX). The states of all groups at a port fit into one 64-bit word.
pub(crate) const ANA_GROUPS: u32 = 16;
/// Longest time that a group is in the ANA state Change (ANATT), in whole seconds. A host waits as
/// long before it fails the path.
pub(crate) const ANA_TRANSITION: Duration = Duration::from_secs(10);
/// Highest NSID that a configuration may give.
pub(crate) const NSID_LAST: u32 = 65_536;
/// Most namespaces in one process. Each is an open file; the limit of descriptors is usually
/// reached first.
pub(crate) const MAX_NAMESPACES: usize = 65_536;
/// Namespaces with a reused NSID that a queue remembers as known to its host. A further one clears
/// the list, which is then rebuilt from the controller.
pub(crate) const KNOWN_SUCCESSORS: usize = 16;
/// Number of subsystems from which on none can be added at run time.
pub(crate) const MAX_SUBSYSTEMS: usize = 4096;
/// Number of ports from which on none can be added at run time.
pub(crate) const MAX_PORTS: usize = 1024;
/// Most RDMA devices of a target: each poll group has a transport for each.
pub(crate) const MAX_DEVICES: usize = 32;
/// Most referrals to other discovery services. Each adds 1 KiB to a discovery log.
pub(crate) const MAX_REFERRALS: usize = 64;
/// Most hosts that a subsystem may list, or that a namespace may be visible to.
pub(crate) const MAX_ALLOWED_HOSTS: usize = 4096;
/// Largest buffer pool of the process in bytes. The pools of all cores number their 4 KiB units
/// with 32 bits.
pub(crate) const MAX_POOL_BYTES: u64 = 1 << 40;
/// Fewest blocks of each core's buffer pool: one is the progress block, which is lent in turn, and
/// the others go to any request.
pub(crate) const POOL_LEAST_BLOCKS: usize = 2;
/// Most data of one command of an anonymous connection, in bytes: of a queue before its Connect
/// succeeded, or of a discovery controller (its MDTS). A power of two.
pub const ANONYMOUS_TRANSFER_BYTES: u32 = 64 << 10;
/// Bytes of buffers for the anonymous connections of one core, in addition to
/// [`Limits::pool_bytes`].
pub const ANONYMOUS_POOL_BYTES: usize = 16 * ANONYMOUS_TRANSFER_BYTES as usize;
/// Completion queue entries of one core on one device at first, at most as many as the device
/// allows. The queue grows up to that limit if more are needed.
pub(crate) const COMPLETIONS_PER_GROUP: u32 = 1 << 18;
/// Most cores (poll groups) of a target. Every device has a group for each of them, and the queue
/// pair numbers of `soft` have room for this many groups.
pub(crate) const MAX_CORES: u16 = rdma::soft::MAX_GROUPS as u16;
/// Levels of folders in an exported directory; a deeper folder is an error. Bounds recursion
/// through mounts.
pub(crate) const DIRECTORY_DEPTH: usize = 16;
/// Log messages about hosts that connect, leave or are refused, in each [`PEER_MESSAGES_PERIOD`].
pub const PEER_MESSAGES: u32 = 200;
/// Period in which [`PEER_MESSAGES`] are admitted.
pub const PEER_MESSAGES_PERIOD: Duration = Duration::from_secs(10);
/// Most namespaces whose storage errors the statistics list.
pub(crate) const NAMESPACES_REPORTED: usize = 64;
/// Most peers whose errors are remembered; beyond that the one with the fewest is dropped.
pub(crate) const PEERS_REMEMBERED: usize = 256;
/// Most peers whose errors the statistics list.
pub(crate) const PEERS_REPORTED: usize = 64;
/// Granularity of the Keep Alive timer that controllers report (KAS).
pub(crate) const KEEP_ALIVE_GRANULARITY: Duration = Duration::from_millis(100);
/// Keep Alive Timeout of a discovery controller whose host requested none: how long a vanished host
/// keeps it, unless a newer one displaces it.
pub(crate) const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);
/// Longest time from the acceptance of a connection to a successful Connect command.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that a host may be silent while the target waits for an authentication message
/// (Base, 8.3.4.2: the Keep Alive Timeout, or 2 minutes without it).
pub(crate) const AUTH_TIMEOUT: Duration = Duration::from_secs(120);
/// Most exponentiations for authentications that wait in the process, each with about 2 KiB.
pub(crate) const AUTH_WORK: usize = 512;
/// Most exponentiations that wait for hosts of one address, or a user of this machine. A Linux host
/// authenticates all of its queues at a time when its key is changed.
pub(crate) const AUTH_WORK_PER_ADDRESS: usize = 128;
/// Longest authentication message, and most bytes that an Authentication Receive gets.
pub(crate) const AUTH_MESSAGE_BYTES: u32 = 4096;
/// Most connections of one device without a successful Connect; a further one displaces the oldest.
/// Each takes 19,784 bytes of heap over `soft` at a `queue_depth` of 128
/// (`docs/decisions/038-unconnected-queues.md`).
pub(crate) const UNCONNECTED: usize = 512;
/// Most connections without a successful Connect of one address, or user of this machine.
pub const UNCONNECTED_PER_ADDRESS: usize = 128;
/// Receives of a connection until its Connect succeeds, since only Connect is legal before. Its
/// queue pair is created for all receives, because the host receives the number of commands that it
/// may send (CRQSIZE, RDMA-CM private data) before it sends Connect: an RDMA device allocates its
/// full work queues then, while `soft` allocates memory for the receives that are posted after
/// Connect.
pub(crate) const UNCONNECTED_RECEIVES: u32 = 2;
/// Longest time that the end of the target waits for operations that storage does not complete.
pub const STORAGE_GRACE: Duration = Duration::from_secs(5);
/// Longest wait for cores to adopt a change of the exports before hosts are notified regardless.
pub(crate) const ADOPTION_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that the removal of a namespace waits for its running operations. Afterwards its
/// caller continues, and the namespace is closed once they have ended.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time that a host may leave a controller disabled (NVMe-oF: the association may then be
/// ended).
pub(crate) const ENABLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Rate in bytes per second at which a host has to accept or supply outstanding data, in addition
/// to [`Limits::host_timeout`]. Hosts behind a link below 8 Mbit/s are disconnected.
pub(crate) const HOST_LEAST_BYTES_PER_SECOND: u64 = 1 << 20;

/// Limits that an operator may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most entries of an I/O queue that a host may request, 2..=1024.
    pub queue_depth: u16,
    /// Most I/O queues of one association, 1..=1024.
    pub io_queues: u16,
    /// Most in-capsule data of one command, 0..=65,536 bytes, a multiple of 16.
    pub in_capsule_data_bytes: u32,
    /// Most data of one command (reported as MDTS), a power of two in 4 KiB..=16 MiB.
    pub max_transfer_bytes: u32,
    /// Bytes of the process's buffer pool, at least [`Limits::least_pool_bytes`] and at most
    /// `MAX_POOL_BYTES`.
    pub pool_bytes: u64,
    /// Most connections (queues) of the process, not counting those without a successful Connect
    /// (`UNCONNECTED`) and those of discovery controllers ([`Limits::discovery_controllers`]).
    pub connections: u32,
    /// Most connections of one address, or of one user of this machine that shares memory. At most
    /// `connections`.
    pub connections_per_host: u32,
    /// Time for a host to accept the responses and supply the data outstanding at one moment, plus
    /// one second for each `HOST_LEAST_BYTES_PER_SECOND` of them. Bounds the time that a host which
    /// reports "receiver not ready" keeps buffers from others.
    pub host_timeout: Duration,
    /// Duration from capsule to response above which a command is logged; `None` logs none.
    pub slow_command: Option<Duration>,
    /// Longest time that storage may continue commands of a lost host, reported in CQT (Base,
    /// Identify Controller), rounded up to milliseconds. Zero reports nothing.
    pub command_quiesce: Duration,
    /// CNTLIDs that controllers get. Targets that serve the same subsystem must have disjoint
    /// ranges.
    pub cntlids: CntlidRange,
}

/// Range of CNTLIDs within `CNTLID_FIRST`..=`CNTLID_LAST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CntlidRange {
    /// Lowest CNTLID of the range.
    pub first: u16,
    /// Highest CNTLID of the range, at least `first`.
    pub last: u16,
}

impl CntlidRange {
    /// Range of all assignable CNTLIDs.
    pub const ALL: Self = Self { first: CNTLID_FIRST, last: CNTLID_LAST };

    /// Number of CNTLIDs in the range.
    pub fn count(self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// CNTLID after `id`, wrapping to the first.
    pub fn next(self, id: u16) -> u16 {
        if id >= self.last { self.first } else { id + 1 }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue_depth: 128,
            io_queues: 64,
            in_capsule_data_bytes: 4096,
            max_transfer_bytes: 1 << 20,
            pool_bytes: 64 << 20,
            connections: 4096,
            connections_per_host: 2048,
            host_timeout: Duration::from_secs(10),
            slow_command: None,
            command_quiesce: Duration::ZERO,
            cntlids: CntlidRange::ALL,
        }
    }
}

impl Limits {
    /// Bytes of the largest buffer: a Compare keeps the host's data and the medium's in one.
    pub fn block_bytes(&self) -> usize {
        2 * self.max_transfer_bytes as usize
    }

    /// Most discovery controllers of the process, which any host may have: a quarter of the largest
    /// number of connections or associations, at least `DISCOVERY_CONTROLLERS_LEAST`. A newer one
    /// displaces an older one.
    pub fn discovery_controllers(&self) -> usize {
        let most = MAX_ASSOCIATIONS.min(self.connections as usize);
        (most / 4).max(DISCOVERY_CONTROLLERS_LEAST)
    }

    /// Most discovery controllers of one address or user: a quarter of all.
    pub fn discovery_controllers_per_address(&self) -> usize {
        self.discovery_controllers() / 4
    }

    /// Bytes of the smallest pool with which `cores` make progress whatever hosts do: each needs a
    /// block that is lent in turn, and a further one.
    pub fn least_pool_bytes(&self, cores: usize) -> u64 {
        (cores * POOL_LEAST_BLOCKS * self.block_bytes()) as u64
    }

    /// Exponent of the Maximum Data Transfer Size (MDTS): `max_transfer_bytes` is 4 KiB shifted
    /// left by it.
    pub fn mdts(&self) -> u8 {
        // A power of two of at least 4 KiB, by configuration.
        (self.max_transfer_bytes.trailing_zeros() as u8).saturating_sub(12)
    }
}
