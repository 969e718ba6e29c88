//! When our own engine acknowledges: together with the answer of the caller, if it answers
//! immediately.

use std::time::Duration;

use rdma::{Group, Op, SendFlags, Time, Wc};

use super::benches::SimBench;
use super::world::{Bench, World};

/// Two hosts; the second has just polled the completion of a message.
struct Told {
    world: World<SimBench>,
    /// Packets that it had sent before.
    sent: u64,
    now: Time,
}

impl Told {
    fn new() -> Self {
        let mut world = World::new(SimBench::quiet());
        let (left, right) = world.connect();
        world.settle(Duration::from_millis(1));
        let buffers = [world.buffer(0, 64), world.buffer(1, 64)];
        world.recv(right, 1, &[buffers[1].sge(0, 64)]);
        world.send(left, 2, Op::Send, SendFlags::NONE, &[buffers[0].sge(0, 64)]);
        world.flush(left);
        let sent = world.hosts[1].group.stats().packets_sent;
        loop {
            let now = world.bench.now();
            let count = world.hosts[1].group.poll(now, &mut [Wc::default(); 4]);
            if count > 0 {
                return Self { world, sent, now };
            }
            world.bench.advance(Duration::from_micros(1));
        }
    }

    fn packets_since(&self) -> u64 {
        self.world.hosts[1].group.stats().packets_sent - self.sent
    }
}

#[test]
fn it_waits_for_the_answer_of_the_caller() {
    let mut told = Told::new();
    assert_eq!(told.packets_since(), 0);
    assert!(told.world.hosts[1].group.deadline().is_some_and(|time| time <= told.now));
    told.world.hosts[1].group.flush(told.now);
    assert_eq!(told.packets_since(), 1);
}

#[test]
fn it_leaves_with_the_next_poll_without_answer() {
    let mut told = Told::new();
    told.world.hosts[1].group.poll(told.now, &mut [Wc::default(); 4]);
    assert_eq!(told.packets_since(), 1);
}
