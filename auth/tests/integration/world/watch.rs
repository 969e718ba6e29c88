//! Messages to and from a controller on one connection, which must fit its belief.

use feedrail_auth::{
    AuthEvent, ControllerAuth, ControllerWork, ControllerWorkResult, ReceiveReaction, SendReaction,
};
use nvme_proto::Status;
use nvme_proto::auth::AuthMessage;

use super::Ground;

const RECEIVE_BYTES: usize = 4096;

/// Controller of one connection, under watch.
pub(super) struct Watch {
    controller: ControllerAuth,
    /// Challenge message that it sent last.
    challenge: Vec<u8>,
    /// Challenge C2 of the last reply that it was sent.
    reply_challenge: Option<Vec<u8>>,
}

impl Watch {
    pub(super) fn new(ground: &Ground) -> Self {
        Self { controller: ground.controller(), challenge: Vec::new(), reply_challenge: None }
    }

    pub(super) fn is_authenticated(&self) -> bool {
        self.controller.is_authenticated()
    }

    /// Sends a message, and has the work done.
    pub(super) fn send(&mut self, ground: &mut Ground, message: &[u8]) -> Result<(), Status> {
        if let Ok((AuthMessage::Reply(reply), _)) = AuthMessage::parse(message) {
            self.reply_challenge = reply.challenge.map(<[u8]>::to_vec);
        }
        let result = match self.controller.send(message) {
            SendReaction::Complete | SendReaction::Disconnect => Ok(()),
            SendReaction::Compute(work) => {
                let result = execute(&work, ground);
                self.controller.computed(result);
                Ok(())
            }
            SendReaction::Abort(status) => Err(status),
        };
        self.check(ground);
        result
    }

    /// Fetches the message that is due.
    pub(super) fn receive(&mut self, ground: &mut Ground) -> Result<Vec<u8>, Status> {
        let mut random = ground.random_bytes();
        let message = match self.controller.receive(RECEIVE_BYTES, &mut random) {
            ReceiveReaction::Respond(bytes) | ReceiveReaction::RespondAndDisconnect(bytes) => bytes,
            ReceiveReaction::Wait => panic!("all work has been done"),
            ReceiveReaction::Abort(status) => return Err(status),
        };
        match AuthMessage::parse(&message) {
            Ok((AuthMessage::Challenge(_), _)) => self.challenge.clone_from(&message),
            Ok((AuthMessage::Success1(success), _)) if success.response.is_some() => {
                ground.answered_by_controller.extend(self.reply_challenge.take());
            }
            _ => {}
        }
        self.check(ground);
        ground.recorded.push(message.clone());
        Ok(message)
    }

    /// Checks that a host with the key has answered the challenge of a convinced controller.
    fn check(&mut self, ground: &Ground) {
        if let Some(AuthEvent::Authenticated(_)) = self.controller.take_event() {
            let is_answered = ground.answered_by_host.contains(&self.challenge);
            assert!(is_answered, "somebody without the key is let in");
        }
    }
}

fn execute(work: &ControllerWork, ground: &mut Ground) -> ControllerWorkResult {
    match work {
        ControllerWork::KeyPair { id, group } => {
            ControllerWorkResult::KeyPair { id: *id, pair: ground.pair(*group) }
        }
        ControllerWork::Agree { .. } => work.run(&mut |_| {}),
    }
}
