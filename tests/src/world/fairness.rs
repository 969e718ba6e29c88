//! Whether large reads go on beside as many small ones as a host asks for.

use std::time::Duration;

use feedrail_initiator::{Completion, ErrorKind, Grant, Namespace, Nsid, RegionSlice, Ring};
use rdma::Time;

use super::{HostId, Random, TargetId, World};

/// Large reads, one after the other.
const LARGE_READS: u32 = 4;
const LARGE_BYTES: usize = 32 << 10;
const SMALL_BYTES: usize = 512;
/// Small reads in flight.
const SMALL_READS: usize = 64;
/// What a large read may take: far more than the rounds of small reads that it has to wait for,
/// losses of packets and reads that are asked for again included. One that starves never ends.
const BOUND: Duration = Duration::from_secs(10);
/// What the small reads may take to end afterwards: a burst of so many answers can overrun a
/// receive buffer, and then time-outs pass.
const DRAIN: Duration = Duration::from_secs(60);

/// One host's small reads, which never stop, and another's large ones.
struct Contest {
    small: Vec<Reader>,
    large: Reader,
}

/// Reads of one size from anywhere in a namespace.
struct Reader {
    namespace: Namespace,
    ring: Ring,
    bytes: usize,
    depth: usize,
    in_flight: usize,
    /// Issued so far.
    issued: u32,
    ended: u32,
    done: Vec<Completion>,
}

impl Reader {
    fn new(world: &mut World, host: HostId, target: TargetId, bytes: usize, depth: usize) -> Self {
        let namespace = open(world, host, target);
        let ring = world.host(host).host.ring(depth);
        let done = Vec::with_capacity(depth);
        Self { namespace, ring, bytes, depth, in_flight: 0, issued: 0, ended: 0, done }
    }

    /// Takes what has ended, and has as many reads in flight as there may be, up to a number of
    /// them in all.
    fn turn(&mut self, random: &mut Random, all: u32) {
        let mut done = std::mem::take(&mut self.done);
        self.ring.reap(&mut done);
        for completion in done.drain(..) {
            self.in_flight -= 1;
            match completion.result {
                Ok(()) => self.ended += 1,
                // Losses of packets, and a line of others, can take longer than this host waits.
                Err(error) if matches!(error.kind(), ErrorKind::TimedOut { .. }) => {
                    self.issued -= 1;
                }
                Err(error) => panic!("nothing is out of order, but: {error}"),
            }
        }
        self.done = done;
        while self.in_flight < self.depth && self.issued < all {
            let blocks = (self.namespace.info().size_bytes as usize - self.bytes) / SMALL_BYTES;
            let offset = random.within(0..blocks as u64 + 1) * SMALL_BYTES as u64;
            let slice = RegionSlice::from_vec(vec![0; self.bytes], Grant::PerCommand);
            self.ring.read(&self.namespace, offset, slice, 0).expect("the ring has room");
            self.in_flight += 1;
            self.issued += 1;
        }
    }
}

/// Opens a namespace. The target takes no connections while its storage still works for those that
/// the host lost.
fn open(world: &mut World, host: HostId, target: TargetId) -> Namespace {
    let controller = (0..600).find_map(|_| {
        let connected = world.connect(host, target);
        if connected.is_err() {
            world.pass(Duration::from_millis(100));
        }
        connected.ok()
    });
    let opening = controller.expect("storage ends its work").namespace(Nsid(2));
    world.run(opening).expect("the namespace exists")
}

impl Contest {
    fn turn(&mut self, random: &mut Random) {
        self.small.iter_mut().for_each(|reader| reader.turn(random, u32::MAX));
        self.large.turn(random, LARGE_READS);
    }
}

/// Reads large pieces from a target while another host reads small ones without end.
///
/// # Panics
/// When a large read takes longer than it may, whatever the small ones do.
pub(super) fn check_large_reads(
    world: &mut World,
    random: &mut Random,
    [few, many]: [HostId; 2],
    target: TargetId,
) {
    world.set_alarm(None);
    let large = Reader::new(world, few, target, LARGE_BYTES, 1);
    // On all cores.
    let small = (0..2).map(|_| Reader::new(world, many, target, SMALL_BYTES, SMALL_READS));
    let mut contest = Contest { small: small.collect(), large };
    let mut ended = 0;
    let mut since: Time = world.now();
    while contest.large.ended < LARGE_READS {
        contest.turn(random);
        if std::mem::replace(&mut ended, contest.large.ended) < contest.large.ended {
            since = world.now();
        }
        assert!(world.now() - since <= BOUND, "a large read starves beside small ones");
        assert!(world.step(), "nothing will happen");
    }
    let end = world.now() + DRAIN;
    loop {
        contest.small.iter_mut().for_each(|reader| reader.turn(random, 0));
        if contest.small.iter().all(|reader| reader.in_flight == 0) {
            return;
        }
        assert!(world.now() <= end && world.step(), "small reads end");
    }
}
