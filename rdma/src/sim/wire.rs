//! A socket of a simulated network.
#![expect(unsafe_code, reason = "the interface is that of wires that gather in place")]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use roce_proto::wire::{Ecn, Identification};

use super::SimNetwork;
use super::network::SimDatagram;
use crate::Time;
use crate::roce::icrc;
use crate::roce::wire::{
    Arrived, Datagram, IpId, Outgoing, ROCE_PORT, SenderIndex, Wire, WireCounters,
};

/// Maximum number of packets received in one call.
const BATCH: usize = 64;
/// Identification field of every simulated IPv4 packet: 0, as for packets that may not be
/// fragmented.
const IP_ID: u16 = 0;

/// One socket of a simulated device.
pub struct SimWire {
    network: SimNetwork,
    ip: IpAddr,
    index: usize,
    counters: WireCounters,
}

impl SimWire {
    /// Opens the socket with this index; `None` if it is open already or does not exist.
    pub(super) fn open(network: SimNetwork, ip: IpAddr, index: usize) -> Option<Self> {
        let opened = network.lock().open(ip, index);
        opened.then(|| Self { network, ip, index, counters: WireCounters::default() })
    }
}

impl Drop for SimWire {
    fn drop(&mut self) {
        self.network.lock().close(self.ip, self.index);
    }
}

impl Wire for SimWire {
    fn receive(&mut self, now: Time, mut handle: impl FnMut(Datagram<'_>)) -> Arrived {
        self.network.lock().advance(now);
        let mut datagrams = 0;
        while datagrams < BATCH {
            let next = self.network.lock().next_packet(self.ip, self.index);
            let Some(packet) = next else { return Arrived { datagrams, more: false } };
            let ip_id = IpId::Known(Identification::segment(IP_ID));
            let SimDatagram { from, to, ecn, ref bytes, .. } = packet;
            handle(Datagram { ecn, ..Datagram::new(from, to, ip_id, bytes) });
            datagrams += 1;
        }
        Arrived { datagrams, more: true }
    }

    unsafe fn send(&mut self, now: Time, packet: &Outgoing<'_>) {
        let from = SocketAddr::new(self.ip, ROCE_PORT);
        let mut bytes = Vec::with_capacity(packet.length());
        bytes.extend_from_slice(packet.headers);
        packet.pieces.iter().for_each(|piece| bytes.extend_from_slice(piece));
        bytes.extend_from_slice(&[0; 3][..usize::from(packet.pad_bytes)]);
        bytes.extend_from_slice(&icrc::compute(from, packet, IP_ID));
        let ecn = Ecn::of(packet.traffic_class);
        self.network.lock().send(now, self.index, (from, *packet.to, ecn, bytes));
    }

    fn flush(&mut self, _now: Time) {}

    fn discard(&mut self) {}

    fn next_unreachable(&mut self) -> Option<SocketAddr> {
        self.network.lock().next_unreachable(self.ip, self.index)
    }

    fn receiver(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn sender(&self, _: SenderIndex) -> Option<BorrowedFd<'_>> {
        None
    }

    fn overflows(&self) -> u32 {
        self.network.lock().overflows(self.ip, self.index)
    }

    fn counters(&self) -> WireCounters {
        self.counters
    }
}
