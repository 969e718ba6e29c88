//! Messages and scripts of authentications.

use nvme_proto::auth::{
    AuthChallenge, AuthFailure, AuthMessage, AuthNegotiate, AuthReply, AuthSuccess1, AuthSuccess2,
    AuthTransaction, ConcatenatedChannel, DhChapDescriptor, DhGroupId, FailureExplanation, HashId,
};

use super::{Script, Seeds};

/// Courses of a controller's queue: the first record has the flags.
pub(super) const CONTROLLER_SCRIPTS: [Script<'_>; 7] = [
    ("unidirectional", &[&[0], NEGOTIATE, RECEIVE, REPLY, RECEIVE]),
    ("bidirectional", &[&[1], NEGOTIATE, RECEIVE, &[4, 2, 9, 9], RECEIVE, SUCCESS2]),
    (
        "ffdhe2048",
        &[&[5], NEGOTIATE_DH, WORK, RECEIVE, &[4, 2, 9, 9], WORK, RECEIVE, SUCCESS2, NEGOTIATE],
    ),
    ("again", &[&[0], NEGOTIATE, RECEIVE, REPLY, RECEIVE, NEGOTIATE, RECEIVE, &[9], NEGOTIATE]),
    ("wrong", &[&[0], NEGOTIATE, RECEIVE, &[4, 1, 1, 1], RECEIVE]),
    ("unknown", &[&[2], NEGOTIATE, RECEIVE, REPLY, RECEIVE]),
    ("given-up", &[&[5], NEGOTIATE_DH, RECEIVE, &[11], RECEIVE, &[6, 0, 1]]),
];

const NEGOTIATE: &[u8] = &[3, 0, 1];
const NEGOTIATE_DH: &[u8] = &[3, 0, 2, 1];
const RECEIVE: &[u8] = &[2];
const REPLY: &[u8] = &[4];
const SUCCESS2: &[u8] = &[5];
const WORK: &[u8] = &[7];

/// Courses of a host's transaction.
pub(super) const HOST_SCRIPTS: [Script<'_>; 6] = [
    ("unidirectional", &[&[0], SENT, &[2, 1, 0, 3], SENT, &[3]]),
    ("bidirectional", &[&[1], SENT, &[2, 2, 0, 3], SENT, &[3], SENT]),
    ("ffdhe2048", &[&[3], SENT, &[2, 3, 1, 3], COMPUTED, SENT, &[3], SENT]),
    ("wrong", &[&[1], SENT, &[2, 1, 0, 3], SENT, &[3, 1, 1], SENT]),
    ("refused", &[&[1], SENT, &[2, 1, 0, 3], SENT, &[4, 1]]),
    ("silence", &[&[0], SENT, &[7]]),
];

const SENT: &[u8] = &[0];
const COMPUTED: &[u8] = &[5];

/// One message of each kind.
pub(super) fn messages() -> Seeds {
    let transaction = AuthTransaction(1);
    let groups = [0, 1, 2, 3, 4, 5].map(DhGroupId);
    let hashes = [1, 2, 3].map(HashId);
    let offer = [DhChapDescriptor::new(&hashes, &groups).expect("short lists")];
    let failure = AuthFailure::new(transaction, FailureExplanation::FAILED);
    let (digest, dh_value) = ([3; 32], [4; 256]);
    [
        (
            "negotiate",
            AuthMessage::Negotiate(AuthNegotiate {
                transaction,
                concatenation: ConcatenatedChannel::NONE,
                protocols: &offer,
            }),
        ),
        (
            "challenge",
            AuthMessage::Challenge(AuthChallenge {
                transaction,
                hash: HashId::SHA_256,
                group: DhGroupId::FFDHE2048,
                sequence: 1,
                challenge: &digest,
                dh_value: &dh_value,
            }),
        ),
        (
            "reply",
            AuthMessage::Reply(AuthReply {
                transaction,
                sequence: 1,
                response: &digest,
                challenge: Some(&digest),
                dh_value: &dh_value,
            }),
        ),
        (
            "success1",
            AuthMessage::Success1(AuthSuccess1 {
                transaction,
                hash_bytes: 32,
                response: Some(&digest),
            }),
        ),
        ("success2", AuthMessage::Success2(AuthSuccess2 { transaction })),
        ("failure1", AuthMessage::Failure1(failure)),
        ("failure2", AuthMessage::Failure2(failure)),
    ]
    .into_iter()
    .map(|(name, message)| {
        let bytes = message.encode(&mut [0; 4096]).expect("there is room").to_vec();
        (name.to_owned(), bytes)
    })
    .collect()
}
