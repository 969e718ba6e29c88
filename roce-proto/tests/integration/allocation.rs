//! A queue pair allocates when it is made and when it is first used deeply, and nothing after.
#![expect(unsafe_code, reason = "counts allocations in a global allocator")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use roce_proto::rc::{
    AccessError, BindWindow, ConnectionParams, LocalAccess, LocalSge, Memory, MemoryKey, Payload,
    QueuePair, QueuePairConfig, ReadBudget, RecvRequest, RemoteAccess, SendOp, SendOptions,
    SendRequest, SendWindow, SharedLimits, Transmit, WorkStatus,
};
use roce_proto::wire::{Packet, RnrTimer};
use roce_proto::{PathMtu, Psn, Qpn, Time};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as for `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MEMORY: usize = 1 << 17;

/// Everything is open to everybody; addresses begin at 0.
struct Open([u8; MEMORY]);

impl Memory for Open {
    fn check_local(&self, _: u32, _: u64, _: u32, _: LocalAccess) -> Result<(), AccessError> {
        Ok(())
    }

    fn check_remote(
        &self,
        _: Qpn,
        _: u32,
        _: u64,
        _: u32,
        _: RemoteAccess,
    ) -> Result<(), AccessError> {
        Ok(())
    }

    fn place(&mut self, _: MemoryKey, addr: u64, payload: &[u8]) -> Result<(), AccessError> {
        let start = addr as usize;
        self.0[start..start + payload.len()].copy_from_slice(payload);
        Ok(())
    }

    fn bind(&mut self, _: Qpn, _: &BindWindow) -> Result<(), AccessError> {
        Ok(())
    }

    fn invalidate(&mut self, _: Qpn, _: u32) -> Result<(), AccessError> {
        Ok(())
    }
}

struct End {
    qp: QueuePair,
    memory: Open,
    window: SendWindow,
    reads: ReadBudget,
}

impl End {
    fn new(send_psn: u32, recv_psn: u32) -> Self {
        let config = QueuePairConfig {
            send_wr: 32,
            recv_wr: 32,
            send_sge: 2,
            recv_sge: 2,
            inline_bytes: 64,
        };
        let mut qp = QueuePair::new(Qpn::new(7), &config);
        use_deeply(&mut qp);
        qp.connect(&ConnectionParams {
            remote_qpn: Qpn::new(7),
            path_mtu: PathMtu::Bytes1024,
            send_psn: Psn::new(send_psn),
            recv_psn: Psn::new(recv_psn),
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout_exponent: 14,
            min_rnr_timer: RnrTimer::new(12),
            initiator_depth: 4,
            responder_resources: 4,
            reports_overflow: true,
            selective_recovery: true,
        });
        let (window, reads) = (SendWindow::new(), ReadBudget::new(425_984));
        Self { qp, memory: Open([0; MEMORY]), window, reads }
    }

    /// Moves the packets of this end to `peer`; every `lose`th packet is dropped.
    fn exchange(&mut self, peer: &mut Self, now: Time, count: &mut u32, lose: u32) -> bool {
        let mut out = Transmit::new();
        let mut datagram = [0; 2048];
        let mut busy = false;
        let mut limits =
            SharedLimits { window: &mut self.window, reads: &mut self.reads, overflowed: false };
        while self.qp.poll_transmit(now, &mut self.memory, &mut limits, &mut out) {
            busy = true;
            *count += 1;
            if count.is_multiple_of(lose) {
                continue;
            }
            let mut length = out.headers().len();
            datagram[..length].copy_from_slice(out.headers());
            for piece in out.pieces() {
                let (start, bytes) = (piece.addr as usize, piece.length as usize);
                datagram[length..length + bytes]
                    .copy_from_slice(&self.memory.0[start..start + bytes]);
                length += bytes;
            }
            length += out.pad_bytes() + 4;
            let packet = Packet::parse(&datagram[..length]).expect("it was just built");
            let mut limits = SharedLimits {
                window: &mut peer.window,
                reads: &mut peer.reads,
                overflowed: false,
            };
            peer.qp.handle_packet(now, &packet, &mut peer.memory, &mut limits);
        }
        busy
    }
}

/// Posts enough receives that the queue pair allocates all its memory.
fn use_deeply(qp: &mut QueuePair) {
    let mut allocated = Vec::with_capacity(9);
    for count in 1..=9 {
        let before = ALLOCATIONS.get();
        qp.post_recv(&RecvRequest { wr_id: 1, sges: &[] }).expect("there is room");
        if ALLOCATIONS.get() != before {
            allocated.push(count);
        }
    }
    assert_eq!(allocated, [9]);
}

#[test]
fn a_grown_queue_pair_allocates_nothing_more() {
    let (mut a, mut b) = (Box::new(End::new(1, 2)), Box::new(End::new(2, 1)));
    let before = ALLOCATIONS.get();
    let mut done = 0;
    let mut count = 0;
    let mut now = Time::from_nanos(1);
    let here = [LocalSge { addr: 100, length: 5000, lkey: 1 }];
    let flags = SendOptions { signaled: true, ..SendOptions::default() };
    for round in 0..200 {
        let lose = if round < 100 { u32::MAX } else { 13 };
        for op in [
            SendOp::Send,
            SendOp::RdmaWrite { remote_addr: 20_000, rkey: 1 },
            SendOp::RdmaRead { remote_addr: 40_000, rkey: 1 },
            SendOp::SendWithInvalidate { rkey: 1 },
            SendOp::LocalInvalidate { rkey: 1 },
        ] {
            b.qp.post_recv(&RecvRequest { wr_id: 1, sges: &here }).expect("there is room");
            let payload = match op {
                SendOp::Send => Payload::Inline(&[&[1; 40]]),
                _ => Payload::Regions(&here),
            };
            let request = SendRequest { wr_id: 2, op, flags, payload };
            a.qp.post_send(&request).expect("there is room");
        }
        while a.qp.deadline().is_some() || a.qp.wants_transmit() {
            let busy = a.exchange(&mut b, now, &mut count, lose)
                | b.exchange(&mut a, now, &mut count, lose);
            if !busy && let Some(deadline) = a.qp.deadline() {
                now = deadline;
                a.reads.forget(now);
                let mut limits =
                    SharedLimits { window: &mut a.window, reads: &mut a.reads, overflowed: false };
                a.qp.handle_deadline(now, &mut limits);
            }
        }
        while let Some(completion) = a.qp.poll_completion() {
            assert_eq!(completion.status, WorkStatus::Success);
            done += 1;
        }
        while b.qp.poll_completion().is_some() {}
        // Receives that were not taken must not fill the queue.
        if round % 5 == 4 {
            drain(&mut a, &mut b, now, &mut count);
        }
    }
    let after = ALLOCATIONS.get();
    assert!(done >= 1000);
    assert!(a.qp.counters().packets_retransmitted > 0, "the way of losses was gone");
    assert_eq!(after - before, 0);
}

/// Uses up the receives that are left over.
fn drain(a: &mut End, b: &mut End, now: Time, count: &mut u32) {
    let payload = Payload::Inline(&[&[1; 4]]);
    let flags = SendOptions { signaled: true, ..SendOptions::default() };
    for _ in 0..15 {
        let request = SendRequest { wr_id: 3, op: SendOp::Send, flags, payload };
        a.qp.post_send(&request).expect("there is room");
    }
    while a.qp.deadline().is_some() || a.qp.wants_transmit() {
        let _ = a.exchange(b, now, count, u32::MAX) | b.exchange(a, now, count, u32::MAX);
    }
    while b.qp.poll_completion().is_some() {}
}
