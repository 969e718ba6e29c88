//! Three connections, put together again: messages out of packets, commands with their data.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use nvme_proto::{Cid, Command, CommandCapsule, Cqe, Qid, Sgl, Sqe, rdma_cm};
use roce_proto::cm::{IpHeader, ManagementMessage as CmMessage};
use roce_proto::wire::{Message, Packet, Reth, Syndrome, Tail};
use roce_proto::{Psn, Qpn};

use super::pcap::frames;

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2));
const PATH_MTU: u32 = 4096;

/// A command with everything that belonged to it.
pub(crate) struct Exchange {
    pub(crate) qid: Qid,
    pub(crate) sqe: Sqe,
    pub(crate) command: Command,
    /// The data that was moved, in either direction and by any means.
    pub(crate) data: Vec<u8>,
    pub(crate) by: Movement,
    /// None for commands that wait until the end: asynchronous event requests.
    pub(crate) response: Option<Response>,
}

/// How data was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Movement {
    Nothing,
    InCapsule,
    RdmaWrite,
    RdmaRead,
}

pub(crate) struct Response {
    pub(crate) bytes: [u8; 16],
    pub(crate) invalidated: Option<u32>,
}

/// A queue: one connection.
struct Queue {
    host_qpn: Qpn,
    target_qpn: Qpn,
    qid: Qid,
    /// Requests from the host, and requests from the target.
    from_host: Requester,
    from_target: Requester,
    /// The READ request that the host is answering.
    reading: Option<(Reth, Vec<u8>)>,
    open: BTreeMap<Cid, Exchange>,
    done: Vec<Exchange>,
}

/// The requests of one side. That no PSN is skipped or repeated means that the capture holds each
/// packet once.
struct Requester {
    next_psn: Psn,
    message: Vec<u8>,
    /// Where the next packet of an RDMA WRITE goes.
    write: Option<Reth>,
}

impl Requester {
    fn new(next_psn: Psn) -> Self {
        Self { next_psn, message: Vec::new(), write: None }
    }

    fn take_psn(&mut self, psn: Psn, count: u32) {
        assert_eq!(psn, self.next_psn);
        self.next_psn = psn.plus(count);
    }
}

/// All exchanges of the capture, in the order of their responses, unanswered ones last; and the
/// number of queues.
pub(crate) fn exchanges() -> Vec<Exchange> {
    let mut queues: Vec<Queue> = Vec::new();
    let mut requests = BTreeMap::new();
    for frame in frames() {
        let packet = Packet::parse(frame.datagram).unwrap();
        let from_host = frame.source.ip() == HOST;
        if let Message::UdSendOnly(_) = packet.message {
            let mad = packet.payload.try_into().unwrap();
            match CmMessage::parse(mad).unwrap().1 {
                CmMessage::Req(req) => {
                    requests.insert(req.local_comm_id, req);
                }
                CmMessage::Rep(rep) => {
                    let req = requests[&rep.remote_comm_id];
                    let datum = &req.private_data[IpHeader::BYTES..];
                    queues.push(Queue {
                        host_qpn: req.local_qpn,
                        target_qpn: rep.local_qpn,
                        qid: rdma_cm::ConnectRequest::parse(datum).unwrap().qid(),
                        from_host: Requester::new(rep.starting_psn),
                        from_target: Requester::new(req.starting_psn),
                        reading: None,
                        open: BTreeMap::new(),
                        done: Vec::new(),
                    });
                }
                _ => {}
            }
            continue;
        }
        let queue = queues
            .iter_mut()
            .find(|queue| {
                packet.bth.dest_qpn == if from_host { queue.target_qpn } else { queue.host_qpn }
            })
            .expect("a queue pair that was connected");
        if from_host {
            queue.take_from_host(&packet);
        } else {
            queue.take_from_target(&packet);
        }
    }
    assert_eq!(queues.len(), 3);
    queues
        .into_iter()
        .flat_map(|queue| queue.done.into_iter().chain(queue.open.into_values()))
        .collect()
}

impl Queue {
    fn take_from_host(&mut self, packet: &Packet<'_>) {
        match packet.message {
            Message::SendFirst | Message::SendLast(_) | Message::SendOnly(_) => {
                self.from_host.take_psn(packet.bth.psn, 1);
                self.from_host.message.extend_from_slice(packet.payload);
                if packet.message != Message::SendFirst {
                    let capsule = std::mem::take(&mut self.from_host.message);
                    self.command(&capsule);
                }
            }
            Message::ReadResponseFirst(_)
            | Message::ReadResponseMiddle
            | Message::ReadResponseLast(_)
            | Message::ReadResponseOnly(_) => self.read_response(packet),
            Message::Acknowledge(aeth) => {
                assert!(matches!(aeth.syndrome, Syndrome::Ack { .. }), "{aeth:?}");
            }
            other => panic!("the host sends {other:?}"),
        }
    }

    fn take_from_target(&mut self, packet: &Packet<'_>) {
        match packet.message {
            Message::SendOnly(tail) => {
                self.from_target.take_psn(packet.bth.psn, 1);
                self.response(packet.payload, tail);
            }
            Message::WriteFirst(reth) | Message::WriteOnly(reth, None) => {
                self.from_target.write = Some(reth);
                self.write(packet);
            }
            Message::WriteMiddle | Message::WriteLast(None) => self.write(packet),
            Message::ReadRequest(reth) => {
                let packets = reth.length.div_ceil(PATH_MTU).max(1);
                self.from_target.take_psn(packet.bth.psn, packets);
                assert!(self.reading.is_none(), "one at a time");
                self.reading = Some((reth, Vec::new()));
            }
            Message::Acknowledge(aeth) => {
                assert!(matches!(aeth.syndrome, Syndrome::Ack { .. }), "{aeth:?}");
            }
            other => panic!("the target sends {other:?}"),
        }
    }

    fn command(&mut self, bytes: &[u8]) {
        let capsule = CommandCapsule::parse(bytes).unwrap();
        let command = Command::parse(self.qid, capsule.sqe).unwrap();
        let (data, by) = match capsule.sqe.dptr.parse().unwrap() {
            Sgl::InCapsule { offset, length } => {
                let data = capsule.in_capsule(offset, length).unwrap();
                assert_eq!(data.len(), capsule.data.len(), "nothing else in the capsule");
                (data.to_vec(), Movement::InCapsule)
            }
            _ => {
                assert!(capsule.data.is_empty());
                (Vec::new(), Movement::Nothing)
            }
        };
        let sqe = *capsule.sqe;
        let exchange = Exchange { qid: self.qid, sqe, command, data, by, response: None };
        assert!(self.open.insert(sqe.cid(), exchange).is_none(), "identifier in use");
    }

    fn response(&mut self, bytes: &[u8], tail: Tail) {
        let cqe = Cqe::parse(bytes).unwrap();
        let mut exchange = self.open.remove(&cqe.cid()).expect("a command that waits");
        let invalidated = match tail {
            Tail::Plain => None,
            Tail::Invalidate(rkey) => Some(rkey),
            Tail::Immediate(_) => panic!("NVMe has no immediate data"),
        };
        let bytes = bytes.try_into().expect("a response has 16 bytes");
        exchange.response = Some(Response { bytes, invalidated });
        self.done.push(exchange);
    }

    /// A packet of an RDMA WRITE: data of the command that granted the memory.
    fn write(&mut self, packet: &Packet<'_>) {
        self.from_target.take_psn(packet.bth.psn, 1);
        let mut reth = self.from_target.write.take().expect("a WRITE that began");
        self.exchange_of(&reth).place(&reth, packet.payload, Movement::RdmaWrite);
        let length = packet.payload.len() as u32;
        reth.addr += u64::from(length);
        reth.length -= length;
        let is_end = matches!(packet.message, Message::WriteLast(_) | Message::WriteOnly(..));
        assert_eq!(is_end, reth.length == 0);
        self.from_target.write = Some(reth).filter(|_| !is_end);
    }

    fn read_response(&mut self, packet: &Packet<'_>) {
        let (reth, data) = self.reading.as_mut().expect("a READ that was asked for");
        data.extend_from_slice(packet.payload);
        if data.len() < reth.length as usize {
            return;
        }
        assert!(matches!(
            packet.message,
            Message::ReadResponseLast(_) | Message::ReadResponseOnly(_)
        ));
        let (reth, data) = self.reading.take().expect("it is there");
        assert_eq!(data.len(), reth.length as usize);
        self.exchange_of(&reth).place(&reth, &data, Movement::RdmaRead);
    }

    fn exchange_of(&mut self, reth: &Reth) -> &mut Exchange {
        self.open
            .values_mut()
            .find(|exchange| {
                matches!(exchange.sqe.dptr.parse(), Ok(Sgl::Keyed { key, address, length, .. })
                    if key == reth.rkey
                        && (address..address + u64::from(length)).contains(&reth.addr))
            })
            .expect("a command that named this memory")
    }
}

impl Exchange {
    fn place(&mut self, reth: &Reth, bytes: &[u8], by: Movement) {
        let Ok(Sgl::Keyed { address, length, .. }) = self.sqe.dptr.parse() else { panic!() };
        assert!(self.by == Movement::Nothing || self.by == by);
        self.by = by;
        let offset = (reth.addr - address) as usize;
        assert!(offset + bytes.len() <= length as usize, "within what was granted");
        assert_eq!(offset, self.data.len(), "in order, without a gap");
        self.data.extend_from_slice(bytes);
    }
}
