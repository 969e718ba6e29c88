//! Codes of authentication messages.

use core::fmt;

/// Identifier of an authentication transaction, T_ID, which the host chooses and all messages of
/// the transaction carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthTransaction(pub u16);

impl fmt::Display for AuthTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

open_enum! {
    /// Identifier of a hash function (Base, 8.3.4.5.2), also in the representation of secrets.
    pub struct HashId(u8) {
        SHA_256 = 0x01, "SHA-256";
        SHA_384 = 0x02, "SHA-384";
        SHA_512 = 0x03, "SHA-512";
    }
}

open_enum! {
    /// Identifier of a Diffie-Hellman group (Base, 8.3.4.5.2; groups of RFC 7919).
    pub struct DhGroupId(u8) {
        NULL = 0x00, "null";
        FFDHE2048 = 0x01, "ffdhe2048";
        FFDHE3072 = 0x02, "ffdhe3072";
        FFDHE4096 = 0x03, "ffdhe4096";
        FFDHE6144 = 0x04, "ffdhe6144";
        FFDHE8192 = 0x05, "ffdhe8192";
    }
}

open_enum! {
    /// Identifier of an authentication protocol, AuthID (Base, 8.3.4.4.1).
    pub struct AuthProtocol(u8) {
        DH_HMAC_CHAP = 0x01, "DH-HMAC-CHAP";
    }
}

open_enum! {
    /// Secure channel that follows the authentication, SC_C (Base, 8.3.4.4.1).
    pub struct ConcatenatedChannel(u8) {
        NONE = 0x00, "none";
        NEW_TLS_PSK = 0x02, "new TLS PSK";
        REPLACE_TLS_PSK = 0x03, "replaced TLS PSK";
    }
}

open_enum! {
    /// Reason code of a failure (Base, 8.3.4.4.2).
    pub struct FailureReason(u8) {
        AUTHENTICATION_FAILURE = 0x01, "Authentication failure";
    }
}

open_enum! {
    /// Reason code explanation of a failure (Base, 8.3.4.4.2).
    pub struct FailureExplanation(u8) {
        FAILED = 0x01, "Authentication failed";
        PROTOCOL_NOT_USABLE = 0x02, "Authentication protocol not usable";
        CONCATENATION_MISMATCH = 0x03, "Secure channel concatenation mismatch";
        HASH_NOT_USABLE = 0x04, "Hash function not usable";
        GROUP_NOT_USABLE = 0x05, "DH group not usable";
        INCORRECT_PAYLOAD = 0x06, "Incorrect payload";
        INCORRECT_MESSAGE = 0x07, "Incorrect protocol message";
    }
}
