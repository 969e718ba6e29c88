//! No sleeper misses what was published.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64 as ModelWord;
use loom::thread;

use super::*;

/// The words of a link that one end writes to, and its bell.
#[derive(Default)]
struct ModelLink {
    head: ModelWord,
    flag: ModelWord,
    rings: ModelWord,
}

/// A writer publishes twice while the reader looks, falls asleep and looks once more. Either it
/// sees all, or it is rung.
#[test]
fn a_sleeper_sees_or_is_rung() {
    loom::model(|| {
        let link = Arc::new(ModelLink::default());
        let writer = thread::spawn({
            let link = Arc::clone(&link);
            move || {
                for head in 1..=2 {
                    link.head.store(head, Ordering::Release);
                    if SleepWord(&link.flag).must_ring(PeerNews { records: true, read: false }) {
                        link.rings.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        SleepWord(&link.flag).fall_asleep(WakeFor::Arrivals);
        publish_sleep();
        let seen = link.head.load(Ordering::Acquire);
        writer.join().unwrap();
        let rings = link.rings.load(Ordering::Relaxed);
        assert!(seen == 2 || rings > 0, "saw {seen}, and sleeps");
        assert!(rings <= 1, "rung {rings} times in one sleep");
    });
}
