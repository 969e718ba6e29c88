//! URL of a target.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use super::{DEFAULT_PORT, Error};
use crate::text::as_text;

/// Address at which a target listens: `nvmf://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetUrl {
    /// IP address, or a name to resolve.
    pub host: UrlHost,
    /// Port; [`DEFAULT_PORT`] if the URL contains none.
    pub port: u16,
}

as_text!(TargetUrl);

/// Host in the URL of a target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UrlHost {
    /// IP address, which needs no resolution.
    Address(IpAddr),
    /// Name to resolve by DNS or the hosts file.
    Name(HostName),
}

/// DNS name in lower case: at most 253 bytes, in labels of letters, digits, `-` and `_`. The last
/// label is not a number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

impl HostName {
    /// Returns the name for a resolver.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Splits a URL into target (host and port) and path, which begins with the first slash.
pub(super) fn split(url: &str) -> Result<(TargetUrl, &str), Error> {
    let rest = url.strip_prefix("nvmf://").ok_or(Error::Scheme)?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let is_meaningless = |letter: &char| matches!(letter, '?' | '#');
    let meaningless =
        rest.chars().find(is_meaningless).or_else(|| authority.chars().find(|&c| c == '@'));
    match meaningless {
        Some(letter) => Err(Error::Meaningless(letter)),
        None => Ok((parse_authority(authority)?, path)),
    }
}

fn parse_authority(authority: &str) -> Result<TargetUrl, Error> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let no_host = || Error::Host(authority.to_owned());
            let (address, rest) = bracketed.split_once(']').ok_or_else(no_host)?;
            let address: Ipv6Addr = address.parse().map_err(|_| no_host())?;
            let port = rest.strip_prefix(':').or(rest.is_empty().then_some(""));
            (UrlHost::Address(address.into()), port.ok_or_else(no_host)?)
        }
        None => {
            let (host, port) = authority.split_once(':').unwrap_or((authority, ""));
            // A second colon means an IPv6 address without brackets.
            let host = if port.contains(':') { authority } else { host };
            (parse_host(host)?, port)
        }
    };
    let has_port = !port.is_empty() || !authority.ends_with(':');
    if !has_port {
        return Err(Error::Port(String::new()));
    }
    Ok(TargetUrl { host, port: parse_port(port)? })
}

fn parse_port(port: &str) -> Result<u16, Error> {
    if port.is_empty() {
        return Ok(DEFAULT_PORT);
    }
    let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
    let number = port.parse().ok().filter(|&number| is_number && number != 0);
    number.ok_or_else(|| Error::Port(port.to_owned()))
}

fn parse_host(host: &str) -> Result<UrlHost, Error> {
    if let Ok(address) = host.parse::<IpAddr>()
        && address.is_ipv4()
    {
        return Ok(UrlHost::Address(address));
    }
    if is_dns_name(host) {
        Ok(UrlHost::Name(HostName(host.to_ascii_lowercase())))
    } else {
        Err(Error::Host(host.to_owned()))
    }
}

fn is_dns_name(host: &str) -> bool {
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    let ends_in_number = host.rsplit('.').next().is_some_and(is_number);
    host.len() <= 253 && host.split('.').all(is_label) && !ends_in_number
}

fn is_label(label: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let has_hyphen_at_end = label.starts_with('-') || label.ends_with('-');
    (1..=63).contains(&label.len()) && label.bytes().all(is_inner) && !has_hyphen_at_end
}

impl FromStr for TargetUrl {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        match split(url)? {
            (target, "" | "/") => Ok(target),
            (_, path) => Err(Error::Path(path.to_owned())),
        }
    }
}

impl fmt::Display for TargetUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nvmf://{}", self.host)?;
        if self.port == DEFAULT_PORT { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

impl fmt::Display for UrlHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Name(HostName(name)) => f.write_str(name),
        }
    }
}
