//! A well-behaved host, which a hostile one must not affect.

use std::net::SocketAddr;

use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData, PropertySet, PropertySize};
use nvme_proto::nvm::Io;
use nvme_proto::rdma_cm::ConnectRequest;
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{Cntlid, HostId, HostNqn, IntoBytes, Nsid, NvmCommand, Qid, Sqe};
use rdma::sim::SimDevice;
use rdma::{ConnParams, PrivateData, Time};

use super::host::FuzzHost;

/// Links of the witness, in the order in which they were made.
pub(super) const ADMIN: usize = 0;
const IO: usize = 1;
const ENTRIES: u16 = 8;
/// Parts of its namespace; in each is one command at a time.
const PARTS: usize = 4;
const PART_BYTES: usize = 8 << 10;
/// Bytes of its namespace.
pub(super) const NAMESPACE_BYTES: usize = PARTS * PART_BYTES;
const LBA_BYTES: usize = 512;

/// A host that writes, reads again, and compares.
pub(super) struct Witness {
    pub(super) host: FuzzHost,
    nqn: &'static str,
    subsystem: &'static str,
    parts: [WitnessPart; PARTS],
    writes: u8,
}

#[derive(Clone, Copy, Default)]
struct WitnessPart {
    /// Identifier of the command in flight.
    cid: Option<u16>,
    /// The value that the bytes were last written to, and how many bytes were.
    written: (u8, usize),
    /// The command is a Read.
    reading: bool,
}

impl Witness {
    pub(super) fn new(device: SimDevice, nqn: &'static str, subsystem: &'static str) -> Self {
        let parts = [WitnessPart::default(); PARTS];
        Self { host: FuzzHost::new(device), nqn, subsystem, parts, writes: 0 }
    }

    /// Asks for the connection of its next queue.
    pub(super) fn link(&mut self, now: Time, to: SocketAddr) {
        let qid = Qid(self.host.links.len() as u16);
        let request = ConnectRequest::new(qid, Cntlid(0), ENTRIES, ENTRIES.into());
        let params = ConnParams {
            responder_resources: 4,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: PrivateData::new(request.as_bytes()).expect("it fits"),
        };
        self.host.connect(now, to, params, ENTRIES.into());
    }

    /// Sends Connect for its latest queue. It asks for no Keep Alive, so that any time may pass.
    pub(super) fn connect(&mut self) {
        let cntlid = self.host.links[ADMIN].cntlid.unwrap_or(Cntlid::DYNAMIC);
        let link = self.host.links.len() - 1;
        let host = HostNqn(self.nqn.parse().expect("it is one"));
        let subsystem = self.subsystem.parse().expect("it is one");
        let data = ConnectData::new(HostId([7; 16]), cntlid, subsystem, host);
        self.host.put(0, data.as_bytes());
        let connect = Connect {
            qid: Qid(link as u16),
            queue_entries: ENTRIES.into(),
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: 0,
        };
        self.host.links[link].connect = Some(self.host.next_cid());
        let sqe = connect.to_sqe().with_data(self.host.keyed(0, ConnectData::BYTES));
        self.host.send(link, &[sqe.as_bytes()]);
    }

    /// Enables its controller with CC.EN.
    pub(super) fn enable(&mut self) {
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        let property = Property::CC;
        let value = cc.into_bits().into();
        let set = PropertySet { property, size: PropertySize::FourBytes, value };
        self.host.send(ADMIN, &[set.to_sqe().as_bytes()]);
    }

    /// Writes a part of its namespace, or reads it again if that was done; nothing while a command
    /// is in flight there.
    pub(super) fn act(&mut self, part: usize, blocks: usize) {
        let index = part % PARTS;
        let at = index * PART_BYTES;
        let part = &mut self.parts[index];
        if part.cid.is_some() {
            return;
        }
        if !part.reading {
            self.writes = self.writes.wrapping_add(1);
            part.written = (self.writes, (1 + blocks % (PART_BYTES / LBA_BYTES)) * LBA_BYTES);
        }
        let (byte, length) = part.written;
        let io = Io::new(Nsid(1), (at / LBA_BYTES) as u64, (length / LBA_BYTES) as u32);
        let sqe: Sqe = match part.reading {
            true => NvmCommand::Read(io).to_sqe(),
            false => NvmCommand::Write(io).to_sqe(),
        };
        // A Read has to replace all of it.
        let before = if part.reading { !byte } else { byte };
        part.cid = Some(self.host.next_cid());
        self.host.put(at, &vec![before; length]);
        let sqe = sqe.with_data(self.host.keyed(at, length));
        self.host.send(IO, &[sqe.as_bytes()]);
    }

    /// Looks at all answers.
    pub(super) fn check(&mut self) {
        for link in 0..self.host.links.len() {
            let answers = std::mem::take(&mut self.host.links[link].answers);
            for cqe in &answers {
                assert!(cqe.status().is_success(), "{cqe:?}");
                self.host.post_receives(link, 1);
            }
            if link == IO {
                answers.iter().for_each(|cqe| self.finish(cqe.cid().0));
            }
        }
    }

    fn finish(&mut self, cid: u16) {
        let found = self.parts.iter().position(|part| part.cid == Some(cid));
        let Some(index) = found else { return };
        let part = &mut self.parts[index];
        part.cid = None;
        part.reading = !part.reading;
        let (byte, length) = part.written;
        let mut bytes = self.host.get(index * PART_BYTES, length);
        assert!(bytes.all(|found| found == byte), "not the written bytes");
    }

    /// Whether all its commands are done and its queues are as they were.
    pub(super) fn is_served(&self) -> bool {
        self.host.links.len() == 2
            && self.host.is_up()
            && self.parts.iter().all(|part| part.cid.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::super::HostWorld;
    use crate::clockwork::Clockwork;

    #[test]
    #[should_panic(expected = "not the written bytes")]
    fn other_bytes_than_were_written_are_seen() {
        let mut world = HostWorld::new();
        world.witness.act(0, 15);
        world.rest();
        world.witness.parts[0].written.0 ^= 1;
        world.witness.act(0, 15);
        world.rest();
    }
}
