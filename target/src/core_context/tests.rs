//! Buffers of hosts and of anonymous connections.

use super::pool::{PoolMemory, PoolPlan};
use super::*;
use crate::limits::{ANONYMOUS_POOL_BYTES, ANONYMOUS_TRANSFER_BYTES};

const BLOCK: u32 = 1 << 20;

fn buffers() -> CoreBuffers {
    let plan = PoolPlan::new(4 * u64::from(BLOCK), 1, BLOCK as usize);
    let memory = PoolMemory::new(plan.memory_bytes(), 0).unwrap();
    let (hosts, anonymous) = plan.pools(&memory, 0);
    CoreBuffers::new(hosts, anonymous)
}

fn ip(number: u8) -> PeerOrigin {
    PeerOrigin::Address([10, 0, 0, number].into())
}

fn name(number: u8) -> HostNqn {
    HostNqn(format!("nqn.2026-01.io.feedrail:host{number}").parse().unwrap())
}

fn request(connection: u32, slot: u32) -> RequestKey {
    let owner = OperationOwner::Slot(SlotId(slot));
    RequestKey { transport: 0, connection, owner }
}

#[test]
fn anonymous_connections_take_no_host_buffers() {
    let mut buffers = buffers();
    let mut held = Vec::new();
    for number in 0..60 {
        let anonymous = buffers.join(ip(number), 32);
        for slot in 0..32 {
            let whose = request(number.into(), slot);
            held.extend(buffers.allocate(&anonymous, whose, ANONYMOUS_TRANSFER_BYTES));
        }
    }
    held.extend(std::iter::from_fn(|| buffers.grant()).map(|(_, buffer)| buffer));
    assert!(held.len() as u64 * u64::from(ANONYMOUS_TRANSFER_BYTES) <= ANONYMOUS_POOL_BYTES as u64);
    let mut host = buffers.join(ip(99), 8);
    buffers.recognise(&mut host, name(1));
    assert!(buffers.allocate(&host, request(99, 0), BLOCK).is_some());
}

#[test]
fn hosts_do_not_block_anonymous_connections() {
    let mut buffers = buffers();
    for number in 0..20 {
        let mut host = buffers.join(ip(number), 8);
        buffers.recognise(&mut host, name(number));
        for slot in 0..8 {
            let _held = buffers.allocate(&host, request(number.into(), slot), BLOCK);
        }
    }
    let anonymous = buffers.join(ip(99), 8);
    assert!(buffers.allocate(&anonymous, request(99, 0), 1024).is_some());
}

#[test]
fn anonymous_buffers_return_to_their_pool() {
    let mut buffers = buffers();
    let mut accounts = buffers.join(ip(1), 8);
    let connect = buffers.allocate(&accounts, request(0, 0), 1024).unwrap();
    buffers.recognise(&mut accounts, name(1));
    let data = buffers.allocate(&accounts, request(0, 1), 4096).unwrap();
    assert_eq!(buffers.stats().used_bytes, 2 * 4096);
    for buffer in [connect, data] {
        buffers.release(&accounts, buffer);
    }
    assert_eq!((buffers.anonymous.used_bytes(), buffers.hosts.used_bytes()), (0, 0));
    buffers.part(accounts);
}
