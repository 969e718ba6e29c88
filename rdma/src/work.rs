//! Work requests and work completions.

use core::fmt;
use core::ops::BitOr;

use crate::{Access, RegionHandle, WindowHandle};

/// Scatter-gather element: one piece of local memory in a work request. Same layout as `struct
/// ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte, inside a registered region.
    pub addr: u64,
    /// Length of the piece in bytes.
    pub length: u32,
    /// Local key of the region that contains the memory.
    pub lkey: u32,
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Send a message to the peer's next receive.
    Send,
    /// Send as [`Op::Send`], and invalidate the memory window `rkey` of the peer on arrival.
    SendWithInvalidate {
        /// Key of the peer's window.
        rkey: u32,
    },
    /// Write local memory to the peer's memory. Writes that overlap have no defined order unless
    /// the later one is posted after the earlier one has completed.
    RdmaWrite {
        /// Address in the peer's region.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: u32,
    },
    /// Read the peer's memory into local memory.
    RdmaRead {
        /// Address in the peer's region.
        remote_addr: u64,
        /// Key of the peer's region or window.
        rkey: u32,
    },
    /// Bind a type-2 memory window of this side; see [`crate::MemoryWindow::bind`].
    Bind(Bind),
    /// Invalidate a memory window of this side.
    LocalInvalidate {
        /// The key that the latest bind gave the window.
        rkey: u32,
    },
}

/// The parameters of a bind: a window, its new key, and the memory that it grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window, which must be invalid when the bind executes.
    pub window: WindowHandle,
    /// The key of the window once it is bound.
    pub rkey: u32,
    /// The region that contains the memory.
    pub region: RegionHandle,
    /// Address of the first byte that the peer may access.
    pub addr: u64,
    /// Number of bytes that the peer may access.
    pub length: u64,
    /// Which accesses the peer may make.
    pub access: Access,
}

/// Modifiers of a send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags(u32);

impl SendFlags {
    /// No flags: only a failure is reported as a completion.
    pub const NONE: Self = Self(0);
    /// Start only after earlier RDMA READs of this queue have completed.
    pub const FENCE: Self = Self(1);
    /// Report success as a completion as well; a failure is always reported.
    pub const SIGNALED: Self = Self(2);
    /// Set the solicited-event bit of the message.
    pub const SOLICITED: Self = Self(4);
    /// The payload is copied by [`crate::Group::flush`] at the latest, so its buffer may be reused
    /// then, and it needs no key.
    pub const INLINE: Self = Self(8);

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits, as in `ibv_send_flags`.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for SendFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A request for a queue pair's send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Identifier that is returned in [`Wc::wr_id`].
    pub wr_id: u64,
    /// The operation, with the peer's address and key where it has any.
    pub op: Op,
    /// Modifiers such as [`SendFlags::SIGNALED`].
    pub flags: SendFlags,
    /// The local memory; the list is copied, the memory is not.
    pub sges: &'a [Sge],
}

/// A request for a queue pair's receive queue.
///
/// The provider decides which queued receive a message uses: an RDMA device takes the oldest, as
/// the specification requires, a software provider the newest, which is most likely in the cache.
/// So buffers become free in the order of the completions (by `wr_id`), not in the order in which
/// they were posted: a caller that reuses a ring of buffers in order may reach one that is still
/// queued.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Identifier that is returned in [`Wc::wr_id`].
    pub wr_id: u64,
    /// The memory that receives one message; the list is copied, the memory is not.
    pub sges: &'a [Sge],
}

/// A completed work request. Same layout as `struct ibv_wc`, so that a verbs provider polls
/// straight into the caller's array.
///
/// If the status is not [`WcStatus::SUCCESS`], only `wr_id`, `status`, `vendor_err` and `qpn` are
/// valid.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Wc {
    /// The `wr_id` of the work request.
    pub wr_id: u64,
    /// Whether the request succeeded, or the cause of its failure.
    pub status: WcStatus,
    /// The kind of request; valid for a success only.
    pub opcode: WcOpcode,
    /// Provider-specific detail of a failure.
    pub vendor_err: u32,
    /// Number of bytes received or read.
    pub byte_len: u32,
    imm_data_or_rkey: u32,
    /// The queue pair's number.
    pub qpn: u32,
    src_qp: u32,
    flags: u32,
    pkey_index: u16,
    slid: u16,
    sl: u8,
    dlid_path_bits: u8,
}

const _: () = assert!(size_of::<Wc>() == 48 && size_of::<Sge>() == 16);

impl Wc {
    const WITH_INVALIDATE: u32 = 8;

    /// Creates a completion of a software provider.
    pub fn new(wr_id: u64, qpn: u32, status: WcStatus, opcode: WcOpcode, byte_len: u32) -> Self {
        Self { wr_id, qpn, status, opcode, byte_len, ..Self::default() }
    }

    /// Returns the completion with the note that the peer's SEND with Invalidate invalidated
    /// `rkey`.
    pub fn with_invalidated(self, rkey: u32) -> Self {
        Self { imm_data_or_rkey: rkey, flags: self.flags | Self::WITH_INVALIDATE, ..self }
    }

    /// Whether the work request succeeded.
    pub fn is_success(&self) -> bool {
        self.status == WcStatus::SUCCESS
    }

    /// The key of this side that the peer's SEND with Invalidate invalidated, if any.
    pub fn invalidated(&self) -> Option<u32> {
        (self.is_success() && self.flags & Self::WITH_INVALIDATE != 0)
            .then_some(self.imm_data_or_rkey)
    }
}

/// Result of a work request: the values of `enum ibv_wc_status`.
#[repr(transparent)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct WcStatus(pub u32);

macro_rules! wc_status {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl WcStatus {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }

        impl fmt::Display for WcStatus {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str($text),)*
                    Self(other) => write!(f, "work completion status {other}"),
                }
            }
        }
    };
}

wc_status! {
    /// The request was carried out.
    SUCCESS = 0, "success";
    /// A message was longer than the receive that it used, or than the path supports.
    LOCAL_LENGTH_ERROR = 1, "local length error";
    /// The queue pair could not carry out the request.
    LOCAL_QP_OPERATION_ERROR = 2, "local queue pair operation error";
    /// Local memory was not registered with the access that the request needs.
    LOCAL_PROTECTION_ERROR = 4, "local protection error";
    /// The queue pair went to ERROR before the request was done.
    FLUSHED = 5, "flushed: the queue pair is in the error state";
    /// A window could not be bound.
    WINDOW_BIND_ERROR = 6, "memory window bind error";
    /// The peer's response was invalid.
    BAD_RESPONSE = 7, "bad response";
    /// A local access error during a remote operation.
    LOCAL_ACCESS_ERROR = 8, "local access error";
    /// The peer considered the request invalid.
    REMOTE_INVALID_REQUEST = 9, "remote invalid request error";
    /// The peer's memory was not registered with the access that the request needs.
    REMOTE_ACCESS_ERROR = 10, "remote access error";
    /// The peer could not carry out the request.
    REMOTE_OPERATION_ERROR = 11, "remote operation error";
    /// The peer did not answer, after all retries.
    RETRY_EXCEEDED = 12, "transport retry count exceeded";
    /// The peer had no receive posted, after all retries.
    RNR_RETRY_EXCEEDED = 13, "receiver-not-ready retry count exceeded";
    /// The device is in a fatal state (`IBV_WC_FATAL_ERR`).
    FATAL = 19, "fatal device error";
    /// An error that no other status describes.
    GENERAL = 21, "general error";
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The kind of a completed work request: the values of `enum ibv_wc_opcode`.
#[repr(transparent)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct WcOpcode(pub u32);

impl WcOpcode {
    /// A send: [`Op::Send`] or [`Op::SendWithInvalidate`].
    pub const SEND: Self = Self(0);
    /// A write: [`Op::RdmaWrite`], acknowledged by the peer.
    pub const RDMA_WRITE: Self = Self(1);
    /// A read: [`Op::RdmaRead`], whose data was placed.
    pub const RDMA_READ: Self = Self(2);
    /// A bind: [`Op::Bind`] has taken effect.
    pub const BIND_WINDOW: Self = Self(5);
    /// An invalidation: [`Op::LocalInvalidate`] has taken effect.
    pub const LOCAL_INVALIDATE: Self = Self(6);
    /// A receive that a SEND of the peer consumed.
    pub const RECV: Self = Self(128);
    /// A receive that an RDMA WRITE with immediate data of the peer consumed.
    pub const RECV_RDMA_WITH_IMM: Self = Self(129);
}
