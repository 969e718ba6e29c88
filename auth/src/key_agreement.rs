//! Diffie-Hellman with the groups of RFC 7919: the expensive part of an authentication.

use std::fmt;
use std::sync::LazyLock;

use crypto_bigint::modular::{FixedMontyForm, FixedMontyParams};
use crypto_bigint::{Odd, U512, Uint};
use zeroize::{Zeroize as _, Zeroizing};

use crate::group::DhGroup;
use crate::random::RandomBytes;

/// Random exponent and its public value. A controller may use a pair for several transactions: the
/// challenges are random in any case (Base, 8.3.4.5.7).
pub struct KeyPair {
    group: DhGroup,
    exponent: Zeroizing<U512>,
    public: Vec<u8>,
}

impl KeyPair {
    /// Draws an exponent, and raises the generator to it.
    ///
    /// This takes 0.5 ms (ffdhe2048) to 40 ms (ffdhe8192).
    pub fn generate(group: DhGroup, random: &mut RandomBytes<'_>) -> Self {
        let length = group.exponent_bits() as usize / 8;
        let mut bytes = Zeroizing::new([0; 64]);
        let (_, drawn) = bytes.split_at_mut(64 - length);
        random(drawn);
        // The exponent has its full length.
        drawn[0] |= 0x80;
        let exponent = Zeroizing::new(U512::from_be_slice(&*bytes));
        let public = power(group, &[2], &exponent).to_vec();
        Self { group, exponent, public }
    }

    /// Group of the pair.
    pub const fn group(&self) -> DhGroup {
        self.group
    }

    /// Public value, the most significant byte first.
    pub fn public(&self) -> &[u8] {
        &self.public
    }

    /// Computes the secret that is shared with the owner of `peer`. This takes as long as
    /// [`KeyPair::generate`].
    ///
    /// # Panics
    /// If `peer` is of another group.
    pub fn agree(&self, peer: &PublicValue) -> SharedSecret {
        assert_eq!(self.group, peer.group, "both values are of one group");
        SharedSecret(power(self.group, &peer.bytes, &self.exponent))
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.group)
    }
}

/// Public value of a peer, at least 2 and at most p - 2.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicValue {
    group: DhGroup,
    bytes: Vec<u8>,
}

/// Error: a public value has a wrong length, or is 0, 1, p - 1 or greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a Diffie-Hellman value is not one of its group")]
pub struct InvalidPublicValue;

impl PublicValue {
    /// Checks a received value (Base, 8.3.4.5.4).
    ///
    /// # Errors
    /// [`InvalidPublicValue`] for a length or value that the group has not.
    pub fn new(group: DhGroup, bytes: &[u8]) -> Result<Self, InvalidPublicValue> {
        let prime = group.prime();
        let (&last, front) = bytes.split_last().ok_or(InvalidPublicValue)?;
        let is_small = front.iter().all(|&byte| byte == 0) && last < 2;
        // The last byte of the prime is 0xFF, so that only the last byte of p - 1 differs.
        let is_last = last >= 0xFE && front == &prime[..prime.len() - 1];
        if bytes.len() != prime.len() || is_small || is_last || bytes > prime {
            return Err(InvalidPublicValue);
        }
        Ok(Self { group, bytes: bytes.to_vec() })
    }
}

impl fmt::Debug for PublicValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicValue({})", self.group)
    }
}

/// Secret that both sides of a Diffie-Hellman exchange know, as long as the group's prime.
pub struct SharedSecret(Zeroizing<Vec<u8>>);

impl SharedSecret {
    /// Takes a secret that was computed elsewhere, the most significant byte first.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSecret({} bytes)", self.0.len())
    }
}

static FFDHE2048: LazyLock<FixedMontyParams<32>> = LazyLock::new(|| params(DhGroup::Ffdhe2048));
static FFDHE3072: LazyLock<FixedMontyParams<48>> = LazyLock::new(|| params(DhGroup::Ffdhe3072));
static FFDHE4096: LazyLock<FixedMontyParams<64>> = LazyLock::new(|| params(DhGroup::Ffdhe4096));
static FFDHE6144: LazyLock<FixedMontyParams<96>> = LazyLock::new(|| params(DhGroup::Ffdhe6144));
static FFDHE8192: LazyLock<FixedMontyParams<128>> = LazyLock::new(|| params(DhGroup::Ffdhe8192));

fn params<const LIMBS: usize>(group: DhGroup) -> FixedMontyParams<LIMBS> {
    let prime = Uint::from_be_slice(group.prime());
    FixedMontyParams::new_vartime(Odd::new(prime).expect("the prime is odd"))
}

/// Raises `base` to `exponent`, in a time that depends on the group only.
fn power(group: DhGroup, base: &[u8], exponent: &U512) -> Zeroizing<Vec<u8>> {
    let bits = group.exponent_bits();
    match group {
        DhGroup::Ffdhe2048 => raise(&FFDHE2048, base, exponent, bits),
        DhGroup::Ffdhe3072 => raise(&FFDHE3072, base, exponent, bits),
        DhGroup::Ffdhe4096 => raise(&FFDHE4096, base, exponent, bits),
        DhGroup::Ffdhe6144 => raise(&FFDHE6144, base, exponent, bits),
        DhGroup::Ffdhe8192 => raise(&FFDHE8192, base, exponent, bits),
    }
}

fn raise<const LIMBS: usize>(
    params: &FixedMontyParams<LIMBS>,
    base: &[u8],
    exponent: &U512,
    bits: u32,
) -> Zeroizing<Vec<u8>> {
    let length = Uint::<LIMBS>::BYTES;
    let mut padded = vec![0; length];
    padded[length - base.len()..].copy_from_slice(base);
    let base = FixedMontyForm::new(&Uint::from_be_slice(&padded), params);
    let mut power = base.pow_bounded_exp(exponent, bits);
    let mut value = power.retrieve();
    let bytes = Zeroizing::new(value.to_be_bytes().as_ref().to_vec());
    value.zeroize();
    power.zeroize();
    bytes
}

#[cfg(test)]
mod tests {
    use splitmix64::SplitMix64;

    use super::*;
    use crate::hash::HashFunction;

    fn seeded(seed: u64) -> impl FnMut(&mut [u8]) {
        let mut random = SplitMix64::new(seed);
        move |bytes| bytes.fill_with(|| random.next_u64() as u8)
    }

    #[test]
    fn both_sides_share_a_secret() {
        for group in DhGroup::ALL {
            let (ours, theirs) = (
                KeyPair::generate(group, &mut seeded(1)),
                KeyPair::generate(group, &mut seeded(2)),
            );
            let value = |pair: &KeyPair| PublicValue::new(group, pair.public()).expect("valid");
            let shared = ours.agree(&value(&theirs));
            assert_eq!(shared.as_bytes(), theirs.agree(&value(&ours)).as_bytes(), "{group}");
            assert_eq!(shared.as_bytes().len(), group.value_bytes());
            assert_ne!(ours.public(), theirs.public());
        }
    }

    /// SHA-256 of the public value and of the shared secret, computed with Python's pow. Exponents
    /// are bytes counted from 1, and from 101.
    const GOLDEN: [(DhGroup, &str, &str); 5] = [
        (
            DhGroup::Ffdhe2048,
            "f00f3b05dcc837354157017dacbfde6058fc2d994eb873e1feaf816a148ea1fb",
            "8d23e149618f64c65f722da0d82eed0aa14f4f0604a21fade87c770dcd066555",
        ),
        (
            DhGroup::Ffdhe3072,
            "fabeb3e45cad0c6b54769e281c2349f39a076d6301d858b17615a9649e36f222",
            "7cc79e3c539b0a80e7a8e89fce9a673962a37a24b18cdc78c1f50b2a6b8bc71d",
        ),
        (
            DhGroup::Ffdhe4096,
            "ccb58604a5fd1239e876259fc7813e402338a46f6a531725437e8a927dce40f0",
            "d434c7c24f8296b8f7041c2020ae3cfab6f3faaefd5c4d6f1e411350ae678c60",
        ),
        (
            DhGroup::Ffdhe6144,
            "01742c6adcfa4b823437b7dab65a11111c89191e1442b385c72d1083f7d2f7ea",
            "84da3625a2093967161c63db356bec2da876e1e95b23b02f98cebf49ef8bfb34",
        ),
        (
            DhGroup::Ffdhe8192,
            "a5c83fe0a34d40034b0c976d516f04fc7472e8c1142e30ed59a355bd12800270",
            "e076f318497868b131b76e42551f539b5e5759b053c61d91600b446b04a0a020",
        ),
    ];

    #[test]
    fn powers_are_those_of_python() {
        let counted = |first: u8| {
            move |bytes: &mut [u8]| {
                bytes.iter_mut().zip(first..).for_each(|(byte, number)| *byte = number);
            }
        };
        let hash = |bytes: &[u8]| -> String {
            let hash = HashFunction::Sha256.hash(bytes);
            hash.iter().map(|byte| format!("{byte:02x}")).collect()
        };
        for (group, public, shared) in GOLDEN {
            let ours = KeyPair::generate(group, &mut counted(1));
            let theirs = KeyPair::generate(group, &mut counted(101));
            assert_eq!(hash(ours.public()), public, "{group}");
            let peer = PublicValue::new(group, theirs.public()).expect("valid");
            assert_eq!(hash(ours.agree(&peer).as_bytes()), shared, "{group}");
        }
    }

    #[test]
    fn values_of_small_subgroups_are_refused() {
        for group in DhGroup::ALL {
            let prime = group.prime();
            let value = |change: i32| {
                let mut bytes = prime.to_vec();
                *bytes.last_mut().expect("not empty") = (0xFF + change) as u8;
                PublicValue::new(group, &bytes)
            };
            assert!(value(-2).is_ok(), "p - 2");
            assert_eq!(value(-1), Err(InvalidPublicValue), "p - 1");
            assert_eq!(value(0), Err(InvalidPublicValue), "p");
            assert_eq!(
                PublicValue::new(group, &vec![0xFF; prime.len()]),
                Err(InvalidPublicValue),
                "above p"
            );
            let mut small = vec![0; prime.len()];
            assert_eq!(PublicValue::new(group, &small), Err(InvalidPublicValue), "0");
            for (last, valid) in [(1, false), (2, true)] {
                *small.last_mut().expect("not empty") = last;
                assert_eq!(PublicValue::new(group, &small).is_ok(), valid, "{last}");
            }
            assert!(PublicValue::new(group, &small[1..]).is_err(), "too short");
            assert!(PublicValue::new(group, &[&[0], &small[..]].concat()).is_err(), "too long");
            assert!(PublicValue::new(group, &[]).is_err(), "empty");
        }
    }
}
