//! URL of a subsystem, or of a namespace in it.

use std::fmt;
use std::str::FromStr;

use nvme_proto::{Nqn, Nsid};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use super::{Error, TargetUrl, target};
use crate::name::Name;
use crate::text::as_text;

/// Prefix of a namespace identifier.
const NSID: &str = "nsid:";

/// URL of a subsystem or a namespace: `nvmf://HOST[:PORT]/NQN[/NAME or nsid:NSID]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceUrl {
    /// Target that serves the subsystem.
    pub target: TargetUrl,
    /// NQN of the subsystem.
    pub nqn: Nqn,
    /// Namespace; `None` for the whole subsystem.
    pub namespace: Option<NamespaceChoice>,
}

as_text!(SourceUrl);

/// Identification of a namespace in a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceChoice {
    /// Namespace identifier; neither 0 nor the broadcast value.
    Nsid(Nsid),
    /// Name of the namespace, which Feedrail targets report.
    Name(Name),
}

impl FromStr for SourceUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let (target, path) = target::split(url)?;
        let path = path.strip_prefix('/').ok_or(Error::NoNqn)?;
        let (nqn, namespace) = path.split_once('/').unwrap_or((path, ""));
        if nqn.is_empty() {
            return Err(Error::NoNqn);
        }
        let namespace = (!namespace.is_empty()).then(|| parse_namespace(namespace)).transpose()?;
        Ok(Self { target, nqn: decode(nqn)?.parse()?, namespace })
    }
}

fn parse_namespace(text: &str) -> Result<NamespaceChoice, Error> {
    let Some(number) = text.strip_prefix(NSID) else {
        return Ok(NamespaceChoice::Name(decode(text)?.parse()?));
    };
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    let nsid = number.parse().map(Nsid).ok().filter(|nsid| is_number && nsid.is_one());
    nsid.map(NamespaceChoice::Nsid).ok_or_else(|| Error::Nsid(number.to_owned()))
}

/// Decodes percent-encoding. A `%` without two hexadecimal digits is an error, while the crate
/// `percent_encoding` would keep it.
fn decode(text: &str) -> Result<String, Error> {
    let is_escape = |rest: &str| matches!(rest.as_bytes(), [a, b, ..] if [a, b].iter().all(|c| c.is_ascii_hexdigit()));
    let is_whole = text.split('%').skip(1).all(is_escape);
    let decoded = is_whole.then(|| percent_decode_str(text).decode_utf8().ok()).flatten();
    decoded.map(Into::into).ok_or_else(|| Error::Encoding(text.to_owned()))
}

/// Bytes of a name that are percent-encoded: all that RFC 3986, 3.3 does not allow in a path.
const IN_NAME: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// Bytes of an NQN that are percent-encoded: the same, and slashes, since an NQN is one segment of
/// the path.
const IN_NQN: &AsciiSet = &IN_NAME.add(b'/');

impl fmt::Display for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.target, utf8_percent_encode(self.nqn.as_str(), IN_NQN))?;
        match &self.namespace {
            Some(namespace) => write!(f, "/{namespace}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for NamespaceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nsid(nsid) => write!(f, "{NSID}{}", nsid.0),
            Self::Name(name) => match name.as_str().strip_prefix(NSID) {
                Some(rest) => write!(f, "nsid%3A{}", utf8_percent_encode(rest, IN_NAME)),
                None => write!(f, "{}", utf8_percent_encode(name.as_str(), IN_NAME)),
            },
        }
    }
}
