//! The hash functions of DH-HMAC-CHAP.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use nvme_proto::auth::HashId;
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use crate::digest::AuthDigest;

/// Hash function (Base, 8.3.4.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HashFunction {
    /// SHA-256: 32 bytes of output.
    Sha256,
    /// SHA-384: 48 bytes of output.
    Sha384,
    /// SHA-512: 64 bytes of output.
    Sha512,
}

impl HashFunction {
    /// All functions, the shortest output first.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// Returns the function that an identifier names.
    pub const fn of(id: HashId) -> Option<Self> {
        match id {
            HashId::SHA_256 => Some(Self::Sha256),
            HashId::SHA_384 => Some(Self::Sha384),
            HashId::SHA_512 => Some(Self::Sha512),
            _ => None,
        }
    }

    /// Name that configurations give it: `sha256`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Returns the function that has this name in configurations.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// Identifier on the wire.
    pub const fn id(self) -> HashId {
        match self {
            Self::Sha256 => HashId::SHA_256,
            Self::Sha384 => HashId::SHA_384,
            Self::Sha512 => HashId::SHA_512,
        }
    }

    /// Length of the output in bytes.
    pub const fn output_bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub(crate) fn hash(self, bytes: &[u8]) -> AuthDigest {
        match self {
            Self::Sha256 => AuthDigest::new(&Sha256::digest(bytes)),
            Self::Sha384 => AuthDigest::new(&Sha384::digest(bytes)),
            Self::Sha512 => AuthDigest::new(&Sha512::digest(bytes)),
        }
    }

    /// Computes the HMAC (RFC 2104) of the parts, one after the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> AuthDigest {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> AuthDigest {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| mac.update(part));
    AuthDigest::new(&mac.finalize().into_bytes())
}

impl fmt::Display for HashFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id().fmt(f)
    }
}
