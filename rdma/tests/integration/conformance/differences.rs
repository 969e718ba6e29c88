//! Where providers may differ from each other, and what a device is known to do wrong.

use rdma::ConnectFailure;

/// The behaviour that differs between providers.
pub struct Differences {
    /// How a connection fails to come about at an address without a host.
    pub an_unreachable_peer_fails_waiting_connections: &'static [ConnectFailure],
    /// Whether a peer without a listener at the port is told from an address without a peer.
    pub tells_ports_apart: bool,
    /// Whether the group sees packets, and counts those that say receiver-not-ready.
    pub counts_packets: bool,
    /// Whether a host that goes away says goodbye to its peers all the same: the kernel does it for
    /// a process.
    pub disconnects_on_exit: bool,
    /// Whether a long RDMA WRITE is checked as a whole before its first byte is written, or packet
    /// by packet.
    pub checks_writes_at_once: bool,
    /// Whether a message goes to the receive that was queued last, not to the oldest.
    pub uses_newest_receive: bool,
    /// Deviations of the device from the specification.
    pub faults: &'static [Fault],
}

/// A provider that sees its packets.
pub const ENGINE: Differences = Differences {
    an_unreachable_peer_fails_waiting_connections: &[ConnectFailure::Refused],
    tells_ports_apart: true,
    counts_packets: true,
    disconnects_on_exit: false,
    checks_writes_at_once: false,
    uses_newest_receive: true,
    faults: &[],
};

/// Shared memory. A listener is a name of address and port, and the kernel closes what a process
/// had open.
pub const SHARED_MEMORY: Differences = Differences {
    an_unreachable_peer_fails_waiting_connections: &[ConnectFailure::NotShared],
    tells_ports_apart: false,
    disconnects_on_exit: true,
    checks_writes_at_once: true,
    ..ENGINE
};

/// Verbs on a device that does all as it should.
pub const VERBS: Differences = Differences {
    an_unreachable_peer_fails_waiting_connections: &[
        ConnectFailure::Address,
        ConnectFailure::Unreachable,
    ],
    tells_ports_apart: true,
    counts_packets: false,
    disconnects_on_exit: true,
    checks_writes_at_once: true,
    uses_newest_receive: false,
    faults: &[],
};

/// Verbs on Linux's software device.
pub const VERBS_ON_RXE: Differences = Differences { faults: &KNOWN_OF_RXE, ..VERBS };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    LocalFailureIsFlushed,
    LongMessageIsMalformed,
    RefusedInvalidateSucceeds,
    InvalidateIsNotReported,
    WindowIsItsRegion,
}

/// The deviations of rxe, seen on Linux 6.12, with the reason in its source. A case asserts it, so
/// that we hear when it changes.
const KNOWN_OF_RXE: [Fault; 5] = [
    // A request that cannot be sent puts the queue pair to ERROR before it is completed, and
    // everything that has not been completed by then is flushed: no completion tells which request
    // was wrong or why (rxe_requester, flush_send_wqe).
    Fault::LocalFailureIsFlushed,
    // A message that is longer than its receive is taken for a receive that makes no sense, because
    // copying stops at the length that is left before it stops at the end of the list (copy_data,
    // send_data_in).
    Fault::LongMessageIsMalformed,
    // The receiver refuses to invalidate what is no window, and its queue pair goes to ERROR, but
    // the sender gets an ordinary acknowledgement (rxe_responder, ERR_INVALIDATE_RKEY).
    Fault::RefusedInvalidateSucceeds,
    // The receiver's completion has its flag "with invalidate" in the bit that the kernel has for
    // it, and user space has for another (do_complete of the responder).
    Fault::InvalidateIsNotReported,
    // An access through a window is checked against the bounds of the region only (check_rkey). The
    // provider does not use windows on rxe for that; the suite makes it.
    Fault::WindowIsItsRegion,
];
