//! The management datagrams: they survive, and ours are the same.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use roce_proto::cm::{
    AcceptParams, ConnectParams, ConnectionId, GSI_Q_KEY, IpHeader, Mad, ManagementMessage,
    Manager, ManagerConfig, ManagerEvent, ServiceId, TimeoutExponent,
};
use roce_proto::wire::{self, Packet};
use roce_proto::{PathMtu, Psn, Qpn, Time};

use super::pcap::frames;

const HOST: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const TARGET: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const HOST_GUID: u64 = 0x5054_00FF_FE00_0002;
const TARGET_GUID: u64 = 0x5054_00FF_FE00_0001;
const NVME_PORT: u16 = 4420;

/// A recorded datagram and its sender.
pub(crate) struct Recorded {
    pub(crate) from: IpAddr,
    pub(crate) mad: Mad,
}

pub(crate) fn recorded() -> Vec<Recorded> {
    let mut recorded = Vec::new();
    for frame in frames() {
        let packet = Packet::parse(frame.datagram).unwrap();
        let wire::Message::UdSendOnly(deth) = packet.message else { continue };
        assert_eq!((packet.bth.dest_qpn, deth.source_qpn), (Qpn::GSI, Qpn::GSI));
        assert_eq!(deth.qkey, GSI_Q_KEY);
        let mad = packet.payload.try_into().expect("a management datagram has 256 bytes");
        recorded.push(Recorded { from: frame.source.ip(), mad });
    }
    recorded
}

#[test]
fn every_datagram_survives() {
    let mut kinds = [0; 7];
    for Recorded { mad, .. } in recorded() {
        let (transaction_id, message) = ManagementMessage::parse(&mad).unwrap();
        assert_eq!(message.to_mad(transaction_id), mad);
        kinds[usize::from(message.attribute().0 - 0x10)] += 1;
    }
    // REQ, MRA, REJ, REP, RTU, DREQ, DREP.
    assert_eq!(kinds, [3, 0, 0, 3, 3, 3, 3]);
}

#[test]
fn a_request_has_the_kernels_parameters() {
    let ManagementMessage::Req(req) = ManagementMessage::parse(&recorded()[0].mad).unwrap().1
    else {
        panic!()
    };
    assert_eq!(req.service_id, ServiceId::tcp(NVME_PORT));
    assert_eq!(req.local_ca_guid, HOST_GUID);
    assert_eq!(req.local_qpn, Qpn::new(0x11));
    assert_eq!((req.responder_resources, req.initiator_depth), (128, 0));
    assert_eq!(req.starting_psn, Psn::new(0xC8_0314));
    assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 15));
    assert_eq!(PathMtu::from_code(req.path_mtu_code), Some(PathMtu::Bytes4096));
    assert_eq!(req.local_cm_response_timeout, TimeoutExponent::saturating(20));
    assert_eq!(req.remote_cm_response_timeout, TimeoutExponent::saturating(20));
    assert!(req.end_to_end_flow_control && !req.shared_receive_queue && !req.rdc_exists);
    let path = req.primary_path;
    assert_eq!((path.local_lid, path.remote_lid), (0xFFFF, 0xFFFF));
    assert_eq!(IpAddr::from(path.local_gid), HOST);
    assert_eq!(IpAddr::from(path.remote_gid), TARGET);
    assert_eq!((path.flow_label, path.packet_rate), (0x4_1B0A, 0));
    assert_eq!((path.traffic_class, path.hop_limit, path.service_level), (0, 64, 0));
    assert!(!path.subnet_local);
    assert_eq!(path.local_ack_timeout, TimeoutExponent::saturating(17));
    let header = IpHeader::parse(&req.private_data).unwrap();
    assert_eq!(header.source, SocketAddr::from((HOST, 0xA57A)));
    assert_eq!(header.destination, TARGET);
    assert_eq!(header.to_bytes(), req.private_data[..IpHeader::BYTES]);
}

/// Host and target in the roles of the kernels that were recorded.
struct Pair {
    host: Manager,
    target: Manager,
}

impl Pair {
    fn new() -> Self {
        let config = |guid, seed| ManagerConfig {
            response_timeout: TimeoutExponent::saturating(20),
            ack_delay: TimeoutExponent::saturating(15),
            max_retries: 15,
            path_mtu: PathMtu::Bytes4096,
            ..ManagerConfig::new(guid, seed)
        };
        let mut target = Manager::new(config(TARGET_GUID, 2));
        target.listen(ServiceId::tcp(NVME_PORT)).unwrap();
        Self { host: Manager::new(config(HOST_GUID, 1)), target }
    }

    /// The one datagram that `sender` has to send; it is delivered to the other.
    fn deliver(&mut self, sender: IpAddr) -> Mad {
        let (from, to) = if sender == HOST {
            (&mut self.host, &mut self.target)
        } else {
            (&mut self.target, &mut self.host)
        };
        let transmit = from.poll_transmit().expect("something to send");
        assert_eq!(from.poll_transmit(), None);
        let endpoint = SocketAddr::new(sender, wire::UDP_PORT);
        to.handle_datagram(Time::ZERO, endpoint, &transmit.mad, |_| None);
        transmit.mad
    }
}

/// One connection: its names at both ends, as ours and in the record.
struct Played {
    recorded_host_id: u32,
    host: ConnectionId,
}

/// Plays the kernels' parts with our managers: same parameters, same order of events. Every
/// datagram is the recorded one, but for communication ids and transaction id.
#[test]
fn our_datagrams_are_the_kernels() {
    let mut pair = Pair::new();
    let mut connections: Vec<Played> = Vec::new();
    let mut played = 0;
    for Recorded { from, mad } in recorded() {
        match ManagementMessage::parse(&mad).unwrap().1 {
            ManagementMessage::Req(req) => {
                let header = IpHeader::parse(&req.private_data).unwrap();
                let connect = ConnectParams {
                    peer: SocketAddr::from((TARGET, wire::UDP_PORT)),
                    source: header.source,
                    service_id: ServiceId::tcp(NVME_PORT),
                    traffic_class: 0,
                    qpn: req.local_qpn,
                    starting_psn: req.starting_psn,
                    responder_resources: 128,
                    initiator_depth: 0,
                    retry_count: 7,
                    rnr_retry_count: 7,
                    ack_timeout: TimeoutExponent::saturating(17),
                    path_mtu: PathMtu::Bytes4096,
                    udp_source: None,
                    private_data: &req.private_data[IpHeader::BYTES..][..32],
                };
                let host = pair.host.connect(Time::ZERO, &connect).unwrap();
                connections.push(Played { recorded_host_id: req.local_comm_id.0, host });
            }
            ManagementMessage::Rep(rep) => {
                let connection = find_event(&mut pair.target, |event| match event {
                    ManagerEvent::Request { connection, .. } => Some(connection),
                    _ => None,
                });
                let accept = AcceptParams {
                    qpn: rep.local_qpn,
                    starting_psn: rep.starting_psn,
                    responder_resources: 0,
                    initiator_depth: 128,
                    rnr_retry_count: 7,
                    udp_source: None,
                    private_data: &rep.private_data[..32],
                };
                pair.target.accept(Time::ZERO, connection, &accept).unwrap();
            }
            ManagementMessage::Rtu(_) => {
                let (connection, agreement) = find_event(&mut pair.host, |event| match event {
                    ManagerEvent::Accepted { connection, agreement, .. } => {
                        Some((connection, agreement))
                    }
                    _ => None,
                });
                assert_eq!(agreement.ack_timeout, TimeoutExponent::saturating(17));
                pair.host.confirm(connection).unwrap();
            }
            ManagementMessage::Dreq(dreq) => {
                let played = connections
                    .iter()
                    .find(|played| played.recorded_host_id == dreq.local_comm_id.0)
                    .unwrap();
                pair.host.disconnect(Time::ZERO, played.host);
            }
            ManagementMessage::Drep(_) => {
                let connection = find_event(&mut pair.target, |event| match event {
                    ManagerEvent::Disconnected { connection, .. } => Some(connection),
                    _ => None,
                });
                pair.target.close(Time::ZERO, connection);
            }
            other => panic!("{other:?}"),
        }
        let ours = pair.deliver(from);
        assert_eq!(without_names(&ours), without_names(&mad), "datagram {played}");
        played += 1;
    }
    assert_eq!(played, 15);
    assert_eq!(pair.target.connections(), 0);
}

/// The next event of the wished kind; others are passed over.
fn find_event<T>(manager: &mut Manager, pick: impl FnMut(ManagerEvent) -> Option<T>) -> T {
    std::iter::from_fn(|| manager.poll_event()).find_map(pick).expect("an event")
}

/// Zeros for transaction id and communication ids.
fn without_names(mad: &Mad) -> Mad {
    let mut mad = *mad;
    let is_request = matches!(ManagementMessage::parse(&mad), Ok((_, ManagementMessage::Req(_))));
    mad[8..16].fill(0);
    mad[24..if is_request { 28 } else { 32 }].fill(0);
    mad
}
