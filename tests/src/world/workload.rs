//! Random reads and writes by one host, each checked against the host's earlier writes.

use std::collections::BTreeMap;
use std::ops::Range;

use feedrail_initiator::{Error, Grant, Namespace, RangeCompletion, RegionSlice, Ring};
use rdma::Time;

use super::{HostNode, Random, Trace};

/// Fill of the destinations of reads before the read.
const UNTOUCHED: u8 = 0xA5;

/// The parameters of a workload.
#[derive(Clone, Debug)]
pub struct WorkloadOptions {
    /// Part of the namespace for this workload, in bytes; no other workload writes there.
    pub area: Range<u64>,
    /// Ranges to read and write.
    pub ranges: u32,
    /// The most ranges in flight.
    pub depth: usize,
    /// The longest range, in bytes.
    pub longest: u64,
    /// Percentage of ranges that are written.
    pub write_percent: u64,
    /// How memory is open to targets.
    pub grant: Grant,
    /// Whether ranges may fail.
    pub may_fail: bool,
    /// Seed of the sequence of ranges.
    pub seed: u64,
}

/// A workload, and the expected content of its area.
pub struct Workload {
    namespace: Namespace,
    options: WorkloadOptions,
    ring: Ring,
    random: Random,
    shadow: Shadow,
    in_flight: BTreeMap<u64, InFlight>,
    done: Vec<RangeCompletion>,
    submitted: u32,
    /// Ranges that were read and checked.
    pub reads: u32,
    /// Ranges that were written, and reported so.
    pub writes: u32,
    /// How the others ended.
    pub errors: Vec<Error>,
}

struct InFlight {
    /// Relative to the area.
    range: Range<usize>,
    write: Option<Vec<u8>>,
}

/// The expected content of an area.
struct Shadow {
    bytes: Vec<u8>,
    /// A write that covers these bytes failed: they may be old or new.
    doubtful: Vec<bool>,
}

impl Workload {
    /// A workload on a namespace whose area is all zeros.
    pub fn new(host: &HostNode, namespace: Namespace, options: WorkloadOptions) -> Self {
        let length = (options.area.end - options.area.start) as usize;
        Self {
            namespace,
            ring: host.host.ring(options.depth),
            random: Random::new(options.seed),
            shadow: Shadow { bytes: vec![0; length], doubtful: vec![false; length] },
            in_flight: BTreeMap::new(),
            done: Vec::new(),
            submitted: 0,
            reads: 0,
            writes: 0,
            errors: Vec::new(),
            options,
        }
    }

    /// Takes results, checks them, and starts the next ranges.
    pub fn turn(&mut self, now: Time, trace: &mut Trace) {
        let mut done = std::mem::take(&mut self.done);
        self.ring.reap(&mut done);
        for completion in done.drain(..) {
            trace.note(now.as_nanos());
            self.finish(completion, trace);
        }
        self.done = done;
        while self.submitted < self.options.ranges
            && self.in_flight.len() < self.options.depth
            && let Some(range) = self.choose()
        {
            self.submit(range);
        }
    }

    /// Whether each range has its result.
    pub fn is_over(&self) -> bool {
        self.submitted >= self.options.ranges && self.in_flight.is_empty()
    }

    /// Number of ranges in flight now.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Does `ranges` more ranges.
    pub fn extend(&mut self, ranges: u32) {
        self.options.ranges += ranges;
    }

    /// Reads the whole area in the next turns, to check every byte of it.
    pub fn read_all(&mut self) {
        let length = self.shadow.bytes.len();
        assert!(self.is_over(), "ranges are in flight");
        let piece = length.div_ceil(self.options.depth);
        for start in (0..length).step_by(piece) {
            self.options.ranges += 1;
            self.start(start..(start + piece).min(length), None);
        }
    }

    /// A range that does not overlap one in flight, unless both are read.
    fn choose(&mut self) -> Option<(Range<usize>, bool)> {
        for _ in 0..32 {
            let write = self.random.percent(self.options.write_percent);
            let range = self.random_range();
            let conflicts = |other: &InFlight| {
                (write || other.write.is_some())
                    && range.start < other.range.end
                    && other.range.start < range.end
            };
            if !self.in_flight.values().any(conflicts) {
                return Some((range, write));
            }
        }
        None
    }

    /// Mostly short ranges anywhere, some long, some aligned to blocks.
    fn random_range(&mut self) -> Range<usize> {
        let area = self.shadow.bytes.len() as u64;
        let most =
            if self.random.percent(80) { self.options.longest / 8 } else { self.options.longest };
        let mut length = self.random.within(1..most.max(1) + 1).min(area);
        let mut start = self.random.within(0..area - length + 1);
        if self.random.percent(25) {
            start -= start % 512;
            length = length.next_multiple_of(512).min(area - start);
        }
        start as usize..(start + length) as usize
    }

    fn submit(&mut self, (range, write): (Range<usize>, bool)) {
        let bytes = write.then(|| {
            let mut bytes = vec![0; range.len()];
            self.random.fill(&mut bytes);
            bytes
        });
        self.start(range, bytes);
    }

    fn start(&mut self, range: Range<usize>, write: Option<Vec<u8>>) {
        let token = u64::from(self.submitted);
        let offset = self.options.area.start + range.start as u64;
        let content = write.clone().unwrap_or_else(|| vec![UNTOUCHED; range.len()]);
        let slice = RegionSlice::from_vec(content, self.options.grant);
        let full = match &write {
            Some(_) => self.ring.write(&self.namespace, offset, slice, token),
            None => self.ring.read(&self.namespace, offset, slice, token),
        };
        full.expect("no more in flight than the ring has room for");
        self.submitted += 1;
        self.in_flight.insert(token, InFlight { range, write });
    }

    fn finish(&mut self, completion: RangeCompletion, trace: &mut Trace) {
        let RangeCompletion { token, slice, result } = completion;
        let InFlight { range, write } =
            self.in_flight.remove(&token).expect("a range has one result");
        assert_eq!(slice.len(), range.len(), "the slice that was handed over");
        trace.note(token);
        trace.note(u64::from(result.is_ok()));
        match (result, write) {
            (Err(error), write) => {
                assert!(self.options.may_fail, "{range:?} of {:?}: {error}", self.options.area);
                if write.is_some() {
                    self.shadow.doubtful[range].fill(true);
                }
                self.errors.push(error);
            }
            (Ok(()), Some(bytes)) => {
                assert!(*slice.bytes() == *bytes, "a write changed its source");
                self.shadow.bytes[range.clone()].copy_from_slice(&bytes);
                self.shadow.doubtful[range].fill(false);
                self.writes += 1;
            }
            (Ok(()), None) => {
                self.shadow.check(&range, &slice.bytes());
                trace.note_bytes(&slice.bytes());
                self.reads += 1;
            }
        }
    }
}

impl Shadow {
    fn check(&self, range: &Range<usize>, read: &[u8]) {
        for (at, &byte) in range.clone().zip(read) {
            let wanted = self.bytes[at];
            assert!(
                byte == wanted || self.doubtful[at],
                "byte {at} of the area is {byte:#04x} and should be {wanted:#04x}, in {range:?}"
            );
        }
    }
}
