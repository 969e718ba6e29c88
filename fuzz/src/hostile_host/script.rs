//! The operations of a hostile host.

use std::time::Duration;

use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData};
use nvme_proto::nvm::{ListedRange, ReadRanges};
use nvme_proto::rdma_cm::ConnectRequest;
use nvme_proto::{
    AdminOpcode, Cntlid, FABRICS_OPCODE, FabricsType, FromBytes, HostId, HostNqn, IntoBytes, Nsid,
    NvmOpcode, Qid, Sgl, SglDescriptor, Sqe,
};
use rdma::{ConnParams, Op, PrivateData};

use super::host::{CAPSULE_BYTES, DATA_BYTES};
use super::{HostWorld, OPEN, PRIVATE};
use crate::clockwork::Clockwork;
use crate::input::Input;

/// The longest data that the host describes for a command, in bytes: more than the target takes.
const LENGTH_MAX: usize = 20 << 10;
const IN_CAPSULE_MAX: usize = CAPSULE_BYTES - 64;
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6b1ba4dc-6d4e-4fd2-8d3c-3e6f6e6f7a11";
const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// The longest Keep Alive timeout that it asks for.
const KEEP_ALIVE_MS_MAX: u32 = 8_000;

impl HostWorld {
    /// Does the operation that sixteen bytes encode.
    pub(super) fn operate(&mut self, input: &mut Input<'_>) {
        let what = input.choice(14);
        let link = usize::from(input.u8()).checked_rem(self.hostile.links.len());
        match (what, link) {
            (0, _) => self.link(input),
            (1, _) => self.settle(),
            (2, _) => self.pass(Duration::from_nanos(1 << (input.u8() % 34))),
            (3, _) => self.witness.act(input.choice(4), usize::from(input.u8())),
            (4, _) if input.u8() & 1 == 0 => self.cut(),
            (4, _) => self.heal(),
            (5, _) => self.hostile.replace_memory(),
            (_, None) => {}
            (6, Some(link)) => self.connect(link, input),
            (7, Some(link)) => self.capsule(link, input),
            (8, Some(link)) => self.operation(link, input),
            (9, Some(link)) => self.hostile.post_receives(link, 1 + input.choice(16)),
            (10, Some(link)) => self.hostile.disconnect(self.now, link),
            (11, Some(link)) => self.hostile.fail(link),
            (_, Some(link)) => self.command(link, input),
        }
    }

    /// Asks for a connection, mostly in the right way.
    fn link(&mut self, input: &mut Input<'_>) {
        let [qid, receives, entries, depths, posted] = input.array();
        let mut private = [0; 56];
        let request = ConnectRequest::new(
            Qid((qid & 7).into()),
            Cntlid(0),
            (receives % 24).into(),
            (1 + entries % 24).into(),
        );
        private[..32].copy_from_slice(request.as_bytes());
        let length = match qid >> 5 {
            0 => usize::from(depths) % (private.len() + 1),
            _ => 32,
        };
        corrupt(&mut private[..length], input);
        let params = ConnParams {
            responder_resources: 4 ^ (depths & 7),
            initiator_depth: depths >> 4,
            retry_count: 7,
            rnr_retry_count: 7 - (posted >> 6),
            private_data: PrivateData::new(&private[..length]).expect("as long as it may be"),
        };
        self.hostile.connect(self.now, self.address, params, usize::from(posted % 32));
    }

    /// Sends Connect, mostly in the right way.
    fn connect(&mut self, link: usize, input: &mut Input<'_>) {
        let [kind, qid, entries, keep_alive] = input.array();
        let cntlid = match kind & 3 {
            0 => Cntlid::DYNAMIC,
            1 => self.known_controller(),
            2 => Cntlid::STATIC,
            _ => Cntlid(entries.into()),
        };
        let subsystem = match kind >> 2 & 7 {
            0 => PRIVATE,
            1 => DISCOVERY_NQN,
            _ => OPEN,
        };
        let subsystem = subsystem.parse().expect("it is one");
        let host = HostNqn(HOST_NQN.parse().expect("it is one"));
        let mut data = ConnectData::new(HostId([7 - (kind >> 5); 16]), cntlid, subsystem, host);
        let data_at = input.u16();
        corrupt_at(data.as_mut_bytes(), data_at, input.u8());
        self.hostile.put(0, data.as_bytes());
        let connect = Connect {
            qid: Qid((qid & 7).into()),
            queue_entries: 2 + u32::from(entries % 24),
            attributes: ConnectAttributes::from_bits(qid >> 4),
            keep_alive_timeout_ms: 30 * u32::from(keep_alive),
        };
        let sqe = connect.to_sqe().with_data(self.hostile.keyed(0, ConnectData::BYTES));
        self.send(link, sqe, 0, input);
    }

    /// A controller that the hostile host has.
    fn known_controller(&self) -> Cntlid {
        let mut known = self.hostile.links.iter().filter_map(|link| link.cntlid);
        known.next_back().unwrap_or(Cntlid(0))
    }

    /// Sends a capsule of arbitrary length and content.
    fn capsule(&mut self, link: usize, input: &mut Input<'_>) {
        let length = usize::from(input.u16()) % (CAPSULE_BYTES + 1);
        let pattern = input.rest();
        let mut bytes: Vec<u8> = pattern.iter().copied().cycle().take(length).collect();
        if let Some((sqe, _)) = bytes.split_first_chunk_mut::<64>() {
            let mut patient = Sqe::read_from_bytes(sqe).expect("of that length");
            request_keep_alive(&mut patient);
            sqe.copy_from_slice(patient.as_bytes());
        }
        self.hostile.send(link, &[&bytes]);
    }

    /// An RDMA operation on memory of the target, or on no memory at all.
    fn operation(&mut self, link: usize, input: &mut Input<'_>) {
        let [kind, keys] = input.array();
        let length = usize::from(input.u16()) % 8192;
        let offset = u64::from(input.u32());
        let (mut rkey, mut remote_addr) = (input.u32(), offset);
        if let Sgl::Keyed { address, key, .. } = self.hostile.keyed(0, 0) {
            // A key and an address near valid ones.
            rkey = if keys & 1 == 0 { key.wrapping_add(rkey & 0xFF) } else { rkey };
            remote_addr = if keys & 2 == 0 { address.wrapping_add(offset) } else { offset };
        }
        let op = match kind % 3 {
            0 => Op::RdmaWrite { remote_addr, rkey },
            1 => Op::RdmaRead { remote_addr, rkey },
            _ => Op::SendWithInvalidate { rkey },
        };
        self.hostile.operate(link, op, 0, length);
    }

    /// Sends a command that makes some sense.
    fn command(&mut self, link: usize, input: &mut Input<'_>) {
        let [kind, argument] = input.array();
        let sqe = match kind % 20 {
            0 => property_set(0x14, 0x0046_0001 ^ u32::from(argument & 1)),
            1 => property_set(0x14, 0x0046_0001 | u32::from(argument) << 8),
            2 => property_get(argument),
            3 => fabrics(FabricsType(argument)),
            4 => admin(AdminOpcode::IDENTIFY, argument.into(), 0),
            5 => admin(AdminOpcode::GET_LOG_PAGE, u32::from(argument) | 0x03FF_0000, 0),
            6 => admin(AdminOpcode::SET_FEATURES, (argument & 31).into(), argument.into()),
            7 => admin(AdminOpcode::GET_FEATURES, (argument & 31).into(), 0),
            8 => admin(AdminOpcode::ASYNC_EVENT_REQUEST, 0, 0),
            9 => admin(AdminOpcode::KEEP_ALIVE, 0, 0),
            10 => {
                let cid = u32::from(argument & 15) << 16;
                admin(AdminOpcode::ABORT, cid | u32::from(argument >> 4), 0)
            }
            11 => fabrics(FabricsType::DISCONNECT),
            12 => io(NvmOpcode::READ, argument),
            13 => io(NvmOpcode::WRITE, argument),
            14 => io(NvmOpcode::FLUSH, argument),
            15 => io(NvmOpcode::WRITE_ZEROES, argument),
            16 => io(NvmOpcode::COMPARE, argument),
            17 => {
                let mut sqe = io(NvmOpcode::DATASET_MANAGEMENT, argument);
                sqe.cdw10.set(u32::from(argument >> 4));
                sqe.cdw11.set(4);
                sqe
            }
            18 if argument & 1 == 1 => return self.read_ranges(link, argument, input),
            18 => Sqe::new(argument),
            _ => io(NvmOpcode(argument), kind),
        };
        let (sgl, in_capsule) = self.described(input);
        self.send(link, sqe.with_data(sgl), in_capsule, input);
    }

    /// Sends Read Ranges with its list, and with a byte of either changed.
    fn read_ranges(&mut self, link: usize, argument: u8, input: &mut Input<'_>) {
        let count = 1 + u32::from(argument >> 5) % 3;
        let range = |_| ListedRange::new(u64::from(input.u16()) * 8, 8 + u32::from(input.u8()) * 8);
        let list: Vec<ListedRange> = (0..count).map(range).collect();
        let length_bytes = list.iter().map(|range| range.length_bytes.get()).sum();
        let nsid = Nsid(1 + u32::from(argument >> 1 & 3));
        let mut sqe = ReadRanges { nsid, ranges: count, length_bytes }.to_sqe();
        sqe = sqe.with_data(self.hostile.keyed(0, length_bytes as usize));
        let mut list = list.as_bytes().to_vec();
        corrupt(&mut list, input);
        corrupt(sqe.as_mut_bytes(), input);
        self.hostile.send(link, &[sqe.as_bytes(), &list]);
    }

    /// A descriptor, and how many bytes go with the capsule.
    fn described(&self, input: &mut Input<'_>) -> (SglDescriptor, usize) {
        let kind = input.u8();
        let blocks = usize::from(input.u8());
        let length = match kind >> 4 {
            0 => blocks,
            1 => blocks * 16,
            _ => blocks % 40 * 512,
        };
        let length = length.min(LENGTH_MAX);
        let keyed = self.hostile.keyed(0, length);
        let Sgl::Keyed { address, key, .. } = keyed else { return (keyed.into(), 0) };
        let (length, invalidate) = (length as u32, false);
        match kind % 10 {
            0 => (Sgl::Keyed { address, length, key: key ^ 1, invalidate }.into(), 0),
            1 => (self.hostile.keyed(DATA_BYTES - 512, length as usize).into(), 0),
            2 => (Sgl::Keyed { address, length, key, invalidate: true }.into(), 0),
            3 | 4 => (Sgl::InCapsule { offset: 0, length }.into(), length as usize),
            5 => (Sgl::InCapsule { offset: 24, length }.into(), length as usize / 2),
            6 => (SglDescriptor::NO_DATA, length as usize),
            _ => (keyed.into(), 0),
        }
    }

    /// Sends a command, with a byte changed.
    fn send(&mut self, link: usize, mut sqe: Sqe, in_capsule: usize, input: &mut Input<'_>) {
        corrupt(sqe.as_mut_bytes(), input);
        request_keep_alive(&mut sqe);
        if sqe.is_fabrics() && sqe.fabrics_type() == FabricsType::CONNECT {
            self.hostile.links[link].connect = Some(self.hostile.next_cid());
        }
        let in_capsule = [0xA5; IN_CAPSULE_MAX].get(..in_capsule).unwrap_or_default().to_vec();
        self.hostile.send(link, &[sqe.as_bytes(), &in_capsule]);
    }
}

fn property_set(offset: u32, value: u32) -> Sqe {
    let mut sqe = fabrics(FabricsType::PROPERTY_SET);
    sqe.cdw11.set(offset);
    sqe.cdw12.set(value);
    sqe
}

fn property_get(argument: u8) -> Sqe {
    let mut sqe = fabrics(FabricsType::PROPERTY_GET);
    sqe.cdw10.set(u32::from(argument & 1));
    sqe.cdw11.set(u32::from(argument >> 1) & !3);
    sqe
}

fn fabrics(fctype: FabricsType) -> Sqe {
    Sqe::fabrics(fctype)
}

fn admin(opcode: AdminOpcode, cdw10: u32, cdw11: u32) -> Sqe {
    let mut sqe = Sqe::new(opcode.0);
    sqe.nsid.set(1);
    sqe.cdw10.set(cdw10);
    sqe.cdw11.set(cdw11);
    sqe
}

/// A command for some blocks of one of the namespaces.
fn io(opcode: NvmOpcode, argument: u8) -> Sqe {
    let mut sqe = Sqe::new(opcode.0);
    sqe.nsid.set(1 + u32::from(argument & 3));
    sqe.cdw12.set(u32::from(argument >> 2) % 40);
    sqe
}

/// Changes one byte, or none.
fn corrupt(bytes: &mut [u8], input: &mut Input<'_>) {
    let [at, with] = input.array();
    corrupt_at(bytes, at.into(), with);
}

fn corrupt_at(bytes: &mut [u8], at: u16, with: u8) {
    if let Some(at) = usize::from(at).checked_rem(bytes.len()) {
        bytes[at] ^= with;
    }
}

/// Adds a Keep Alive timeout to a command that can ask for one. A host that asks for none and
/// vanishes is never missed, and that is as it should be.
fn request_keep_alive(sqe: &mut Sqe) {
    let keep_alive = match sqe.opcode {
        FABRICS_OPCODE if sqe.fabrics_type() == FabricsType::CONNECT => &mut sqe.cdw12,
        opcode if opcode == AdminOpcode::SET_FEATURES.0 && sqe.cdw10.get() as u8 == 0x0F => {
            &mut sqe.cdw11
        }
        _ => return,
    };
    keep_alive.set(1 + keep_alive.get() % KEEP_ALIVE_MS_MAX);
}
