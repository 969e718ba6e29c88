//! Memory as a medium: atomic blocks, lacking memory, and zeroing in steps.
#![expect(unsafe_code, reason = "lends pool memory to operations")]

use super::*;

/// Writers of one core fill a block with one byte each, in turn; no read returns two different
/// bytes.
#[test]
fn a_block_of_memory_is_never_half_written() {
    use std::sync::atomic::{AtomicBool, Ordering};

    fn at_once(backend: &MemoryBackend, mut operation: Operation) {
        assert!(matches!(backend.start(Time::ZERO, &mut operation), Step::Done(Ok(()))));
    }
    const READS: u32 = 20_000;
    for length in [512, 4096] {
        let backend = MemoryBackend::new(1 << 20).unwrap();
        let over = AtomicBool::new(false);
        let torn = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut block = [0u8; 4096];
                while !over.load(Ordering::Relaxed) {
                    let next = block[0].wrapping_add(1);
                    block.fill(next);
                    // SAFETY: the operation has ended before the block is used again.
                    let span = unsafe { Span::new(block.as_mut_ptr(), length) };
                    at_once(&backend, Operation::write(8192, span, false));
                }
            });
            let mut block = [0u8; 4096];
            let mut torn = 0;
            for _ in 0..READS {
                // SAFETY: the operation has ended before the block is used again.
                let span = unsafe { Span::new(block.as_mut_ptr(), length) };
                at_once(&backend, Operation::read(8192, span));
                let read = &block[..length as usize];
                torn += u32::from(read.iter().any(|byte| *byte != read[0]));
            }
            over.store(true, Ordering::Relaxed);
            torn
        });
        assert_eq!(torn, 0, "of {READS} reads of {length} bytes");
    }
}

#[test]
fn memory_that_is_not_there_costs_the_writer_an_error() {
    let chunk = 64 << 10;
    let room = Arc::new(MemoryRoom::of(2 * chunk + 1));
    let backend = MemoryBackend::in_room(1 << 30, room).unwrap();
    let backend: Arc<dyn Backend> = Arc::new(backend);
    for mut rig in Rig::each().into_iter().take(1) {
        rig.write(&backend, 0, &[1; 4096], false).unwrap();
        rig.write(&backend, 5 * chunk, &[2; 4096], false).unwrap();
        let full = Err(BackendError::OutOfSpace(Errno(libc::ENOMEM)));
        assert_eq!(rig.write(&backend, 9 * chunk, &[3; 4096], false), full);
        // No part of a write across chunks is done.
        assert_eq!(rig.write(&backend, chunk - 4096, &[3; 8192], false), full);
        assert_eq!(rig.read(&backend, chunk - 4096, 4096).unwrap(), [0; 4096]);
        // Allocated chunks can be changed, and the rest reads as zeros.
        rig.write(&backend, chunk - 4096, &[4; 4096], false).unwrap();
        assert_eq!(rig.read(&backend, 9 * chunk, 4096).unwrap(), [0; 4096]);
        rig.run(&backend, Operation::deallocate(0, 1 << 30)).unwrap();
    }
}

#[test]
fn failed_allocations_are_reported() {
    for bytes in [36 << 40, 1 << 60, u64::MAX - 511] {
        let error = open_memory(bytes, WRITABLE).expect_err("too large").to_string();
        let parts = [&format!("namespace of {bytes} bytes"), "make its size_bytes smaller"];
        assert!(parts.iter().all(|part| error.contains(*part)), "{error}");
    }
}

#[test]
fn zeroing_memory_lets_other_operations_run() {
    const MIB: u64 = 1 << 20;
    let mut rig = Rig::each().remove(0);
    let backend = open_memory(8 * MIB, WRITABLE).unwrap().backend;
    for at in 0..8 {
        rig.write(&backend, at * MIB, &[0xA5; MIB as usize], false).unwrap();
    }
    let zeroes = Operation::write_zeroes(0, 8 * MIB, false, true);
    let submitted = rig.storage.submit(rig.now, 7, &backend, zeroes);
    assert!(matches!(submitted, Submitted::UnderWay(_)), "{submitted:?}");
    for step in 1..=8 {
        assert!(rig.storage.next_report().is_none(), "over before step {step}");
        assert_eq!(rig.read(&backend, 8 * MIB - 512, 512).unwrap(), [0xA5; 512]);
        rig.now = rig.storage.deadline().unwrap();
        rig.storage.turn(rig.now);
    }
    assert!(matches!(rig.storage.next_report(), Some(StorageReport::Done { result: Ok(()), .. })));
    for at in 0..8 {
        assert!(rig.read(&backend, at * MIB, MIB as usize).unwrap() == [0; MIB as usize]);
    }
}

#[test]
fn zeroing_unwritten_memory_takes_few_steps() {
    let mut rig = Rig::each().remove(0);
    let bytes = 1 << 30;
    let backend = open_memory(bytes, WRITABLE).unwrap().backend;
    let began = rig.now;
    rig.run(&backend, Operation::deallocate(0, bytes)).unwrap();
    let steps = (rig.now - began).as_nanos();
    assert!((2..=8).contains(&steps), "each waits a moment: {steps}");
}

#[test]
fn zeroing_of_memory_is_aborted_between_steps() {
    let mut rig = Rig::each().remove(0);
    let backend = open_memory(1 << 30, WRITABLE).unwrap().backend;
    let zeroes = Operation::write_zeroes(0, 1 << 30, false, false);
    let submitted = rig.storage.submit(rig.now, 7, &backend, zeroes);
    let Submitted::UnderWay(key) = submitted else { panic!("{submitted:?}") };
    rig.now = rig.storage.deadline().unwrap();
    rig.storage.turn(rig.now);
    rig.storage.cancel(key);
    assert_eq!(rig.finish(), Err(BackendError::Cancelled));
    assert_eq!(rig.storage.in_flight(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// Memory behaves as a disk: it holds the bytes last written, zeros elsewhere.
    #[test]
    fn memory_agrees_with_a_plain_array(
        steps in prop::collection::vec((0u64..400, 1usize..200, 0u8..3, any::<u8>()), 1..40)
    ) {
        let mut rig = Rig::each().remove(0);
        let opened = open_memory(600 * 512, WRITABLE).unwrap();
        let mut model = vec![0u8; 600 * 512];
        for (block, blocks, what, fill) in steps {
            let (offset, length) = (block * 512, blocks * 512);
            let range = offset as usize..offset as usize + length;
            match what {
                0 => {
                    let bytes = vec![fill; length];
                    rig.write(&opened.backend, offset, &bytes, false).unwrap();
                    model[range].fill(fill);
                }
                1 => {
                    let zeroes = Operation::write_zeroes(offset, length as u64, false, false);
                    rig.run(&opened.backend, zeroes).unwrap();
                    model[range].fill(0);
                }
                _ => prop_assert!(rig.read(&opened.backend, offset, length).unwrap() == model[range]),
            }
        }
        prop_assert!(rig.read(&opened.backend, 0, 600 * 512).unwrap() == model);
    }
}
