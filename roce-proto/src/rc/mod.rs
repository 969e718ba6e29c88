//! The reliable-connection queue pair: requester, responder and completer (IBTA volume 1, chapter
//! 9).
//!
//! A [`QueuePair`] does no I/O and reads no clock. Its owner
//!
//! 1. hands it the packets that came for it, [`QueuePair::handle_packet`];
//! 2. when its time has come, [`QueuePair::handle_deadline`];
//! 3. sends what it has to send, [`QueuePair::poll_transmit`], after the socket is drained, so that
//!    one acknowledgement answers many packets;
//! 4. and takes its completions, [`QueuePair::poll_completion`].
//!
//! Payload that arrives is placed through [`Memory`] while the packet is handled; payload that
//! leaves is named by key and address. [`QueuePair::new`] allocates for a few requests; a queue
//! pair allocates again when it is connected, and when it needs all that it was granted.
//!
//! Deliberate departures from the letter of the specification: the measured round trip decides
//! which packets are sent again, and when, while the specification's timeout and retry count decide
//! when the peer is given up (`retransmit_timer.rs`); after a loss one packet leaves alone before
//! the others (`requester.rs`); responses to READs are taken out of order, and only the missing
//! part is asked for again (`completer.rs`); between peers that agreed to it, RDMA WRITEs are
//! placed out of order, and only the missing packets are sent again (`received_ahead.rs`,
//! `request_repair.rs`); a refusal is repeated to a peer that did not receive
//! it, though the queue pair is in ERROR (`responder.rs`).
//!
//! Not implemented: atomics (refused as invalid requests), sending immediate data (receiving it
//! works), end-to-end credits (every acknowledgement grants unlimited ones), path migration.

mod completer;
mod completions;
mod config;
pub mod congestion;
mod counters;
mod datagram_cost;
mod memory;
mod notification;
mod outstanding_reads;
mod psn_set;
mod queue_pair;
mod read_budget;
mod read_repair;
mod received_ahead;
mod recovery;
mod recv_queue;
mod replies;
mod request_repair;
mod requester;
mod responder;
mod response_window;
mod retransmit_timer;
mod selective_ack;
mod send_queue;
mod sge;
mod shared_limits;
mod transmit;
mod window;
mod work;

#[cfg(test)]
mod tests;

pub use config::{
    ConnectionParams, INLINE_MAX_BYTES, MESSAGE_MAX_BYTES, QueuePairConfig, READS_MAX, SGE_MAX,
    WR_MAX,
};
pub use counters::QueuePairCounters;
pub use datagram_cost::datagram_cost;
pub use memory::{AccessError, LocalAccess, Memory, MemoryKey, RemoteAccess};
pub use queue_pair::{QueuePair, QueuePairState};
pub use read_budget::ReadBudget;
pub use shared_limits::SharedLimits;
pub use transmit::{PayloadPiece, Transmit};
pub use window::SendWindow;
pub use work::{
    BindWindow, CompletedWork, LocalSge, Payload, PostError, ReceivedInfo, RecvRequest, SendOp,
    SendOptions, SendRequest, WorkCompletion, WorkStatus,
};
