//! Authentication messages: bytes laid out by hand from the tables of Base 8.3.4, and laws.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;
use zerocopy::IntoBytes;

use crate::auth::{
    AuthChallenge, AuthFailure, AuthMessage, AuthNegotiate, AuthReply, AuthSuccess1, AuthSuccess2,
    AuthTransaction, AuthenticationReceive, AuthenticationSend, ConcatenatedChannel,
    DhChapDescriptor, DhGroupId, FailureExplanation, FailureReason, HashId, InvalidAuthMessage,
};
use crate::{DataDirection, DataTransfer, Status, U32};

const T_ID: AuthTransaction = AuthTransaction(0x1234);

/// Checks that the message and the bytes are the same, in both directions, and that no part of the
/// bytes is a message.
fn assert_bytes(message: &AuthMessage<'_>, bytes: &[u8]) {
    assert_eq!(message.encode(&mut [0xEE; 2048]), Some(bytes), "{message:?}");
    assert_eq!(message.encode(&mut vec![0; bytes.len() - 1]), None);
    assert_eq!(AuthMessage::parse(bytes), Ok((*message, bytes.len())));
    assert_eq!(message.transaction(), T_ID);
    for length in 0..bytes.len() {
        assert!(AuthMessage::parse(&bytes[..length]).is_err(), "{length} bytes of {message:?}");
    }
}

#[test]
fn linux_negotiates_three_hashes_and_six_groups() {
    let hashes = [HashId::SHA_256, HashId::SHA_384, HashId::SHA_512];
    let groups = [0, 1, 2, 3, 4, 5].map(DhGroupId);
    let offer = [DhChapDescriptor::new(&hashes, &groups).expect("short lists")];
    let mut bytes = vec![0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 3, 6, 1, 2, 3];
    bytes.resize(8 + 4 + 30, 0);
    bytes.extend([0, 1, 2, 3, 4, 5]);
    bytes.resize(72, 0);
    let negotiate = AuthNegotiate {
        transaction: T_ID,
        concatenation: ConcatenatedChannel::NONE,
        protocols: &offer,
    };
    assert_bytes(&AuthMessage::Negotiate(negotiate), &bytes);
    let offer = negotiate.dh_hmac_chap().expect("it is offered");
    assert_eq!(offer.hashes().expect("a length").collect::<Vec<_>>(), hashes);
    assert_eq!(offer.groups().expect("a length").collect::<Vec<_>>(), groups);
}

#[test]
fn lists_have_one_to_thirty_identifiers() {
    let hashes = [HashId::SHA_256; 31];
    let groups = [DhGroupId::NULL; 31];
    assert!(DhChapDescriptor::new(&hashes[..30], &groups[..30]).is_some());
    for (hash_count, group_count) in [(0, 1), (1, 0), (31, 1), (1, 31)] {
        let made = DhChapDescriptor::new(&hashes[..hash_count], &groups[..group_count]);
        assert!(made.is_none(), "{hash_count} {group_count}");
    }
    let mut offer = DhChapDescriptor::new(&hashes[..1], &groups[..1]).expect("short lists");
    for (length, valid) in [(0, false), (1, true), (30, true), (31, false), (255, false)] {
        offer.as_mut_bytes()[2..4].fill(length);
        assert_eq!(offer.hashes().is_some(), valid, "HALEN {length}");
        assert_eq!(offer.groups().is_some(), valid, "DHLEN {length}");
    }
}

#[test]
fn another_protocol_is_not_dh_hmac_chap() {
    let mut other =
        DhChapDescriptor::new(&[HashId::SHA_256], &[DhGroupId::NULL]).expect("short lists");
    other.as_mut_bytes()[0] = 2;
    for protocols in [&[other][..], &[]] {
        let concatenation = ConcatenatedChannel::NEW_TLS_PSK;
        let negotiate = AuthNegotiate { transaction: T_ID, concatenation, protocols };
        assert!(negotiate.dh_hmac_chap().is_none(), "{protocols:?}");
    }
}

#[test]
fn a_challenge_with_and_without_a_dh_value() {
    let challenge: [u8; 32] = core::array::from_fn(|at| at as u8);
    let mut bytes = vec![1, 1, 0, 0, 0x34, 0x12, 32, 0, 1, 0, 0, 0, 0x78, 0x56, 0x34, 0x12];
    bytes.extend(challenge);
    let mut message = AuthChallenge {
        transaction: T_ID,
        hash: HashId::SHA_256,
        group: DhGroupId::NULL,
        sequence: 0x1234_5678,
        challenge: &challenge,
        dh_value: &[],
    };
    assert_bytes(&AuthMessage::Challenge(message), &bytes);

    let dh_value = [0xAB; 256];
    (message.group, message.dh_value) = (DhGroupId::FFDHE2048, &dh_value);
    bytes[9..12].copy_from_slice(&[1, 0, 1]);
    bytes.extend(dh_value);
    assert_bytes(&AuthMessage::Challenge(message), &bytes);
}

#[test]
fn a_reply_with_and_without_a_challenge() {
    let (response, challenge, dh_value) = ([0x11; 48], [0x22; 48], [0x33; 384]);
    let mut bytes = vec![1, 2, 0, 0, 0x34, 0x12, 48, 0, 1, 0, 0x80, 1, 7, 0, 0, 0];
    bytes.extend(response);
    bytes.extend(challenge);
    bytes.extend(dh_value);
    let mut message = AuthReply {
        transaction: T_ID,
        sequence: 7,
        response: &response,
        challenge: Some(&challenge),
        dh_value: &dh_value,
    };
    assert_bytes(&AuthMessage::Reply(message), &bytes);

    (message.challenge, message.dh_value) = (None, &[]);
    bytes[8..12].fill(0);
    bytes.truncate(16 + 48);
    bytes.resize(16 + 96, 0);
    assert_bytes(&AuthMessage::Reply(message), &bytes);

    bytes[8] = 2;
    let invalid = InvalidAuthMessage::Reserved { field: "CVALID", value: 2 };
    assert_eq!(AuthMessage::parse(&bytes), Err(invalid));
    assert_eq!(invalid.explanation(), FailureExplanation::INCORRECT_PAYLOAD);
}

#[test]
fn success_with_and_without_a_response() {
    let response = [0x44; 64];
    let mut bytes = vec![1, 3, 0, 0, 0x34, 0x12, 64, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend(response);
    let success = |response| AuthSuccess1 { transaction: T_ID, hash_bytes: 64, response };
    assert_bytes(&AuthMessage::Success1(success(Some(&response))), &bytes);

    bytes[8] = 0;
    bytes[16..].fill(0);
    let message = AuthMessage::Success1(success(None));
    assert_eq!(message.encode(&mut [0xEE; 100]), Some(&bytes[..]));
    // Linux sends no more than this.
    assert_eq!(AuthMessage::parse(&bytes[..16]), Ok((message, 16)));

    let success2 = AuthMessage::Success2(AuthSuccess2 { transaction: T_ID });
    assert_bytes(&success2, &[1, 4, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn failures_of_either_side() {
    let content = AuthFailure::new(T_ID, FailureExplanation::HASH_NOT_USABLE);
    assert_bytes(&AuthMessage::Failure1(content), &[0, 0xF1, 0, 0, 0x34, 0x12, 1, 4]);
    assert_bytes(&AuthMessage::Failure2(content), &[0, 0xF0, 0, 0, 0x34, 0x12, 1, 4]);
    let unknown = AuthFailure { reason: FailureReason(9), ..content };
    assert_bytes(&AuthMessage::Failure1(unknown), &[0, 0xF1, 0, 0, 0x34, 0x12, 9, 4]);
}

#[test]
fn an_unknown_message_is_not_the_expected_one() {
    for (auth_type, auth_id) in [(0, 1), (1, 0), (1, 5), (1, 0xF1), (2, 0), (0xFF, 0xFF)] {
        let error = AuthMessage::parse(&[auth_type, auth_id, 0, 0, 0, 0]).unwrap_err();
        assert_eq!(error, InvalidAuthMessage::Unknown { auth_type, auth_id });
        assert_eq!(error.explanation(), FailureExplanation::INCORRECT_MESSAGE);
    }
    let short = AuthMessage::parse(&[0, 0xF1, 0]).unwrap_err();
    assert_eq!(short.explanation(), FailureExplanation::INCORRECT_PAYLOAD);
}

#[test]
fn the_commands_name_the_protocol_of_nvme() {
    let send = AuthenticationSend { length_bytes: 72 };
    let sqe = send.to_sqe();
    assert_eq!(sqe.as_bytes()[..5], [0x7F, 0x40, 0, 0, 5]);
    assert_eq!(sqe.as_bytes()[40..48], [0, 1, 1, 0xE9, 72, 0, 0, 0]);
    assert_eq!(AuthenticationSend::parse(&sqe), Ok(send));
    let transfer = DataTransfer { direction: DataDirection::HostToController, length_bytes: 72 };
    assert_eq!(send.transfer(), transfer);

    let receive = AuthenticationReceive { length_bytes: 4096 };
    let mut sqe = receive.to_sqe();
    assert_eq!(sqe.as_bytes()[4], 6);
    assert_eq!(sqe.as_bytes()[40..48], [0, 1, 1, 0xE9, 0, 16, 0, 0]);
    assert_eq!(AuthenticationReceive::parse(&sqe), Ok(receive));
    assert_eq!(receive.transfer().direction, DataDirection::ControllerToHost);

    let refused = Status::INVALID_FIELD.with_dnr();
    for dword in [0xE900_0100, 0xE901_0000, 0xEA01_0100, 0xE902_0100, 0] {
        sqe.cdw10 = U32::new(dword);
        assert_eq!(AuthenticationReceive::parse(&sqe), Err(refused), "{dword:#x}");
        assert_eq!(AuthenticationSend::parse(&sqe), Err(refused), "{dword:#x}");
    }
    let empty = AuthenticationSend { length_bytes: 0 }.to_sqe();
    assert_eq!(AuthenticationSend::parse(&empty), Err(refused));
}

proptest! {
    /// A message that parses is encoded to a message that parses to the same.
    #[test]
    fn any_bytes_are_a_message_or_refused(
        kind in prop_oneof![
            Just((0u8, 0u8)), Just((1, 1)), Just((1, 2)), Just((1, 3)), Just((1, 4)),
            Just((0, 0xF0)), Just((0, 0xF1)), any::<(u8, u8)>(),
        ],
        lengths in (0..3u8, 0..80u8, 0..4u8),
        rest in proptest::collection::vec(any::<u8>(), 0..700),
    ) {
        let mut bytes = vec![kind.0, kind.1, 0, 0, 0x34, 0x12];
        bytes.extend(rest);
        // Plausible NAPD, HL, flags and the high byte of DHVLEN.
        for (at, value) in [(7, lengths.0), (6, lengths.1), (8, lengths.0), (11, lengths.2)] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        match AuthMessage::parse(&bytes) {
            Ok((message, length)) => {
                prop_assert!(length <= bytes.len());
                let mut buffer = [0; 20_000];
                let again = message.encode(&mut buffer).expect("there is room").to_vec();
                prop_assert_eq!(AuthMessage::parse(&again).map(|(again, _)| again), Ok(message));
            }
            Err(error) => prop_assert!(error.explanation().name().is_some()),
        }
    }

    #[test]
    fn a_reply_is_what_was_written(
        transaction: u16, sequence: u32, bidirectional: bool,
        response in proptest::collection::vec(any::<u8>(), 0..=255),
        dh_value in proptest::collection::vec(any::<u8>(), 0..=1024),
    ) {
        let challenge: Vec<u8> = response.iter().map(|byte| !byte).collect();
        let message = AuthMessage::Reply(AuthReply {
            transaction: AuthTransaction(transaction),
            sequence,
            response: &response,
            challenge: bidirectional.then_some(&challenge),
            dh_value: &dh_value,
        });
        let mut buffer = [0; 2048];
        let bytes = message.encode(&mut buffer).expect("there is room");
        prop_assert_eq!(bytes.len(), 16 + 2 * response.len() + dh_value.len());
        prop_assert_eq!(AuthMessage::parse(bytes), Ok((message, bytes.len())));
    }
}
