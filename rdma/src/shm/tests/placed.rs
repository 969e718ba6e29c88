//! RDMA WRITEs whose payload the caller places in the ring.

use super::*;
use crate::WriteRoom;
use crate::shm::ring::{MAX_PAYLOAD, RingReader};

/// Bytes of a write after which a second write of this size has no room until the peer has read.
const MOST: u32 = RingSize::REQUESTS.bytes() as u32 / 8 * 7;

/// Fills a room with a byte and sends it to address 7 under key 9.
fn place(victim: &mut Victim, qp: QpKey, room: WriteRoom, byte: u8) -> bool {
    // SAFETY: the room is as long.
    unsafe { room.address().as_ptr().write_bytes(byte, room.length() as usize) };
    victim.group.send_room(qp, room, 7, 9)
}

/// Places bytes until there is no room for as many again.
fn fill(victim: &mut Victim, qp: QpKey) {
    let mut left = MOST;
    while left > 0 {
        let room = victim.group.write_room(qp, left).unwrap();
        left -= room.length();
        assert!(place(victim, qp, room, 1));
    }
    assert!(!victim.group.has_write_room(qp, MOST));
}

/// The next record that the peer finds, and its payload.
fn next(peer: &ShmLink, reader: &mut RingReader) -> Option<(RequestRecord, Vec<u8>)> {
    let ring = peer.incoming(RingUse::Requests);
    reader.refresh(&ring).unwrap();
    let record = reader.next(&ring).unwrap()?;
    let mut bytes = vec![0; record.length() as usize];
    // SAFETY: the payload was found to lie in the ring.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(record.payload, bytes.len()) };
    reader.finish(&record);
    Some((RequestRecord::parse(record.words).unwrap(), bytes))
}

#[test]
fn placed_data_precedes_later_requests() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    assert!(victim.group.write_room(qp, 64).is_none(), "it is not connected");
    victim.poll();
    let mut reader = RingReader::default();
    for (total, length) in [(100, 100), (MAX_PAYLOAD, MAX_PAYLOAD), (MAX_PAYLOAD + 1, MAX_PAYLOAD)]
    {
        let room = victim.group.write_room(qp, total).unwrap();
        assert_eq!(room.length(), length);
        assert!(place(&mut victim, qp, room, 3));
        victim.send(qp, 1, Op::Send);
        let expected = RequestRecord::Write { part: part(length, true, true), addr: 7, rkey: 9 };
        assert_eq!(next(&peer, &mut reader), Some((expected, vec![3; length as usize])));
        let (record, _) = next(&peer, &mut reader).unwrap();
        assert!(matches!(record, RequestRecord::Send { .. }), "{record:?}");
        assert_eq!(next(&peer, &mut reader), None);
    }
}

#[test]
fn an_outdated_room_sends_nothing() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    victim.poll();
    let room = victim.group.write_room(qp, 64).unwrap();
    victim.send(qp, 1, Op::Send);
    assert!(!place(&mut victim, qp, room, 3));
    let mut reader = RingReader::default();
    assert!(matches!(next(&peer, &mut reader), Some((RequestRecord::Send { .. }, _))));
    assert_eq!(next(&peer, &mut reader), None);
    let room = victim.group.write_room(qp, 64).unwrap();
    victim.group.fail(qp);
    assert!(!place(&mut victim, qp, room, 3), "its queue pair failed");
    assert!(!victim.group.has_write_room(qp, 64));
}

/// A message of several records is not torn by data between them.
#[test]
fn placed_data_waits_for_the_rest_of_a_message() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    victim.poll();
    let mut bytes = vec![0u8; 8 * MAX_PAYLOAD as usize];
    let memory = Mem::Host { addr: bytes.as_mut_ptr(), length: bytes.len() };
    // SAFETY: the region is dropped before the memory.
    let region = unsafe { victim.device.register(memory, Access::NONE) }.unwrap();
    fill(&mut victim, qp);
    let addr = bytes.as_ptr().expose_provenance() as u64;
    let sges = [Sge { addr, length: 8 * MAX_PAYLOAD, lkey: region.lkey() }];
    let wr = SendWr { wr_id: 1, op: Op::Send, flags: SendFlags::SIGNALED, sges: &sges };
    // SAFETY: the memory lives until the request has completed.
    unsafe { victim.group.push_send(qp, &wr) }.unwrap();
    victim.group.flush(victim.now);
    assert!(!victim.group.has_write_room(qp, 1));
    let mut reader = RingReader::default();
    let mut sent = 0;
    while sent < 8 * MAX_PAYLOAD {
        while let Some((record, bytes)) = next(&peer, &mut reader) {
            let is_send = matches!(record, RequestRecord::Send { .. });
            assert!(is_send || sent == 0, "{record:?} after {sent} bytes");
            sent += if is_send { bytes.len() as u32 } else { 0 };
        }
        reader.publish(&peer.incoming(RingUse::Requests));
        victim.poll();
    }
    assert!(victim.group.has_write_room(qp, 1));
    drop(region);
}

/// A look for room may find that the peer has read what a request waits for.
#[test]
fn a_look_for_room_loses_no_completion() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    victim.poll();
    fill(&mut victim, qp);
    victim.send(qp, 1, Op::Send);
    assert!(victim.poll().is_empty());
    let mut reader = RingReader::default();
    while next(&peer, &mut reader).is_some() {}
    reader.publish(&peer.incoming(RingUse::Requests));
    assert!(victim.group.has_write_room(qp, MOST));
    assert!(victim.group.arm(WakeFor::Everything), "there is a completion");
    let completed = victim.poll();
    assert_eq!(completed.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1]);
}
