//! Work requests and completions.

use thiserror::Error;

/// One piece of local memory.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct LocalSge {
    /// Address of the first byte, as it was registered.
    pub addr: u64,
    /// Length of the piece in bytes.
    pub length: u32,
    /// Local key of the region that holds it.
    pub lkey: u32,
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Send to the peer's next receive.
    Send,
    /// Send as [`SendOp::Send`], and invalidate the peer's memory window when it arrives.
    SendWithInvalidate {
        /// Key of the peer's window.
        rkey: u32,
    },
    /// Write local memory to the peer's. Those that overlap and are not complete may be placed in
    /// any order, between peers that recover selectively.
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
    /// Bind a memory window of our own.
    Bind(BindWindow),
    /// Invalidate a memory window of our own.
    LocalInvalidate {
        /// Remote key of the window.
        rkey: u32,
    },
}

/// A window, the key it is to answer to, and the bytes it is to grant. Only [`crate::rc::Memory`]
/// reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindWindow {
    /// Identifier of the window, which [`crate::rc::Memory`] resolves.
    pub window: u64,
    /// The key that it has from the bind on.
    pub rkey: u32,
    /// The region that it opens.
    pub region: u64,
    /// First byte that it grants.
    pub addr: u64,
    /// Bytes that it grants.
    pub length: u64,
    /// Access rights of the peer, as [`crate::rc::Memory`] defines them.
    pub access: u32,
}

/// Modifiers of a send request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Start only when earlier RDMA READs have completed.
    pub fence: bool,
    /// Report success as well; a failure is always reported.
    pub signaled: bool,
    /// Raise the peer's solicited event.
    pub solicited: bool,
}

/// Where the bytes of a send request are.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Bytes in registered memory, or for an RDMA READ: where they go. The list is copied, the
    /// memory is not.
    Regions(&'a [LocalSge]),
    /// Bytes here: they are captured immediately and need no key. Not for RDMA READs.
    Inline(&'a [&'a [u8]]),
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Operation of the request, with its remote address.
    pub op: SendOp,
    /// Fence, completion and solicited event.
    pub flags: SendOptions,
    /// Bytes of the operation. Ignored by [`SendOp::Bind`] and [`SendOp::LocalInvalidate`].
    pub payload: Payload<'a>,
}

/// A request for the receive queue.
///
/// Of those that are queued the last is used first, not the oldest as the specification has it
/// (IBTA volume 1, chapter 10): a peer cannot tell, and the cache still has it.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where one message goes; the list is copied, the memory is not.
    pub sges: &'a [LocalSge],
}

/// The reason for which a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PostError {
    /// More scatter-gather elements than were granted.
    #[error("more scatter-gather elements than the queue pair was granted")]
    TooManySges,
    /// No room until completions have been polled.
    #[error("the queue is full")]
    QueueFull,
    /// More inline data than was granted.
    #[error("more inline data than the queue pair was granted")]
    InlineTooLong,
    /// An RDMA READ cannot be inline.
    #[error("an RDMA READ cannot be inline")]
    InlineRead,
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// Identifier given in the request.
    pub wr_id: u64,
    /// How it ended. When it is not [`WorkStatus::Success`] only this, `wr_id` and `work` mean
    /// anything.
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
    /// A remote key of our side, which is invalid now.
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
    /// A receive that took a SEND.
    Receive,
    /// A receive that was used up by an RDMA WRITE with immediate data; nothing was placed in it.
    ReceiveWriteImmediate,
}

/// How a work request ended (IBTA volume 1, 11.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WorkStatus {
    /// The request was executed in full.
    #[error("success")]
    Success,
    /// A message was longer than the receive that took it, or than any message may be.
    #[error("local length error")]
    LocalLength,
    /// The connection does not allow it: an RDMA READ where none may be outstanding.
    #[error("local queue pair operation error")]
    LocalOperation,
    /// Local memory was not registered for this.
    #[error("local protection error")]
    LocalProtection,
    /// The queue pair went to ERROR before the request was done.
    #[error("flushed: the queue pair is in the error state")]
    Flushed,
    /// A window could not be bound, or invalidated.
    #[error("memory window bind error")]
    WindowBind,
    /// The peer's answer is invalid.
    #[error("bad response")]
    BadResponse,
    /// The peer wanted a key of ours invalidated that it must not.
    #[error("local access error")]
    LocalAccess,
    /// The peer could not accept the request.
    #[error("remote invalid request error")]
    RemoteInvalidRequest,
    /// The peer's memory was not open for this.
    #[error("remote access error")]
    RemoteAccess,
    /// The peer failed to do it.
    #[error("remote operation error")]
    RemoteOperation,
    /// The peer did not answer, retries included.
    #[error("transport retry count exceeded")]
    RetryExceeded,
    /// The peer had no receive posted, retries included.
    #[error("receiver-not-ready retry count exceeded")]
    RnrRetryExceeded,
}
