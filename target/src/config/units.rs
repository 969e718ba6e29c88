//! Formats of byte counts and of cores in configurations.

use std::fmt;

use rustix::thread::CpuSet;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::Cores;
use crate::limits::MAX_CORES;

/// Number of bytes: an integer, or a string as in `"64MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ByteCount(pub(super) u64);

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Parses `"64MiB"`, and the forms that the command line accepts for the same: `"64M"`, `"64m"`,
/// `"64Mi"`, and `"67108864"`.
pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    let unit = unit.trim().to_ascii_lowercase();
    let is = |name: &str| {
        let name = name.to_ascii_lowercase();
        unit == name || unit == name[..2] || unit == name[..1]
    };
    let shift = match unit.as_str() {
        "" | "b" => 0,
        _ => UNITS.iter().find(|(name, _)| is(name))?.1,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Number of bytes as written in a configuration: `64MiB`, or `1000` if no unit divides it.
pub(super) fn show_bytes(bytes: u64) -> String {
    let whole = |shift: &u32| bytes != 0 && bytes.is_multiple_of(1 << shift);
    match UNITS.iter().find(|(_, shift)| whole(shift)) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

impl<'de> Deserialize<'de> for ByteCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = ByteCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number of bytes, or a string with KiB, MiB, GiB or TiB (powers of 1024) as in \"64MiB\"",
                )
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<ByteCount, E> {
                let invalid = || E::custom("a number of bytes cannot be negative");
                Ok(ByteCount(u64::try_from(value).map_err(|_| invalid())?))
            }

            fn visit_u64<E: Error>(self, value: u64) -> Result<ByteCount, E> {
                Ok(ByteCount(value))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<ByteCount, E> {
                let invalid = || E::invalid_value(serde::de::Unexpected::Str(value), &self);
                parse_bytes(value).map(ByteCount).ok_or_else(invalid)
            }
        }
        deserializer.deserialize_any(BytesVisitor)
    }
}

impl<'de> Deserialize<'de> for Cores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CoresVisitor;
        impl<'de> Visitor<'de> for CoresVisitor {
            type Value = Cores;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of cores, or a list of core numbers as in [2, 3]")
            }

            fn visit_i64<E: Error>(self, value: i64) -> Result<Cores, E> {
                let count =
                    u16::try_from(value).ok().filter(|count| (1..=MAX_CORES).contains(count));
                let invalid = || E::custom(format!("the number of cores must be 1 to {MAX_CORES}"));
                count.map(Cores::Count).ok_or_else(invalid)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Cores, A::Error> {
                let mut list = Vec::new();
                while let Some(core) = sequence.next_element::<u16>()? {
                    if usize::from(core) >= CpuSet::MAX_CPU {
                        let last = CpuSet::MAX_CPU - 1;
                        let message = format!(
                            "no thread can be pinned to core {core}; name cores from 0 to {last}"
                        );
                        return Err(A::Error::custom(message));
                    }
                    if list.contains(&core) {
                        return Err(A::Error::custom(format!("core {core} is listed twice")));
                    }
                    list.push(core);
                }
                if list.len() > usize::from(MAX_CORES) {
                    return Err(A::Error::custom(format!("more than {MAX_CORES} cores")));
                }
                if list.is_empty() {
                    return Err(A::Error::custom("the list of cores is empty: name at least one"));
                }
                Ok(Cores::Pinned(list))
            }
        }
        deserializer.deserialize_any(CoresVisitor)
    }
}
