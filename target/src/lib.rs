//! NVMe over Fabrics target: exports files, block devices and memory over RDMA.
//!
//! A [`Config`] has the exports and addresses; [`Target`] serves them on its own threads until it
//! is stopped. [`daemon`] is the process `feedrail-target`, [`stepped`] is a target for simulators,
//! and [`backend`] is the interface of a namespace to its medium.
//!
//! ```no_run
//! use std::path::Path;
//! use std::time::Duration;
//!
//! use feedrail_target::{Config, Target};
//!
//! let config = Config::from_file(Path::new("/etc/feedrail/target.toml"), None)?;
//! let target = Target::start(&config)?;
//! for listening in target.listening() {
//!     println!("{} by {}", listening.address, listening.provider);
//! }
//! println!("{}", target.stats().to_json_line());
//! target.drain(Duration::from_secs(5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate has two halves, which meet in the module `controller`. *The rules of NVMe*: the
//! `inventory` opens a configuration as subsystems, namespaces and ports, and a queue of
//! `controller` per connection decodes and checks each command. *The transfer of data*: a
//! `poll_group` per core drives its `transport`s and its `storage`, with the time, storage and
//! buffers of its `core_context`; backends know only bytes and offsets. `driver` has the threads
//! around both.
//!
//! Not implemented: authentication and encryption, reservations, namespace management by hosts,
//! Format NVM, Sanitize, fused operations, Copy, metadata and protection information, zoned
//! namespaces, and other transports than RDMA.

mod applied_config;
pub mod backend;
pub mod config;
mod confinement;
mod controller;
mod core_context;
pub mod daemon;
mod deliberate_bugs;
mod derived_ids;
mod doorbell;
mod driver;
mod inventory;
mod limits;
mod listen_error;
mod listen_retries;
mod listeners;
mod listening;
mod log_level;
mod management;
mod metrics;
mod poll_group;
mod qos;
mod reloader;
mod status;
mod storage;
mod sync;
mod target;
mod transport;

pub use self::config::{Config, ConfigError, Quick};
pub use self::listening::{Listening, NotListening};
pub use self::metrics::snapshot::{
    CacheStats, IoStats, PeerErrors, PoolStats, Stats, StorageErrors, SystemCallStats,
};
pub use self::target::{StartError, Target};
pub use rdma::{CounterInfo, CounterSet};

/// Example configuration file in TOML with every key, each with a comment.
pub const EXAMPLE_CONFIGURATION: &str = include_str!("../examples/feedrail.toml");

/// Error types that a [`StartError`] contains.
pub mod error {
    pub use crate::backend::open_error::OpenError;
    pub use crate::driver::threads::RuntimeError;
    pub use crate::inventory::error::ExportError;
    pub use crate::inventory::persist::nsid::NsidFileError;
    pub use crate::inventory::persist::protection::ProtectionError;
    pub use crate::inventory::shard_directory::DirectoryError;
    pub use crate::listen_error::AddressError;
    pub use crate::listen_error::{AddError, ListenError};
    pub use crate::management::SocketError;
    pub use crate::storage::UringError;
}

pub mod stepped {
    //! Target without threads and clock, which its caller drives, for simulators.
    //!
    //! An [`Inventory`] opens the exports of a configuration, an [`Assembly`] adds devices to it,
    //! and [`Stepped`] does everything that is due at the given time. Each core has an [`Engine`]
    //! for the system calls of its backends.

    pub use crate::config::{QosLimits, QosOverride};
    pub use crate::controller::{Associations, Controller};
    pub use crate::driver::assembly::Assembly;
    pub use crate::driver::stepped::{LiveChange, Stepped};
    pub use crate::inventory::Inventory;
    pub use crate::inventory::open::{Decorate, OpenPurpose};
    pub use crate::inventory::port::Port;
    pub use crate::poll_group::{PollGroupStats, Turn};
    pub use crate::storage::{CallId, Engine, EngineEvent, EngineStats, Inline};
    pub use crate::transport::Stop;
}

/// Items for the tests, fuzzers and benchmarks of this workspace, which may change at any time.
#[doc(hidden)]
pub mod testing {
    pub use crate::backend::decorator::{Delay, Fault, FaultPlan};
    pub use crate::backend::file::FileBackend;
    pub use crate::backend::memory::MemoryBackend;
    pub use crate::controller::{
        Accepted, CommandOutcome, CommandWork, Execution, IoKind, IoWork, ParsedCommand, Queue,
        QueueEvent,
    };
    pub use crate::core_context::events::BufferEvent;
    pub use crate::core_context::{OperationOwner, RequestKey, SlotId};
    pub use crate::limits::peer::{Party, PeerOrigin, RemotePeer};
    pub use crate::limits::{
        ANONYMOUS_POOL_BYTES, ANONYMOUS_TRANSFER_BYTES, PEER_MESSAGES, PEER_MESSAGES_PERIOD,
        STORAGE_GRACE, UNCONNECTED_PER_ADDRESS,
    };
    pub use crate::storage::{BufferRegistration, Uring};

    /// Deliberate bugs for tests of the simulator.
    pub mod deliberate_bugs {
        pub use crate::deliberate_bugs::{Bug, set};
    }
}
