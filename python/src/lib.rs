//! The native module `feedrail._core`: connections, registered memory and batches, for the Python
//! package `feedrail`, which wraps it.
//!
//! Every call that waits detaches from the interpreter, and attaches briefly every 100 ms to run
//! the handlers of signals. Threads of the initiator never attach.
//!
//! Not implemented: GPU memory.

mod block_on;
mod buffer;
mod checkpoint_save;
mod checkpoint_volume;
mod checksum;
mod checksums;
mod dlpack;
mod element;
mod entry;
mod entry_file;
mod errors;
mod exported;
mod foreign_bytes;
mod histogram;
mod home_only;
mod index;
mod lease;
mod lingering;
mod manifest;
mod open_shards;
mod order;
mod owner;
mod pool;
mod process;
mod rank_writer;
mod released;
mod replicas;
mod safetensors;
mod seconds;
mod secrets;
mod session;
mod shard_table;
mod shared_store;
mod signal_poll;
mod source_pieces;
mod stalls;
mod state;
mod store_errors;
mod tar_members;
mod ticket;
mod unflushed;
mod url;
mod volume_places;

use pyo3::prelude::*;

/// Connections, registered memory and batches.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::buffer::BufferObject;
    #[pymodule_export]
    use crate::checkpoint_save::CheckpointSaveObject;
    #[pymodule_export]
    use crate::checkpoint_volume::CheckpointVolumeObject;
    #[pymodule_export]
    use crate::checksums::crc32c;
    #[pymodule_export]
    use crate::entry_file::EntryFileObject;
    #[pymodule_export]
    use crate::index::{KeysObject, index_shard};
    #[pymodule_export]
    use crate::manifest::ManifestObject;
    #[pymodule_export]
    use crate::order::OrderObject;
    #[pymodule_export]
    use crate::pool::PoolObject;
    #[pymodule_export]
    use crate::process::after_fork_in_child;
    #[pymodule_export]
    use crate::rank_writer::RankWriterObject;
    #[pymodule_export]
    use crate::released::release_forgotten;
    #[pymodule_export]
    use crate::safetensors::safetensors_tensors;
    #[pymodule_export]
    use crate::session::SessionObject;
    #[pymodule_export]
    use crate::shard_table::ShardTableObject;
    #[pymodule_export]
    use crate::state::{BatchesObject, SequenceObject};
    #[pymodule_export]
    use crate::tar_members::webdataset_members;
    #[pymodule_export]
    use crate::ticket::TicketObject;
    #[pymodule_export]
    use crate::url::{format_url, parse_url};
}
