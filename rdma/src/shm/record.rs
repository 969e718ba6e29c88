//! The records of the rings. Headers are parsed from a copy, since the peer may change them.

use crate::WcStatus;

const SEND: u64 = 1;
const SEND_WITH_INVALIDATE: u64 = 2;
const WRITE: u64 = 3;
const READ: u64 = 4;
const READ_DATA: u64 = 5;
const REFUSED: u64 = 6;
const NOT_READY: u64 = 7;

const FIRST: u64 = 1;
const LAST: u64 = 2;

/// The part of a message that a record carries: one long message takes several records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessagePart {
    /// Length of the whole message in bytes.
    pub(super) total: u32,
    pub(super) first: bool,
    pub(super) last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestRecord {
    /// Part of a SEND message.
    Send {
        part: MessagePart,
        /// Key of the window to invalidate after the last part.
        invalidate: Option<u32>,
    },
    /// Part of an RDMA WRITE, to be placed at `addr`.
    Write { part: MessagePart, addr: u64, rkey: u32 },
    /// An RDMA READ request.
    Read { addr: u64, rkey: u32, length: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerRecord {
    /// Data of the oldest RDMA READ.
    ReadData { last: bool },
    /// The oldest incomplete request failed, and the queue pair goes to ERROR.
    Refused(Refusal),
    /// The request at this ring position waits for a receive.
    NotReady { position: u64 },
}

/// The reason why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The request is malformed, or its message is longer than the receive.
    InvalidRequest,
    /// The key does not grant the access.
    Access,
    /// The responder has a fault of its own, such as an invalid receive.
    Operation,
}

impl Refusal {
    const ALL: [Self; 3] = [Self::InvalidRequest, Self::Access, Self::Operation];

    /// The completion status of the refused request.
    pub(super) fn status(self) -> WcStatus {
        match self {
            Self::InvalidRequest => WcStatus::REMOTE_INVALID_REQUEST,
            Self::Access => WcStatus::REMOTE_ACCESS_ERROR,
            Self::Operation => WcStatus::REMOTE_OPERATION_ERROR,
        }
    }
}

impl RequestRecord {
    /// The header words of this record with `payload` bytes.
    pub(super) fn encode(self, payload: u32) -> [u64; 4] {
        match self {
            Self::Send { part, invalidate: None } => {
                [first_word(SEND, part.flags(), payload), 0, 0, part.total.into()]
            }
            Self::Send { part, invalidate: Some(rkey) } => {
                let first = first_word(SEND_WITH_INVALIDATE, part.flags(), payload);
                [first, 0, rkey.into(), part.total.into()]
            }
            Self::Write { part, addr, rkey } => {
                [first_word(WRITE, part.flags(), payload), addr, rkey.into(), part.total.into()]
            }
            Self::Read { addr, rkey, length } => {
                [first_word(READ, 0, payload), addr, rkey.into(), length.into()]
            }
        }
    }

    /// Parses the header of a request record; `None` if it is malformed.
    pub(super) fn parse(words: [u64; 4]) -> Option<Self> {
        let [first, addr, rkey, total] = words;
        let (rkey, total) = (u32::try_from(rkey).ok()?, u32::try_from(total).ok()?);
        let flags = first >> 40;
        let part = MessagePart { total, first: flags & FIRST != 0, last: flags & LAST != 0 };
        match kind_of(first) {
            SEND => Some(Self::Send { part, invalidate: None }),
            SEND_WITH_INVALIDATE => Some(Self::Send { part, invalidate: Some(rkey) }),
            WRITE => Some(Self::Write { part, addr, rkey }),
            READ if payload_bytes(first) == 0 => Some(Self::Read { addr, rkey, length: total }),
            _ => None,
        }
    }
}

impl AnswerRecord {
    /// The header words of this record with `payload` bytes.
    pub(super) fn encode(self, payload: u32) -> [u64; 4] {
        match self {
            Self::ReadData { last } => {
                [first_word(READ_DATA, if last { LAST } else { 0 }, payload), 0, 0, 0]
            }
            Self::Refused(refusal) => [first_word(REFUSED, 0, payload), refusal as u64, 0, 0],
            Self::NotReady { position } => [first_word(NOT_READY, 0, payload), position, 0, 0],
        }
    }

    /// Parses the header of an answer record; `None` if it is malformed.
    pub(super) fn parse(words: [u64; 4]) -> Option<Self> {
        let [first, detail, ..] = words;
        match kind_of(first) {
            READ_DATA => Some(Self::ReadData { last: (first >> 40) & LAST != 0 }),
            REFUSED => {
                let refusal = Refusal::ALL.into_iter().find(|&known| known as u64 == detail)?;
                Some(Self::Refused(refusal))
            }
            NOT_READY => Some(Self::NotReady { position: detail }),
            _ => None,
        }
    }
}

impl MessagePart {
    fn flags(self) -> u64 {
        (if self.first { FIRST } else { 0 }) | (if self.last { LAST } else { 0 })
    }
}

/// Length of a record's payload in bytes, from the first header word.
pub(super) fn payload_bytes(first_word: u64) -> u32 {
    u32::try_from(first_word & u64::from(u32::MAX)).expect("the lower half")
}

fn first_word(kind: u64, flags: u64, payload: u32) -> u64 {
    flags << 40 | kind << 32 | u64::from(payload)
}

fn kind_of(first_word: u64) -> u64 {
    (first_word >> 32) & 0xFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_parsed_as_they_were_encoded() {
        let part = MessagePart { total: 70_000, first: true, last: false };
        let requests = [
            RequestRecord::Send { part, invalidate: None },
            RequestRecord::Send { part, invalidate: Some(u32::MAX) },
            RequestRecord::Write { part, addr: u64::MAX, rkey: 7 },
            RequestRecord::Read { addr: 1, rkey: 2, length: u32::MAX },
        ];
        for request in requests {
            assert_eq!(RequestRecord::parse(request.encode(0)), Some(request));
            assert_eq!(payload_bytes(request.encode(99)[0]), 99);
            assert_eq!(AnswerRecord::parse(request.encode(0)), None);
        }
        let refusals = Refusal::ALL.map(AnswerRecord::Refused);
        let others = [
            AnswerRecord::ReadData { last: true },
            AnswerRecord::ReadData { last: false },
            AnswerRecord::NotReady { position: 1 << 40 },
        ];
        for answer in refusals.into_iter().chain(others) {
            assert_eq!(AnswerRecord::parse(answer.encode(0)), Some(answer));
            assert_eq!(RequestRecord::parse(answer.encode(0)), None);
        }
    }

    #[test]
    fn words_that_make_no_record_are_refused() {
        let send = RequestRecord::Read { addr: 1, rkey: 2, length: 3 };
        let [first, addr, rkey, total] = send.encode(0);
        for words in [
            [first | 1, addr, rkey, total],
            [first, addr, rkey | 1 << 32, total],
            [first, addr, rkey, total | 1 << 32],
            [0xFF << 32, addr, rkey, total],
        ] {
            assert_eq!(RequestRecord::parse(words), None, "{words:x?}");
        }
        let unknown = AnswerRecord::Refused(Refusal::Access).encode(0);
        assert_eq!(AnswerRecord::parse([unknown[0], 99, 0, 0]), None);
    }
}
