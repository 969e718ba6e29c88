//! The first inputs of each corpus: packets, datagrams, capsules and pages of the recorded session,
//! scripts of operations that go well, and files of training data.

mod auth;
mod checkpoint;
mod dataset;

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use feedrail_fuzz::{TARGETS, corpus};
use nvme_proto::log::DiscoveryHeader;
use nvme_proto::{CommandCapsule, IntoBytes, Qid, Sgl, Sqe, rdma_cm};
use roce_proto::Qpn;
use roce_proto::cm::{IpHeader, ManagementMessage as CmMessage};
use roce_proto::wire::{Message, Packet};

use crate::pcap::frames;

/// Operations by name, each filled up with zeros.
type Script<'a> = (&'a str, &'a [&'a [u8]]);

/// The course of each kind of request without faults, and the repair of a loss.
const QUEUE_PAIR_SCRIPTS: [Script<'_>; 8] = [
    ("send", &[HEAD, RECEIVE, &[0, 0, 0, 1, 100], SENT, ARRIVED, ANSWERED, HEARD]),
    ("send-of-many-packets", &[HEAD, RECEIVE, &[0, 0, 0, 1, 0, 4], SENT, ARRIVED, ANSWERED, HEARD]),
    ("write", &[HEAD, &[0, 0, 2, 1, 0xD0, 7], SENT, ARRIVED, ANSWERED, HEARD]),
    ("read", &[HEAD, &[0, 0, 3, 25, 0, 3], SENT, ARRIVED, ANSWERED, HEARD]),
    ("inline", &[HEAD, RECEIVE, &[0, 0, 4, 1, 40], SENT, ARRIVED, ANSWERED, HEARD]),
    (
        "window",
        &[
            HEAD,
            RECEIVE,
            &[0, 1, 5, 1, 0, 1],
            &[2, 1],
            &[0, 0, 1, 1, 9],
            SENT,
            ARRIVED,
            ANSWERED,
            HEARD,
        ],
    ),
    (
        "loss",
        &[
            HEAD,
            RECEIVE,
            &[0, 0, 0, 1, 0, 4],
            SENT,
            &[5, 1, 1],
            ARRIVED,
            ANSWERED,
            HEARD,
            &[10],
            SENT,
            ARRIVED,
        ],
    ),
    (
        "forged",
        &[HEAD, RECEIVE, &[8, 1, 3, 0x27], ARRIVED, &[8, 1, 8, 0x06, 0, 2], ARRIVED, ANSWERED],
    ),
];

const HEAD: &[u8] = &[0, 0xFF, 3, 5];
const RECEIVE: &[u8] = &[1, 1, 0, 0, 4];
const SENT: &[u8] = &[2, 0, 7];
const ARRIVED: &[u8] = &[4, 1];
const ANSWERED: &[u8] = &[2, 1, 7];
const HEARD: &[u8] = &[4, 0];

/// How connections come about and end.
const CONNECTION_SCRIPTS: [Script<'_>; 4] = [
    (
        "established",
        &[CONNECT, TO_PEER, ACCEPT, BACK, &[3], TO_PEER, &[4], TO_PEER, BACK, &[5], &[5, 1]],
    ),
    ("rejected", &[CONNECT, TO_PEER, &[2, 1], BACK, &[5]]),
    (
        "lost",
        &[CONNECT, &[9, 1], &[13, 0, 0x80], TO_PEER, ACCEPT, &[9], &[13, 0, 0x80], BACK, &[3]],
    ),
    ("no-listener", &[&[0, 0, 0x84, 0x44, 0x3F], TO_PEER, BACK, &[5]]),
];

const CONNECT: &[u8] = &[0, 0, 4, 0x44, 0x3F, 32];
const TO_PEER: &[u8] = &[8, 1];
const ACCEPT: &[u8] = &[1, 1, 0, 0x44, 32];
const BACK: &[u8] = &[8];

/// The first operations of a host, and some that may follow.
const HOSTILE_HOST_BEGINNING: [&[u8]; 6] = [LINK, SETTLE, ADMIN_CONNECT, SETTLE, ENABLE, SETTLE];
const HOSTILE_HOST_IO: [&[u8]; 4] = [IO_LINK, SETTLE, IO_CONNECT, SETTLE];
const HOSTILE_HOST_ENDS: [Script<'_>; 4] = [
    ("read", &[READ, WITNESS, SETTLE]),
    ("write", &[WRITE, SLOW_WRITE, &[2, 0, 22], WITNESS, SETTLE]),
    ("abort", &[SLOW_WRITE, &[2, 0, 17], &[12, 0, 10, 0x13], SETTLE]),
    ("vanishes", &[SLOW_WRITE, &[4], WITNESS, &[2, 0, 33]]),
];

const LINK: &[u8] = &[0, 0, 0x20, 16, 15, 0x40, 0x10];
const SETTLE: &[u8] = &[1];
const ADMIN_CONNECT: &[u8] = &[6, 0, 8, 0, 14, 200];
const DISCOVERY_CONNECT: &[u8] = &[6, 0, 4, 0, 30, 200];
const DISCOVERY: &[u8] = &[12, 0, 5, 0x70, 0x27, 8];
const ENABLE: &[u8] = &[12, 0, 0, 0];
const IDENTIFY: &[u8] = &[12, 0, 4, 1, 0x27, 8];
const IO_LINK: &[u8] = &[0, 0, 0x21, 16, 15, 0x40, 0x10];
const IO_CONNECT: &[u8] = &[6, 1, 9, 1, 14];
const READ: &[u8] = &[12, 1, 12, 28, 0x27, 8];
const WRITE: &[u8] = &[12, 1, 13, 12, 0x21, 4];
const SLOW_WRITE: &[u8] = &[12, 1, 13, 29, 0x27, 8];
const WITNESS: &[u8] = &[3, 0, 1, 7];

fn hostile_host() -> Seeds {
    let discovery = [LINK, SETTLE, DISCOVERY_CONNECT, SETTLE, ENABLE, SETTLE, DISCOVERY, SETTLE];
    let admin = [&HOSTILE_HOST_BEGINNING[..], &[IDENTIFY, SETTLE, &[10]]].concat();
    let mut seeds = scripts::<16>(&[("discovery", &discovery), ("admin", &admin)]);
    for (name, end) in HOSTILE_HOST_ENDS {
        let script = [&HOSTILE_HOST_BEGINNING[..], &HOSTILE_HOST_IO, end].concat();
        seeds.extend(scripts::<16>(&[(name, &script)]));
    }
    seeds
}

/// Calls of an initiator that has a namespace, and the target's actions.
const HOSTILE_TARGET_ENDS: [Script<'_>; 9] = [
    ("read", &[READ_BLOCKS, FLOW]),
    ("read-unaligned", &[&[4, 0xE, 3, 0xFF, 4, 0xF3, 7, 1, 0x81], FLOW]),
    ("write", &[&[4, 1, 1, 0xFF, 3, 0, 8, 0, 16], FLOW, &[4, 5, 2, 0xE5, 2, 9, 5, 0x41, 3], FLOW]),
    (
        "commands",
        &[&[6, 3], FLOW, &[6, 4, 2], FLOW, &[6, 5, 4], FLOW, &[6, 6], FLOW, &[6, 7, 1], FLOW],
    ),
    ("silence", &[&[15, 0, 0, 1], READ_BLOCKS, FLOW, &[3, 31], &[10, 0, 0], FLOW]),
    ("touch", &[READ_BLOCKS, FLOW, &[11, 0xFF, 1, 0, 0, 0, 0, 0, 2], FLOW, &[11, 0xFF, 0], FLOW]),
    (
        "lies",
        &[
            &[15, 0, 2, 5, 0, 0, 2],
            READ_BLOCKS,
            FLOW,
            &[15, 1, 4, 4, 1, 1, 0, 0, 0, 1],
            READ_BLOCKS,
            FLOW,
        ],
    ),
    ("given-up", &[READ_BLOCKS, &[7], &[8], FLOW]),
    ("lost", &[&[13], READ_BLOCKS, FLOW, &[3, 30], &[13, 1], &[3, 30], &[9], &[14], READ_BLOCKS]),
];

const FLOW: &[u8] = &[2];
const READ_BLOCKS: &[u8] = &[4, 0, 1, 0xFF, 3, 0, 4, 0, 0xA0];

fn hostile_target() -> Seeds {
    let beginning: [&[u8]; 4] = [&[0], FLOW, &[1], FLOW];
    // Queues of two commands, and of none.
    let small = [&[&[14, 3][..]], &beginning[..], &[READ_BLOCKS, FLOW]].concat();
    let none = [&[&[14, 1][..]], &beginning[..]].concat();
    let mut seeds = scripts::<16>(&[
        ("discovery", &[&[6, 0], FLOW]),
        ("small-queues", &small),
        ("no-queues", &none),
    ]);
    for (name, end) in HOSTILE_TARGET_ENDS {
        seeds.extend(scripts::<16>(&[(name, &[&beginning[..], end].concat())]));
    }
    seeds
}

/// Peers in shared memory: requests of either side that go well, and one attack of each kind.
const SHARED_MEMORY_SCRIPTS: [Script<'_>; 12] = [
    ("message", &[APPROACH, SLOT, PEER_SENDS, REST, &[11]]),
    ("accesses", &[APPROACH, PEER_WRITES, PEER_READS, REST, &[11, 0, 1]]),
    ("requests", &[APPROACH, WE_SEND, WE_WRITE, WE_READ, DUTIFUL, REST]),
    ("active", &[&[1, 0, 4], WE_SEND, WE_READ, DUTIFUL, REST, SLOT, PEER_SENDS, REST]),
    ("large", &[APPROACH, &[5, 0, 16, 2, 0, 16, 1], DUTIFUL, REST, DUTIFUL, REST, DUTIFUL, REST]),
    ("window", &[APPROACH, &[5, 0, 5, 2], REST, &[6, 0, 3, 0, 32, 0, 0, 0, 4], REST]),
    ("starved", &[APPROACH, PEER_SENDS, REST, SLOT, REST, &[17, 0, 12]]),
    ("sleep", &[APPROACH, SLOT, &[15], PEER_SENDS, &[12], &[15, 0, 1], &[12, 0, 3], &[15]]),
    ("forged", &[APPROACH, SLOT, PEER_SENDS, &[9, 0, 0, 1, 0, 0, 0, 0, 1], REST, &[10, 0, 4]]),
    ("closed", &[APPROACH, &[6, 0, 4, 8, 64, 0, 0, 0, 3], REST, &[6, 0, 3, 8, 9, 0, 0, 0, 1]]),
    ("refused", &[&[0, 0, 1, 4], &[0, 0, 8, 4], &[0, 0, 13, 4], &[1, 0, 1], REST]),
    ("leaves", &[APPROACH, WE_SEND, &[14, 0, 1], REST, APPROACH, &[13, 1, 4, 7], REST, &[17]]),
];

const APPROACH: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 4];
const SLOT: &[u8] = &[4, 0, 0, 0, 64];
const REST: &[u8] = &[2];
const PEER_SENDS: &[u8] = &[6, 0, 1, 0, 8];
const PEER_WRITES: &[u8] = &[6, 0, 3, 8, 32];
const PEER_READS: &[u8] = &[6, 0, 4, 8, 32];
const WE_SEND: &[u8] = &[5, 0, 0, 2, 100];
const WE_WRITE: &[u8] = &[5, 0, 2, 2, 100];
const WE_READ: &[u8] = &[5, 0, 3, 2, 100];
const DUTIFUL: &[u8] = &[8, 0, 7];

/// Scripts whose operations have `BYTES` bytes.
fn scripts<const BYTES: usize>(scripts: &[Script<'_>]) -> Seeds {
    let record = |operation: &&[u8]| {
        let mut record = [0; BYTES];
        record[..operation.len()].copy_from_slice(operation);
        record
    };
    scripts
        .iter()
        .map(|(name, script)| ((*name).to_owned(), script.iter().flat_map(record).collect()))
        .collect()
}

/// The inputs of a corpus by file name.
type Seeds = BTreeMap<String, Vec<u8>>;

/// Writes the seeds of all targets.
pub(crate) fn write() -> Result<()> {
    for target in TARGETS {
        let folder = corpus::folder(&target);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let seeds = of(target.name)?;
        for (name, bytes) in &seeds {
            let path = folder.join(name);
            fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        }
        println!("{}: {} seeds in {}", target.name, seeds.len(), folder.display());
    }
    Ok(())
}

fn of(target: &str) -> Result<Seeds> {
    Ok(match target {
        "packet" => packets(),
        "mad" => datagrams(),
        "capsule" => capsules(),
        "pages" => pages(),
        "queue_pair" => scripts::<8>(&QUEUE_PAIR_SCRIPTS),
        "connection" => scripts::<8>(&CONNECTION_SCRIPTS),
        "hostile_host" => hostile_host(),
        "hostile_target" => hostile_target(),
        "shared_memory" => scripts::<16>(&SHARED_MEMORY_SCRIPTS),
        "shard" => dataset::shards()?,
        "index" => dataset::indexes()?,
        "manifest" => dataset::manifests()?,
        "state" => dataset::states(),
        "url" => dataset::urls(),
        "checkpoint" => checkpoint::volumes()?,
        "auth_message" => auth::messages(),
        "auth_controller" => scripts::<8>(&auth::CONTROLLER_SCRIPTS),
        "auth_host" => scripts::<8>(&auth::HOST_SCRIPTS),
        _ => Seeds::new(),
    })
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
                let qid = rdma_cm::ConnectRequest::parse(data).expect("of an NVMe host").qid();
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

/// Identify data and log pages that the target wrote into the host's memory, behind the kind of
/// page.
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
