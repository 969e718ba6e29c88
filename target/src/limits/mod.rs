//! Every limit of the target in one place.
//!
//! Constants are protocol bounds or protection against peers; an operator may set the [`Limits`]. A
//! peer can make the target hold at most as much as these numbers allow.

pub(crate) mod connection_quota;
pub(crate) mod displacing_set;
pub(crate) mod log_rate;
pub(crate) mod peer;

use std::time::Duration;

/// Entries of an admin queue. A host may ask for a longer one, as some do; it gets this. Doubled,
/// each association holds twice the receives for admin commands; not measured.
pub(crate) const ADMIN_QUEUE_ENTRIES: u16 = 128;
/// Associations with subsystems (controllers) that may live at once in the process. Doubled, so may
/// the memory of controllers; not measured.
pub(crate) const MAX_ASSOCIATIONS: usize = 4096;
/// Discovery controllers that there may be however few [`Limits::connections`] there are. Doubled,
/// a target with few connections holds up to 64 more connections of unauthorized hosts; not
/// measured.
pub(crate) const DISCOVERY_CONTROLLERS_LEAST: usize = 64;
/// The lowest controller id that is handed out.
pub(crate) const CNTLID_FIRST: u16 = 1;
/// The highest controller id that is handed out (NVMe-oF reserves FFF0h and above).
pub(crate) const CNTLID_LAST: u16 = 0xFFEF;
/// Asynchronous Event Requests that one controller keeps (AERL + 1). Doubled, a host may have four
/// more admin commands parked; Linux sends one. Not measured.
pub(crate) const ASYNC_EVENT_REQUESTS: usize = 4;
/// Events that one controller remembers while no request waits for them; a further one is dropped.
/// Not measured.
pub(crate) const ASYNC_EVENTS_PENDING: usize = 8;
/// Abort commands that one controller has outstanding (ACL + 1); a further one fails with Abort
/// Command Limit Exceeded. Not measured.
pub(crate) const ABORTS: usize = 4;
/// Entries of a controller's error log, 64 bytes each (ELPE + 1). Doubled, the log takes 8 KiB for
/// each controller; not measured.
pub(crate) const ERROR_LOG_ENTRIES: usize = 64;
/// Namespace ids that a changed-namespace list names before it only says "many" (NVMe Base, log
/// page 04h).
pub(crate) const CHANGED_NAMESPACES: usize = 1024;
/// Groups of namespaces with a state of their own at each port (ANAGRPMAX). Doubled, the states of
/// a port do not fit into one word any more; not measured.
pub(crate) const ANA_GROUPS: u32 = 16;
/// The most that a group is in the ANA state Change (ANATT), in whole seconds. Doubled, a host
/// waits twice as long before it gives a path up; not measured.
pub(crate) const ANA_TRANSITION: Duration = Duration::from_secs(10);
/// The highest NSID that a configuration may give.
pub(crate) const NSID_LAST: u32 = 65_536;
/// Namespaces in one process. Each is an open file; the limit of descriptors is usually reached
/// first. Not measured.
pub(crate) const MAX_NAMESPACES: usize = 65_536;
/// Namespaces with an NSID that others had before, of which a queue remembers that its host knows
/// them; for more of them it asks its controller again. Doubled, a command for one of them may
/// compare twice as many numbers; not measured.
pub(crate) const KNOWN_SUCCESSORS: usize = 16;
/// Subsystems to which more can be added while the target runs. Doubled, a client of the management
/// socket may make the target hold twice as many; not measured.
pub(crate) const MAX_SUBSYSTEMS: usize = 4096;
/// Addresses with ports that the target listens at when more are added while it runs. Doubled, a
/// client of the management socket may make it listen at twice as many; not measured.
pub(crate) const MAX_PORTS: usize = 1024;
/// The most RDMA devices that a target serves: each poll group has a transport for each.
pub(crate) const MAX_DEVICES: usize = 32;
/// Discovery services of others that hosts are told of. Doubled, a discovery log takes up to 64 KiB
/// more; not measured.
pub(crate) const MAX_REFERRALS: usize = 64;
/// Hosts that a subsystem may allow by name while it runs. Doubled, a client of the management
/// socket may make the target hold twice as much; not measured.
pub(crate) const MAX_ALLOWED_HOSTS: usize = 4096;
/// The largest buffer pool of the process. The pools of all cores number their parts of 4 KiB with
/// 32 bits.
pub(crate) const MAX_POOL_BYTES: u64 = 1 << 40;
/// Blocks of each core's buffer pool: one is lent in turn, and the others go to any request that
/// finds room. Doubled, the smallest pool has twice the size; not measured.
pub(crate) const POOL_LEAST_BLOCKS: usize = 2;
/// Data of one command of an anonymous connection: of a queue before its Connect succeeded, or of a
/// discovery controller (its MDTS). A power of two. Doubled, each core's anonymous pool has twice
/// the size; not measured.
pub const ANONYMOUS_TRANSFER_BYTES: u32 = 64 << 10;
/// Buffers of the anonymous connections of one core, beside those of [`Limits::pool_bytes`].
/// Doubled, 1 MiB more is pinned for each core, and 32 instead of 16 of the longest discovery
/// transfers run at once; not measured.
pub const ANONYMOUS_POOL_BYTES: usize = 16 * ANONYMOUS_TRANSFER_BYTES as usize;
/// Data of commands that is sent before the first of their responses, in any case. Doubled, hosts
/// get their responses later and submit the next commands later while storage is busy; not
/// measured.
pub(crate) const DATA_BEFORE_RESPONSES_BYTES: u32 = 128 << 10;
/// The same where that makes fuller trains and storage has nothing in flight, as long as it is data
/// of half of the commands that are to be answered. Reads of 16 to 128 KiB over `soft` (`cargo
/// xtask bench`) chose it: at 128 KiB, two packets of each batch ended trains early. Doubled: not
/// measured.
pub(crate) const DATA_BEFORE_RESPONSES_MAX_BYTES: u32 = 512 << 10;
/// Work completions that one core keeps room for on one device at first; the completion queue grows
/// as far as the device lets it. Doubled, each core's completion queue starts with twice the
/// memory; not measured.
pub(crate) const COMPLETIONS_PER_GROUP: u32 = 1 << 18;
/// Threads that serve, each of which is a group of every device. Doubled: queue pair numbers of
/// `soft` could not tell them apart.
pub(crate) const MAX_CORES: u16 = rdma::soft::MAX_GROUPS as u16;
/// Folders that a directory of shards may nest; a deeper one is an error. It bounds recursion
/// through mounts. Not measured.
pub(crate) const DIRECTORY_DEPTH: usize = 16;
/// Messages in the log about hosts that come, go or are refused, in each period. Doubled, a peer
/// can make the log grow twice as fast (at most 40 lines each second); not measured.
pub const PEER_MESSAGES: u32 = 200;
/// The period of [`PEER_MESSAGES`]. Doubled, a flood leaves half as many lines, and silence about
/// further hosts lasts up to 20 s; not measured.
pub const PEER_MESSAGES_PERIOD: Duration = Duration::from_secs(10);
/// Namespaces whose storage errors are in the statistics. Doubled, a line of `stats` may be twice
/// as long; not measured.
pub(crate) const NAMESPACES_REPORTED: usize = 64;
/// Peers whose errors are remembered; beyond that the one with the fewest is dropped. Doubled, the
/// table takes twice the memory; not measured.
pub(crate) const PEERS_REMEMBERED: usize = 256;
/// Peers whose errors are in the statistics. Doubled, a line of `stats` may be twice as long; not
/// measured.
pub(crate) const PEERS_REPORTED: usize = 64;
/// Granularity of the Keep Alive timer that controllers report (KAS). Doubled, timeouts are rounded
/// up to 200 ms; not measured.
pub(crate) const KEEP_ALIVE_GRANULARITY: Duration = Duration::from_millis(100);
/// Keep Alive Timeout of a discovery controller whose host asked for none. Doubled, a host that
/// vanished keeps its place for 4 minutes, unless a newer one displaces it; not measured.
pub(crate) const DISCOVERY_KEEP_ALIVE: Duration = Duration::from_secs(120);
/// The most that a connection may take from its acceptance to a successful Connect command.
/// Doubled, unauthorized connections keep their places for 10 s; not measured.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections of one device whose Connect has not succeeded yet. The oldest one is displaced when
/// there are more. Each takes 19,784 bytes of heap over `soft` at a `queue_depth` of 128
/// (`docs/decisions/038-unconnected-queues.md`). Doubled, unauthorized peers can hold twice that
/// memory; not measured.
pub(crate) const UNCONNECTED: usize = 512;
/// The same for one address, or user of this machine. Doubled, two addresses can displace all
/// others' unconnected connections instead of four; not measured.
pub const UNCONNECTED_PER_ADDRESS: usize = 128;
/// Receives of a connection until its Connect has succeeded. Only Connect is legal before. Its
/// queue pair is made for all receives, since the host is told how many commands it may send
/// (CRQSIZE, RDMA-CM private data) before it sends Connect: an RDMA device has its full work queues
/// then, while those of `soft` get their memory with the receives that are posted after Connect.
pub(crate) const UNCONNECTED_RECEIVES: u32 = 2;
/// The most that operations which storage does not end may delay the end of the target. Doubled, a
/// stop beside a hung disk takes 10 s; not measured.
pub const STORAGE_GRACE: Duration = Duration::from_secs(5);
/// The most that a core may take to begin the turn in which it follows a change of the exports,
/// before hosts are told all the same. Doubled, that takes 10 s; not measured.
pub(crate) const ADOPTION_PATIENCE: Duration = Duration::from_secs(5);
/// The most that the removal of a namespace waits for operations under way; then it goes on without
/// its caller. Doubled, a caller waits 20 s for a hung disk; not measured.
pub(crate) const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a host may leave a controller disabled (NVMe-oF: the association may then be ended).
/// Doubled, an idle association keeps its place for 4 minutes; not measured.
pub(crate) const ENABLE_TIMEOUT: Duration = Duration::from_secs(120);

/// Rate at which a host has to take or give the bytes that are outstanding, beyond
/// [`Limits::host_timeout`]. Doubled, a host may keep a buffer half as long, and hosts behind a
/// link below 16 Mbit/s are disconnected; not measured.
pub(crate) const HOST_LEAST_BYTES_PER_SECOND: u64 = 1 << 20;

/// The limits that an operator may set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of an I/O queue that a host may ask for, 2..=1024.
    pub queue_depth: u16,
    /// I/O queues of one association, 1..=1024.
    pub io_queues: u16,
    /// In-capsule data of one command, 0..=65,536 bytes, a multiple of 16.
    pub in_capsule_data_bytes: u32,
    /// Data of one command (reported as MDTS), a power of two in 4 KiB..=16 MiB.
    pub max_transfer_bytes: u32,
    /// Buffer pool of the process, at least [`Limits::least_pool_bytes`] and at most
    /// `MAX_POOL_BYTES`.
    pub pool_bytes: u64,
    /// Connections (queues) of the process, beside those whose Connect has not succeeded yet
    /// (`UNCONNECTED`) and those of discovery controllers ([`Limits::discovery_controllers`]).
    pub connections: u32,
    /// Connections of one address, or of one user of this machine that shares memory. At most
    /// `connections`.
    pub connections_per_host: u32,
    /// How long a host has to take the responses and give the data that are outstanding at one
    /// moment, and a second more for each `HOST_LEAST_BYTES_PER_SECOND` of them. A host that is
    /// not ready for a response may say so for ever, and the buffers of its commands would be kept
    /// from others for as long.
    pub host_timeout: Duration,
    /// How long a command takes that the log tells of, from its capsule to its response.
    pub slow_command: Option<Duration>,
    /// How long storage may go on with the commands of a host that is found to be lost, as
    /// controllers tell it in CQT (Base, Identify Controller), rounded up to milliseconds. Zero:
    /// they say nothing.
    pub command_quiesce: Duration,
    /// The ids that controllers get. Targets that serve one subsystem must not share any.
    pub cntlids: CntlidRange,
}

/// A range of controller ids, in `CNTLID_FIRST`..=`CNTLID_LAST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CntlidRange {
    /// The lowest id of the range.
    pub first: u16,
    /// The highest, not below the lowest.
    pub last: u16,
}

impl CntlidRange {
    /// All that controllers may have.
    pub const ALL: Self = Self { first: CNTLID_FIRST, last: CNTLID_LAST };

    /// How many ids there are.
    pub fn count(self) -> usize {
        usize::from(self.last - self.first) + 1
    }

    /// The id behind one, in turn.
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
    /// The largest buffer: a Compare keeps the host's data and the medium's in one.
    pub fn block_bytes(&self) -> usize {
        2 * self.max_transfer_bytes as usize
    }

    /// Discovery controllers of the process, which any host may have: a quarter as many as there
    /// may be connections or associations of hosts, at least `DISCOVERY_CONTROLLERS_LEAST`. A newer
    /// one takes the place of an older one.
    pub fn discovery_controllers(&self) -> usize {
        let most = MAX_ASSOCIATIONS.min(self.connections as usize);
        (most / 4).max(DISCOVERY_CONTROLLERS_LEAST)
    }

    /// Those of one address or user: a quarter of all.
    pub fn discovery_controllers_per_address(&self) -> usize {
        self.discovery_controllers() / 4
    }

    /// The smallest pool with which `cores` make progress whatever hosts do: each needs a block
    /// that is lent in turn, and another one.
    pub fn least_pool_bytes(&self, cores: usize) -> u64 {
        (cores * POOL_LEAST_BLOCKS * self.block_bytes()) as u64
    }

    /// The Maximum Data Transfer Size exponent: `max_transfer_bytes` is 4 KiB times two to the
    /// power of it.
    pub fn mdts(&self) -> u8 {
        // A power of two of at least 4 KiB, by configuration.
        (self.max_transfer_bytes.trailing_zeros() as u8).saturating_sub(12)
    }
}
