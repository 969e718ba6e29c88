//! Errors, and the subsystem, namespace and range that each concerns.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::log::{DiscoveryEntry, TransportType};
use nvme_proto::{CommandStatus, ConnectStatus, Nqn, Nsid, Status};

use crate::driver::process::Forked;

/// A subsystem at an address: what a host connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubsystemAddress {
    /// IP address and RDMA service port; 4420 is usual.
    pub address: SocketAddr,
    /// The NVMe qualified name (SUBNQN) of the subsystem.
    pub nqn: Nqn,
}

impl TryFrom<&DiscoveryEntry> for SubsystemAddress {
    type Error = Error;

    /// The subsystem that an entry of a discovery log page names, if it is reached over RDMA at an
    /// IP address.
    fn try_from(entry: &DiscoveryEntry) -> Result<Self, Error> {
        if entry.trtype != TransportType::RDMA {
            return Err(ErrorKind::Unsupported("a transport other than RDMA").into());
        }
        let malformed = |what| Error::from(ErrorKind::Malformed(what));
        let ip = entry.traddr.text().and_then(|text| text.parse().ok());
        let ip: IpAddr = ip.ok_or_else(|| malformed("TRADDR is no IP address"))?;
        let port = entry.trsvcid.text().and_then(|text| text.parse().ok());
        let port: u16 = port.ok_or_else(|| malformed("TRSVCID is no port"))?;
        let nqn = entry.subnqn.parse().map_err(|_| malformed("SUBNQN is no NQN"))?;
        Ok(Self { address: SocketAddr::new(ip, port), nqn })
    }
}

impl fmt::Display for SubsystemAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.nqn, self.address)
    }
}

/// An operation that failed: what went wrong, and what it was about.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    about: Option<Arc<SubsystemAddress>>,
    nsid: Option<Nsid>,
    range: Option<(u64, u64)>,
    attempts: u32,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self { kind, about: None, nsid: None, range: None, attempts: 0 }
    }

    /// The kind of error; the subsystem, namespace and range have methods of their own.
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }

    /// Which of the three families it belongs to.
    pub fn family(&self) -> ErrorFamily {
        self.kind.family()
    }

    /// The subsystem it concerns.
    pub fn target(&self) -> Option<&SubsystemAddress> {
        self.about.as_deref()
    }

    /// The namespace it concerns.
    pub fn nsid(&self) -> Option<Nsid> {
        self.nsid
    }

    /// First byte of the range it concerns, counted from the beginning of the namespace.
    pub fn offset(&self) -> Option<u64> {
        self.range.map(|(offset, _)| offset)
    }

    /// Bytes of the range it concerns.
    pub fn length(&self) -> Option<u64> {
        self.range.map(|(_, length)| length)
    }

    /// Times that the range was begun; 0 if no command was sent, and for what is not a range.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Whether the same may succeed later, or with another target that has the same bytes, without
    /// anything being opened again.
    pub fn is_retryable(&self) -> bool {
        match &self.kind {
            ErrorKind::Status(status) => !status.do_not_retry(),
            ErrorKind::Unreachable(_)
            | ErrorKind::ConnectionLost(_)
            | ErrorKind::Lost { .. }
            | ErrorKind::TimedOut { .. }
            | ErrorKind::Cancelled => true,
            _ => false,
        }
    }

    /// True if the subsystem has no such namespace: it was never there, or was removed.
    pub fn is_no_namespace(&self) -> bool {
        match &self.kind {
            ErrorKind::NoNamespace(_) => true,
            ErrorKind::Status(status) => status.is(Status::INVALID_NAMESPACE_OR_FORMAT),
            _ => false,
        }
    }

    /// Whether the same may succeed over another path to the namespace: there was no connection, or
    /// the status is a path related one (Base, 4.2.3.4).
    pub(crate) fn is_of_path(&self) -> bool {
        match &self.kind {
            ErrorKind::Status(status) => status.is_path_related(),
            ErrorKind::Unreachable(_)
            | ErrorKind::ConnectRefused { .. }
            | ErrorKind::Rejected(_)
            | ErrorKind::Unsupported(_)
            | ErrorKind::ConnectionLost(_)
            | ErrorKind::Lost { .. } => true,
            _ => false,
        }
    }

    /// The NVMe status that the controller answered, if that is what went wrong.
    pub fn status(&self) -> Option<Status> {
        match self.kind {
            ErrorKind::Status(status) => Some(status),
            _ => None,
        }
    }

    pub(crate) fn of_target(mut self, target: &Arc<SubsystemAddress>) -> Self {
        self.about.get_or_insert_with(|| Arc::clone(target));
        self
    }

    pub(crate) fn of_namespace(mut self, nsid: Nsid) -> Self {
        self.nsid.get_or_insert(nsid);
        self
    }

    pub(crate) fn of_attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    pub(crate) fn of_range(mut self, offset: u64, length: u64) -> Self {
        self.range = Some((offset, length));
        self
    }
}

impl From<ErrorKind> for Error {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl From<Forked> for Error {
    fn from(_: Forked) -> Self {
        Self::new(ErrorKind::Forked)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::new(ErrorKind::Io(Arc::new(error)))
    }
}

impl From<nvme_proto::Truncated> for Error {
    fn from(_: nvme_proto::Truncated) -> Self {
        Self::new(ErrorKind::Malformed("a data structure is shorter than specified"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((offset, length)) = self.range {
            write!(f, "{length} bytes at {offset}")?;
            f.write_str(if self.nsid.is_some() { " of " } else { ": " })?;
        }
        if let Some(nsid) = self.nsid {
            write!(f, "namespace {nsid}")?;
            f.write_str(if self.about.is_some() { " of " } else { ": " })?;
        }
        if let Some(target) = &self.about {
            write!(f, "{target}: ")?;
        }
        fmt::Display::fmt(&self.kind, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // Our text has theirs in it, so what follows is what is behind them.
        match &self.kind {
            ErrorKind::Io(error) => error.source(),
            ErrorKind::Lost { cause, .. } => cause.source(),
            _ => None,
        }
    }
}

/// The side at which an error arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorFamily {
    /// Something the peer sent could not be decoded.
    Undecodable,
    /// The peer refused, or broke a rule.
    Peer,
    /// Something failed on this side, or between the two.
    Local,
}

/// The kind of an error, with its details.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The peer sent something that cannot be decoded.
    #[error("undecodable answer: {0}")]
    Malformed(&'static str),
    /// The peer broke a rule of the specification.
    #[error("the target broke the protocol: {0}")]
    Protocol(&'static str),
    /// The controller answered with an error status.
    #[error("{}", CommandStatus(*.0))]
    Status(Status),
    /// The controller answered Connect with an error status.
    #[error("connect refused: {}{field}", ConnectStatus(*status))]
    ConnectRefused {
        /// The status that the controller answered.
        status: Status,
        /// The field that the controller did not accept.
        field: RefusedField,
    },
    /// The target does not want the RDMA connection.
    #[error("connection rejected: {0}")]
    Rejected(String),
    /// The target has something that this initiator cannot use.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The subsystem has no such namespace, or has it no longer.
    #[error("{0}")]
    NoNamespace(&'static str),
    /// A namespace is not the one that it was when it was opened: nothing is read from it or
    /// written to it from then on.
    #[error("the namespace changed: {0}; open it again to use it as it is now")]
    Changed(String),
    /// No RDMA connection to the address could be made.
    #[error("cannot connect: {0}")]
    Unreachable(UnreachableCause),
    /// No RDMA device can serve the address, or it cannot be opened.
    #[error("{0}")]
    Device(String),
    /// The connection broke, for the reason in the text.
    #[error("connection lost: {0}")]
    ConnectionLost(&'static str),
    /// The target is gone, and did not come back in time.
    #[error("target lost, not back after {} s: {cause}", after.as_secs_f32())]
    Lost {
        /// How long it was tried.
        after: Duration,
        /// Why the last attempt failed.
        cause: Box<Error>,
    },
    /// No result before the deadline.
    #[error("no result within {} s", after.as_secs_f32())]
    TimedOut {
        /// How long was waited.
        after: Duration,
    },
    /// The range is not within the namespace.
    #[error("beyond the end: the namespace has {size_bytes} bytes")]
    OutOfRange {
        /// Size of the namespace in bytes.
        size_bytes: u64,
    },
    /// The operation works on whole logical blocks only.
    #[error("not a multiple of the logical block of {block_bytes} bytes")]
    Unaligned {
        /// Bytes of a logical block.
        block_bytes: u64,
    },
    /// An argument makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// The host or controller was closed.
    #[error("closed")]
    Closed,
    /// The plan was cancelled before the range had ended.
    #[error("cancelled")]
    Cancelled,
    /// This process was forked from the one that opened the host, which keeps its connections
    /// undisturbed.
    #[error(
        "this process was forked from the one that opened the host, and cannot use its connections: open a new Host after \
         the fork, in the process that reads"
    )]
    Forked,
    /// The system refused something.
    #[error("{0}")]
    Io(Arc<io::Error>),
}

impl ErrorKind {
    /// Which of the three families it belongs to.
    pub fn family(&self) -> ErrorFamily {
        match self {
            Self::Malformed(_) => ErrorFamily::Undecodable,
            Self::Protocol(_)
            | Self::Status(_)
            | Self::ConnectRefused { .. }
            | Self::Rejected(_)
            | Self::Unsupported(_)
            | Self::NoNamespace(_)
            | Self::Changed(_) => ErrorFamily::Peer,
            Self::Unreachable(_)
            | Self::Device(_)
            | Self::ConnectionLost(_)
            | Self::Lost { .. }
            | Self::TimedOut { .. }
            | Self::OutOfRange { .. }
            | Self::Unaligned { .. }
            | Self::Invalid(_)
            | Self::Closed
            | Self::Cancelled
            | Self::Forked
            | Self::Io(_) => ErrorFamily::Local,
        }
    }
}

/// Why no RDMA connection could be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnreachableCause {
    /// The address does not lead anywhere.
    #[error("the address cannot be resolved")]
    Address,
    /// There is no route to the address.
    #[error("no route to the address")]
    Route,
    /// An ICMP error refused the packets: no RoCE v2 endpoint is open at the address.
    #[error(
        "nothing answers RoCE at the address; start a target there, or look whether the address is \
         right"
    )]
    Refused,
    /// No process of this machine listens at the address in shared memory.
    #[error(
        "nothing shares memory at the address; start a target there, on this machine, with \
         `--provider shm`"
    )]
    NotShared,
    /// The process that listens at the address in shared memory is another user's.
    #[error(
        "another user's process has the address in shared memory; run target and host as one user"
    )]
    Untrusted,
    /// No answer within the retries.
    #[error(
        "no answer; look whether the address is right, a target runs there, and UDP port 4791 is open \
         in both directions"
    )]
    NoAnswer,
    /// No answer within the retries at a UDP port other than 4791, which something else has at this
    /// address of this machine: peers that are not Feedrail answer at 4791 only.
    #[error(
        "no answer; UDP port 4791 of this machine's address {0} is taken by {owner}, and only targets \
         of Feedrail answer at another port: free it or connect from another address, and look \
         whether the target's address is right and it runs", owner = rdma::soft::roce_port_owner(*.0)
    )]
    PortTaken(IpAddr),
    /// The peer gave the connection up before it was established.
    #[error("the peer gave the connection up")]
    GivenUp,
    /// The peer was restarted and does not know the connection, or its answer makes no sense.
    #[error("the peer does not know the connection")]
    Stale,
}

/// The field of a Connect that a controller did not accept. Shown behind the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedField {
    /// The NQN of the subsystem.
    #[error(": there is no subsystem of this name")]
    Subsystem,
    /// The NQN of the host.
    #[error(": the subsystem does not allow this host NQN")]
    Host,
    /// Another field of the Connect data.
    #[error(": a field of the Connect data is not accepted")]
    Data,
    /// A field of the Connect command.
    #[error(": a field of the Connect command is not accepted")]
    Command,
    /// None: the status says why.
    #[error("")]
    None,
}

impl UnreachableCause {
    pub(crate) fn of(failure: rdma::ConnectFailure) -> Self {
        match failure {
            rdma::ConnectFailure::Address => Self::Address,
            rdma::ConnectFailure::Route => Self::Route,
            rdma::ConnectFailure::Refused => Self::Refused,
            rdma::ConnectFailure::NotShared => Self::NotShared,
            rdma::ConnectFailure::Untrusted => Self::Untrusted,
            rdma::ConnectFailure::GivenUp => Self::GivenUp,
            rdma::ConnectFailure::Stale => Self::Stale,
            rdma::ConnectFailure::PortTaken(address) => Self::PortTaken(address),
            // `Unreachable`, and what later versions of `rdma` may tell apart from it.
            _ => Self::NoAnswer,
        }
    }
}
