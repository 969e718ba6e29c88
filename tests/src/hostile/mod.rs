//! Peers that break every rule, over real sockets: hosts for the daemon to bear, and targets for
//! the initiator.

mod figures;
mod host;
mod target;
mod witness;

pub use figures::{Figures, Score, Side};
pub use host::{Association, HostileHost, QueueKey, read, write};
pub use target::{HostileTarget, Manner};
pub use witness::Witness;
