//! The invariant CRC: a CRC-32 over all that does not change between sender and receiver (IBTA volume 1,
//! annex A17, A17.3.3).
//!
//! It covers the IPv4 identification and flags, which a UDP socket does not show. CRCs are linear, so the
//! difference between what arrived and what a likely identification would give tells the sender's: see
//! [`verify`].

use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use crc32fast::Hasher;
use thiserror::Error;

use crate::wire::Bth;

const UDP_PROTOCOL: u8 = 17;
const UDP_HEADER_BYTES: usize = 8;
const IPV4_HEADER_BYTES: usize = 20;
const IPV6_HEADER_BYTES: usize = 40;
const DONT_FRAGMENT: u8 = 0x40;
const ICRC_BYTES: usize = 4;

/// From whom to whom a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Over IPv4.
    V4 {
        /// Who sends it.
        source: SocketAddrV4,
        /// Who receives it.
        destination: SocketAddrV4,
    },
    /// Over IPv6.
    V6 {
        /// Who sends it.
        source: SocketAddrV6,
        /// Who receives it.
        destination: SocketAddrV6,
    },
}

impl Flow {
    /// A flow between two endpoints, or `None` if they are of different families.
    pub const fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
                Some(Self::V4 { source, destination })
            }
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
                Some(Self::V6 { source, destination })
            }
            _ => None,
        }
    }
}

/// The IPv4 fields that are covered but unseen by sockets. Over IPv6 there are none, and this is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identification {
    /// The identification.
    pub id: u16,
    /// The "don't fragment" flag.
    pub dont_fragment: bool,
}

impl Identification {
    /// What Linux gives a datagram of an unconnected socket that forbids fragmentation.
    pub const ZERO: Self = Self::segment(0);

    /// What Linux gives the segment `index` of a segmented send.
    pub const fn segment(index: u16) -> Self {
        Self { id: index, dont_fragment: true }
    }
}

/// Computes the invariant CRC of one packet, piece by piece.
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// Starts with IP header, UDP header and the packet's own headers. `datagram_bytes` is the length of the
    /// whole UDP payload, invariant CRC included.
    pub fn new(
        flow: &Flow,
        identification: Identification,
        datagram_bytes: usize,
        headers: &[u8],
    ) -> Self {
        let mut start = Start::new();
        start.put(&[0xFF; 8]);
        match flow {
            Flow::V4 { source, destination } => {
                start.put(&ipv4_header(source, destination, identification, datagram_bytes));
                start.put(&udp_header(source.port(), destination.port(), datagram_bytes));
            }
            Flow::V6 { source, destination } => {
                start.put(&ipv6_header(source, destination, datagram_bytes));
                start.put(&udp_header(source.port(), destination.port(), datagram_bytes));
            }
        }
        let rest = start.put_headers(headers);
        let mut icrc = Self(Hasher::new());
        icrc.update(start.as_slice());
        icrc.update(rest);
        icrc
    }

    /// Continues with payload or pad.
    pub fn update(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.0.update(bytes);
        }
    }

    /// The bytes that end the packet.
    pub fn finish(self) -> [u8; 4] {
        self.0.finalize().to_le_bytes()
    }
}

/// What comes first, gathered so that it is one update: each has its price, and shorter ones go through tables that
/// the payload has driven out of the cache.
struct Start {
    bytes: [u8; Self::MAX_BYTES],
    length: usize,
}

impl Start {
    const MAX_BYTES: usize =
        8 + IPV6_HEADER_BYTES + UDP_HEADER_BYTES + Bth::BYTES + Self::BLOCK_BYTES;
    /// Whole blocks are left for the payload's update, which is faster then.
    const BLOCK_BYTES: usize = 64;
    /// Where the base transport header has its congestion byte.
    const CONGESTION: usize = 4;

    const fn new() -> Self {
        Self { bytes: [0; Self::MAX_BYTES], length: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Takes the first of the packet's headers and returns the rest of what was given. The congestion byte may change
    /// under way: it counts as all ones.
    fn put_headers<'a>(&mut self, headers: &'a [u8]) -> &'a [u8] {
        let beyond = headers.len().saturating_sub(Bth::BYTES);
        let (here, rest) =
            headers.split_at(headers.len() - beyond / Self::BLOCK_BYTES * Self::BLOCK_BYTES);
        let congestion = self.length + Self::CONGESTION;
        self.put(here);
        if congestion < self.length {
            self.bytes[congestion] = 0xFF;
        }
        rest
    }

    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The invariant CRC of a packet is wrong: it was damaged, or an address or port was translated under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("invariant CRC mismatch")]
pub struct IcrcMismatch;

/// Checks the invariant CRC of a datagram that came through `flow`, and recovers the IPv4 identification that
/// its sender gave it; fastest if that is the `likely` one. Over IPv4 a random error passes once in 2^15, because any
/// identification will do; a receiver that knows which ones a peer uses checks the result. Over IPv6 the result is
/// [`Identification::ZERO`] and the check is as strong as a CRC-32 is.
///
/// # Errors
/// No identification explains the CRC that the datagram carries.
pub fn verify(
    flow: &Flow,
    likely: Identification,
    datagram: &[u8],
) -> Result<Identification, IcrcMismatch> {
    let (covered, icrc) = datagram.split_last_chunk::<ICRC_BYTES>().ok_or(IcrcMismatch)?;
    let expected = Icrc::new(flow, likely, datagram.len(), covered).finish();
    let difference = u32::from_le_bytes(expected) ^ u32::from_le_bytes(*icrc);
    match flow {
        Flow::V4 { .. } if difference == 0 => Ok(likely),
        Flow::V4 { .. } => recover(likely, difference, datagram.len()),
        Flow::V6 { .. } if difference == 0 => Ok(Identification::ZERO),
        Flow::V6 { .. } => Err(IcrcMismatch),
    }
}

/// Runs the CRC backwards from the end of the packet to the IPv4 identification. What is left of the
/// difference are the four bytes in which the sender's header differs from that with the `likely` identification.
fn recover(
    likely: Identification,
    difference: u32,
    datagram_bytes: usize,
) -> Result<Identification, IcrcMismatch> {
    let after_fields = IPV4_HEADER_BYTES - 8 + UDP_HEADER_BYTES;
    let distance = 4 + after_fields + datagram_bytes - ICRC_BYTES;
    if !distance.is_multiple_of(4) {
        return Err(IcrcMismatch);
    }
    let back = BACK_BY_WORDS.get(distance / 4).ok_or(IcrcMismatch)?;
    let [id_high, id_low, flags, fragment] = multiply(difference, *back).to_le_bytes();
    if fragment != 0 || flags & !DONT_FRAGMENT != 0 {
        return Err(IcrcMismatch);
    }
    Ok(Identification {
        id: likely.id ^ u16::from_be_bytes([id_high, id_low]),
        dont_fragment: likely.dont_fragment == (flags == 0),
    })
}

fn ipv4_header(
    source: &SocketAddrV4,
    destination: &SocketAddrV4,
    identification: Identification,
    datagram_bytes: usize,
) -> [u8; IPV4_HEADER_BYTES] {
    let mut header = [0; IPV4_HEADER_BYTES];
    let total = (IPV4_HEADER_BYTES + UDP_HEADER_BYTES + datagram_bytes) as u16;
    header[0] = 0x45;
    header[1] = 0xFF;
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[4..6].copy_from_slice(&identification.id.to_be_bytes());
    header[6] = if identification.dont_fragment { DONT_FRAGMENT } else { 0 };
    header[8] = 0xFF;
    header[9] = UDP_PROTOCOL;
    header[10..12].fill(0xFF);
    header[12..16].copy_from_slice(&source.ip().octets());
    header[16..20].copy_from_slice(&destination.ip().octets());
    header
}

fn ipv6_header(
    source: &SocketAddrV6,
    destination: &SocketAddrV6,
    datagram_bytes: usize,
) -> [u8; IPV6_HEADER_BYTES] {
    let mut header = [0; IPV6_HEADER_BYTES];
    let length = (UDP_HEADER_BYTES + datagram_bytes) as u16;
    header[0] = 0x6F;
    header[1..4].fill(0xFF);
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header[6] = UDP_PROTOCOL;
    header[7] = 0xFF;
    header[8..24].copy_from_slice(&source.ip().octets());
    header[24..40].copy_from_slice(&destination.ip().octets());
    header
}

fn udp_header(source: u16, destination: u16, datagram_bytes: usize) -> [u8; UDP_HEADER_BYTES] {
    let mut header = [0xFF; UDP_HEADER_BYTES];
    let length = (UDP_HEADER_BYTES + datagram_bytes) as u16;
    header[0..2].copy_from_slice(&source.to_be_bytes());
    header[2..4].copy_from_slice(&destination.to_be_bytes());
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header
}

/// The CRC's polynomial, bits reversed: the bit 31 stands for x^0.
const POLYNOMIAL: u32 = 0xEDB8_8320;
const ONE: u32 = 1 << 31;

/// More words than the covered part of any packet has.
const BACK_WORDS: usize = 1100;

/// `x^(-32 n)` modulo the polynomial: multiplying a CRC by it takes back the last `n` words.
static BACK_BY_WORDS: [u32; BACK_WORDS] = {
    let mut table = [ONE; BACK_WORDS];
    let mut word = 1;
    while word < BACK_WORDS {
        let mut value = table[word - 1];
        let mut bit = 0;
        while bit < 32 {
            value = if value & ONE == 0 { value << 1 } else { (value ^ POLYNOMIAL) << 1 | 1 };
            bit += 1;
        }
        table[word] = value;
        word += 1;
    }
    table
};

/// The product of two polynomials modulo the CRC's.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = b >> 1 ^ POLYNOMIAL & (b & 1).wrapping_neg();
    }
    product
}
