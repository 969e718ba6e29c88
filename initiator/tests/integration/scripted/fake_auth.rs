//! The authentication of a scripted target: that of `feedrail-auth`, with ways to spoil it.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedrail_auth::{
    AuthEvent, AuthPolicy, Authenticated, ControllerAuth, HostKeys, Parties, ReceiveReaction,
    SendReaction, SequenceNumbers,
};
use nvme_proto::auth::{AuthenticationReceive, AuthenticationSend};
use nvme_proto::fabrics::ConnectResponse;
use nvme_proto::{Cqe, FabricsType, HostId, HostNqn, Sqe, Status};
use rdma::ConnId;
use splitmix64::SplitMix64;

use super::world::World;

/// Messages that are fetched at a time, and the longest of them.
pub(crate) const MESSAGES: usize = 16;
pub(crate) const MESSAGE_BYTES: usize = 4096;

/// Changes a message to the host.
type Spoil = Box<dyn FnMut(Vec<u8>) -> Vec<u8>>;

pub(crate) struct FakeAuth {
    /// Keys of the host; `None` refuses it.
    pub(crate) keys: Option<HostKeys>,
    pub(crate) policy: AuthPolicy,
    /// Sets ATR, and refuses other commands until a queue is authenticated.
    pub(crate) is_required: bool,
    /// Knows the commands although it does not require them.
    pub(crate) is_offered: bool,
    /// Sets ASCR in the response to Connect.
    pub(crate) wants_channel: bool,
    pub(crate) spoil: Spoil,
    /// Results of the transactions that succeeded, in order.
    pub(crate) done: Vec<Authenticated>,
    /// Number of transactions that failed on either side.
    pub(crate) failed: usize,
    queues: BTreeMap<ConnId, ControllerAuth>,
    /// Messages that are being fetched: their lengths, and the responses that follow.
    pub(crate) fetching: BTreeMap<(ConnId, usize), (usize, Cqe)>,
    next_place: usize,
    random: SplitMix64,
}

/// Reaction of the target to an authentication command.
pub(crate) enum AuthReaction {
    /// Fetches a message to this place.
    Fetch {
        length: usize,
        place: usize,
    },
    /// Writes a message, and disconnects then if it `leaves`.
    Message {
        bytes: Vec<u8>,
        leaves: bool,
    },
    Answer(Status),
}

impl Default for FakeAuth {
    fn default() -> Self {
        Self {
            keys: None,
            policy: AuthPolicy::default(),
            is_required: false,
            is_offered: false,
            wants_channel: false,
            spoil: Box::new(|bytes| bytes),
            done: Vec::new(),
            failed: 0,
            queues: BTreeMap::new(),
            fetching: BTreeMap::new(),
            next_place: 0,
            random: SplitMix64::new(5),
        }
    }
}

impl FakeAuth {
    /// Requires authentication with these keys.
    pub(crate) fn require(&mut self, keys: HostKeys) {
        (self.is_required, self.keys) = (true, Some(keys));
    }

    pub(crate) fn parties() -> Parties {
        Parties { host: HostNqn::from_host_id(HostId([9; 16])), subsystem: World::target().nqn }
    }

    /// Returns whether a command is executed before its queue is authenticated, or after.
    pub(crate) fn admits(&self, conn: ConnId, sqe: &Sqe) -> bool {
        let is_free = matches!(
            kind(sqe),
            Some(
                FabricsType::CONNECT
                    | FabricsType::AUTHENTICATION_SEND
                    | FabricsType::AUTHENTICATION_RECEIVE
            )
        );
        let known = self.queues.get(&conn);
        !self.is_required || is_free || known.is_some_and(ControllerAuth::is_authenticated)
    }

    /// Begins with a queue, and completes the response to its Connect.
    pub(crate) fn connected(&mut self, conn: ConnId, response: ConnectResponse) -> ConnectResponse {
        let seed = self.random.next_u64();
        let sequences = SequenceNumbers::new(&mut seeded(&mut SplitMix64::new(seed)));
        let (keys, policy) = (self.keys.clone().map(Arc::new), Arc::new(self.policy.clone()));
        let auth = ControllerAuth::new(Self::parties(), keys, policy, Arc::new(sequences));
        self.queues.insert(conn, auth);
        response
            .with_authentication_required(self.is_required)
            .with_secure_channel_required(self.wants_channel)
    }

    pub(crate) fn forget(&mut self, conn: ConnId) {
        self.queues.remove(&conn);
        self.fetching.retain(|(of, _), _| *of != conn);
    }

    /// Replaces the keys of all queues.
    pub(crate) fn set_keys(&mut self, keys: Option<HostKeys>) {
        for auth in self.queues.values_mut() {
            auth.set_keys(keys.clone().map(Arc::new));
        }
        self.keys = keys;
    }

    /// Returns the reaction to a command; `None` if it is none for authentication.
    pub(crate) fn command(&mut self, conn: ConnId, sqe: &Sqe) -> Option<AuthReaction> {
        let is_known = self.is_required || self.is_offered;
        match kind(sqe)? {
            FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE if !is_known => {
                Some(AuthReaction::Answer(Status::INVALID_OPCODE.with_dnr()))
            }
            FabricsType::AUTHENTICATION_SEND => {
                let length = AuthenticationSend::parse(sqe).unwrap().length_bytes as usize;
                let place = self.next_place % MESSAGES;
                self.next_place += 1;
                Some(AuthReaction::Fetch { length, place })
            }
            FabricsType::AUTHENTICATION_RECEIVE => {
                let length = AuthenticationReceive::parse(sqe).unwrap().length_bytes as usize;
                assert_eq!(length, MESSAGE_BYTES);
                let auth = self.queues.get_mut(&conn).unwrap();
                let reaction = auth.receive(length, &mut seeded(&mut self.random));
                self.note(conn);
                Some(match reaction {
                    ReceiveReaction::Respond(bytes) => {
                        AuthReaction::Message { bytes: (self.spoil)(bytes), leaves: false }
                    }
                    ReceiveReaction::RespondAndDisconnect(bytes) => {
                        AuthReaction::Message { bytes: (self.spoil)(bytes), leaves: true }
                    }
                    ReceiveReaction::Wait => panic!("work is done in place"),
                    ReceiveReaction::Abort(status) => AuthReaction::Answer(status),
                })
            }
            _ => None,
        }
    }

    /// Takes a message of the host; returns the status, and whether the target disconnects.
    pub(crate) fn message(&mut self, conn: ConnId, bytes: &[u8]) -> (Status, bool) {
        let auth = self.queues.get_mut(&conn).unwrap();
        let reaction = match auth.send(bytes) {
            SendReaction::Complete => (Status::SUCCESS, false),
            SendReaction::Compute(work) => {
                auth.computed(work.run(&mut seeded(&mut self.random)));
                (Status::SUCCESS, false)
            }
            SendReaction::Abort(status) => (status, false),
            SendReaction::Disconnect => (Status::SUCCESS, true),
        };
        self.note(conn);
        reaction
    }

    fn note(&mut self, conn: ConnId) {
        match self.queues.get_mut(&conn).and_then(ControllerAuth::take_event) {
            Some(AuthEvent::Authenticated(authenticated)) => self.done.push(authenticated),
            Some(_) => self.failed += 1,
            None => {}
        }
    }
}

/// Kind of a fabrics command.
fn kind(sqe: &Sqe) -> Option<FabricsType> {
    sqe.is_fabrics().then(|| sqe.fabrics_type())
}

fn seeded(random: &mut SplitMix64) -> impl FnMut(&mut [u8]) + '_ {
    move |bytes| bytes.fill_with(|| random.next_u64() as u8)
}
