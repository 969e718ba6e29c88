//! The ACK extended transport header (AETH).

use core::time::Duration;

/// An acknowledgement: the result of a request, and the number of completed messages (IBTA volume
/// 1, 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Result of the request: ACK, RNR NAK or NAK.
    pub syndrome: Syndrome,
    /// Message sequence number: number of completed messages, modulo 2^24.
    pub msn: u32,
}

impl Aeth {
    /// Size of the header on the wire.
    pub const BYTES: usize = 4;

    pub(super) fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [syndrome, m2, m1, m0] = *bytes;
        Self { syndrome: Syndrome::from_byte(syndrome), msn: u32::from_be_bytes([0, m2, m1, m0]) }
    }

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let [_, m2, m1, m0] = self.msn.to_be_bytes();
        [self.syndrome.to_byte(), m2, m1, m0]
    }
}

/// Result of a request (IBTA volume 1, 9.7.5.2.3 and table 44). The upper three bits determine the
/// variant, the lower five are its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// All packets up to the PSN have arrived.
    Ack {
        /// Credit code for the number of posted receives; 31 means no limit.
        credits: u8,
    },
    /// No receive was posted: retry after this time.
    RnrNak(RnrTimer),
    /// The request was refused.
    Nak(NakCode),
    /// A syndrome that the specification reserves.
    Reserved(u8),
}

impl Syndrome {
    /// An ACK without a credit limit: flow control is by RNR NAK only.
    pub const ACK: Self = Self::Ack { credits: 31 };

    fn from_byte(byte: u8) -> Self {
        match byte >> 5 {
            0 => Self::Ack { credits: byte & 31 },
            1 => Self::RnrNak(RnrTimer::new(byte)),
            3 => Self::Nak(NakCode(byte & 31)),
            _ => Self::Reserved(byte),
        }
    }

    fn to_byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 31,
            Self::RnrNak(timer) => 1 << 5 | timer.code(),
            Self::Nak(NakCode(code)) => 3 << 5 | code & 31,
            Self::Reserved(byte) => byte,
        }
    }
}

/// Reason of a refusal (IBTA volume 1, table 45).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NakCode(pub u8);

impl NakCode {
    /// A packet before this one is missing.
    pub const PSN_SEQUENCE: Self = Self(0);
    /// The request is invalid or not supported.
    pub const INVALID_REQUEST: Self = Self(1);
    /// The key does not grant access to the memory.
    pub const REMOTE_ACCESS: Self = Self(2);
    /// The responder failed to execute the request.
    pub const REMOTE_OPERATIONAL: Self = Self(3);
    /// Invalid RD request; used only with reliable datagrams.
    pub const INVALID_RD: Self = Self(4);
}

/// An RNR timer: a 5-bit code for one of 32 durations (IBTA volume 1, table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    const HUNDREDTHS_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// The timer with this code; only the low five bits are used.
    pub const fn new(code: u8) -> Self {
        Self(code & 31)
    }

    /// The 5-bit code, 0..=31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The duration, 10 us to 655.36 ms.
    pub fn duration(self) -> Duration {
        Duration::from_micros(u64::from(Self::HUNDREDTHS_MS[usize::from(self.0)]) * 10)
    }
}
