//! Many reads of the page cache on one core.

use super::*;
use crate::backend::decorator::{Fault, FaultPlan};
use crate::backend::{CachePolicy, MemoryBackend};

const READ_BYTES: u32 = 64 << 10;
const READS: u64 = 64;

struct Hot {
    storage: Storage<u64>,
    pool: Pool,
    backend: Arc<dyn Backend>,
    _file: tempfile::NamedTempFile,
}

impl Hot {
    /// A file in the page cache, where it was just written.
    fn new() -> Self {
        let file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        std::fs::write(file.path(), vec![7; READ_BYTES as usize]).unwrap();
        let mode = OpenMode { cache: CachePolicy::Use, ..OpenMode::default() };
        let backend = open_file(FilePlace::named(file.path()), mode).unwrap().backend;
        let mut storage = Storage::new(Box::new(Inline::new()));
        storage.reserve(READS as usize);
        Self { storage, pool: pool(), backend, _file: file }
    }

    /// Starts a read; returns whether it has ended.
    fn read(&mut self, tag: u64) -> Submitted {
        let buffer = self.pool.allocate(READ_BYTES).expect("there is enough");
        // SAFETY: the buffer is never released, and the pool outlives the storage.
        let span = unsafe { self.pool.span(&buffer, 0, READ_BYTES) };
        self.storage.submit(Time::ZERO, tag, &self.backend, Operation::read(0, span))
    }

    /// Reads without waiting; returns whether that was possible.
    fn read_now(&mut self, backend: &dyn Backend) -> bool {
        let buffer = self.pool.allocate(READ_BYTES).expect("there is enough");
        // SAFETY: as in `read`.
        let span = unsafe { self.pool.span(&buffer, 0, READ_BYTES) };
        self.storage.read_now(Time::ZERO, backend, Operation::read(0, span))
    }

    fn ended(&mut self) -> Vec<(u64, bool)> {
        let reports = std::iter::from_fn(|| self.storage.next_report());
        let ended = |report: StorageReport<u64>| match report {
            StorageReport::Done { tag, result } => (tag, result.is_ok()),
            StorageReport::NotCancelled { .. } => panic!("{report:?}"),
        };
        reports.map(ended).collect()
    }
}

#[test]
fn a_turn_copies_a_bounded_number_of_bytes() {
    let mut hot = Hot::new();
    let mut over = 0;
    for tag in 0..READS {
        let submitted = hot.read(tag);
        let at_once = submitted == Submitted::Over(Ok(()));
        assert!(at_once || matches!(submitted, Submitted::UnderWay(_)), "{submitted:?}");
        assert!(!at_once || over == tag, "{tag} overtakes those that wait");
        over += u64::from(at_once);
    }
    assert!((1..READS).contains(&over), "{over}");
    let mut next = over;
    while next < READS {
        assert_eq!(hot.storage.deadline(), Some(Time::ZERO), "there is work");
        assert!(hot.storage.turn(Time::ZERO));
        let ended = hot.ended();
        assert!((1..=over + 1).contains(&(ended.len() as u64)), "{ended:?}");
        for end in ended {
            assert_eq!(end, (next, true));
            next += 1;
        }
    }
    assert!(!hot.storage.turn(Time::ZERO));
    assert_eq!((hot.storage.deadline(), hot.storage.in_flight()), (None, 0));
    let stats = hot.storage.stats();
    assert_eq!((stats.cached, stats.reads), (READS, 0));
    assert_eq!(stats.cached_read_bytes, READS * u64::from(READ_BYTES));
}

#[test]
fn a_read_that_waits_for_its_turn_can_be_cancelled() {
    let mut hot = Hot::new();
    let waiting = (0..READS).find_map(|tag| match hot.read(tag) {
        Submitted::UnderWay(key) => Some((tag, key)),
        Submitted::Over(_) => None,
    });
    let (tag, key) = waiting.expect("one has to wait");
    hot.storage.cancel(key);
    assert_eq!(hot.ended(), [(tag, false)]);
    // Another operation uses its slot.
    assert!(matches!(hot.read(READS), Submitted::UnderWay(_)));
    assert!(hot.storage.turn(Time::ZERO));
    assert_eq!(hot.ended(), [(READS, true)]);
}

#[test]
fn reads_that_wait_for_nothing_use_up_the_turn() {
    let mut hot = Hot::new();
    let backend = Arc::clone(&hot.backend);
    let mut read = 0;
    while hot.storage.may_read_now() {
        assert!(hot.read_now(&*backend));
        read += 1;
    }
    assert!((1..READS).contains(&read), "{read}");
    assert!(hot.storage.has_read_enough());
    assert!(matches!(hot.read(0), Submitted::UnderWay(_)));
    assert_eq!(hot.storage.stats().cached, read);
    assert!(hot.storage.turn(Time::ZERO));
    assert_eq!(hot.ended(), [(0, true)]);
    assert!(hot.storage.may_read_now());
    // None overtakes those that wait.
    while let Submitted::Over(_) = hot.read(1) {}
    assert!(!hot.storage.may_read_now() && !hot.storage.has_read_enough());
}

/// A start of an operation counts where faults are injected.
#[test]
fn media_with_faults_are_not_tried() {
    let mut hot = Hot::new();
    let memory: Arc<dyn Backend> = Arc::new(MemoryBackend::new(u64::from(READ_BYTES)).unwrap());
    assert!(hot.read_now(&*memory));
    let error = BackendError::from_errno(libc::EIO);
    let plan = FaultPlan { nth: Some(1), ..FaultPlan::new(error) };
    hot.backend = Arc::new(Fault::new(memory, plan));
    let backend = Arc::clone(&hot.backend);
    assert!(!hot.read_now(&*backend));
    assert_eq!(hot.read(0), Submitted::Over(Err(error)));
    assert_eq!(hot.read(1), Submitted::Over(Ok(())));
}
