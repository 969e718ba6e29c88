//! ASCII text in fields of fixed length.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// ASCII field, left-justified and padded with spaces: serial number, model number, firmware
/// revision, and text fields of the discovery log page, which may be padded with NULs.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct AsciiField<const N: usize>([u8; N]);

impl<const N: usize> AsciiField<N> {
    /// Field of spaces: the empty text.
    pub const BLANK: Self = Self([b' '; N]);

    /// Pads a text; `None` if it is too long or has a character outside 0x20..=0x7E.
    pub const fn new(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() > N {
            return None;
        }
        let mut field = [b' '; N];
        let mut i = 0;
        while i < text.len() {
            if text[i] < 0x20 || text[i] > 0x7E {
                return None;
            }
            field[i] = text[i];
            i += 1;
        }
        Some(Self(field))
    }

    /// All `N` bytes, with their padding.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// Returns the text before the first NUL, without padding; `None` if it has bytes outside
    /// ASCII.
    pub fn text(&self) -> Option<&str> {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(N);
        let text = self.0.get(..end)?;
        if !text.is_ascii() {
            return None;
        }
        core::str::from_utf8(text).ok().map(|text| text.trim_matches(' '))
    }
}

impl<const N: usize> Default for AsciiField<N> {
    fn default() -> Self {
        Self::BLANK
    }
}

impl<const N: usize> fmt::Display for AsciiField<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{}", text.escape_default()),
            None => write!(f, "{}", self.0.escape_ascii()),
        }
    }
}

impl<const N: usize> fmt::Debug for AsciiField<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn text_is_padded_and_trimmed() {
        let field = AsciiField::<8>::new("v1 2").expect("short ASCII");
        assert_eq!(field.as_bytes(), b"v1 2    ");
        assert_eq!(field.text(), Some("v1 2"));
        assert_eq!(AsciiField(*b"4420\0\0\0x").text(), Some("4420"), "NULs end it, too");
        assert_eq!(AsciiField(*b"  pad   ").text(), Some("pad"));
        assert_eq!(AsciiField::<8>::BLANK.text(), Some(""));
    }

    #[test]
    fn text_outside_ascii_is_refused_or_escaped() {
        assert_eq!(AsciiField::<4>::new("12345"), None);
        assert_eq!(AsciiField::<4>::new("\t"), None);
        assert_eq!(AsciiField::<4>::new("é"), None);
        assert_eq!(AsciiField(*b"\xFFabc").text(), None);
        assert_eq!(
            format!("{}", AsciiField(*b"\x1b[2J")),
            "\\u{1b}[2J",
            "no terminal codes in logs"
        );
        assert_eq!(format!("{}", AsciiField(*b"\xFFabc")), "\\xffabc");
    }
}
