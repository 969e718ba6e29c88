//! Errors, with the subsystem, namespace and range that each concerns.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::log::{DiscoveryEntry, TransportType};
use nvme_proto::{CommandStatus, ConnectStatus, Nqn, Nsid, Status};

use crate::driver::process::Forked;
use crate::types::authentication_failure::AuthenticationFailure;

/// Address and NQN of a subsystem, to which a host connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubsystemAddress {
    /// IP address and port of the RDMA service; 4420 is the usual port.
    pub address: SocketAddr,
    /// The NVMe qualified name (SUBNQN) of the subsystem.
    pub nqn: Nqn,
}

impl TryFrom<&DiscoveryEntry> for SubsystemAddress {
    type Error = Error;

    /// Returns the address of the subsystem of a Discovery Log Page entry.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a transport other than RDMA, [`ErrorKind::Malformed`] if
    /// TRADDR is not an IP address, TRSVCID not a port, or SUBNQN not an NQN.
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

/// Error of an operation: its kind, and the subsystem, namespace and range that it concerns.
///
/// It is one pointer, since the result of each range passes through several calls.
#[derive(Clone, Debug)]
pub struct Error(Box<ErrorParts>);

#[derive(Clone, Debug)]
struct ErrorParts {
    kind: ErrorKind,
    about: Option<Arc<SubsystemAddress>>,
    nsid: Option<Nsid>,
    range: Option<(u64, u64)>,
    attempts: u32,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind) -> Self {
        Self(Box::new(ErrorParts { kind, about: None, nsid: None, range: None, attempts: 0 }))
    }

    /// Returns the kind of error, which does not include the subsystem, namespace and range.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Returns the family of the error's kind: undecodable data, an error of the peer, or a local
    /// one.
    pub fn family(&self) -> ErrorFamily {
        self.0.kind.family()
    }

    /// Returns the subsystem that the error concerns, if it concerns one.
    pub fn target(&self) -> Option<&SubsystemAddress> {
        self.0.about.as_deref()
    }

    /// Returns the namespace that the error concerns, if it concerns one.
    pub fn nsid(&self) -> Option<Nsid> {
        self.0.nsid
    }

    /// Returns the first byte of the range that failed, counted from the beginning of the
    /// namespace.
    pub fn offset(&self) -> Option<u64> {
        self.0.range.map(|(offset, _)| offset)
    }

    /// Returns the length in bytes of the range that failed.
    pub fn length(&self) -> Option<u64> {
        self.0.range.map(|(_, length)| length)
    }

    /// Returns how often the range was started; 0 if no command was sent, or no range failed.
    pub fn attempts(&self) -> u32 {
        self.0.attempts
    }

    /// Returns whether the same operation may succeed later, or on another target that has the same
    /// bytes, without opening the namespace again.
    pub fn is_retryable(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Status(status) => !status.do_not_retry(),
            ErrorKind::Authentication { reason } => !reason.is_final(),
            ErrorKind::Unreachable(_)
            | ErrorKind::ConnectionLost(_)
            | ErrorKind::Lost { .. }
            | ErrorKind::TimedOut { .. }
            | ErrorKind::Cancelled => true,
            _ => false,
        }
    }

    /// Returns whether the subsystem has no such namespace: it never existed, or was removed.
    pub fn is_no_namespace(&self) -> bool {
        match &self.0.kind {
            ErrorKind::NoNamespace(_) => true,
            ErrorKind::Status(status) => status.is(Status::INVALID_NAMESPACE_OR_FORMAT),
            _ => false,
        }
    }

    /// Returns whether the operation may succeed over another path to the namespace: there was no
    /// connection, or the status is a path related one (Base, 4.2.3.4).
    pub(crate) fn is_of_path(&self) -> bool {
        match &self.0.kind {
            ErrorKind::Status(status) => status.is_path_related(),
            ErrorKind::Unreachable(_)
            | ErrorKind::ConnectRefused { .. }
            | ErrorKind::Rejected(_)
            | ErrorKind::Authentication { .. }
            | ErrorKind::Unsupported(_)
            | ErrorKind::ConnectionLost(_)
            | ErrorKind::Lost { .. } => true,
            _ => false,
        }
    }

    /// Returns the NVMe status of the controller's response, if that is the kind of the error.
    pub fn status(&self) -> Option<Status> {
        match self.0.kind {
            ErrorKind::Status(status) => Some(status),
            _ => None,
        }
    }

    pub(crate) fn of_target(mut self, target: &Arc<SubsystemAddress>) -> Self {
        self.0.about.get_or_insert_with(|| Arc::clone(target));
        self
    }

    pub(crate) fn of_namespace(mut self, nsid: Nsid) -> Self {
        self.0.nsid.get_or_insert(nsid);
        self
    }

    pub(crate) fn of_attempts(mut self, attempts: u32) -> Self {
        self.0.attempts = attempts;
        self
    }

    pub(crate) fn of_range(mut self, offset: u64, length: u64) -> Self {
        self.0.range = Some((offset, length));
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
        if let Some((offset, length)) = self.0.range {
            write!(f, "{length} bytes at {offset}")?;
            f.write_str(if self.0.nsid.is_some() { " of " } else { ": " })?;
        }
        if let Some(nsid) = self.0.nsid {
            write!(f, "namespace {nsid}")?;
            f.write_str(if self.0.about.is_some() { " of " } else { ": " })?;
        }
        if let Some(target) = &self.0.about {
            write!(f, "{target}: ")?;
        }
        fmt::Display::fmt(&self.0.kind, f)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // The text of `self` contains the text of that error, so its source comes next in the
        // chain.
        match &self.0.kind {
            ErrorKind::Io(error) => error.source(),
            ErrorKind::Lost { cause, .. } => cause.source(),
            _ => None,
        }
    }
}

/// Side on which an error arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorFamily {
    /// The peer sent data that could not be decoded.
    Undecodable,
    /// The peer refused the operation, or violated the protocol.
    Peer,
    /// The error arose on this host, or in the network.
    Local,
}

/// The kind of an error, with its details.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The peer sent data that cannot be decoded; the text says which.
    #[error("undecodable answer: {0}")]
    Malformed(&'static str),
    /// The peer violated the specification; the text says how.
    #[error("the target broke the protocol: {0}")]
    Protocol(&'static str),
    /// The controller completed a command with an error status.
    #[error("{}", CommandStatus(*.0))]
    Status(Status),
    /// The controller completed a Connect command with an error status.
    #[error("connect refused: {}{field}", ConnectStatus(*status))]
    ConnectRefused {
        /// The status of the Connect response.
        status: Status,
        /// The field that the controller did not accept, as the response reports it.
        field: RefusedField,
    },
    /// The target rejected the RDMA connection, for the reason in the text.
    #[error("connection rejected: {0}")]
    Rejected(String),
    /// In-band authentication failed (DH-HMAC-CHAP).
    #[error("authentication failed: {reason}")]
    Authentication {
        /// The reason, with what to do.
        reason: AuthenticationFailure,
    },
    /// The target requires or reports a feature that this initiator does not support.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The subsystem has no such namespace, or no longer has it.
    #[error("{0}")]
    NoNamespace(&'static str),
    /// The namespace is not the one that was opened, so that all further reads and writes fail.
    #[error("the namespace changed: {0}; open it again to use it as it is now")]
    Changed(String),
    /// No RDMA connection to the address could be established.
    #[error("cannot connect: {0}")]
    Unreachable(UnreachableCause),
    /// No RDMA device can reach the address, or the device cannot be opened.
    #[error("{0}")]
    Device(String),
    /// The connection was lost, for the reason in the text.
    #[error("connection lost: {0}")]
    ConnectionLost(&'static str),
    /// The connection was lost, and was not established again in time.
    #[error("target lost, not back after {} s: {cause}", after.as_secs_f32())]
    Lost {
        /// The time that the operation waited for the connection.
        after: Duration,
        /// Error of the last attempt to connect.
        cause: Box<Error>,
    },
    /// The operation had no result before its deadline.
    #[error("no result within {} s", after.as_secs_f32())]
    TimedOut {
        /// The time from the beginning of the operation to its deadline.
        after: Duration,
    },
    /// The range extends beyond the end of the namespace.
    #[error("beyond the end: the namespace has {size_bytes} bytes")]
    OutOfRange {
        /// Size of the namespace in bytes.
        size_bytes: u64,
    },
    /// The operation takes whole logical blocks only, and offset or length is not a multiple of
    /// them.
    #[error("not a multiple of the logical block of {block_bytes} bytes")]
    Unaligned {
        /// Size of a logical block in bytes.
        block_bytes: u64,
    },
    /// An argument is not valid; the text says which.
    #[error("{0}")]
    Invalid(&'static str),
    /// The host or the controller was closed.
    #[error("closed")]
    Closed,
    /// The plan was cancelled before the range ended.
    #[error("cancelled")]
    Cancelled,
    /// The calling process was forked from the one that opened the host. The connections of the
    /// parent are not affected.
    #[error(
        "this process was forked from the one that opened the host, and cannot use its connections: open a new Host after \
         the fork, in the process that reads"
    )]
    Forked,
    /// A system call failed.
    #[error("{0}")]
    Io(Arc<io::Error>),
}

impl ErrorKind {
    /// Returns the family that this kind belongs to.
    pub fn family(&self) -> ErrorFamily {
        match self {
            Self::Malformed(_) => ErrorFamily::Undecodable,
            Self::Protocol(_)
            | Self::Status(_)
            | Self::ConnectRefused { .. }
            | Self::Rejected(_)
            | Self::Authentication { .. }
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

/// Reason why no RDMA connection could be established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnreachableCause {
    /// The address could not be resolved.
    #[error("the address cannot be resolved")]
    Address,
    /// There is no route to the address.
    #[error("no route to the address")]
    Route,
    /// An ICMP error was received: no RoCE v2 endpoint is open at the address.
    #[error(
        "nothing answers RoCE at the address; start a target there, or look whether the address is \
         right"
    )]
    Refused,
    /// No process of this machine listens at the address with the provider `shm`.
    #[error(
        "nothing shares memory at the address; start a target there, on this machine, with \
         `--provider shm`"
    )]
    NotShared,
    /// The process that listens at the address with the provider `shm` runs as another user.
    #[error(
        "another user's process has the address in shared memory; run target and host as one user"
    )]
    Untrusted,
    /// The peer did not answer any of the retries.
    #[error(
        "no answer; look whether the address is right, a target runs there, and UDP port 4791 is open \
         in both directions"
    )]
    NoAnswer,
    /// The peer did not answer any of the retries, and this host sent from a UDP port other than
    /// 4791, because another program uses 4791 at the local address. Peers other than Feedrail
    /// answer at 4791 only.
    #[error(
        "no answer; UDP port 4791 of this machine's address {0} is taken by {owner}, and only targets \
         of Feedrail answer at another port: free it or connect from another address, and look \
         whether the target's address is right and it runs", owner = rdma::soft::roce_port_owner(*.0)
    )]
    PortTaken(IpAddr),
    /// The peer aborted the connection before it was established.
    #[error("the peer gave the connection up")]
    GivenUp,
    /// The peer restarted and does not know the connection, or its reply is not valid.
    #[error("the peer does not know the connection")]
    Stale,
}

/// Field of a Connect that a controller did not accept. Its text follows that of the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedField {
    /// NQN of the subsystem (SUBNQN).
    #[error(": there is no subsystem of this name")]
    Subsystem,
    /// NQN of the host (HOSTNQN).
    #[error(": the subsystem does not allow this host NQN")]
    Host,
    /// Another field of the Connect data.
    #[error(": a field of the Connect data is not accepted")]
    Data,
    /// A field of the Connect command.
    #[error(": a field of the Connect command is not accepted")]
    Command,
    /// No field is reported; the status alone is the reason.
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
            // `Unreachable`, and variants that later versions of `rdma` may add.
            _ => Self::NoAnswer,
        }
    }
}
