//! The invariant CRC (ICRC): a CRC-32 over all fields that do not change on the path (IBTA volume
//! 1, annex A17, A17.3.3).
//!
//! It covers the IPv4 identification and flags, which a UDP socket does not report. Since CRCs are
//! linear, the difference between the received ICRC and the ICRC for a likely identification yields
//! the sender's identification: see [`verify`].

use core::net::{SocketAddr, SocketAddrV4, SocketAddrV6};

use crc32fast::Hasher;
use thiserror::Error;

const UDP_PROTOCOL: u8 = 17;
const UDP_HEADER_BYTES: usize = 8;
const IPV4_HEADER_BYTES: usize = 20;
const IPV6_HEADER_BYTES: usize = 40;
const DONT_FRAGMENT: u8 = 0x40;
const ICRC_BYTES: usize = 4;

/// The addresses of a flow of datagrams, with the part of the ICRC computation that all its
/// datagrams share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    family: IpFamily,
    /// CRC register after the IP and UDP headers of a datagram with zeros for lengths and
    /// identification.
    start: u32,
    /// The register [`Icrc::ZEROS`] zero bytes earlier, for [`Icrc::behind_zeros`].
    start_before_zeros: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpFamily {
    V4,
    V6,
}

impl Flow {
    /// The flow between two endpoints; `None` if their address families differ.
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let mut crc = Hasher::new();
        crc.update(&[0xFF; 8]);
        let family = match (source, destination) {
            (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
                crc.update(&ipv4_header(&source, &destination));
                IpFamily::V4
            }
            (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
                crc.update(&ipv6_header(&source, &destination));
                IpFamily::V6
            }
            _ => return None,
        };
        crc.update(&udp_header(source.port(), destination.port()));
        let start = !crc.finalize();
        let start_before_zeros = multiply(start, const { bytes_times(-(Icrc::ZEROS as i32)) });
        Some(Self { family, start, start_before_zeros })
    }

    /// Whether the flow uses IPv6.
    pub const fn is_ipv6(&self) -> bool {
        matches!(self.family, IpFamily::V6)
    }
}

/// The IPv4 header fields that the ICRC covers and sockets do not report. Ignored over IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identification {
    /// Identification field of the header, 16 bits.
    pub id: u16,
    /// The "don't fragment" flag.
    pub dont_fragment: bool,
}

impl Identification {
    /// The fields that Linux gives a datagram of an unconnected socket with fragmentation disabled.
    pub const ZERO: Self = Self::segment(0);

    /// The fields that Linux gives segment `index` of a UDP GSO send.
    pub const fn segment(index: u16) -> Self {
        Self { id: index, dont_fragment: true }
    }
}

/// Computes the ICRC of a packet, in pieces.
///
/// Since CRCs are linear, the contributions of a datagram's lengths and identification are looked
/// up in tables. The BTH's congestion byte counts as all ones: it is hashed as it is, and the
/// difference is compensated in advance.
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// Number of zero bytes before the headers for [`Icrc::behind_zeros`].
    pub const ZEROS: usize = 4;

    /// Starts with the IP and UDP headers of `flow` and with `headers`: the packet's headers, or
    /// more of its contiguous covered bytes. `datagram_bytes` is the length of the UDP payload,
    /// ICRC included.
    pub fn new(
        flow: &Flow,
        identification: Identification,
        datagram_bytes: usize,
        headers: &[u8],
    ) -> Self {
        let congestion = headers.get(CONGESTION);
        let fields = AT_ONCE.of(flow, identification, datagram_bytes, congestion);
        Self::start(flow.start ^ fields, headers)
    }

    /// Starts as [`Icrc::new`], for headers after [`Icrc::ZEROS`] zero bytes, which do not affect
    /// the result: the CRC implementation is fast for inputs of at least 16 bytes, and a base
    /// transport header alone is shorter.
    pub fn behind_zeros(
        flow: &Flow,
        identification: Identification,
        datagram_bytes: usize,
        zeros_and_headers: &[u8],
    ) -> Self {
        debug_assert!(zeros_and_headers.starts_with(&[0; Self::ZEROS]));
        let congestion = zeros_and_headers.get(Self::ZEROS + CONGESTION);
        let fields = BEHIND_ZEROS.of(flow, identification, datagram_bytes, congestion);
        Self::start(flow.start_before_zeros ^ fields, zeros_and_headers)
    }

    fn start(register: u32, bytes: &[u8]) -> Self {
        let mut icrc = Self(Hasher::new_with_initial(!register));
        icrc.update(bytes);
        icrc
    }

    /// Continues with payload or pad.
    pub fn update(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.0.update(bytes);
        }
    }

    /// The four ICRC bytes that end the packet.
    pub fn finish(self) -> [u8; 4] {
        self.0.finalize().to_le_bytes()
    }
}

/// Offset of the BTH's congestion byte (FECN, BECN), which may change on the path.
const CONGESTION: usize = 4;

static AT_ONCE: Fields = Fields::new(0);
static BEHIND_ZEROS: Fields = Fields::new(Icrc::ZEROS as i32);

/// Tables of the contributions of a datagram's fields to the CRC of its flow.
struct Fields {
    ipv4_total_length: CrcField,
    ipv4_identification: CrcField,
    dont_fragment: u32,
    ipv6_payload_length: CrcField,
    udp_length: CrcField,
    /// Contributions by the value of the congestion byte.
    congestion: [u32; 256],
}

impl Fields {
    /// Creates the tables for a CRC that continues with `zeros` zero bytes.
    const fn new(zeros: i32) -> Self {
        const UDP: i32 = UDP_HEADER_BYTES as i32;
        const IPV4: i32 = IPV4_HEADER_BYTES as i32 + UDP;
        const IPV6: i32 = IPV6_HEADER_BYTES as i32 + UDP;
        let mut congestion = [0; 256];
        let all = bytes_times(-(zeros + CONGESTION as i32));
        let mut byte = 0;
        while byte < 256 {
            congestion[byte] = multiply(byte as u32 ^ 0xFF, all);
            byte += 1;
        }
        Self {
            ipv4_total_length: CrcField::new(IPV4 - 2 - zeros),
            ipv4_identification: CrcField::new(IPV4 - 4 - zeros),
            dont_fragment: multiply(DONT_FRAGMENT as u32, bytes_times(IPV4 - 6 - zeros)),
            ipv6_payload_length: CrcField::new(IPV6 - 4 - zeros),
            udp_length: CrcField::new(UDP - 4 - zeros),
            congestion,
        }
    }

    fn of(
        &self,
        flow: &Flow,
        identification: Identification,
        datagram_bytes: usize,
        congestion: Option<&u8>,
    ) -> u32 {
        let udp_length = (UDP_HEADER_BYTES + datagram_bytes) as u16;
        let ip = match flow.family {
            IpFamily::V4 => {
                let total_length = (IPV4_HEADER_BYTES as u16).wrapping_add(udp_length);
                let flags =
                    self.dont_fragment & u32::from(identification.dont_fragment).wrapping_neg();
                self.ipv4_total_length.of(total_length)
                    ^ self.ipv4_identification.of(identification.id)
                    ^ flags
            }
            IpFamily::V6 => self.ipv6_payload_length.of(udp_length),
        };
        let congestion = congestion.map_or(0, |byte| self.congestion[usize::from(*byte)]);
        ip ^ self.udp_length.of(udp_length) ^ congestion
    }
}

/// Contributions of a two-byte field to a CRC, by the value of each byte.
struct CrcField {
    first: [u32; 256],
    second: [u32; 256],
}

impl CrcField {
    /// Creates the tables for a field that begins `bytes` bytes before the present position of the
    /// CRC.
    const fn new(bytes: i32) -> Self {
        let (mut first, mut second) = ([0; 256], [0; 256]);
        let (to_first, to_second) = (bytes_times(bytes), bytes_times(bytes - 1));
        let mut byte = 0;
        while byte < 256 {
            first[byte] = multiply(byte as u32, to_first);
            second[byte] = multiply(byte as u32, to_second);
            byte += 1;
        }
        Self { first, second }
    }

    fn of(&self, value: u16) -> u32 {
        let [first, second] = value.to_be_bytes();
        self.first[usize::from(first)] ^ self.second[usize::from(second)]
    }
}

/// Error of an ICRC check: the packet was damaged, or an address or port was translated on the
/// path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("invariant CRC mismatch")]
pub struct IcrcMismatch;

/// Checks the ICRC of a datagram of `flow`, and returns the IPv4 identification that its sender
/// used; fastest if that is `likely`. Over IPv4 a random error is accepted with probability 2^-15,
/// since any identification is; a caller that knows the identifications that a peer uses checks the
/// result. Over IPv6 the result is [`Identification::ZERO`], and the check is as strong as a
/// CRC-32.
///
/// # Errors
/// No identification results in the ICRC of the datagram.
pub fn verify(
    flow: &Flow,
    likely: Identification,
    datagram: &[u8],
) -> Result<Identification, IcrcMismatch> {
    let (covered, icrc) = datagram.split_last_chunk::<ICRC_BYTES>().ok_or(IcrcMismatch)?;
    let expected = Icrc::new(flow, likely, datagram.len(), covered).finish();
    let difference = u32::from_le_bytes(expected) ^ u32::from_le_bytes(*icrc);
    match flow.family {
        IpFamily::V4 if difference == 0 => Ok(likely),
        IpFamily::V4 => recover(likely, difference, datagram.len()),
        IpFamily::V6 if difference == 0 => Ok(Identification::ZERO),
        IpFamily::V6 => Err(IcrcMismatch),
    }
}

/// Computes the CRC difference backwards from the end of the packet to the identification. The
/// result is the difference between the sender's four header bytes and those with the `likely`
/// identification.
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

/// The IPv4 header of a flow, with zeros for length and identification.
fn ipv4_header(source: &SocketAddrV4, destination: &SocketAddrV4) -> [u8; IPV4_HEADER_BYTES] {
    let mut header = [0; IPV4_HEADER_BYTES];
    header[0] = 0x45;
    header[1] = 0xFF;
    header[8] = 0xFF;
    header[9] = UDP_PROTOCOL;
    header[10..12].fill(0xFF);
    header[12..16].copy_from_slice(&source.ip().octets());
    header[16..20].copy_from_slice(&destination.ip().octets());
    header
}

/// The IPv6 header of a flow, with zero for the length.
fn ipv6_header(source: &SocketAddrV6, destination: &SocketAddrV6) -> [u8; IPV6_HEADER_BYTES] {
    let mut header = [0; IPV6_HEADER_BYTES];
    header[0] = 0x6F;
    header[1..4].fill(0xFF);
    header[6] = UDP_PROTOCOL;
    header[7] = 0xFF;
    header[8..24].copy_from_slice(&source.ip().octets());
    header[24..40].copy_from_slice(&destination.ip().octets());
    header
}

/// The UDP header of a flow, with zero for the length.
fn udp_header(source: u16, destination: u16) -> [u8; UDP_HEADER_BYTES] {
    let mut header = [0; UDP_HEADER_BYTES];
    header[0..2].copy_from_slice(&source.to_be_bytes());
    header[2..4].copy_from_slice(&destination.to_be_bytes());
    header[6..8].fill(0xFF);
    header
}

/// The CRC polynomial, bit-reversed: bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0xEDB8_8320;
const ONE: u32 = 1 << 31;

/// Size of the table: more words than the covered part of any packet.
const BACK_WORDS: usize = 1100;

/// `x^(-32 n)` modulo the polynomial: multiplying a CRC by it removes the last `n` words.
static BACK_BY_WORDS: [u32; BACK_WORDS] = {
    let mut table = [ONE; BACK_WORDS];
    let mut word = 1;
    while word < BACK_WORDS {
        let mut value = table[word - 1];
        let mut bit = 0;
        while bit < 32 {
            value = divided_by_x(value);
            bit += 1;
        }
        table[word] = value;
        word += 1;
    }
    table
};

/// `x^(8 n)` modulo the polynomial: multiplying a CRC by it appends `n` zero bytes, or removes them
/// if `bytes` is negative.
const fn bytes_times(bytes: i32) -> u32 {
    let mut value = ONE;
    let mut bit = 0;
    while bit < 8 * bytes.abs() {
        value = if bytes < 0 { divided_by_x(value) } else { times_x(value) };
        bit += 1;
    }
    value
}

const fn times_x(value: u32) -> u32 {
    value >> 1 ^ POLYNOMIAL & (value & 1).wrapping_neg()
}

const fn divided_by_x(value: u32) -> u32 {
    if value & ONE == 0 { value << 1 } else { (value ^ POLYNOMIAL) << 1 | 1 }
}

/// The product of two polynomials modulo the CRC polynomial.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = times_x(b);
    }
    product
}
