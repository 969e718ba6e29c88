//! The first inputs of each corpus: packets, datagrams, capsules and pages of the recorded session, and scripts of
//! operations that go well.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use feedrail_fuzz::{TARGETS, corpus};
use nvme_proto::log::DiscoveryHeader;
use nvme_proto::{CommandCapsule, IntoBytes, Qid, Sgl, Sqe, rdma_cm};
use roce_proto::Qpn;
use roce_proto::cm::{IpHeader, Message as CmMessage};
use roce_proto::wire::{Message, Packet};

use crate::pcap::frames;

/// Seeds by name.
type Seeds = BTreeMap<String, Vec<u8>>;

/// Writes the seeds of all targets.
pub(crate) fn write() -> Result<()> {
    for target in TARGETS {
        let folder = corpus::folder(&target);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let seeds = of(target.name);
        for (name, bytes) in &seeds {
            let path = folder.join(name);
            fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        }
        println!("{}: {} seeds in {}", target.name, seeds.len(), folder.display());
    }
    Ok(())
}

fn of(target: &str) -> Seeds {
    match target {
        "packet" => packets(),
        "mad" => datagrams(),
        "capsule" => capsules(),
        "pages" => pages(),
        _ => Seeds::new(),
    }
}

fn parsed() -> impl Iterator<Item = (&'static [u8], Packet<'static>)> {
    frames().into_iter().map(|frame| {
        let packet = Packet::parse(frame.datagram).expect("the capture holds packets");
        (frame.datagram, packet)
    })
}

/// The shortest packet of each kind.
fn packets() -> Seeds {
    let mut seeds = Seeds::new();
    for (datagram, packet) in parsed() {
        let name = format!("opcode-{:02x}", packet.message.opcode().0);
        let seed = seeds.entry(name).or_insert_with(|| datagram.to_vec());
        if datagram.len() < seed.len() {
            *seed = datagram.to_vec();
        }
    }
    seeds
}

/// The last management datagram of each kind.
fn datagrams() -> Seeds {
    parsed()
        .filter(|(_, packet)| matches!(packet.message, Message::UdSendOnly(_)))
        .map(|(_, packet)| {
            (format!("attribute-{:02x}", packet.payload[17]), packet.payload.to_vec())
        })
        .collect()
}

/// The queue that each queue pair of either side is.
fn queue_pairs() -> BTreeMap<Qpn, Qid> {
    let mut requests = BTreeMap::new();
    let mut queues = BTreeMap::new();
    for (_, packet) in parsed() {
        let Ok(mad) = packet.payload.try_into() else { continue };
        match CmMessage::parse(mad) {
            Ok((_, CmMessage::Req(req))) => {
                let data = &req.private_data[IpHeader::BYTES..];
                let qid = rdma_cm::Request::parse(data).expect("of an NVMe host").qid();
                requests.insert(req.local_comm_id, qid);
                queues.insert(req.local_qpn, qid);
            }
            Ok((_, CmMessage::Rep(rep))) => {
                queues.insert(rep.local_qpn, requests[&rep.remote_comm_id]);
            }
            _ => {}
        }
    }
    queues
}

/// One capsule for each kind of command, behind the number of its queue.
fn capsules() -> Seeds {
    let queues = queue_pairs();
    let mut seeds = Seeds::new();
    for (_, packet) in parsed() {
        let is_send = matches!(packet.message, Message::SendOnly(_) | Message::SendFirst);
        let payload = packet.payload;
        if !is_send || payload.len() < 64 {
            continue;
        }
        let qid = queues[&packet.bth.dest_qpn].0;
        let (opcode, fctype, cdw10) = (payload[0], payload[4], payload[40]);
        let name = match opcode {
            0x7F => format!("fabrics-{fctype:02x}-queue-{qid}"),
            0x02 | 0x06 if qid == 0 => format!("admin-{opcode:02x}-{cdw10:02x}"),
            _ => format!("queue-{qid}-opcode-{opcode:02x}"),
        };
        seeds.entry(name).or_insert_with(|| [&[qid as u8], payload].concat());
    }
    seeds
}

/// Identify data and log pages that the target wrote into the host's memory, behind the kind of page.
fn pages() -> Seeds {
    let mut wanted = BTreeMap::new();
    let mut seeds = Seeds::new();
    for (_, packet) in parsed() {
        match packet.message {
            Message::SendOnly(_) => {
                let Ok(capsule) = CommandCapsule::parse(packet.payload) else { continue };
                if let Ok(Sgl::Keyed { address, .. }) = capsule.sqe.dptr.parse() {
                    wanted.insert(address, *capsule.sqe);
                }
            }
            Message::WriteOnly(reth, _) => {
                let Some((name, kind)) = wanted.get(&reth.addr).and_then(page) else { continue };
                let head = DiscoveryHeader::new(1, 2);
                // The log page was read in two pieces.
                let is_rest = name == "discovery" && packet.payload.len() > 1024;
                let head = if is_rest { head.as_bytes() } else { &[] };
                seeds.insert(name.to_owned(), [&[kind], head, packet.payload].concat());
            }
            _ => {}
        }
    }
    seeds
}

/// The page that a command reads, and its number in the input.
fn page(sqe: &Sqe) -> Option<(&'static str, u8)> {
    match (sqe.opcode, sqe.cdw10.get() as u8) {
        (0x06, 0x01) => Some(("controller", 0)),
        (0x06, 0x00) => Some(("namespace", 1)),
        (0x06, 0x03) => Some(("descriptors", 2)),
        (0x06, 0x02) => Some(("namespaces", 3)),
        (0x02, 0x70) => Some(("discovery", 4)),
        (0x02, 0x0C) => Some(("asymmetric-access", 5)),
        (0x02, 0x05) => Some(("effects", 6)),
        (0x02, 0x02) => Some(("health", 7)),
        _ => None,
    }
}
