//! Controllers: the NVMe protocol above the transport.
//!
//! A [`Queue`] is the NVMe queue of one connection, owned by its core. A [`Controller`] is the
//! state that the queues of one association share: atomics, which the data path reads, and one lock
//! for the rest. Nothing here waits, reads a clock or does I/O.
//!
//! Not implemented: static controllers, PRPs, fused operations, metadata,
//! reservations, namespace management, NVM subsystem reset.

mod admin;
mod announcements;
mod association;
mod associations;
mod async_event;
mod auth_state;
mod authentication;
pub(crate) mod authenticator;
mod command;
pub(crate) mod command_trace;
mod dispatch;
mod drain;
mod error_log;
mod event;
mod fabrics;
mod features;
mod hold;
mod job_progress;
mod jobs;
mod kind;
mod life;
mod link;
mod media_reports;
mod members;
mod notices;
mod queue;
mod queue_auth;
mod stage;
mod state;
mod support;

#[cfg(test)]
mod tests;

pub use self::associations::Associations;
pub(crate) use self::auth_state::QueueAuthState;
pub use self::command::{CommandOutcome, CommandWork, Execution, IoKind, IoWork, ParsedCommand};
pub(crate) use self::command::{CommandTransfer, ControlWork, TransferDirection};
pub(crate) use self::drain::{DrainScope, Drained};
pub use self::event::QueueEvent;
pub(crate) use self::event::{AbortRequest, CloseReason, FlushJob, JobId, Quiesce};
pub(crate) use self::hold::CommandHold;
pub(crate) use self::link::Lost;
pub use self::queue::{Accepted, Queue};
pub use self::state::Controller;
