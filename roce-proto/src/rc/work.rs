//! Work requests and completions.

use thiserror::Error;

/// Scatter-gather element: one piece of local memory.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct LocalSge {
    /// Address of the first byte, inside a registered region.
    pub addr: u64,
    /// Length of the piece in bytes.
    pub length: u32,
    /// Local key of the region that contains the memory.
    pub lkey: u32,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Send a message to the peer's next receive.
    Send,
    /// Send as [`SendOp::Send`], and invalidate a memory window of the peer on arrival.
    SendWithInvalidate {
        /// Key of the peer's window.
        rkey: u32,
    },
    /// Write local memory to the peer's memory. Between peers with selective recovery, overlapping
    /// writes that have not completed may be placed in any order.
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
    /// Bind a memory window of this side.
    Bind(BindWindow),
    /// Invalidate a memory window of this side.
    LocalInvalidate {
        /// Remote key of the window.
        rkey: u32,
    },
}

/// The parameters of a bind. Only [`crate::rc::Memory`] interprets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindWindow {
    /// Identifier of the window, which [`crate::rc::Memory`] resolves.
    pub window: u64,
    /// The key of the window once it is bound.
    pub rkey: u32,
    /// Identifier of the region that contains the memory, which [`crate::rc::Memory`] resolves.
    pub region: u64,
    /// Address of the first byte that the peer may access.
    pub addr: u64,
    /// Number of bytes that the peer may access.
    pub length: u64,
    /// Access rights of the peer, as [`crate::rc::Memory`] defines them.
    pub access: u32,
}

/// Modifiers of a send request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Start only after earlier RDMA READs have completed.
    pub fence: bool,
    /// Report success as a completion as well; a failure is always reported.
    pub signaled: bool,
    /// Set the solicited-event bit of the message.
    pub solicited: bool,
}

/// The payload of a send request.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory to send from, or for an RDMA READ to read into. The list is copied, the
    /// memory is not.
    Regions(&'a [LocalSge]),
    /// Inline data, copied immediately; needs no key. Not for RDMA READs.
    Inline(&'a [&'a [u8]]),
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Identifier that is returned in [`WorkCompletion::wr_id`].
    pub wr_id: u64,
    /// Operation of the request, with its remote address.
    pub op: SendOp,
    /// Fence, completion and solicited event.
    pub flags: SendOptions,
    /// The payload. Ignored by [`SendOp::Bind`] and [`SendOp::LocalInvalidate`].
    pub payload: Payload<'a>,
}

/// A request for the receive queue.
///
/// The last receive queued is used first, not the oldest as the specification requires (IBTA volume
/// 1, chapter 10): a peer cannot see the difference, and the last one is most likely in the cache.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Identifier that is returned in [`WorkCompletion::wr_id`].
    pub wr_id: u64,
    /// The memory that receives one message; the list is copied, the memory is not.
    pub sges: &'a [LocalSge],
}

/// The reason why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// More scatter-gather elements than the queue pair was granted.
    #[error("more scatter-gather elements than the queue pair was granted")]
    TooManySges,
    /// The queue is full until completions have been polled.
    #[error("the queue is full")]
    QueueFull,
    /// More inline data than the queue pair was granted.
    #[error("more inline data than the queue pair was granted")]
    InlineTooLong,
    /// The request is an inline RDMA READ.
    #[error("an RDMA READ cannot be inline")]
    InlineRead,
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The `wr_id` of the request.
    pub wr_id: u64,
    /// Result of the request. If it is not [`WorkStatus::Success`], only this, `wr_id` and `work`
    /// are valid.
    pub status: WorkStatus,
    /// Kind of the completed work request.
    pub work: CompletedWork,
    /// Bytes received or read; for an RDMA WRITE with immediate data, bytes written.
    pub byte_length: u32,
    /// Immediate data or invalidated key of the received message.
    pub received: ReceivedInfo,
}

/// Immediate data or invalidated key of a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceivedInfo {
    /// Neither immediate data nor an invalidated key.
    #[default]
    Plain,
    /// Immediate data of the message.
    Immediate(u32),
    /// The key of this side that the message invalidated.
    Invalidated(u32),
}

/// The kind of a completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletedWork {
    /// A [`SendOp::Send`] or [`SendOp::SendWithInvalidate`] request.
    Send,
    /// A request with [`SendOp::RdmaWrite`].
    RdmaWrite,
    /// A request with [`SendOp::RdmaRead`].
    RdmaRead,
    /// A request with [`SendOp::Bind`].
    Bind,
    /// A request with [`SendOp::LocalInvalidate`].
    LocalInvalidate,
    /// A receive that a SEND consumed.
    Receive,
    /// A receive that an RDMA WRITE with immediate data consumed; its memory was not written.
    ReceiveWriteImmediate,
}

/// Result of a work request (IBTA volume 1, 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WorkStatus {
    /// The request was executed in full.
    #[error("success")]
    Success,
    /// A message was longer than its receive, or than the maximum message length.
    #[error("local length error")]
    LocalLength,
    /// The connection does not allow the request: an RDMA READ with an initiator depth of 0.
    #[error("local queue pair operation error")]
    LocalOperation,
    /// Local memory was not registered with the access that the request needs.
    #[error("local protection error")]
    LocalProtection,
    /// The queue pair went to ERROR before the request was done.
    #[error("flushed: the queue pair is in the error state")]
    Flushed,
    /// A window could not be bound or invalidated.
    #[error("memory window bind error")]
    WindowBind,
    /// The peer's response is invalid.
    #[error("bad response")]
    BadResponse,
    /// The peer's SEND with Invalidate has a key that it may not invalidate.
    #[error("local access error")]
    LocalAccess,
    /// The peer considered the request invalid.
    #[error("remote invalid request error")]
    RemoteInvalidRequest,
    /// The peer's memory was not registered with the access that the request needs.
    #[error("remote access error")]
    RemoteAccess,
    /// The peer could not carry out the request.
    #[error("remote operation error")]
    RemoteOperation,
    /// The peer did not answer, after all retries.
    #[error("transport retry count exceeded")]
    RetryExceeded,
    /// The peer had no receive posted, after all retries.
    #[error("receiver-not-ready retry count exceeded")]
    RnrRetryExceeded,
}
