//! Literals of Python, as far as headers of arrays have them.

use super::Error;

/// Reads the header from left to right.
pub(super) struct Literals<'a> {
    file: &'a [u8],
    /// The next byte to read, and the first one after the header.
    at: usize,
    end: usize,
}

impl<'a> Literals<'a> {
    /// The literals from byte `at` of a file up to byte `end`, which the file has.
    pub(super) fn new(file: &'a [u8], at: usize, end: usize) -> Self {
        Self { file, at, end }
    }

    /// The offset of the next literal, counted from the beginning of the file.
    pub(super) fn offset(&mut self) -> usize {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
        self.at
    }

    /// Takes a text if it is next.
    pub(super) fn take(&mut self, text: &str) -> bool {
        self.offset();
        let is_next = self.rest().starts_with(text.as_bytes());
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    /// Takes a text that must be next.
    pub(super) fn expect(&mut self, text: &'static str) -> Result<(), Error> {
        if self.take(text) { Ok(()) } else { Err(self.expected(text)) }
    }

    /// Takes a string between single or double quotes. One with a backslash is refused, since no
    /// text of an index has one.
    pub(super) fn string(&mut self) -> Result<&'a [u8], Error> {
        let begin = self.offset();
        let quote = self.rest().first().copied().filter(|byte| matches!(byte, b'\'' | b'"'));
        let quote = quote.ok_or_else(|| self.expected("a string"))?;
        let text = &self.file[begin + 1..self.end];
        let end = text.iter().position(|&byte| byte == quote || byte == b'\\');
        let end = end.filter(|&end| text[end] == quote);
        let end = end.ok_or_else(|| self.expected("a string without backslashes"))?;
        self.at = begin + 1 + end + 1;
        Ok(&text[..end])
    }

    /// Takes a number of at most 64 bits.
    pub(super) fn number(&mut self) -> Result<u64, Error> {
        self.offset();
        let rest = self.rest();
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = str::from_utf8(&rest[..digits]).unwrap_or_default();
        let number = text.parse().map_err(|_| self.expected("a number below 2^64"))?;
        self.at += digits;
        Ok(number)
    }

    /// Takes `True` or `False`, whichever is next.
    pub(super) fn boolean(&mut self) -> Result<bool, Error> {
        if self.take("True") {
            return Ok(true);
        }
        if self.take("False") { Ok(false) } else { Err(self.expected("True or False")) }
    }

    /// Checks that only blanks are left.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        let is_end = self.offset() == self.end;
        if is_end { Ok(()) } else { Err(self.expected("the end of the header")) }
    }

    /// The error that says what should be next.
    pub(super) fn expected(&self, expected: &'static str) -> Error {
        Error::Header { offset: self.at, expected }
    }

    fn rest(&self) -> &'a [u8] {
        &self.file[self.at..self.end]
    }
}
