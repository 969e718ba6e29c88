//! Hosts and targets made of bare queue pairs, for tests and fuzzers of the other side.
//!
//! A peer of this crate keeps no rule of NVMe over Fabrics by itself: a test decides which private
//! data, capsules and RDMA operations it sends, and which receives it posts. What the peers have is
//! the mechanics: devices, connections, memory, and the way from a completion to the bytes that
//! arrived. They work over any provider, and read no clock.
//!
//! [`RawHost`] connects and sends command capsules. [`RawTarget`] accepts, and sends whatever it
//! likes. Both are a [`RawPeer`], which is what tests use that are neither.

mod host;
mod memory;
mod peer;
mod target;

pub use host::{RawHost, RawHostShape, RawLink, RawLinkState, RawReceives};
pub use memory::RawMemory;
pub use peer::{PeerEvent, RawPeer, RawPeerShape};
pub use target::{RawPiece, RawTarget, RawTargetEvent, RawTargetShape};
