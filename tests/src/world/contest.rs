//! Hosts that together want more buffers of a target than exist.
//!
//! Nothing is measured here: whether every request gets its buffer in turn is what each
//! [`Line`](super::line::Line) checks.

use std::time::Duration;

use feedrail_initiator::{ErrorKind, Grant, Namespace, Nsid, RangeCompletion, RegionSlice, Ring};

use super::{HostId, Random, TargetId, World};

/// Large reads that each host has at a time, of those that send them.
const LARGE_READS: u32 = 24;
const LARGE_BYTES: usize = 32 << 10;
const LARGE_DEPTH: usize = 6;
/// Size and depth of the reads of the other host, which it repeats without end.
const SMALL_BYTES: usize = 512;
const SMALL_DEPTH: usize = 64;
/// Far more than all take, though disks that were sick may keep some of them for seconds.
const LIMIT: Duration = Duration::from_secs(600);

/// Reads of one size from anywhere in a namespace.
struct Reader {
    namespace: Namespace,
    ring: Ring,
    bytes: usize,
    depth: usize,
    in_flight: usize,
    /// Yet to be issued.
    left: u32,
    done: Vec<RangeCompletion>,
}

impl Reader {
    fn small(world: &mut World, host: HostId, target: TargetId) -> Self {
        Self::new(world, host, target, (SMALL_BYTES, SMALL_DEPTH, u32::MAX))
    }

    fn large(world: &mut World, host: HostId, target: TargetId) -> Self {
        Self::new(world, host, target, (LARGE_BYTES, LARGE_DEPTH, LARGE_READS))
    }

    fn new(
        world: &mut World,
        host: HostId,
        target: TargetId,
        (bytes, depth, left): (usize, usize, u32),
    ) -> Self {
        let namespace = open(world, host, target);
        let ring = world.host(host).host.ring(depth);
        Self { namespace, ring, bytes, depth, in_flight: 0, left, done: Vec::with_capacity(depth) }
    }

    /// Takes the reads that have ended.
    fn reap(&mut self) {
        let mut done = std::mem::take(&mut self.done);
        self.ring.reap(&mut done);
        for completion in done.drain(..) {
            self.in_flight -= 1;
            match completion.result {
                Ok(()) => {}
                // Lost packets, a disk that was sick, or others before it. It is asked for again.
                Err(error) if matches!(error.kind(), ErrorKind::TimedOut { .. }) => {
                    self.left = self.left.saturating_add(1);
                }
                Err(error) => panic!("nothing is out of order, but: {error}"),
            }
        }
        self.done = done;
    }

    /// Takes the reads that have ended, and starts others up to its depth.
    fn turn(&mut self, random: &mut Random) {
        self.reap();
        while self.in_flight < self.depth && self.left > 0 {
            let blocks = (self.namespace.info().size_bytes as usize - self.bytes) / SMALL_BYTES;
            let offset = random.within(0..blocks as u64 + 1) * SMALL_BYTES as u64;
            let slice = RegionSlice::from_vec(vec![0; self.bytes], Grant::PerCommand);
            self.ring.read(&self.namespace, offset, slice, 0).expect("the ring has room");
            self.in_flight += 1;
            self.left -= 1;
        }
    }

    fn is_over(&self) -> bool {
        self.in_flight == 0 && self.left == 0
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

/// Makes one host read small pieces from a target, on all its cores, until the others have read
/// their large ones.
///
/// # Panics
/// When that does not end, or a [`Line`](super::line::Line) finds a request that starves.
pub(super) fn contend(
    world: &mut World,
    random: &mut Random,
    many: HostId,
    few: &[HostId],
    target: TargetId,
) {
    world.set_alarm(None);
    let mut small: Vec<_> = (0..2).map(|_| Reader::small(world, many, target)).collect();
    let mut large: Vec<_> = few.iter().map(|&host| Reader::large(world, host, target)).collect();
    world.run_until("large reads end beside small ones", LIMIT, |_| {
        small.iter_mut().chain(&mut large).for_each(|reader| reader.turn(random));
        large.iter().all(Reader::is_over)
    });
    world.run_until("small reads end", LIMIT, |_| {
        small.iter_mut().for_each(Reader::reap);
        small.iter().all(|reader| reader.in_flight == 0)
    });
}
