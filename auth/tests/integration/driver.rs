//! Keys, setups, and transactions over a network that delivers everything.

use std::sync::Arc;

use feedrail_auth::{
    AuthKey, AuthOffer, AuthPolicy, Authenticated, ControllerAuth, DhGroup, HashFunction, HostAuth,
    HostAuthError, HostKeys, HostSetup, HostStep, Parties, ReceiveReaction, Secret, SendReaction,
    SequenceNumbers, Transformation,
};
use nvme_proto::Status;
use nvme_proto::auth::AuthTransaction;
use splitmix64::SplitMix64;

/// Memory that Linux has for a message.
pub(crate) const RECEIVE_BYTES: usize = 4096;

pub(crate) fn parties() -> Parties {
    Parties {
        host: "nqn.2014-08.org.nvmexpress:uuid:0123abcd-4567-89ef-0011-223344556677"
            .parse()
            .expect("an NQN"),
        subsystem: "nqn.2026-01.org.example:shards".parse().expect("an NQN"),
    }
}

/// Secret of 32 bytes that are counted from `first`.
pub(crate) fn secret(transformation: Transformation, first: u8) -> Secret {
    let bytes: Vec<u8> = (first..first + 32).collect();
    Secret::new(transformation, &bytes).expect("a valid length")
}

pub(crate) fn host_key() -> AuthKey {
    secret(Transformation::Hmac(HashFunction::Sha256), 0).key_for(&parties().host.0)
}

pub(crate) fn controller_key() -> AuthKey {
    secret(Transformation::None, 100).key_for(&parties().subsystem)
}

pub(crate) fn seeded(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut random = SplitMix64::new(seed);
    move |bytes| bytes.fill_with(|| random.next_u64() as u8)
}

pub(crate) fn offer(hash: HashFunction, group: Option<DhGroup>) -> AuthOffer {
    AuthOffer::new(&[hash], &[group]).expect("one of each")
}

pub(crate) fn setup(controller_key: Option<AuthKey>, offer: AuthOffer) -> HostSetup {
    HostSetup {
        parties: parties(),
        host_key: host_key(),
        controller_key,
        offer,
        sequences: SequenceNumbers::new(&mut seeded(2)),
    }
}

pub(crate) fn controller() -> ControllerAuth {
    let keys = HostKeys { host: host_key(), controller: Some(controller_key()) };
    controller_with(Some(keys), AuthPolicy::up_to(Some(DhGroup::Ffdhe8192)))
}

pub(crate) fn controller_with(keys: Option<HostKeys>, policy: AuthPolicy) -> ControllerAuth {
    let sequences = Arc::new(SequenceNumbers::new(&mut seeded(3)));
    ControllerAuth::new(parties(), keys.map(Arc::new), Arc::new(policy), sequences)
}

/// Sends a message, and executes the work that follows.
pub(crate) fn send(controller: &mut ControllerAuth, message: &[u8]) -> Result<(), Status> {
    match controller.send(message) {
        SendReaction::Complete | SendReaction::Disconnect => Ok(()),
        SendReaction::Compute(work) => {
            controller.computed(work.run(&mut seeded(4)));
            Ok(())
        }
        SendReaction::Abort(status) => Err(status),
    }
}

/// Fetches a message, and whether the controller disconnects then.
pub(crate) fn receive(controller: &mut ControllerAuth) -> Result<(Vec<u8>, bool), Status> {
    match controller.receive(RECEIVE_BYTES, &mut seeded(5)) {
        ReceiveReaction::Respond(bytes) => Ok((bytes, false)),
        ReceiveReaction::RespondAndDisconnect(bytes) => Ok((bytes, true)),
        ReceiveReaction::Wait => panic!("all work has been done"),
        ReceiveReaction::Abort(status) => Err(status),
    }
}

/// Runs a transaction to its end.
pub(crate) fn run(
    setup: HostSetup,
    transaction: u16,
    controller: &mut ControllerAuth,
) -> Result<Authenticated, HostAuthError> {
    let (mut host, mut step) = HostAuth::begin(Arc::new(setup), AuthTransaction(transaction));
    loop {
        step = match step {
            HostStep::Send(message) => match send(controller, &message) {
                Ok(()) => host.sent(),
                Err(status) => host.command_failed(status),
            },
            HostStep::Receive => match receive(controller) {
                Ok((mut bytes, _)) => {
                    bytes.resize(RECEIVE_BYTES, 0);
                    host.received(&bytes, &mut seeded(6))
                }
                Err(status) => host.command_failed(status),
            },
            HostStep::Compute(work) => {
                let result = work.run(&mut seeded(7));
                host.computed(result, &mut seeded(8))
            }
            HostStep::Finish(result) => return result,
        };
    }
}
