//! Secrets as operators configure them, and the keys that are made of them.

use std::fmt;
use std::str::FromStr;

use base64ct::{Base64, Encoding as _};
use nvme_proto::Nqn;
use nvme_proto::auth::HashId;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use crate::hash::HashFunction;
use crate::random::RandomBytes;

const PREFIX: &str = "DHHC-1:";
const TLS_PREFIX: &str = "NVMeTLSkey-1:";
/// Length in bytes of the checksum behind a secret.
const CRC_BYTES: usize = 4;
const MAX_BYTES: usize = 64;

/// Step from a secret to a key (Base, 8.3.4.5.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transformation {
    /// The secret is the key, 00.
    None,
    /// The key is an HMAC of the owner's NQN with the secret, 01 to 03.
    Hmac(HashFunction),
}

impl Transformation {
    /// Returns the transformation of a code.
    pub const fn of(code: u8) -> Option<Self> {
        match (code, HashFunction::of(HashId(code))) {
            (0, _) => Some(Self::None),
            (_, Some(hash)) => Some(Self::Hmac(hash)),
            (_, None) => None,
        }
    }

    /// Code in the representation of a secret, 0 to 3.
    pub const fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Hmac(hash) => hash.id().0,
        }
    }

    /// Length in bytes of a secret that is as long as the key.
    pub const fn usual_bytes(self) -> usize {
        match self {
            Self::None => 32,
            Self::Hmac(hash) => hash.output_bytes(),
        }
    }
}

/// Secret of a host or of a subsystem, 32, 48 or 64 bytes.
///
/// [`FromStr`] reads its representation, `DHHC-1:hh:` and Base64 of the secret and its checksum,
/// then a colon (Base, 8.3.4.5.8). Secrets are compared in constant time.
#[derive(Clone)]
pub struct Secret {
    transformation: Transformation,
    bytes: Zeroizing<Vec<u8>>,
}

impl Secret {
    /// Lengths in bytes that a secret may have.
    pub const LENGTHS: [usize; 3] = [32, 48, 64];

    /// Creates the secret of these bytes.
    ///
    /// # Errors
    /// [`InvalidSecret::Length`]: there are not 32, 48 or 64.
    pub fn new(transformation: Transformation, bytes: &[u8]) -> Result<Self, InvalidSecret> {
        if !Self::LENGTHS.contains(&bytes.len()) {
            return Err(InvalidSecret::Length { bytes: bytes.len() });
        }
        Ok(Self { transformation, bytes: Zeroizing::new(bytes.to_vec()) })
    }

    /// Draws a secret of `length` bytes.
    ///
    /// # Errors
    /// [`InvalidSecret::Length`]: the length is not 32, 48 or 64.
    pub fn generate(
        transformation: Transformation,
        length: usize,
        random: &mut RandomBytes<'_>,
    ) -> Result<Self, InvalidSecret> {
        let zeros = [0; MAX_BYTES];
        let zeros = zeros.get(..length).ok_or(InvalidSecret::Length { bytes: length })?;
        let mut secret = Self::new(transformation, zeros)?;
        random(&mut secret.bytes);
        Ok(secret)
    }

    /// Step from this secret to a key.
    pub const fn transformation(&self) -> Transformation {
        self.transformation
    }

    /// Length of the secret in bytes.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// CRC-32 of the secret, which its representation has.
    pub fn checksum(&self) -> u32 {
        crc32fast::hash(&self.bytes)
    }

    /// Returns the representation, which is as secret as the secret.
    pub fn to_representation(&self) -> Zeroizing<String> {
        // Allocated in full, so that no copy is left behind when it grows.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_BYTES + CRC_BYTES));
        bytes.extend_from_slice(&self.bytes);
        bytes.extend_from_slice(&self.checksum().to_le_bytes());
        let encoded = Zeroizing::new(Base64::encode_string(&bytes));
        Zeroizing::new(format!("{PREFIX}{:02}:{}:", self.transformation.code(), *encoded))
    }

    /// Makes the key of the host or subsystem that has this NQN (Base, 8.3.4.5.7).
    pub fn key_for(&self, owner: &Nqn) -> AuthKey {
        let bytes = match self.transformation {
            Transformation::None => self.bytes.clone(),
            Transformation::Hmac(hash) => {
                let parts = [owner.as_str().as_bytes(), b"NVMe-over-Fabrics"];
                Zeroizing::new(hash.hmac(&self.bytes, &parts).to_vec())
            }
        };
        AuthKey(bytes)
    }
}

impl FromStr for Secret {
    type Err = InvalidSecret;

    fn from_str(text: &str) -> Result<Self, InvalidSecret> {
        if text.is_empty() {
            return Err(InvalidSecret::Empty);
        }
        if text.starts_with(TLS_PREFIX) {
            return Err(InvalidSecret::TlsKey);
        }
        let rest = text.strip_prefix(PREFIX).ok_or(InvalidSecret::Prefix)?;
        let (code, rest) = rest.split_once(':').ok_or(InvalidSecret::Transformation)?;
        let transformation = match code.as_bytes() {
            [b'0', digit @ b'0'..=b'3'] => Transformation::of(digit - b'0'),
            _ => None,
        };
        let transformation = transformation.ok_or(InvalidSecret::Transformation)?;
        let encoded = rest.strip_suffix(':').ok_or(InvalidSecret::NoEnd)?;
        let mut buffer = Zeroizing::new([0u8; 2 * MAX_BYTES]);
        let decoded =
            Base64::decode(encoded, &mut *buffer).map_err(|_| InvalidSecret::NotBase64)?;
        let (bytes, checksum) = decoded
            .split_last_chunk::<CRC_BYTES>()
            .ok_or(InvalidSecret::Length { bytes: decoded.len() })?;
        let secret = Self::new(transformation, bytes)?;
        if secret.checksum() != u32::from_le_bytes(*checksum) {
            return Err(InvalidSecret::Checksum);
        }
        Ok(secret)
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.transformation == other.transformation && self.bytes.ct_eq(&other.bytes).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({:?}, {} bytes)", self.transformation, self.length())
    }
}

/// Key of a host or of a subsystem, which its responses prove.
#[derive(Clone)]
pub struct AuthKey(Zeroizing<Vec<u8>>);

impl AuthKey {
    /// Key that belongs to nobody.
    pub(crate) fn none() -> Self {
        Self(Zeroizing::new(Vec::new()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq for AuthKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for AuthKey {}

impl fmt::Debug for AuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthKey({} bytes)", self.0.len())
    }
}

/// Reason that a text is not a secret, with what to do. The text itself is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecret {
    /// The text is empty.
    #[error("the key is empty: make one with `feedrail gen-dhchap-key`")]
    Empty,
    /// The text begins with something else.
    #[error(
        "a key begins with \"DHHC-1:\": give the whole line that `feedrail gen-dhchap-key` or \
         `nvme gen-dhchap-key` printed"
    )]
    Prefix,
    /// The text is a key for TLS.
    #[error(
        "this is a key for TLS (NVMeTLSkey-1): authentication needs one that begins with \
         \"DHHC-1:\", which `feedrail gen-dhchap-key` makes"
    )]
    TlsKey,
    /// The code of the transformation is not 00 to 03.
    #[error(
        "after \"DHHC-1:\" a key has 00, 01, 02 or 03 (no transformation, SHA-256, SHA-384, \
         SHA-512) and a colon"
    )]
    Transformation,
    /// The last colon is missing.
    #[error("a key ends with a colon: the end of the line seems to be missing")]
    NoEnd,
    /// The part between the colons is not Base64, or too long.
    #[error(
        "the part of the key between its last two colons is not Base64 of 32, 48 or 64 bytes and \
         a checksum: copy the whole line again"
    )]
    NotBase64,
    /// The secret has another length.
    #[error(
        "a key has 32, 48 or 64 bytes, not {bytes}: copy the whole line again, or make another"
    )]
    Length {
        /// Length of the secret in bytes.
        bytes: usize,
    },
    /// The checksum does not fit the secret.
    #[error("the checksum of the key is wrong: a character was changed or lost, copy it again")]
    Checksum,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes 0 to 31, 47 and 63, with the checksums of zlib.
    const REPRESENTATIONS: [&str; 3] = [
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vcSEgBQ==:",
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8gISIjJCUmJygpKissLS4vMDEyMzQ1Njc4\
         OTo7PD0+P4zODhA=:",
    ];

    /// Transformation code, length of the secret (bytes counted from 0), and its key for the NQN
    /// below, computed with Python's hmac.
    const KEYS: [(u8, u8, &str); 5] = [
        (0, 32, "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"),
        (1, 32, "8ecf6ad7ffb953b4f70c530af904676259489e2c9f709715ebf50346b5c01441"),
        (1, 48, "62b63a2600bbfe0266fb3e6acda6027d4e1c5583e2bb06b16e7bb6493996f48a"),
        (
            2,
            48,
            "9009462391d113697ad1b0ed3ce2796d5883ed101f75df5a3acdae49f6d7b99395cf4e8c462562c0a067\
             f6c686bf5738",
        ),
        (
            3,
            64,
            "e22919e0a04b41c43908561bba430dbf587c15a2421a092fe8735f9139d2e6cb2fb8cad908eb6aa1ac78\
             3149233fe6137c362364acd2fe266f36a85e5ac5c7b1",
        ),
    ];
    const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:0123abcd-4567-89ef-0011-223344556677";

    fn secret(code: u8, length: u8) -> Secret {
        let transformation = Transformation::of(code).expect("0 to 3");
        Secret::new(transformation, &(0..length).collect::<Vec<_>>()).expect("a valid length")
    }

    #[test]
    fn representations_are_read_and_written() {
        for (representation, length) in REPRESENTATIONS.into_iter().zip([32, 48, 64]) {
            assert_eq!(representation.parse(), Ok(secret(0, length)), "{length} bytes");
            for code in 0..4 {
                let other = representation.replace("-1:00:", &format!("-1:0{code}:"));
                assert_eq!(*secret(code, length).to_representation(), other);
                assert_eq!(other.parse(), Ok(secret(code, length)));
            }
        }
        // The example in the manual of nvme-cli.
        let published = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
        assert!(published.parse::<Secret>().is_ok());
    }

    #[test]
    fn keys_are_made_of_secret_and_name() {
        for (code, length, expected) in KEYS {
            let key = secret(code, length).key_for(&NQN.parse().expect("an NQN"));
            let hex: String = key.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, expected, "code {code}");
            let other = secret(code, length).key_for(&Nqn::DISCOVERY);
            assert_eq!(key == other, code == 0, "another NQN has another key");
        }
    }

    #[test]
    fn mistakes_are_told_apart() {
        let good = REPRESENTATIONS[0];
        let encoded = &good[10..good.len() - 1];
        for (text, error) in [
            (String::new(), InvalidSecret::Empty),
            ("secret".into(), InvalidSecret::Prefix),
            (encoded.into(), InvalidSecret::Prefix),
            (good.replace("DHHC", "dhhc"), InvalidSecret::Prefix),
            (good.replace("DHHC-1", "DHHC-2"), InvalidSecret::Prefix),
            (format!("NVMeTLSkey-1:01:{encoded}:"), InvalidSecret::TlsKey),
            ("DHHC-1:".into(), InvalidSecret::Transformation),
            (good.replace(":00:", ":04:"), InvalidSecret::Transformation),
            (good.replace(":00:", ":0:"), InvalidSecret::Transformation),
            (good.replace(":00:", ":000:"), InvalidSecret::Transformation),
            (good.replace(":00:", ":10:"), InvalidSecret::Transformation),
            (good.replace(":00:", "::"), InvalidSecret::Transformation),
            (good[..good.len() - 1].into(), InvalidSecret::NoEnd),
            ("DHHC-1:00:".into(), InvalidSecret::NoEnd),
            (good[..good.len() / 2].into(), InvalidSecret::NoEnd),
            (format!("{good} "), InvalidSecret::NoEnd),
            (good.replace('A', "-"), InvalidSecret::NotBase64),
            (good.replace("AAEC", "AAE"), InvalidSecret::NotBase64),
            (format!("DHHC-1:00:{}:", "A".repeat(400)), InvalidSecret::NotBase64),
            ("DHHC-1:00::".into(), InvalidSecret::Length { bytes: 0 }),
            ("DHHC-1:00:AAAA:".into(), InvalidSecret::Length { bytes: 3 }),
            ("DHHC-1:00:AAAAAAAA:".into(), InvalidSecret::Length { bytes: 2 }),
            (good.replace("AAEC", "AAECAAEC"), InvalidSecret::Length { bytes: 35 }),
            (good.replace("AAEC", "AAED"), InvalidSecret::Checksum),
        ] {
            let found = text.parse::<Secret>().expect_err(&text);
            assert_eq!(found, error, "{text:?}");
            assert!(!found.to_string().contains(&encoded[4..12]), "{found}");
        }
        for length in [0, 31, 33, 65, 1000] {
            let made = Secret::generate(Transformation::None, length, &mut |_| {});
            assert!(made.is_err(), "{length}");
        }
    }
}
