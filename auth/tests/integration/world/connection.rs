//! A connection of the host to the controller, through the attacker.

use std::sync::Arc;

use feedrail_auth::{Authenticated, HostAuth, HostAuthError, HostStep};
use nvme_proto::Status;
use nvme_proto::auth::{AuthMessage, AuthTransaction};

use super::Ground;
use super::attacker::{Attacker, Delivery};
use super::watch::Watch;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Admitted,
    Refused,
    RefusedByHost,
    Lost,
}

pub(super) struct Connection {
    controller: Watch,
    /// Chance of each message to be meddled with, in a million.
    meddling: u32,
    is_disturbed: bool,
}

impl Connection {
    pub(super) fn new(ground: &Ground, meddling: u32) -> Self {
        Self { controller: Watch::new(ground), meddling, is_disturbed: false }
    }

    /// Whether a message was not delivered as it was sent.
    pub(super) fn was_disturbed(&self) -> bool {
        self.is_disturbed
    }

    /// Runs one transaction of the host.
    pub(super) fn run(&mut self, ground: &mut Ground, attacker: &mut Attacker) -> End {
        let transaction = AuthTransaction(ground.transaction());
        let (mut host, mut step) = HostAuth::begin(Arc::clone(&ground.setup), transaction);
        let mut own_challenge = None;
        loop {
            step = match step {
                HostStep::Send(message) => {
                    if let Ok((AuthMessage::Reply(reply), _)) = AuthMessage::parse(&message) {
                        own_challenge = reply.challenge.map(<[u8]>::to_vec);
                    }
                    match self.deliver(ground, attacker, message) {
                        Some(Ok(())) => host.sent(),
                        Some(Err(status)) => host.command_failed(status),
                        None => host.timed_out(),
                    }
                }
                HostStep::Receive => match self.fetch(ground, attacker) {
                    Some(Ok(data)) => {
                        let step = host.received(&data, &mut ground.random_bytes());
                        ground.note_answer(&data, &step);
                        step
                    }
                    Some(Err(status)) => host.command_failed(status),
                    None => host.timed_out(),
                },
                HostStep::Compute(work) => {
                    let mut random = ground.random_bytes();
                    let result = work.run(&mut random);
                    host.computed(result, &mut random)
                }
                HostStep::Finish(result) => return self.end(ground, result, own_challenge),
            };
        }
    }

    /// Checks what the host believes.
    fn end(
        &self,
        ground: &Ground,
        result: Result<Authenticated, HostAuthError>,
        own_challenge: Option<Vec<u8>>,
    ) -> End {
        match result {
            Ok(authenticated) => {
                let is_bidirectional = ground.setup.controller_key.is_some();
                assert_eq!(authenticated.bidirectional, is_bidirectional);
                assert_eq!(own_challenge.is_some(), is_bidirectional);
                let mut own_challenge = own_challenge.iter();
                let is_answered =
                    own_challenge.all(|own| ground.answered_by_controller.contains(own));
                assert!(is_answered, "the host believes a controller without the key");
                // Who says so to a host that asked for nothing may be the attacker.
                match self.controller.is_authenticated() {
                    true => End::Admitted,
                    false => End::Refused,
                }
            }
            Err(HostAuthError::Refused(_)) => End::RefusedByHost,
            Err(HostAuthError::TimedOut | HostAuthError::CommandFailed(_)) => End::Lost,
            Err(HostAuthError::RefusedByController(_)) => End::Refused,
            Err(HostAuthError::OutOfOrder) => panic!("the driver keeps the order"),
        }
    }

    /// Delivers a message of the host; `None` if it is lost.
    fn deliver(
        &mut self,
        ground: &mut Ground,
        attacker: &mut Attacker,
        message: Vec<u8>,
    ) -> Option<Result<(), Status>> {
        ground.recorded.push(message.clone());
        let mut result = Ok(());
        for message in self.deliveries(ground, attacker, message)? {
            result = self.controller.send(ground, &message);
        }
        Some(result)
    }

    /// Fetches a message for the host; `None` if it is lost.
    fn fetch(
        &mut self,
        ground: &mut Ground,
        attacker: &mut Attacker,
    ) -> Option<Result<Vec<u8>, Status>> {
        let message = match self.controller.receive(ground) {
            Ok(message) => message,
            Err(status) => return Some(Err(status)),
        };
        self.deliveries(ground, attacker, message)?.pop().map(Ok)
    }

    /// Messages that arrive in place of one; `None` if it is lost.
    fn deliveries(
        &mut self,
        ground: &mut Ground,
        attacker: &mut Attacker,
        message: Vec<u8>,
    ) -> Option<Vec<Vec<u8>>> {
        if !ground.random.chance(self.meddling) {
            return Some(vec![message]);
        }
        self.is_disturbed = true;
        match attacker.meddle(ground, message) {
            Delivery::Lost => None,
            Delivery::Arrives(messages) => {
                ground.tally.tampered += 1;
                Some(messages)
            }
        }
    }
}
