//! Values of a configuration that are checked when they are read, from a file or an RPC.

use std::fmt::{self, Display};
use std::ops::{Deref, RangeInclusive};
use std::path::Path;

use nvme_proto::AsciiField;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use uuid::Uuid;

use crate::derived_ids::NAME_BYTES;
use crate::limits::NSID_LAST;

/// Checks a number. The error says what the number counts.
pub(super) fn in_range<T: PartialOrd + Display>(
    number: T,
    range: RangeInclusive<T>,
    what: &str,
) -> Result<T, String> {
    let (least, most) = (range.start(), range.end());
    match range.contains(&number) {
        true => Ok(number),
        false => Err(format!("is {number}; must be {least} to {most} ({what})")),
    }
}

/// Defines types of numbers with their ranges.
macro_rules! numbers {
    ($($name:ident: $int:ty = $range:expr, $what:literal;)*) => {$(
        #[doc = concat!("Number of ", $what, ".")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) struct $name(pub(super) $int);

        impl TryFrom<$int> for $name {
            type Error = String;

            fn try_from(number: $int) -> Result<Self, String> {
                in_range(number, $range, $what).map(Self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <$int>::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
            }
        }
    )*};
}

numbers! {
    ConfiguredNsid: u32 = 1..=NSID_LAST, "namespace id";
    PortId: u16 = 1..=u16::MAX, "port id";
    PollingMicros: u32 = 0..=1_000_000, "microseconds of polling before it sleeps";
    QueueDepth: u16 = 2..=1024, "entries of an I/O queue";
    IoQueues: u16 = 1..=1024, "I/O queues of one host connection";
    Connections: u32 = 1..=1 << 20, "connections";
    HostTimeoutMs: u64 = 100..=600_000, "milliseconds that a host may take no response";
    SlowCommandMs: u64 = 1..=600_000, "milliseconds of a slow command";
    QuiesceMs: u64 = 0..=u16::MAX.into(), "milliseconds that storage continues commands of lost hosts";
    FaultInterval: u64 = 1..=u64::MAX, "operations";
    FaultDelayMicros: u64 = 1..=60_000_000, "microseconds that every operation starts later";
}

/// Limit of I/O commands per second: 0 for none, or a multiple of 1,000, as SPDK rounds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "u64")]
pub struct IosPerSecond(u64);

impl IosPerSecond {
    /// Most commands per second, above what any target serves.
    const MOST: u64 = 100_000_000;

    /// Commands per second; 0 for no limit.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl TryFrom<u64> for IosPerSecond {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        match number <= Self::MOST && number.is_multiple_of(1000) {
            true => Ok(Self(number)),
            false => Err(format!(
                "is {number}; must be 0 (no limit) or a multiple of 1000 up to {} (I/O commands per second)",
                Self::MOST
            )),
        }
    }
}

/// Limit of MiB per second; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "u64")]
pub struct MbytesPerSecond(u64);

impl MbytesPerSecond {
    /// Limit in MiB per second; 0 for none.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Limit in bytes per second; 0 for none.
    pub fn bytes(self) -> u64 {
        self.0 << 20
    }
}

impl TryFrom<u64> for MbytesPerSecond {
    type Error = String;

    fn try_from(number: u64) -> Result<Self, String> {
        in_range(number, 0..=1_000_000, "MiB per second, 0 for no limit").map(Self)
    }
}

/// Size of a logical block, as a power of two; files and RPCs give it in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "u32")]
pub struct BlockShift(u8);

impl BlockShift {
    /// Exponent of the power of two, 9 to 12.
    pub fn get(self) -> u8 {
        self.0
    }

    /// Size that files and RPCs give.
    pub fn bytes(self) -> u32 {
        1 << self.0
    }
}

impl TryFrom<u32> for BlockShift {
    type Error = String;

    fn try_from(bytes: u32) -> Result<Self, String> {
        match bytes {
            512 | 1024 | 2048 | 4096 => Ok(Self(bytes.trailing_zeros() as u8)),
            other => Err(format!("is {other}; must be 512, 1024, 2048 or 4096")),
        }
    }
}

/// Name of a namespace in messages, of 1 to `NAME_BYTES` bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct NamespaceName(String);

impl NamespaceName {
    /// Last component of a path, or the path if it has none.
    pub(crate) fn of_file(path: &Path) -> Self {
        Self::ending(path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned())
    }

    /// Whole path, for files that share a name.
    pub(super) fn of_path(path: &Path) -> Self {
        Self::ending(path.to_string_lossy().into_owned())
    }

    /// Kind of a medium and an NSID, for a namespace without a path.
    pub(super) fn numbered(kind: &str, ConfiguredNsid(nsid): ConfiguredNsid) -> Self {
        Self(format!("{kind}-{nsid}"))
    }

    /// The last `NAME_BYTES` bytes of a text.
    fn ending(text: String) -> Self {
        let start = text.ceil_char_boundary(text.len().saturating_sub(NAME_BYTES));
        Self(text[start..].to_owned())
    }
}

impl TryFrom<String> for NamespaceName {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        match (1..=NAME_BYTES).contains(&name.len()) {
            true => Ok(Self(name)),
            false => Err(format!("must be 1 to {NAME_BYTES} bytes long")),
        }
    }
}

#[cfg(test)]
impl From<&str> for NamespaceName {
    fn from(name: &str) -> Self {
        name.to_owned().try_into().expect("short")
    }
}

/// Operator's name for the bytes of a namespace, never empty.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ContentId(String);

impl ContentId {
    /// Content of a file in a directory whose content has this name.
    pub(crate) fn of_file(&self, relative: &str) -> Self {
        Self(format!("{}/{relative}", self.0))
    }
}

impl TryFrom<String> for ContentId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let empty = "is empty; write what names these bytes, as a checksum or a version";
        if text.is_empty() { Err(empty) } else { Ok(Self(text)) }
    }
}

/// Operator's description of a namespace, of 1 to 256 bytes without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Description(String);

impl TryFrom<String> for Description {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let fits = (1..=256).contains(&text.len()) && !text.contains(char::is_control);
        if fits { Ok(Self(text)) } else { Err("must be 1 to 256 bytes without control characters") }
    }
}

macro_rules! texts {
    ($($name:ident),*) => {$(
        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }
    )*};
}

texts!(NamespaceName, ContentId, Description);

/// IEEE Extended Unique Identifier, written as 16 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct Eui64(pub [u8; 8]);

impl TryFrom<String> for Eui64 {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let text = text.as_str();
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(|id| Self(id.to_be_bytes())).ok_or("must be 16 hexadecimal digits")
    }
}

impl fmt::Display for Eui64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// NGUID, written like a UUID with or without hyphens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Nguid(pub(crate) [u8; 16]);

impl TryFrom<String> for Nguid {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let parsed = Uuid::try_parse(&text).map(|id| Self(id.into_bytes()));
        parsed.map_err(|_| "must be 32 hexadecimal digits")
    }
}

/// NGUID of a namespace without a configured one: the bytes of its UUID, as with SPDK.
pub(crate) fn derived_nguid(uuid: Uuid) -> [u8; 16] {
    uuid.into_bytes()
}

/// Text of 1 to `N` printable ASCII characters that are not all spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct PrintableText<const N: usize>(pub(super) AsciiField<N>);

impl<const N: usize> TryFrom<String> for PrintableText<N> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let field = AsciiField::new(&text).filter(|_| !text.trim().is_empty());
        field.map(Self).ok_or_else(|| format!("must be 1 to {N} printable ASCII characters"))
    }
}
