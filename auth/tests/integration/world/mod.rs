//! A world of one controller, one host, and a network that belongs to an attacker.
//!
//! The attacker loses, repeats, reorders, damages, replaces and makes up messages of the host's
//! connections, and has connections of its own. It knows everything but the keys, also all messages
//! of all connections. Some worlds have a host with another key.

mod attacker;
mod connection;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;

use feedrail_auth::{
    AuthKey, AuthOffer, AuthPolicy, ControllerAuth, DhGroup, HashFunction, HostKeys, HostSetup,
    HostStep, KeyPair, Preference, Secret, SequenceNumbers, Transformation,
};
use nvme_proto::Nqn;
use nvme_proto::auth::AuthMessage;
use splitmix64::SplitMix64;

use crate::driver::parties;
use attacker::Attacker;
use connection::{Connection, End};

/// Counts of events in worlds.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Transactions of the host that succeeded on both sides.
    admitted: u64,
    /// Transactions that the controller refused.
    refused: u64,
    /// Transactions that the host refused.
    refused_by_host: u64,
    /// Transactions that ended because a message was lost.
    lost: u64,
    /// Messages that were repeated, reordered, damaged, replaced or made up.
    tampered: u64,
    /// Messages of the attacker on connections of its own.
    attacks: u64,
    /// Transactions on queues that were authenticated.
    again: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.refused += other.refused;
        self.refused_by_host += other.refused_by_host;
        self.lost += other.lost;
        self.tampered += other.tampered;
        self.attacks += other.attacks;
        self.again += other.again;
    }

    /// Count of what happened least.
    pub(crate) fn least(&self) -> u64 {
        let counts = [self.admitted, self.refused, self.refused_by_host, self.lost];
        let others = [self.tampered, self.attacks, self.again];
        counts.into_iter().chain(others).min().unwrap_or(0)
    }
}

/// State that all connections of a world share.
pub(crate) struct Ground {
    pub(crate) random: SplitMix64,
    pub(crate) setup: Arc<HostSetup>,
    keys: Arc<HostKeys>,
    policy: Arc<AuthPolicy>,
    sequences: Arc<SequenceNumbers>,
    pair: Option<Arc<KeyPair>>,
    /// Every message that was on the network, which the attacker has.
    pub(crate) recorded: Vec<Vec<u8>>,
    has_key: bool,
    /// Challenge messages that a host with the key has answered.
    pub(crate) answered_by_host: BTreeSet<Vec<u8>>,
    /// Challenges C2 that the controller has answered.
    pub(crate) answered_by_controller: BTreeSet<Vec<u8>>,
    pub(crate) tally: Tally,
    last_transaction: u16,
}

impl Ground {
    pub(crate) fn random_bytes(&mut self) -> impl FnMut(&mut [u8]) + use<> {
        let mut random = SplitMix64::new(self.random.next_u64());
        move |bytes| bytes.fill_with(|| random.next_u64() as u8)
    }

    pub(crate) fn controller(&self) -> ControllerAuth {
        ControllerAuth::new(
            parties(),
            Some(Arc::clone(&self.keys)),
            Arc::clone(&self.policy),
            Arc::clone(&self.sequences),
        )
    }

    /// Pair for several transactions, as a controller may have it.
    pub(crate) fn pair(&mut self, group: DhGroup) -> Arc<KeyPair> {
        let mut random = self.random_bytes();
        let new = || Arc::new(KeyPair::generate(group, &mut random));
        Arc::clone(self.pair.get_or_insert_with(new))
    }

    pub(crate) fn transaction(&mut self) -> u16 {
        self.last_transaction = self.last_transaction.wrapping_add(1);
        self.last_transaction
    }

    pub(crate) fn last_transaction(&self) -> u16 {
        self.last_transaction
    }

    /// Notes a challenge that the host answers, as the controller would have sent it.
    pub(crate) fn note_answer(&mut self, data: &[u8], step: &HostStep) {
        let answers = match step {
            HostStep::Send(reply) => {
                matches!(AuthMessage::parse(reply), Ok((AuthMessage::Reply(_), _)))
            }
            HostStep::Compute(_) => true,
            _ => false,
        };
        if let (true, true, Ok((challenge, _))) = (answers, self.has_key, AuthMessage::parse(data))
        {
            let mut buffer = [0; 4096];
            let bytes = challenge.encode(&mut buffer).expect("there is room");
            self.answered_by_host.insert(bytes.to_vec());
        }
    }
}

/// Runs the world of a seed.
///
/// # Panics
/// If somebody without the key is let in, or somebody with it is kept out.
pub(crate) fn run_world(seed: u64) -> Tally {
    let mut random = SplitMix64::new(seed);
    let has_key = !random.chance(150_000);
    let mut ground = ground(random, has_key);
    let mut attacker = Attacker::new(&ground);
    for _ in 0..1 + ground.random.below(4) {
        for _ in 0..ground.random.below(3) {
            attacker.act(&mut ground);
        }
        hostile_connection(&mut ground, &mut attacker, has_key);
    }
    // When the network is the host's again, the key decides.
    let mut connection = Connection::new(&ground, 0);
    let end = connection.run(&mut ground, &mut attacker);
    assert_eq!(end == End::Admitted, has_key, "over a network that delivers everything: {end:?}");
    ground.tally
}

/// Authenticates on a connection that the attacker meddles with, once or several times.
fn hostile_connection(ground: &mut Ground, attacker: &mut Attacker, has_key: bool) {
    let meddling = [0, 20_000, 100_000, 400_000][ground.random.index(4)];
    let mut connection = Connection::new(ground, meddling);
    for round in 0..1 + ground.random.below(3) {
        ground.tally.again += u64::from(round > 0);
        let end = connection.run(ground, attacker);
        match end {
            End::Admitted => {
                assert!(has_key, "a host with another key is let in");
                ground.tally.admitted += 1;
            }
            End::Refused => ground.tally.refused += 1,
            End::RefusedByHost => ground.tally.refused_by_host += 1,
            End::Lost => ground.tally.lost += 1,
        }
        if !connection.was_disturbed() {
            assert_eq!(end == End::Admitted, has_key, "undisturbed: {end:?}");
        }
        if end != End::Admitted {
            return;
        }
    }
}

fn ground(mut random: SplitMix64, has_key: bool) -> Ground {
    let mut drawn = {
        let mut random = SplitMix64::new(random.next_u64());
        move |bytes: &mut [u8]| bytes.fill_with(|| random.next_u64() as u8)
    };
    let mut key = |owner: &Nqn| -> AuthKey {
        let transformation = Transformation::of(random.below(4) as u8).expect("0 to 3");
        let length = Secret::LENGTHS[random.index(3)];
        let secret = Secret::generate(transformation, length, &mut drawn).expect("its length");
        secret.key_for(owner)
    };
    let names = parties();
    let (host, controller) = (key(&names.host.0), key(&names.subsystem));
    let other = key(&names.host.0);
    let is_bidirectional = random.chance(600_000);
    // Exponentiations take most of the time of a world that has them.
    let groups = if random.chance(4_000) { vec![Some(DhGroup::Ffdhe2048)] } else { vec![None] };
    let hash = HashFunction::ALL[random.index(3)];
    let policy = AuthPolicy {
        hashes: Preference { preferred: Some(hash), allowed: HashFunction::ALL.to_vec() },
        groups: Preference { preferred: None, allowed: groups.clone() },
    };
    let setup = HostSetup {
        parties: names,
        host_key: if has_key { host.clone() } else { other },
        controller_key: is_bidirectional.then(|| controller.clone()),
        offer: AuthOffer::new(&HashFunction::ALL, &groups).expect("short lists"),
        sequences: SequenceNumbers::new(&mut drawn),
    };
    Ground {
        setup: Arc::new(setup),
        keys: Arc::new(HostKeys { host, controller: Some(controller) }),
        policy: Arc::new(policy),
        sequences: Arc::new(SequenceNumbers::new(&mut drawn)),
        pair: None,
        has_key,
        recorded: Vec::new(),
        answered_by_host: BTreeSet::new(),
        answered_by_controller: BTreeSet::new(),
        tally: Tally::default(),
        last_transaction: random.next_u64() as u16,
        random,
    }
}
