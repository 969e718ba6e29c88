//! Identify data structures as named fields, with nvme-cli's names.

use nvme_proto::{Immutable, IntoBytes};
use serde_json::{Map, Number, Value};

/// Field of an Identify data structure: name and value.
pub(crate) struct Field {
    name: &'static str,
    value: FieldContent,
}

enum FieldContent {
    /// A number that text output shows in decimal.
    Decimal(u128),
    /// A number that text output shows in hexadecimal.
    Hex(u128),
    /// Text, or bytes in order as hexadecimal digits.
    Text(String),
}

/// Creates a field whose number is shown in decimal.
pub(crate) fn decimal(name: &'static str, field: &(impl IntoBytes + Immutable)) -> Field {
    Field { name, value: FieldContent::Decimal(little_endian(field.as_bytes())) }
}

/// Creates a field whose number is shown in hexadecimal.
pub(crate) fn hex(name: &'static str, field: &(impl IntoBytes + Immutable)) -> Field {
    Field { name, value: FieldContent::Hex(little_endian(field.as_bytes())) }
}

/// Creates a field of ASCII text, padded with spaces or terminated by NUL.
pub(crate) fn text(name: &'static str, field: &(impl IntoBytes + Immutable)) -> Field {
    Field { name, value: FieldContent::Text(ascii(field.as_bytes())) }
}

/// Creates a field of bytes, shown in order as hexadecimal digits.
pub(crate) fn digits(name: &'static str, field: &(impl IntoBytes + Immutable)) -> Field {
    Field { name, value: FieldContent::Text(hex_digits(field.as_bytes())) }
}

impl Field {
    fn to_json(&self) -> Value {
        match &self.value {
            FieldContent::Decimal(value) | FieldContent::Hex(value) => number(*value),
            FieldContent::Text(text) => text.as_str().into(),
        }
    }

    fn to_text(&self) -> String {
        match &self.value {
            FieldContent::Decimal(value) => value.to_string(),
            FieldContent::Hex(value) => format!("{value:#x}"),
            FieldContent::Text(text) => text.clone(),
        }
    }
}

/// Returns the fields as members of a JSON object, in their order.
pub(crate) fn json_object(fields: &[Field]) -> Map<String, Value> {
    fields.iter().map(|field| (field.name.to_owned(), field.to_json())).collect()
}

/// Formats the fields as lines of `name : value`, the names padded to `width`.
pub(crate) fn lines(fields: &[Field], width: usize) -> String {
    fields.iter().map(|field| format!("{:<width$}: {}\n", field.name, field.to_text())).collect()
}

/// Parses a little-endian number of up to 16 bytes.
fn little_endian(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u128::from(*byte))
}

/// Converts to a JSON number, or to a string if the value exceeds 64 bits.
fn number(value: u128) -> Value {
    match u64::try_from(value) {
        Ok(value) => Value::Number(Number::from(value)),
        Err(_) => Value::String(value.to_string()),
    }
}

/// Text of a peer, made safe for a terminal: up to the first NUL, trimmed, other bytes escaped.
fn ascii(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes[..end].trim_ascii().escape_ascii().to_string()
}

pub(crate) fn hex_digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A structure of bytes that differ.
#[cfg(test)]
pub(crate) fn pattern<T: nvme_proto::FromBytes>() -> T {
    let byte = |at: usize| (at * 167 + 13 + (at / 256) * 31) as u8;
    let bytes: Vec<u8> = (0..size_of::<T>()).map(byte).collect();
    T::read_from_bytes(&bytes).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> [Field; 4] {
        [
            decimal("a", &[0x34_u8, 0x12]),
            hex("b", &[0xFF_u8; 16]),
            text("c", b"ab\x1Bc   \0"),
            digits("d", &[0xDE_u8, 0xAD]),
        ]
    }

    #[test]
    fn json_keeps_order_and_large_numbers() {
        let json = serde_json::to_string(&json_object(&fields())).unwrap();
        assert_eq!(
            json,
            r#"{"a":4660,"b":"340282366920938463463374607431768211455","c":"ab\\x1bc","d":"dead"}"#
        );
    }

    #[test]
    fn text_is_aligned() {
        let all = "f".repeat(32);
        assert_eq!(
            lines(&fields(), 4),
            format!("a   : 4660\nb   : 0x{all}\nc   : ab\\x1bc\nd   : dead\n")
        );
    }
}
