//! ICMP echo requests to the target: round-trip time, loss, order, and changes of the type of
//! service.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use super::Passage;
use super::icmp_socket::{EchoReply, IcmpSocket};
use crate::clock::now;
use crate::latency::Latency;
use crate::seed::fresh_seed;

/// Echo requests in a series, and the time between two of them.
const COUNT: u16 = 100;
const PAUSE: Duration = Duration::from_millis(5);
/// Time to wait for the last replies of a series.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes of data in each request of a series.
const DATA_BYTES: usize = 64;
/// Attempts to get a reply to a request of a certain length.
const TRIES: u16 = 3;

/// Results of a series of echo requests.
#[derive(Clone, Debug, Default)]
pub(super) struct EchoMeasure {
    pub(super) sent: u16,
    pub(super) answered: u16,
    /// Replies that arrived after the reply to a later request.
    pub(super) reordered: u16,
    pub(super) round_trip: Latency,
    pub(super) sent_tos: u8,
    /// Number of replies by the type of service that they arrived with.
    pub(super) answered_tos: BTreeMap<u8, u16>,
}

/// Sends echo requests to one peer.
pub(super) struct EchoProbe {
    socket: IcmpSocket,
    /// First bytes of the data of each request, which identify replies to this probe.
    cookie: [u8; 8],
    next: u16,
}

impl EchoProbe {
    pub(super) fn open(peer: IpAddr, source: Option<IpAddr>) -> io::Result<Self> {
        let socket = IcmpSocket::open(peer, source)?;
        Ok(Self { socket, cookie: fresh_seed().to_ne_bytes(), next: 0 })
    }

    fn send(&mut self, data_bytes: usize) -> io::Result<u16> {
        let mut data = self.cookie.to_vec();
        data.resize(data_bytes.max(self.cookie.len()), 0);
        let sequence = self.next;
        self.next = self.next.wrapping_add(1);
        self.socket.send(sequence, &data)?;
        Ok(sequence)
    }

    /// Returns the next reply to this probe before `end`.
    fn receive_until(&self, end: Instant) -> Option<EchoReply> {
        loop {
            let left = end.saturating_duration_since(now());
            if left.is_zero() {
                return None;
            }
            match self.socket.receive(left) {
                Ok(Some(reply)) if reply.data.starts_with(&self.cookie) => return Some(reply),
                // Message of another program, or an ICMP error for an earlier packet.
                _ => {}
            }
        }
    }

    /// Sends a series of requests with a type of service, and measures the replies.
    pub(super) fn series(&mut self, tos: u8) -> io::Result<EchoMeasure> {
        self.socket.set_tos(tos)?;
        let mut measure = EchoMeasure { sent_tos: tos, ..EchoMeasure::default() };
        let mut waiting: BTreeMap<u16, Instant> = BTreeMap::new();
        let mut answered: BTreeSet<u16> = BTreeSet::new();
        let mut take = |reply: &EchoReply, waiting: &mut BTreeMap<u16, Instant>| {
            let Some(sent) = waiting.remove(&reply.sequence) else { return };
            measure.round_trip.record(now() - sent);
            measure.answered += 1;
            let is_late = answered.last().is_some_and(|last| *last > reply.sequence);
            measure.reordered += u16::from(is_late);
            answered.insert(reply.sequence);
            if let Some(tos) = reply.tos {
                *measure.answered_tos.entry(tos).or_default() += 1;
            }
        };
        for _ in 0..COUNT {
            let sent = now();
            // An ICMP error for an earlier request makes the next send fail; that request counts as
            // lost.
            if let Ok(sequence) = self.send(DATA_BYTES) {
                waiting.insert(sequence, sent);
            }
            while let Some(reply) = self.receive_until(sent + PAUSE) {
                take(&reply, &mut waiting);
            }
        }
        let end = now() + PATIENCE;
        while !waiting.is_empty()
            && let Some(reply) = self.receive_until(end)
        {
            take(&reply, &mut waiting);
        }
        measure.sent = COUNT;
        Ok(measure)
    }

    /// Whether an echo request with this many bytes of data is answered in full.
    pub(super) fn passage(&mut self, data_bytes: usize) -> Passage {
        for _ in 0..TRIES {
            match self.send(data_bytes) {
                Err(error) if error.raw_os_error() == Some(libc::EMSGSIZE) => {
                    return Passage::TooLong;
                }
                Err(_) => continue,
                Ok(sequence) => {
                    let end = now() + PATIENCE / 2;
                    while let Some(reply) = self.receive_until(end) {
                        if reply.sequence == sequence {
                            return Passage::Passes;
                        }
                    }
                }
            }
        }
        Passage::Silent
    }
}
