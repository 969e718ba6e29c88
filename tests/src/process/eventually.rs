//! Waiting for events of other processes.

use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_millis(10);
const LOOKS: u32 = 12_000;

/// Looks again and again until something is so.
///
/// # Panics
/// If it is not so after two minutes; `what` is for the message.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..LOOKS {
        if condition() {
            return;
        }
        pause(LOOK_EVERY);
    }
    panic!("timed out waiting until {what}");
}

/// Sleeps, where a test is about time.
#[expect(clippy::disallowed_methods, reason = "other processes go by the real clock")]
pub fn pause(time: Duration) {
    std::thread::sleep(time);
}
