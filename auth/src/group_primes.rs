//! The primes of RFC 7919, appendix A.
//!
//! Each is made of the leading digits of Euler's number `e`: with `b` bits, it is 64 ones, then
//! [2^(b - 130) e] + X - 1 in b - 128 bits, then 64 ones. X is the least number that makes the
//! prime a safe one.

/// [2^8062 e]: the digits for the largest prime. Those for the others are the first of these.
const E_DIGITS: [u8; 1008] = decode(
    b"\
      adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2f\
      e363630c75d8f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e\
      7f57c935984f0c70e0e68b77e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324\
      fb61d108a94bb2c8e3fbb96adab760d7f4681d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d70\
      9e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff8e4f1232eef28183c3fe3b1b4c6fad733bb5\
      fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdcde355b3b6519035bbc34f4de\
      f99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270b4130c93bc43\
      7944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
      1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930\
      e9e4e58857b6ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e01\
      2d9e6832a907600a918130c46dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d\
      0acc0a8291cdcec97dcf8ec9b55a7f88a46b4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a\
      4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8917bdd64b1c0fd4cb38e8c334c701c3acdad\
      0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910b855322edb6340d8a00ef092\
      350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc194c6651e77ca\
      f992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
      62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b\
      71f9dc6b80d63fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004c\
      f600c8381e425a31d951ae64fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab\
      8829555b2f747c932665cb2c0f1cc01bd70229388839d2af05e454504ac78b7582822846c0ba35c35f5c\
      59160cc046fd8251541fc68c9c86b022bb7099876a460e7451a8a93109703fee1c217e6c3826e52c51aa\
      691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0a1fe3075a577e23183f81d4a\
      3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e2f741ef8c1fe\
      86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d\
      ",
);

pub(crate) const FFDHE2048: [u8; 256] = prime(560_316);
pub(crate) const FFDHE3072: [u8; 384] = prime(2_625_351);
pub(crate) const FFDHE4096: [u8; 512] = prime(5_736_041);
pub(crate) const FFDHE6144: [u8; 768] = prime(15_705_020);
pub(crate) const FFDHE8192: [u8; 1024] = prime(10_965_728);

const fn prime<const BYTES: usize>(x: u64) -> [u8; BYTES] {
    let mut prime = [0xFF; BYTES];
    let mut carry = x - 1;
    let mut at = BYTES - 8;
    while at > 8 {
        at -= 1;
        carry += E_DIGITS[at - 8] as u64;
        prime[at] = carry as u8;
        carry >>= 8;
    }
    prime
}

const fn decode<const BYTES: usize>(text: &[u8]) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut at = 0;
    while at < BYTES {
        bytes[at] = digit(text[2 * at]) << 4 | digit(text[2 * at + 1]);
        at += 1;
    }
    bytes
}

const fn digit(letter: u8) -> u8 {
    match letter {
        b'0'..=b'9' => letter - b'0',
        _ => letter - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashFunction;

    /// SHA-256 of the primes as OpenSSL has them.
    #[test]
    fn primes_are_those_of_rfc_7919() {
        for (prime, hash) in [
            (&FFDHE2048[..], b"9cd3b7f336872f46c09428d1bbc19877a4d440512cda8d1c1cf0cd6e33698966"),
            (&FFDHE3072[..], b"0eaf67db3a839156d5013494a5318a772b5697d270d721f37f092efc69ea5a17"),
            (&FFDHE4096[..], b"4648414224ac881b3d0dc59b466f96d06a558278776807797ecf1f66ff397b3e"),
            (&FFDHE6144[..], b"227ac9066b3ddd9e193670cda2388fa884f65ba0cf98b742d1fe77a6687c79c7"),
            (&FFDHE8192[..], b"770b14efaf6f049929c523113b3fa99a8d11dab1b18af3609590122075d19833"),
        ] {
            assert_eq!(HashFunction::Sha256.hash(prime)[..], decode::<32>(hash));
        }
    }
}
