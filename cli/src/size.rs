//! Sizes in bytes with suffixes, parsed and formatted.

use core::str::FromStr;

/// A number of bytes: `4096`, `4k`, `4K`, `4Ki` and `4KiB` are the same. The letters K, M, G and T
/// are powers of 1,024, as in fio and nvme-cli.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

/// Reason why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SizeError {
    /// Not digits followed by a known suffix.
    #[error("expected a number of bytes such as 512, 4K, 128KiB or 1G (K = 1024 bytes)")]
    Malformed,
    /// More than 2^64 - 1 bytes.
    #[error("more bytes than a 64-bit number holds")]
    TooLarge,
}

impl FromStr for ByteSize {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffix) = text.split_at(digits);
        if number.is_empty() {
            return Err(SizeError::Malformed);
        }
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        number.checked_mul(unit_bytes(suffix)?).map(Self).ok_or(SizeError::TooLarge)
    }
}

fn unit_bytes(suffix: &str) -> Result<u64, SizeError> {
    match suffix.to_ascii_lowercase().as_str() {
        "" => Ok(1),
        "k" | "ki" | "kib" => Ok(1 << 10),
        "m" | "mi" | "mib" => Ok(1 << 20),
        "g" | "gi" | "gib" => Ok(1 << 30),
        "t" | "ti" | "tib" => Ok(1 << 40),
        _ => Err(SizeError::Malformed),
    }
}

/// Formats a number of bytes: exact below 1 KiB, else two decimals of the largest binary unit.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.2} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("18071", 18_071),
            ("4k", 4096),
            ("4K", 4096),
            ("4Ki", 4096),
            ("4KiB", 4096),
            ("3m", 3 << 20),
            ("2GiB", 2 << 30),
            ("1T", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "k", "-1", "+1", "1.5k", "4KB", "4 k", "4kk", "0x10", "12é"] {
            assert_eq!(text.parse::<ByteSize>(), Err(SizeError::Malformed), "{text}");
        }
        for text in ["18446744073709551616", "16777216T"] {
            assert_eq!(text.parse::<ByteSize>(), Err(SizeError::TooLarge), "{text}");
        }
    }

    #[test]
    fn human_sizes() {
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1024), "1.00 KiB");
        assert_eq!(human((256 << 20) + 18_071), "256.02 MiB");
        assert_eq!(human(u64::MAX), "16777216.00 TiB");
    }

    proptest! {
        #[test]
        fn plain_numbers_survive(bytes: u64) {
            prop_assert_eq!(bytes.to_string().parse(), Ok(ByteSize(bytes)));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = text.parse::<ByteSize>();
        }
    }
}
