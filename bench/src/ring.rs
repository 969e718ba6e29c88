//! Ceiling of shared memory: rings of commands and completions, and one copy for each command. Both
//! sides poll and never sleep.
#![expect(unsafe_code, reason = "one thread fills buffers that a second one reads")]

use std::cell::UnsafeCell;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::clock::now;
use crate::cores::{HOST_CORE, TARGET_CORE, pin};

/// Entries of each ring: more than the deepest load needs.
const SLOTS: u64 = 256;
/// Bytes that are read in turn: a second-level cache holds only a part of them.
const POOL_BYTES: usize = 8 << 20;
/// Completions between two reads of the clock.
const CLOCK_STEPS: u64 = 1024;

/// Command in the ring, as long as an NVMe command (64 bytes).
#[repr(align(64))]
#[derive(Default)]
struct RingCommand {
    words: [AtomicU64; 7],
    sequence: AtomicU64,
}

/// Completion in the ring, as long as an NVMe completion (16 bytes).
#[repr(align(16))]
#[derive(Default)]
struct CompletionSlot {
    word: AtomicU64,
    sequence: AtomicU64,
}

struct Rings {
    commands: Vec<RingCommand>,
    completions: Vec<CompletionSlot>,
    /// Buffers of the host, one for each command in flight.
    buffers: Vec<UnsafeCell<Box<[u8]>>>,
    stop: AtomicBool,
}

// SAFETY: a buffer belongs to the host until it posts the command that names it, and to the target
// until that posts its completion; both are published with release and taken with acquire.
unsafe impl Sync for Rings {}

/// Returns commands per second with `depth` commands of this length in flight.
pub(crate) fn command_rate(block_bytes: usize, depth: u64, runtime: Duration) -> f64 {
    assert!(depth <= SLOTS, "each command in flight has a slot");
    let buffer = || UnsafeCell::new(vec![1_u8; block_bytes].into_boxed_slice());
    let rings = Rings {
        commands: (0..SLOTS).map(|_| RingCommand::default()).collect(),
        completions: (0..SLOTS).map(|_| CompletionSlot::default()).collect(),
        buffers: (0..depth).map(|_| buffer()).collect(),
        stop: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        scope.spawn(|| rings.complete_all());
        let host = scope.spawn(|| rings.post_repeatedly(depth, runtime));
        let rate = host.join().expect("the posting thread does not panic");
        rings.stop.store(true, Ordering::Relaxed);
        rate
    })
}

impl Rings {
    fn post(&self, posted: &mut u64, buffer: u64) {
        let slot = &self.commands[(*posted % SLOTS) as usize];
        slot.words[0].store(buffer, Ordering::Relaxed);
        *posted += 1;
        slot.sequence.store(*posted, Ordering::Release);
    }

    fn post_repeatedly(&self, depth: u64, runtime: Duration) -> f64 {
        pin(HOST_CORE);
        let (mut posted, mut done) = (0, 0_u64);
        let start = now();
        (0..depth).for_each(|buffer| self.post(&mut posted, buffer));
        while !done.is_multiple_of(CLOCK_STEPS) || done == 0 || start.elapsed() < runtime {
            let slot = &self.completions[(done % SLOTS) as usize];
            while slot.sequence.load(Ordering::Acquire) != done + 1 {
                spin_loop();
            }
            let buffer = slot.word.load(Ordering::Relaxed);
            done += 1;
            // SAFETY: its command has completed, so it is the host's.
            let bytes = unsafe { &*self.buffers[buffer as usize].get() };
            black_box(bytes.first());
            self.post(&mut posted, buffer);
        }
        done as f64 / start.elapsed().as_secs_f64()
    }

    fn complete_all(&self) {
        pin(TARGET_CORE);
        let source = vec![3_u8; POOL_BYTES];
        let (mut done, mut at) = (0_u64, 0);
        loop {
            let slot = &self.commands[(done % SLOTS) as usize];
            while slot.sequence.load(Ordering::Acquire) != done + 1 {
                if self.stop.load(Ordering::Relaxed) {
                    return;
                }
                spin_loop();
            }
            let buffer = slot.words[0].load(Ordering::Relaxed);
            // SAFETY: its command was posted and is not completed, so it is the target's.
            let sink = unsafe { &mut *self.buffers[buffer as usize].get() };
            sink.copy_from_slice(&source[at..at + sink.len()]);
            at = (at + sink.len()) % (POOL_BYTES - sink.len() + 1);
            let completion = &self.completions[(done % SLOTS) as usize];
            completion.word.store(buffer, Ordering::Relaxed);
            done += 1;
            completion.sequence.store(done, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_complete() {
        for depth in [1, 32, SLOTS] {
            assert!(command_rate(4096, depth, Duration::from_millis(1)) > 0.0);
        }
        assert_eq!(size_of::<RingCommand>(), 64);
        assert_eq!(size_of::<CompletionSlot>(), 16);
    }
}
