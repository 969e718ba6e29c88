//! Identify data as named fields, in nvme-cli's names.

use serde_json::{Map, Number, Value};

/// One field of an Identify data structure.
pub(crate) struct Field {
    name: &'static str,
    offset: usize,
    length: usize,
    kind: Kind,
}

enum Kind {
    /// Little-endian; decimal for people.
    Decimal,
    /// Little-endian; hexadecimal for people.
    Hex,
    /// Space-padded or NUL-terminated ASCII.
    Text,
    /// Bytes in order, as hexadecimal digits.
    Digits,
}

pub(crate) const fn decimal(name: &'static str, offset: usize, length: usize) -> Field {
    Field { name, offset, length, kind: Kind::Decimal }
}

pub(crate) const fn hex(name: &'static str, offset: usize, length: usize) -> Field {
    Field { name, offset, length, kind: Kind::Hex }
}

pub(crate) const fn text(name: &'static str, offset: usize, length: usize) -> Field {
    Field { name, offset, length, kind: Kind::Text }
}

pub(crate) const fn digits(name: &'static str, offset: usize, length: usize) -> Field {
    Field { name, offset, length, kind: Kind::Digits }
}

impl Field {
    #[cfg(test)]
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Where the field lies in the data.
    #[cfg(test)]
    pub(crate) fn range(&self) -> core::ops::Range<usize> {
        self.offset..self.offset + self.length
    }

    fn bytes<'a>(&self, data: &'a [u8]) -> &'a [u8] {
        data.get(self.offset..self.offset + self.length).unwrap_or_default()
    }

    fn to_json(&self, data: &[u8]) -> Value {
        match self.kind {
            Kind::Decimal | Kind::Hex => number(little_endian(self.bytes(data))),
            Kind::Text => ascii(self.bytes(data)).into(),
            Kind::Digits => hex_digits(self.bytes(data)).into(),
        }
    }

    fn to_text(&self, data: &[u8]) -> String {
        match self.kind {
            Kind::Decimal => little_endian(self.bytes(data)).to_string(),
            Kind::Hex => format!("{:#x}", little_endian(self.bytes(data))),
            Kind::Text => ascii(self.bytes(data)),
            Kind::Digits => hex_digits(self.bytes(data)),
        }
    }
}

/// The fields as members of a JSON object, in their order.
pub(crate) fn json_object(fields: &[Field], data: &[u8]) -> Map<String, Value> {
    fields.iter().map(|field| (field.name.to_owned(), field.to_json(data))).collect()
}

/// The fields as lines of `name : value`, the names padded to `width`.
pub(crate) fn lines(fields: &[Field], data: &[u8], width: usize) -> String {
    fields
        .iter()
        .map(|field| format!("{:<width$}: {}\n", field.name, field.to_text(data)))
        .collect()
}

/// A little-endian number of up to 16 bytes.
pub(crate) fn little_endian(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte))
}

/// JSON numbers hold 64 bits; what is larger is written as a string.
fn number(value: u128) -> Value {
    match u64::try_from(value) {
        Ok(value) => Value::Number(Number::from(value)),
        Err(_) => Value::String(value.to_string()),
    }
}

/// Text of a peer, safe for a terminal: up to the first NUL, without padding, other bytes escaped.
pub(crate) fn ascii(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes[..end].trim_ascii().escape_ascii().to_string()
}

pub(crate) fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: [Field; 4] =
        [decimal("a", 0, 2), hex("b", 2, 16), text("c", 18, 8), digits("d", 26, 2)];

    fn data() -> Vec<u8> {
        let mut data = vec![0x34, 0x12];
        data.extend([0xFF; 16]);
        data.extend(b"ab\x1Bc   \0");
        data.extend([0xDE, 0xAD]);
        data
    }

    #[test]
    fn json_keeps_order_and_large_numbers() {
        let json = serde_json::to_string(&json_object(&FIELDS, &data())).unwrap();
        assert_eq!(
            json,
            r#"{"a":4660,"b":"340282366920938463463374607431768211455","c":"ab\\x1bc","d":"dead"}"#
        );
    }

    #[test]
    fn text_is_aligned() {
        let all = "f".repeat(32);
        assert_eq!(
            lines(&FIELDS, &data(), 4),
            format!("a   : 4660\nb   : 0x{all}\nc   : ab\\x1bc\nd   : dead\n")
        );
    }

    #[test]
    fn short_data_reads_as_zero() {
        assert_eq!(lines(&FIELDS[..1], &[], 2), "a : 0\n");
    }
}
