//! In-band authentication: its messages, and the state machine of each side.

pub mod controller;
pub mod host;
pub mod message;

use std::sync::OnceLock;

use feedrail_auth::{
    AuthKey, DhGroup, HashFunction, KeyPair, Parties, ResponseInput, Secret, SharedSecret,
    Transformation,
};
use nvme_proto::auth::{AuthMessage, AuthTransaction, ConcatenatedChannel, DhGroupId, HashId};

/// Most bytes of a message of either side.
const MESSAGE_BYTES: usize = 16 + 2 * 64 + 1024;

fn parties() -> &'static Parties {
    static PARTIES: OnceLock<Parties> = OnceLock::new();
    PARTIES.get_or_init(|| Parties {
        host: "nqn.2026-01.org.example:host".parse().expect("an NQN"),
        subsystem: "nqn.2026-01.org.example:disk".parse().expect("an NQN"),
    })
}

/// Keys of the host and of the controller.
fn keys() -> &'static [AuthKey; 2] {
    static KEYS: OnceLock<[AuthKey; 2]> = OnceLock::new();
    KEYS.get_or_init(|| {
        let secret = |byte| Secret::new(Transformation::None, &[byte; 32]).expect("its length");
        [secret(1).key_for(&parties().host.0), secret(2).key_for(&parties().subsystem)]
    })
}

/// Pair of ffdhe2048, the only one that is computed.
fn pair() -> &'static std::sync::Arc<KeyPair> {
    static PAIR: OnceLock<std::sync::Arc<KeyPair>> = OnceLock::new();
    PAIR.get_or_init(|| {
        std::sync::Arc::new(KeyPair::generate(DhGroup::Ffdhe2048, &mut |bytes| bytes.fill(3)))
    })
}

/// Shared secret of all exchanges: a real one would take as long as hundreds of executions.
fn shared() -> SharedSecret {
    SharedSecret::from_bytes(vec![5; 256])
}

fn encode(message: &AuthMessage<'_>) -> Vec<u8> {
    message.encode(&mut [0; 20_000]).expect("there is room").to_vec()
}

/// Challenge of either side, to which a response is computed.
struct Challenged<'a> {
    hash: HashFunction,
    group: DhGroupId,
    transaction: AuthTransaction,
    sequence: u32,
    challenge: &'a [u8],
}

impl Challenged<'_> {
    /// Calls `respond` with what the response is made of.
    fn respond<T>(&self, respond: impl FnOnce(&ResponseInput<'_>) -> T) -> T {
        let shared = shared();
        respond(&ResponseInput {
            parties: parties(),
            hash: self.hash,
            transaction: self.transaction,
            concatenation: ConcatenatedChannel::NONE,
            sequence: self.sequence,
            challenge: self.challenge,
            shared: (self.group != DhGroupId::NULL).then_some(&shared),
        })
    }
}

/// Hash function of a byte, mostly one that exists.
fn hash_id(byte: u8) -> HashId {
    HashId(byte & 3)
}
