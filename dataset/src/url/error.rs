//! Errors of parsing a URL.

use nvme_proto::InvalidNqn;

use crate::name::InvalidName;

/// Reason why a text is not a URL of a target, subsystem or namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text does not begin with `nvmf://`.
    #[error("a URL begins with nvmf://")]
    Scheme,
    /// The URL contains a user, a query or a fragment; the character introduces it.
    #[error("{0:?} has no meaning here; write it percent-encoded if it belongs to a name")]
    Meaningless(char),
    /// The host is neither an IP address nor a valid name.
    #[error("{0:?} is no host: an IPv4 address, an IPv6 address in brackets or a DNS name")]
    Host(String),
    /// The port is not a number from 1 to 65535.
    #[error("{0:?} is no port: a number from 1 to 65535")]
    Port(String),
    /// The URL of a target has a path behind host and port.
    #[error("the URL of a target ends after host and port, but this has {0:?}")]
    Path(String),
    /// The URL has no NQN behind the host.
    #[error("after the host there should be a slash and the NQN of a subsystem")]
    NoNqn,
    /// A `%` is not followed by two hexadecimal digits, or the decoded text is not UTF-8.
    #[error("{0:?} is not percent-encoded UTF-8")]
    Encoding(String),
    /// The NQN of the subsystem is not valid.
    #[error("the NQN is not valid: {0}")]
    Nqn(#[from] InvalidNqn),
    /// The name of the namespace is not valid.
    #[error("the name of the namespace is not valid: {0}")]
    Name(#[from] InvalidName),
    /// The namespace identifier is not valid.
    #[error("{0} is no namespace identifier: a number from 1 to 4294967294")]
    Nsid(String),
}
