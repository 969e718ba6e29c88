//! URLs of targets, subsystems and namespaces.
//!
//! | what | URL |
//! |---|---|
//! | a target | `nvmf://HOST[:PORT]` |
//! | a subsystem | `nvmf://HOST[:PORT]/NQN` |
//! | a namespace | `nvmf://HOST[:PORT]/NQN/NAME` or `nvmf://HOST[:PORT]/NQN/nsid:NSID` |
//!
//! HOST is an IPv4 address, an IPv6 address in brackets, or a DNS name. PORT is 4420 if it is left
//! out. NQN and NAME are percent-encoded where they have characters that a URL gives a meaning
//! to; slashes of a NAME stay as they are, and `:` and `.` may. A NAME may consist of digits; one
//! that begins with `nsid:` has its colon percent-encoded (`nsid%3A7`).

mod error;
mod source;
mod target;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use source::{NamespaceChoice, SourceUrl};
pub use target::{HostName, TargetUrl, UrlHost};

/// Default port of a URL: that of NVMe over Fabrics, registered at IANA.
pub const DEFAULT_PORT: u16 = 4420;
