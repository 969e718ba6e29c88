//! Responses to challenges (Base, 8.3.4.5.4 and 8.3.4.5.5).

use nvme_proto::auth::{AuthTransaction, ConcatenatedChannel};
use nvme_proto::{HostNqn, Nqn};

use crate::digest::AuthDigest;
use crate::hash::HashFunction;
use crate::key_agreement::SharedSecret;
use crate::secret::AuthKey;

/// Names of the two sides, to which responses are bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parties {
    /// NQN of the host.
    pub host: HostNqn,
    /// NQN of the subsystem.
    pub subsystem: Nqn,
}

/// Input of a response, apart from the key.
#[derive(Clone, Copy, Debug)]
pub struct ResponseInput<'a> {
    /// Names of the two sides.
    pub parties: &'a Parties,
    /// Hash function that the controller selected.
    pub hash: HashFunction,
    /// Transaction that the challenge belongs to.
    pub transaction: AuthTransaction,
    /// Secure channel that AUTH_Negotiate asked for.
    pub concatenation: ConcatenatedChannel,
    /// Sequence number of the challenge.
    pub sequence: u32,
    /// Challenge as it was sent.
    pub challenge: &'a [u8],
    /// Secret of the Diffie-Hellman exchange; `None` with the null group.
    pub shared: Option<&'a SharedSecret>,
}

impl ResponseInput<'_> {
    /// Response R1 of the host.
    pub fn host_response(&self, key: &AuthKey) -> AuthDigest {
        let (host, subsystem) = (self.parties.host.as_str(), self.parties.subsystem.as_str());
        self.response(key, "HostHost", host, subsystem)
    }

    /// Response R2 of the controller.
    pub fn controller_response(&self, key: &AuthKey) -> AuthDigest {
        let (host, subsystem) = (self.parties.host.as_str(), self.parties.subsystem.as_str());
        self.response(key, "Controller", subsystem, host)
    }

    fn response(&self, key: &AuthKey, role: &str, own: &str, other: &str) -> AuthDigest {
        let augmented = self.shared.map(|shared| {
            let session_key = self.hash.hash(shared.as_bytes());
            self.hash.hmac(&session_key, &[self.challenge])
        });
        let parts = [
            augmented.as_deref().unwrap_or(self.challenge),
            &self.sequence.to_le_bytes(),
            &self.transaction.0.to_le_bytes(),
            &[self.concatenation.0],
            role.as_bytes(),
            own.as_bytes(),
            &[0],
            other.as_bytes(),
        ];
        self.hash.hmac(key.as_bytes(), &parts)
    }
}
