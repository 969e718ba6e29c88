//! Element types of exported memory, by the format codes of Python's `struct` module and PEP 3118.

use std::iter::Peekable;
use std::slice::Iter;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

/// Most levels of nested structures.
const MAX_DEPTH: usize = 16;

/// Rejects memory whose elements are not only numbers or characters of one byte. If an element
/// contained an address, the bytes of a target could choose which memory Python accesses.
///
/// # Errors
/// `BufferError` if the elements are not plain numbers.
pub(crate) fn check(buffer: &PyUntypedBuffer) -> PyResult<()> {
    let (format, bytes) = (buffer.format(), buffer.item_size());
    // The sizes differ if the format is incomplete: for unions, packed structures, and gaps between
    // fields.
    if number_bytes(format.to_bytes()) == Some(bytes) {
        return Ok(());
    }
    let format = format.to_string_lossy();
    Err(PyBufferError::new_err(format!(
        "elements of {bytes} bytes of format {format:?} are not plain numbers: pass an array of numbers"
    )))
}

/// Returns the bytes of an element of this format; `None` if it contains anything but numbers.
fn number_bytes(format: &[u8]) -> Option<usize> {
    let mut parser = FormatParser { rest: format.iter().peekable(), native: true };
    let bytes = parser.fields(MAX_DEPTH)?;
    parser.rest.next().is_none().then_some(bytes)
}

struct FormatParser<'a> {
    rest: Peekable<Iter<'a, u8>>,
    /// Whether codes have the sizes of the C types of this platform.
    native: bool,
}

impl FormatParser<'_> {
    /// Returns the bytes of all fields up to the end of a structure.
    fn fields(&mut self, depth: usize) -> Option<usize> {
        let mut sum = 0_usize;
        while self.rest.peek().is_some_and(|&&code| code != b'}') {
            sum = sum.checked_add(self.field(depth)?)?;
        }
        Some(sum)
    }

    /// Returns the bytes of a field with its counts; 0 for a name or a space.
    fn field(&mut self, depth: usize) -> Option<usize> {
        let code = *self.rest.next()?;
        match code {
            b':' => self.rest.by_ref().find(|&&code| code == b':').map(|_| 0),
            b' ' => Some(0),
            _ => self.element(code, depth),
        }
    }

    /// Returns the bytes of the elements that start with this code, which may be a count or a byte
    /// order.
    fn element(&mut self, mut code: u8, depth: usize) -> Option<usize> {
        let mut count = 1_usize;
        loop {
            match code {
                b'@' | b'^' => self.native = true,
                b'=' | b'<' | b'>' | b'!' => self.native = false,
                b'(' => count = count.checked_mul(self.sizes()?)?,
                b'0'..=b'9' => count = count.checked_mul(self.number(code)?)?,
                _ => break,
            }
            code = *self.rest.next()?;
        }
        let bytes = match code {
            b'T' => {
                let opened = *self.rest.next()? == b'{';
                let bytes = self.fields(depth.checked_sub(1).filter(|_| opened)?)?;
                Some(bytes).filter(|_| self.rest.next() == Some(&b'}'))
            }
            b'Z' => self.float()?.checked_mul(2),
            code => self.scalar(code),
        };
        bytes?.checked_mul(count)
    }

    /// Returns the product of the sizes up to the closing bracket.
    fn sizes(&mut self) -> Option<usize> {
        let mut product = 1_usize;
        loop {
            match *self.rest.next()? {
                b')' => return Some(product),
                b',' | b' ' => {}
                digit => product = product.checked_mul(self.number(digit)?)?,
            }
        }
    }

    /// Returns the number that starts with this digit.
    fn number(&mut self, first: u8) -> Option<usize> {
        let value = |digit: u8| char::from(digit).to_digit(10).map(|value| value as usize);
        let mut number = value(first)?;
        while let Some(digit) = self.rest.peek().and_then(|&&code| value(code)) {
            number = number.checked_mul(10)?.checked_add(digit)?;
            self.rest.next();
        }
        Some(number)
    }

    fn float(&mut self) -> Option<usize> {
        match *self.rest.next()? {
            code @ (b'e' | b'f' | b'd' | b'g') => self.scalar(code),
            _ => None,
        }
    }

    fn scalar(&self, code: u8) -> Option<usize> {
        Some(match code {
            b'c' | b'b' | b'B' | b'?' | b's' => 1,
            b'h' | b'H' | b'e' => 2,
            b'i' | b'I' | b'f' => 4,
            b'l' | b'L' if self.native => size_of::<std::ffi::c_long>(),
            b'l' | b'L' => 4,
            b'q' | b'Q' | b'd' => 8,
            b'n' | b'N' => size_of::<usize>(),
            // `long double`, which has the same size in every byte order.
            b'g' => 16,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::number_bytes;

    #[test]
    fn numbers_have_sizes() {
        for (format, bytes) in [
            ("B", 1),
            ("<l", 4),
            ("l", 8),
            (">q", 8),
            ("Zd", 16),
            ("4s", 4),
            ("(2,3)<f", 24),
            ("T{I:shard:I:length:Q:O:(2)Q:P:}", 32),
            ("2T{T{<h:x:}:a:=b:O:}", 6),
        ] {
            assert_eq!(number_bytes(format.as_bytes()), Some(bytes), "{format}");
        }
    }

    #[test]
    fn what_is_no_number_has_none() {
        let deep = "T{".repeat(100_000);
        let many = format!("{}{}{}", "9".repeat(10), "(99999999999)", "B");
        for format in [
            "O",
            "P",
            "z",
            "Z",
            "u",
            "w",
            "&<i",
            "X{}",
            "x",
            "4x",
            "t",
            "T{<i:a:O:b:}",
            "(2)O",
            "T{B",
            "B}",
            "T{B:a",
            "T(",
            "(",
            "(B",
            "99999999999999999999B",
            "Zi",
            "\u{e9}",
            &deep,
            &many,
        ] {
            assert_eq!(number_bytes(format.as_bytes()), None, "{format}");
        }
    }
}
