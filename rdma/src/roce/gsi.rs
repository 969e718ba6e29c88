//! Queue pair 1 (GSI), which carries connection management in UD packets of 256 bytes payload.
#![expect(unsafe_code, reason = "packets are gathered where their payload lies")]

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use roce_proto::cm::{GSI_Q_KEY, MAD_BYTES, MadTransmit, Manager, Sender};
use roce_proto::wire::{Bth, Deth, Ecn, Headers, Message, Packet};
use roce_proto::{PathMtu, Psn, Qpn};

use super::icrc;
use super::shared::DeviceCounters;
use super::wire::{Datagram, Outgoing, SenderIndex, Wire, endpoint_of};
use crate::Time;

/// The device's queue pair 1.
#[derive(Default)]
pub(super) struct Gsi {
    next_psn: Psn,
}

/// Error: the packet is for this other queue pair.
pub(super) struct NotForUs {
    pub(super) qpn: Qpn,
}

impl Gsi {
    /// Passes a management datagram (MAD) to the manager; drops invalid ones.
    pub(super) fn handle(
        &mut self,
        now: Time,
        counters: &DeviceCounters,
        manager: &mut Manager,
        datagram: &Datagram<'_>,
        path_to: impl FnOnce(IpAddr) -> Option<PathMtu>,
    ) -> Result<(), NotForUs> {
        let Ok(packet) = Packet::parse(datagram.bytes) else {
            counters.mads_dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        };
        if packet.bth.dest_qpn != Qpn::GSI {
            return Err(NotForUs { qpn: packet.bth.dest_qpn });
        }
        let counter = match mad_of(&packet, datagram) {
            Some(mad) => {
                let from = endpoint_of(datagram.from, Sender::of(mad));
                manager.handle_datagram(now, from, mad, path_to);
                &counters.mads_received
            }
            None => &counters.mads_dropped,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Sends a management datagram (MAD).
    pub(super) fn send<W: Wire>(
        &mut self,
        now: Time,
        counters: &DeviceCounters,
        wire: &mut W,
        mad: &MadTransmit,
    ) {
        let bth = Bth::new(Qpn::GSI, self.next_psn);
        self.next_psn = self.next_psn.next();
        let deth = Deth { qkey: GSI_Q_KEY, source_qpn: Qpn::GSI };
        let headers = Headers::new(&bth, &Message::UdSendOnly(deth));
        let packet = Outgoing {
            to: &mad.peer,
            sender: SenderIndex::FIRST,
            destination_qpn: Qpn::GSI.value(),
            headers: headers.as_slice(),
            pieces: &[&mad.mad],
            pad_bytes: 0,
            // Not ECN-capable, since nothing reacts to marks of these packets.
            traffic_class: Ecn::NotEct.within(mad.traffic_class),
            continues: false,
        };
        // SAFETY: the message is borrowed until the flush below.
        unsafe { wire.send(now, &packet) };
        wire.flush(now);
        counters.mads_sent.fetch_add(1, Ordering::Relaxed);
    }
}

/// The MAD in a packet; `None` unless it is a UD SEND Only with the GSI Q_Key and a valid ICRC.
fn mad_of<'a>(packet: &Packet<'a>, datagram: &Datagram<'_>) -> Option<&'a [u8; MAD_BYTES]> {
    let Message::UdSendOnly(deth) = packet.message else { return None };
    let mad = packet.payload.try_into().ok()?;
    (deth.qkey == GSI_Q_KEY && icrc::verify(datagram).is_ok()).then_some(mad)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::roce::wire::IpId;

    #[test]
    fn a_message_counts_from_whatever_port() {
        let to: SocketAddr = "192.0.2.2:4791".parse().unwrap();
        let deth = Deth { qkey: GSI_Q_KEY, source_qpn: Qpn::GSI };
        let bth = Bth::new(Qpn::GSI, Psn::new(0));
        let headers = Headers::new(&bth, &Message::UdSendOnly(deth));
        let mad = [7; MAD_BYTES];
        for port in [49_152, 36_049, 0] {
            let from = SocketAddr::new([192, 0, 2, 1].into(), port);
            let packet = Outgoing {
                to: &to,
                sender: SenderIndex::FIRST,
                destination_qpn: Qpn::GSI.value(),
                headers: headers.as_slice(),
                pieces: &[&mad],
                pad_bytes: 0,
                traffic_class: 0,
                continues: false,
            };
            let crc = icrc::compute(from, &packet, 0);
            let bytes = [headers.as_slice(), &mad, &crc].concat();
            let datagram = Datagram::new(from, to, IpId::UNKNOWN, &bytes);
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!(mad_of(&packet, &datagram), Some(&mad), "port {port}");
            let elsewhere = SocketAddr::new(from.ip(), port + 1);
            let moved = Datagram::new(elsewhere, to, IpId::UNKNOWN, &bytes);
            assert_eq!(mad_of(&packet, &moved), None, "the CRC covers the port");
        }
    }
}
