//! NVMe Qualified Names (NQNs) of subsystems and hosts.

use core::fmt::{self, Write as _};
use core::hash::{Hash, Hasher};
use core::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::HostId;

/// NVMe Qualified Name: 1 to 223 bytes of UTF-8 without control characters (Base, 4.7), stored
/// inline.
///
/// [`Nqn::new`] accepts any format, as Linux does, so that hosts with names of other formats can
/// connect. Names that Feedrail assigns are checked with [`Nqn::standard`], which accepts only the
/// formats of the specification.
///
/// [`Display`](fmt::Display) escapes characters that a terminal would not show as they are, such as
/// those that change the direction of text. [`Nqn::as_str`] returns the unescaped name.
#[derive(Clone, Copy)]
pub struct Nqn {
    length: u8,
    bytes: [u8; Self::MAX_BYTES],
}

impl Nqn {
    /// Longest name in bytes.
    pub const MAX_BYTES: usize = 223;

    /// Well-known NQN of discovery subsystems (Base, 4.7).
    pub const DISCOVERY: Self = match Self::new("nqn.2014-08.org.nvmexpress.discovery") {
        Ok(nqn) => nqn,
        Err(_) => panic!("the discovery name is a valid name"),
    };

    /// Checks the length and the characters of a name, but not its format.
    ///
    /// # Errors
    /// [`InvalidNqn`]: the name is empty, too long, or has control characters.
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
            // The second block of control characters is U+0080 to U+009F, C2 80 to C2 9F in UTF-8.
            let second = name[i] == 0xC2 && i + 1 < name.len() && name[i + 1] < 0xA0;
            if name[i] < 0x20 || name[i] == 0x7F || second {
                return Err(InvalidNqn::ControlCharacter);
            }
            bytes[i] = name[i];
            i += 1;
        }
        Ok(Self { length: name.len() as u8, bytes })
    }

    /// Checks a name that must have a format of the specification (Base, 4.7):
    /// `nqn.YYYY-MM.REVERSED.DOMAIN:NAME`, or `nqn.2014-08.org.nvmexpress:uuid:UUID`, or the
    /// discovery NQN.
    ///
    /// # Errors
    /// [`InvalidNqn`]: as for [`Nqn::new`], or the first part that does not have the format.
    pub fn standard(name: &str) -> Result<Self, InvalidNqn> {
        let nqn = Self::new(name)?;
        if !nqn.is_discovery() {
            check_format(name)?;
        }
        Ok(nqn)
    }

    /// Returns the name without escapes and padding.
    pub fn as_str(&self) -> &str {
        // The bytes are the whole of a `str`.
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Whether it is the well-known discovery NQN.
    pub fn is_discovery(&self) -> bool {
        *self == Self::DISCOVERY
    }
}

/// Prefix of an NQN with a UUID.
const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

fn check_format(name: &str) -> Result<(), InvalidNqn> {
    if let Some(uuid) = name.strip_prefix(UUID_PREFIX) {
        return uuid.parse::<HostId>().map(|_| ()).map_err(|_| InvalidNqn::Uuid);
    }
    let rest = name.strip_prefix("nqn.").ok_or(InvalidNqn::Prefix)?;
    let (date, rest) = rest.split_once('.').ok_or(InvalidNqn::Date)?;
    if !is_date(date) {
        return Err(InvalidNqn::Date);
    }
    let (domain, assigned) = rest.split_once(':').ok_or(InvalidNqn::NoName)?;
    if !domain.split('.').all(is_label) {
        return Err(InvalidNqn::Domain);
    }
    if assigned.is_empty() { Err(InvalidNqn::NoName) } else { Ok(()) }
}

/// Whether a text is a year and a month, `YYYY-MM`.
fn is_date(text: &str) -> bool {
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    text.split_once('-').is_some_and(|(year, month)| {
        digits(year, 4) && digits(month, 2) && ("01"..="12").contains(&month)
    })
}

/// Whether a text is a label of a domain name.
fn is_label(text: &str) -> bool {
    let inner = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let ends = !text.starts_with('-') && !text.ends_with('-');
    (1..=63).contains(&text.len()) && inner && ends
}

/// Reason that a text is not a valid NQN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNqn {
    /// The name has no bytes.
    #[error("an NQN must not be empty")]
    Empty,
    /// The name has more than 223 bytes; or a field of a structure has no NUL.
    #[error("an NQN has at most 223 bytes")]
    TooLong,
    /// A field of a structure is not UTF-8.
    #[error("an NQN must be UTF-8")]
    NotUtf8,
    /// The name has a control character.
    #[error("an NQN must not contain control characters")]
    ControlCharacter,
    /// A standard name does not begin with `nqn.`.
    #[error("an NQN begins with \"nqn.\"")]
    Prefix,
    /// A standard name has no year and month after `nqn.`.
    #[error("after \"nqn.\" an NQN has a year and a month, as in \"nqn.2026-01.\"")]
    Date,
    /// A standard name has no valid domain after its date.
    #[error("after its date an NQN has a domain in reverse, as in \"nqn.2026-01.org.example:\"")]
    Domain,
    /// A standard name has nothing after its domain.
    #[error("after its domain an NQN has a colon and a name")]
    NoName,
    /// A standard name has no UUID after the prefix of UUID-based names.
    #[error("after \"uuid:\" an NQN has a UUID")]
    Uuid,
}

impl FromStr for Nqn {
    type Err = InvalidNqn;

    fn from_str(name: &str) -> Result<Self, InvalidNqn> {
        Self::new(name)
    }
}

impl PartialEq for Nqn {
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
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
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Nqn {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.as_str();
        if !name.chars().any(is_hidden) {
            return f.pad(name);
        }
        for letter in name.chars() {
            match is_hidden(letter) {
                true => write!(f, "{}", letter.escape_unicode())?,
                false => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// Whether a terminal would not show the character as it is.
fn is_hidden(letter: char) -> bool {
    let quoted = matches!(letter, '\\' | '"' | '\'');
    !quoted && letter.escape_debug().next() == Some('\\')
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// NQN of a host, as a type of its own so that it is not confused with that of a subsystem.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostNqn(pub Nqn);

impl HostNqn {
    /// Creates the UUID-based NQN of a host identifier (Base, 4.7, second format).
    pub fn from_host_id(id: HostId) -> Self {
        let mut nqn = Nqn { length: 0, bytes: [0; Nqn::MAX_BYTES] };
        let mut push = |part: &[u8]| {
            let at = usize::from(nqn.length);
            nqn.bytes[at..at + part.len()].copy_from_slice(part);
            nqn.length += part.len() as u8;
        };
        push(UUID_PREFIX.as_bytes());
        push(&id.to_text());
        Self(nqn)
    }

    /// Returns the name without escapes and padding.
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

/// NQN field of a data structure: 256 bytes, terminated and padded with NULs.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct NqnField([u8; 256]);

impl NqnField {
    /// Returns the NQN in the field.
    ///
    /// # Errors
    /// [`InvalidNqn`]: the name is empty, has no NUL within 224 bytes, is not UTF-8, or has control
    /// characters.
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
    fn invalid_names_are_refused() {
        assert_eq!(Nqn::new(""), Err(InvalidNqn::Empty));
        assert_eq!(Nqn::new(&"n".repeat(224)), Err(InvalidNqn::TooLong));
        assert!(Nqn::new(&"n".repeat(223)).is_ok());
        for control in ["\u{1}", "\n", "\u{1b}", "\u{7f}", "\u{80}", "\u{9b}2J", "\u{9f}"] {
            let name = format!("nqn.{control}");
            assert_eq!(Nqn::new(&name), Err(InvalidNqn::ControlCharacter), "{control:?}");
            let mut field = NqnField([0; 256]);
            field.0[..name.len()].copy_from_slice(name.as_bytes());
            assert!(field.parse().is_err(), "{control:?}");
        }
        assert!(Nqn::new("nqn.\u{a1}Â").is_ok());
        assert_eq!(NqnField([0; 256]).parse(), Err(InvalidNqn::Empty));
        assert_eq!(NqnField([b'n'; 256]).parse(), Err(InvalidNqn::TooLong), "no NUL");
        let mut field = [0; 256];
        field[0] = 0xFF;
        assert_eq!(NqnField(field).parse(), Err(InvalidNqn::NotUtf8));
        field[..224].fill(b'n');
        assert_eq!(NqnField(field).parse(), Err(InvalidNqn::TooLong));
    }

    #[test]
    fn standard_names_have_a_format() {
        for name in [
            "nqn.2026-01.org.example:disk",
            "nqn.2026-01.org.example:disk:2: größe",
            "nqn.2026-12.a:b",
            "nqn.2014-08.org.nvmexpress:uuid:0123abcd-4567-89ef-0011-223344556677",
            "nqn.2014-08.org.nvmexpress.discovery",
        ] {
            assert_eq!(Nqn::standard(name).map(|nqn| nqn.to_string()), Ok(name.to_string()));
        }
        for (name, error) in [
            ("foo", InvalidNqn::Prefix),
            ("NQN.2026-01.org.example:disk", InvalidNqn::Prefix),
            ("nqn.", InvalidNqn::Date),
            ("nqn.2026-1.org.example:disk", InvalidNqn::Date),
            ("nqn.2026-13.org.example:disk", InvalidNqn::Date),
            ("nqn.2026-00.org.example:disk", InvalidNqn::Date),
            ("nqn.+026-01.org.example:disk", InvalidNqn::Date),
            ("nqn.2026-01:disk", InvalidNqn::Date),
            ("nqn.2026-01.org.example", InvalidNqn::NoName),
            ("nqn.2026-01.org.example:", InvalidNqn::NoName),
            ("nqn.2026-01.:disk", InvalidNqn::Domain),
            ("nqn.2026-01.org..example:disk", InvalidNqn::Domain),
            ("nqn.2026-01.org.-example:disk", InvalidNqn::Domain),
            ("nqn.2026-01.org example:disk", InvalidNqn::Domain),
            ("nqn.2014-08.org.nvmexpress:uuid:0123abcd", InvalidNqn::Uuid),
            ("nqn.2026-01.org.example:\u{85}", InvalidNqn::ControlCharacter),
        ] {
            assert_eq!(Nqn::standard(name), Err(error), "{name:?}");
        }
    }

    #[test]
    fn display_escapes_hidden_characters() {
        let name = "nqn.2026-01.org.example:\\\"a\u{202e}b\u{200b}é";
        let nqn = Nqn::new(name).expect("peers may call themselves so");
        assert_eq!(nqn.to_string(), "nqn.2026-01.org.example:\\\"a\\u{202e}b\\u{200b}é");
        assert_eq!(nqn.as_str(), name);
        assert_eq!(format!("{:>8}|", Nqn::new("abc").expect("valid")), "     abc|");
    }

    #[test]
    fn the_discovery_name() {
        assert_eq!(Nqn::DISCOVERY.to_string(), "nqn.2014-08.org.nvmexpress.discovery");
        assert!(Nqn::DISCOVERY.is_discovery());
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
        fn a_field_keeps_names(name in "[ -~\u{A1}-\u{AC}\u{AE}-\u{FF}]{1,100}") {
            let nqn = Nqn::new(&name).expect("at most 200 bytes without control characters");
            prop_assert_eq!(nqn.to_string(), name.clone());
            let mut field = NqnField::from(nqn);
            prop_assert_eq!(field.parse(), Ok(nqn));
            // Bytes after the NUL are ignored.
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
