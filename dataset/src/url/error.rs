//! Errors of a URL.

use nvme_proto::InvalidNqn;

use crate::name::InvalidName;

/// Why a text is not the URL that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text begins with something else.
    #[error("a URL begins with nvmf://")]
    Scheme,
    /// A user, a query or a fragment is in it.
    #[error("{0:?} has no meaning here; write it percent-encoded if it belongs to a name")]
    Meaningless(char),
    /// The host is neither an address nor a name.
    #[error("{0:?} is no host: an IPv4 address, an IPv6 address in brackets or a DNS name")]
    Host(String),
    /// The port is none.
    #[error("{0:?} is no port: a number from 1 to 65535")]
    Port(String),
    /// Something follows the host and port of a target.
    #[error("the URL of a target ends after host and port, but this has {0:?}")]
    Path(String),
    /// No NQN follows the host.
    #[error("after the host there should be a slash and the NQN of a subsystem")]
    NoNqn,
    /// An escape is not `%` and two hexadecimal digits, or the result is not UTF-8.
    #[error("{0:?} is not percent-encoded UTF-8")]
    Encoding(String),
    /// The name of the subsystem is none.
    #[error("the NQN is not valid: {0}")]
    Nqn(#[from] InvalidNqn),
    /// The name of the namespace is none.
    #[error("the name of the namespace is not valid: {0}")]
    Name(#[from] InvalidName),
    /// The number of the namespace is none.
    #[error("{0} is no namespace identifier: a number from 1 to 4294967294")]
    Nsid(String),
}
