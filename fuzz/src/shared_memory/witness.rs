//! A well-behaved peer of the victim, which must be served whatever others do.
#![expect(unsafe_code, reason = "registers memory and pushes requests")]

use core::time::Duration;

use rdma::shm::{ShmCm, ShmDevice, ShmGroup, ShmOptions};
use rdma::{
    Access, ConnOptions, ConnParams, ConnectionManager, Device, Group, GroupConfig, Mem,
    MemoryRegion, Op, Provider, QpConfig, QpKey, RecvWr, SendFlags, SendWr, Sge, Shm, Wc,
};

use super::memory::VictimArea;
use super::victim::ShmVictim;

const BYTES: usize = 64;
const QP: QpConfig = QpConfig { send_wr: 8, recv_wr: 8, send_sge: 1, recv_sge: 1, inline_bytes: 0 };
const TURNS_MAX: usize = 20;

pub(super) struct ShmWitness {
    _device: ShmDevice,
    _cm: ShmCm,
    region: Option<<Shm as Provider>::Region>,
    memory: Box<[u8]>,
    group: ShmGroup,
    qp: QpKey,
    /// The victim's queue pair.
    served_by: QpKey,
    round: u64,
}

impl ShmWitness {
    pub(super) fn new(victim: &mut ShmVictim) -> Self {
        let options = ShmOptions::new([127, 0, 0, 1].into());
        let device = ShmDevice::open(&options).expect("descriptors are left");
        let config = GroupConfig { completions: 8, queue_pairs: 1, completion_vector: 0 };
        let mut group = device.group(&config).expect("it is the first");
        let mut cm = device.connection_manager().expect("it is the first");
        let mut memory = vec![0; 2 * BYTES].into_boxed_slice();
        let place = Mem::Host { addr: memory.as_mut_ptr(), length: memory.len() };
        // SAFETY: the region is dropped before the memory, which is used only between turns.
        let region = unsafe { device.register(place, Access::LOCAL_WRITE) };
        let options = ConnOptions::default();
        let conn = cm.resolve(victim.now, victim.address, Duration::ZERO, &options);
        let conn = conn.expect("an address of a peer");
        let qp = cm.create_qp(conn, &group.handle(), &device, &QP).expect("descriptors are left");
        let qp = group.adopt(qp);
        let params = ConnParams {
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
            ..ConnParams::default()
        };
        cm.connect(victim.now, conn, &params).expect("it is resolved");
        victim.takes_strangers = false;
        victim.settle();
        let conn = victim.strangers.pop().expect("the witness asks");
        victim.takes_strangers = true;
        let served_by = victim.make_qp(conn).expect("descriptors are left");
        victim.friendly_qpn = victim.group.qpn(served_by);
        victim.cm.accept(victim.now, conn, &params).expect("it asks");
        for _ in 0..TURNS_MAX {
            victim.settle();
            while cm.poll(victim.now).is_some() {}
            group.poll(victim.now, &mut [Wc::default(); 4]);
        }
        let region = Some(region.expect("the table has room"));
        Self { _device: device, _cm: cm, region, memory, group, qp, served_by, round: 0 }
    }

    fn sge(&self, offset: usize) -> Sge {
        let addr = self.memory.as_ptr().expose_provenance() as u64 + offset as u64;
        Sge { addr, length: BYTES as u32, lkey: self.region.as_ref().map_or(0, MemoryRegion::lkey) }
    }

    /// Writes to the victim, sends to it, and reads back.
    pub(super) fn exchange(&mut self, victim: &mut ShmVictim) {
        self.round += 1;
        // Bytes that look like no secret.
        self.memory[..BYTES].fill((self.round % 128) as u8);
        self.memory[BYTES..].fill(0xFF);
        let remote_addr = victim.memory.addr(VictimArea::Friendly, 0);
        let rkey = victim.memory.region(VictimArea::Friendly).map_or(0, MemoryRegion::rkey);
        victim.memory.allow(VictimArea::Friendly, 512..512 + BYTES);
        let sges = [victim.memory.sge(VictimArea::Friendly, 512, BYTES)];
        // SAFETY: nobody else uses this memory, which lives as long as the group.
        unsafe { victim.group.push_recv(self.served_by, &RecvWr { wr_id: 1, sges: &sges }) }
            .expect("there is room");
        let (ours, back) = (self.sge(0), self.sge(BYTES));
        for (op, sge) in [
            (Op::RdmaWrite { remote_addr, rkey }, ours),
            (Op::Send, ours),
            (Op::RdmaRead { remote_addr, rkey }, back),
        ] {
            let wr = SendWr { wr_id: 1, op, flags: SendFlags::SIGNALED, sges: &[sge] };
            // SAFETY: as above.
            unsafe { self.group.push_send(self.qp, &wr) }.expect("there is room");
        }
        self.group.flush(victim.now);
        let mut done = 0;
        for _ in 0..TURNS_MAX {
            victim.poll();
            let mut wcs = [Wc::default(); 4];
            let count = self.group.poll(victim.now, &mut wcs);
            assert!(wcs[..count].iter().all(Wc::is_success), "the witness: {wcs:?}");
            done += count;
            if done == 3 && !victim.friendly.is_empty() {
                break;
            }
        }
        assert_eq!(done, 3, "the witness is not served");
        let arrived: Vec<_> = victim.friendly.drain(..).map(|wc| wc.is_success()).collect();
        assert_eq!(arrived, [true], "the witness's message");
        assert!(self.memory[..BYTES] == self.memory[BYTES..], "the witness reads something else");
        victim.memory.expect_friendly(0..BYTES, &self.memory[..BYTES]);
    }
}

impl Drop for ShmWitness {
    fn drop(&mut self) {
        self.region = None;
    }
}
