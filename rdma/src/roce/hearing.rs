//! Until when a group has handled all that arrived.

use crate::Time;

/// The time until which all packets that had arrived were handled. Where a socket is read more
/// slowly than it fills, and after a pause of the process, that is earlier than now: an answer that
/// seems to be missing may wait in the socket.
#[derive(Debug)]
pub(super) struct Hearing {
    /// The most that waits in the socket.
    buffer_bytes: u64,
    heard: Time,
    behind: Option<Behind>,
}

/// A stretch in which the socket was not drained.
#[derive(Clone, Copy, Debug)]
struct Behind {
    since: Time,
    /// Payload bytes that were read since then.
    read_bytes: u64,
}

impl Hearing {
    pub(super) const fn new(buffer_bytes: u64) -> Self {
        Self { buffer_bytes, heard: Time::ZERO, behind: None }
    }

    /// A batch with this much payload was read from the socket at `now`, and drained it or did not.
    /// Returns the time until which all was handled.
    pub(super) fn read(&mut self, now: Time, bytes: u64, drained: bool) -> Time {
        self.behind = match (drained, self.behind) {
            (true, _) => {
                self.heard = now;
                None
            }
            (false, None) => Some(Behind { since: now, read_bytes: bytes }),
            (false, Some(Behind { since, read_bytes })) => {
                let read_bytes = read_bytes + bytes;
                // A whole buffer was read since, so nothing is left that was in it then.
                Some(if read_bytes >= self.buffer_bytes {
                    self.heard = since;
                    Behind { since: now, read_bytes: 0 }
                } else {
                    Behind { since, read_bytes }
                })
            }
        };
        self.heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(milliseconds: u64) -> Time {
        Time::from_nanos(milliseconds * 1_000_000)
    }

    #[test]
    fn what_waits_in_a_full_socket_was_not_heard() {
        let mut hearing = Hearing::new(1000);
        assert_eq!(hearing.read(at(5), 100, true), at(5));
        for now in 500..509 {
            assert_eq!(hearing.read(at(now), 100, false), at(5), "after a pause, at {now} ms");
        }
        assert_eq!(hearing.read(at(509), 100, false), at(500));
        assert_eq!(hearing.read(at(510), 100, true), at(510));
    }

    /// Whoever floods the socket holds up no clock for longer than a buffer takes.
    #[test]
    fn a_socket_that_is_never_drained_is_heard_late() {
        let mut hearing = Hearing::new(1000);
        for now in 0..1000 {
            let heard = hearing.read(at(now), 100, false);
            assert!(at(now) - heard <= core::time::Duration::from_millis(20), "{now}: {heard:?}");
        }
    }
}
