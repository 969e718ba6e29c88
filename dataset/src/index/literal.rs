//! Parser of the Python literals in headers of arrays.

use super::Error;

/// Parser that reads a header from left to right.
pub(super) struct Literals<'a> {
    file: &'a [u8],
    /// Offsets in the file of the next byte to read, and of the end of the header.
    at: usize,
    end: usize,
}

impl<'a> Literals<'a> {
    /// Parses a file from byte `at` to byte `end`, which must be within it.
    pub(super) fn new(file: &'a [u8], at: usize, end: usize) -> Self {
        Self { file, at, end }
    }

    /// Skips white space, and returns the offset of the next literal in the file.
    pub(super) fn offset(&mut self) -> usize {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_ascii_start().len();
        self.at
    }

    /// Consumes a text if it comes next. Returns whether it did.
    pub(super) fn take(&mut self, text: &str) -> bool {
        self.offset();
        let is_next = self.rest().starts_with(text.as_bytes());
        if is_next {
            self.at += text.len();
        }
        is_next
    }

    /// Consumes a text that must come next.
    pub(super) fn expect(&mut self, text: &'static str) -> Result<(), Error> {
        if self.take(text) { Ok(()) } else { Err(self.expected(text)) }
    }

    /// Parses a string in single or double quotes. A backslash is an error, since no string of an
    /// index contains one.
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

    /// Parses a number of at most 64 bits.
    pub(super) fn number(&mut self) -> Result<u64, Error> {
        self.offset();
        let rest = self.rest();
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = str::from_utf8(&rest[..digits]).unwrap_or_default();
        let number = text.parse().map_err(|_| self.expected("a number below 2^64"))?;
        self.at += digits;
        Ok(number)
    }

    /// Parses `True` or `False`; any other text is an error.
    pub(super) fn boolean(&mut self) -> Result<bool, Error> {
        if self.take("True") {
            return Ok(true);
        }
        if self.take("False") { Ok(false) } else { Err(self.expected("True or False")) }
    }

    /// Checks that only white space is left.
    pub(super) fn finish(mut self) -> Result<(), Error> {
        let is_end = self.offset() == self.end;
        if is_end { Ok(()) } else { Err(self.expected("the end of the header")) }
    }

    /// Creates the error that `expected` should come next.
    pub(super) fn expected(&self, expected: &'static str) -> Error {
        Error::Header { offset: self.at, expected }
    }

    fn rest(&self) -> &'a [u8] {
        &self.file[self.at..self.end]
    }
}
