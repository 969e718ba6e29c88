//! NVMe qualified names.

use core::fmt;
use core::hash::{Hash, Hasher};
use core::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::HostId;

/// An NVMe qualified name: 1 to 223 bytes of UTF-8 without control characters (Base, 4.7). By value, so that
/// it needs no allocation.
///
/// The two formats of the specification both begin with `nqn.`; other names are let through, as Linux does, so
/// that hosts with home-made names can connect. [`Nqn::has_standard_prefix`] tells.
#[derive(Clone, Copy)]
pub struct Nqn {
    length: u8,
    bytes: [u8; Self::MAX_BYTES],
}

impl Nqn {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 223;

    /// The well-known name of every discovery subsystem (Base, 4.7).
    pub const DISCOVERY: Self = match Self::new("nqn.2014-08.org.nvmexpress.discovery") {
        Ok(nqn) => nqn,
        Err(_) => panic!("the discovery name is a valid name"),
    };

    /// Checks a name.
    ///
    /// # Errors
    /// What is wrong with it.
    pub const fn new(name: &str) -> Result<Self, InvalidNqn> {
        let name = name.as_bytes();
        if name.is_empty() {
            return Err(InvalidNqn::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(InvalidNqn::TooLong);
        }
        let mut bytes = [0; Self::MAX_BYTES];
        let mut i = 0;
        while i < name.len() {
            if name[i] < 0x20 || name[i] == 0x7F {
                return Err(InvalidNqn::ControlCharacter);
            }
            bytes[i] = name[i];
            i += 1;
        }
        Ok(Self { length: name.len() as u8, bytes })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        // Made from a `str` and cut at its length only.
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }

    /// Whether it is the well-known discovery name.
    pub fn is_discovery(&self) -> bool {
        *self == Self::DISCOVERY
    }

    /// Whether it begins as the specification's two formats do.
    pub fn has_standard_prefix(&self) -> bool {
        self.as_str().starts_with("nqn.")
    }
}

/// Why a name is not an NQN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNqn {
    /// No byte in it.
    #[error("an NQN must not be empty")]
    Empty,
    /// More than 223 bytes, or in a field no NUL after them.
    #[error("an NQN has at most 223 bytes")]
    TooLong,
    /// A byte sequence that is not UTF-8.
    #[error("an NQN must be UTF-8")]
    NotUtf8,
    /// A control character in it.
    #[error("an NQN must not contain control characters")]
    ControlCharacter,
}

impl FromStr for Nqn {
    type Err = InvalidNqn;

    fn from_str(name: &str) -> Result<Self, InvalidNqn> {
        Self::new(name)
    }
}

impl PartialEq for Nqn {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Nqn {}

impl PartialOrd for Nqn {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Nqn {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Nqn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The name of a host, so that it is not mistaken for a subsystem's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostNqn(pub Nqn);

impl HostNqn {
    /// The UUID-based name of a host identifier (Base, 4.7, second format).
    pub fn from_host_id(id: HostId) -> Self {
        const PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";
        let mut nqn = Nqn { length: 0, bytes: [0; Nqn::MAX_BYTES] };
        let mut push = |part: &[u8]| {
            let at = usize::from(nqn.length);
            nqn.bytes[at..at + part.len()].copy_from_slice(part);
            nqn.length += part.len() as u8;
        };
        push(PREFIX.as_bytes());
        push(&id.to_text());
        Self(nqn)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for HostNqn {
    type Err = InvalidNqn;

    fn from_str(name: &str) -> Result<Self, InvalidNqn> {
        Nqn::new(name).map(Self)
    }
}

impl fmt::Display for HostNqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for HostNqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A name in a data structure: 256 bytes, NUL-terminated, padded with NULs.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct NqnField([u8; 256]);

impl NqnField {
    /// The name in the field.
    ///
    /// # Errors
    /// What is wrong with it: empty, no NUL within 224 bytes, not UTF-8, control characters.
    pub fn parse(&self) -> Result<Nqn, InvalidNqn> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(InvalidNqn::TooLong)?;
        let name = core::str::from_utf8(&self.0[..end]).map_err(|_| InvalidNqn::NotUtf8)?;
        Nqn::new(name)
    }
}

impl From<Nqn> for NqnField {
    fn from(nqn: Nqn) -> Self {
        let mut field = [0; 256];
        field[..nqn.bytes.len()].copy_from_slice(&nqn.bytes);
        Self(field)
    }
}

impl fmt::Debug for NqnField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parse() {
            Ok(nqn) => fmt::Debug::fmt(&nqn, f),
            Err(InvalidNqn::Empty) => f.write_str("\"\""),
            Err(_) => write!(f, "invalid \"{}\"", self.0.trim_ascii_end().escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::{String, ToString};

    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn what_is_not_a_name_is_refused() {
        assert_eq!(Nqn::new(""), Err(InvalidNqn::Empty));
        assert_eq!(Nqn::new(&"n".repeat(224)), Err(InvalidNqn::TooLong));
        assert!(Nqn::new(&"n".repeat(223)).is_ok());
        assert_eq!(Nqn::new("nqn.\n"), Err(InvalidNqn::ControlCharacter));
        assert_eq!(NqnField([0; 256]).parse(), Err(InvalidNqn::Empty));
        assert_eq!(NqnField([b'n'; 256]).parse(), Err(InvalidNqn::TooLong), "no NUL");
        let mut field = [0; 256];
        field[0] = 0xFF;
        assert_eq!(NqnField(field).parse(), Err(InvalidNqn::NotUtf8));
        field[..224].fill(b'n');
        assert_eq!(NqnField(field).parse(), Err(InvalidNqn::TooLong));
    }

    #[test]
    fn the_discovery_name() {
        assert_eq!(Nqn::DISCOVERY.to_string(), "nqn.2014-08.org.nvmexpress.discovery");
        assert!(Nqn::DISCOVERY.is_discovery() && Nqn::DISCOVERY.has_standard_prefix());
    }

    #[test]
    fn a_host_is_named_by_its_identifier() {
        let id: HostId = "0123ABCD-4567-89ef-0011-223344556677".parse().expect("a UUID");
        assert_eq!(id.0[..4], [0x01, 0x23, 0xAB, 0xCD], "in the order of the text");
        assert_eq!(
            HostNqn::from_host_id(id).as_str(),
            "nqn.2014-08.org.nvmexpress:uuid:0123abcd-4567-89ef-0011-223344556677"
        );
        for text in [
            "",
            "0123",
            "0123abcd-4567-89ef-0011-2233445566778",
            "0123abcd-4567-89ef-0011-22334455667g",
            "é",
        ] {
            assert!(text.parse::<HostId>().is_err());
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_name_or_refused(name: String) {
            if let Ok(nqn) = Nqn::new(&name) {
                prop_assert_eq!(nqn.as_str(), &name);
                prop_assert_eq!(NqnField::from(nqn).parse(), Ok(nqn));
            }
        }

        #[test]
        fn a_field_keeps_names(name in "[ -~\u{80}-\u{FF}]{1,100}") {
            let nqn = Nqn::new(&name).expect("at most 200 bytes without control characters");
            prop_assert_eq!(nqn.to_string(), name.clone());
            let mut field = NqnField::from(nqn);
            prop_assert_eq!(field.parse(), Ok(nqn));
            // What follows the NUL does not count.
            field.as_mut_bytes()[255] = 1;
            prop_assert_eq!(field.parse(), Ok(nqn));
        }

        #[test]
        fn host_identifiers_round_trip(bytes: [u8; 16]) {
            let id = HostId(bytes);
            prop_assert_eq!(format!("{id}").parse(), Ok(id));
            prop_assert_eq!(id.is_zero(), bytes == [0; 16]);
        }
    }
}
