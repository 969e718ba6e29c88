//! The reliable-connection queue pair: requester, responder and completer (IBTA volume 1, chapter
//! 9).
//!
//! A [`QueuePair`] does no I/O and reads no clock. Its caller
//!
//! 1. passes received packets to [`QueuePair::handle_packet`];
//! 2. calls [`QueuePair::handle_deadline`] when its deadline has passed;
//! 3. sends the packets of [`QueuePair::poll_transmit`] once the socket is drained, so that one
//!    acknowledgement covers many packets;
//! 4. and takes completions from [`QueuePair::poll_completion`].
//!
//! Received payload is placed through [`Memory`] while the packet is handled; payload to send is
//! referred to by key and address. [`QueuePair::new`] allocates memory for a few requests; a queue
//! pair allocates again when it is connected, and when it needs the granted sizes in full.
//!
//! Deliberate deviations from the specification: retransmission depends on the measured round trip,
//! while the specification's timeout and retry count determine when the queue pair fails
//! (`retransmit_timer.rs`); after a loss one packet is sent alone before the others
//! (`requester.rs`); RDMA READ responses are accepted out of order, and only the missing part is
//! requested again (`completer.rs`); between peers that agreed on it, RDMA WRITEs are placed out of
//! order, and only missing packets are retransmitted (`received_ahead.rs`, `request_repair.rs`); a
//! NAK is repeated to a peer that did not receive it, although the queue pair is in ERROR
//! (`responder.rs`).
//!
//! Not implemented: atomics (answered as invalid requests), sending immediate data (receiving it
//! works), end-to-end credits (every acknowledgement grants unlimited credits), path migration.

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
