//! The time until which a group has handled all packets that arrived.

use crate::Time;

/// The time until which all packets that had arrived were handled. It is behind the clock while the
/// socket fills faster than it is read, and after the process was not scheduled: an answer that
/// seems to be late may then be waiting in the socket.
#[derive(Debug)]
pub(super) struct ReceiveWatermark {
    /// Size of the socket's receive buffer in bytes.
    buffer_bytes: u64,
    time: Time,
    behind: Option<Behind>,
}

/// A period in which the socket was not drained.
#[derive(Clone, Copy, Debug)]
struct Behind {
    since: Time,
    /// Payload bytes read since then.
    read_bytes: u64,
}

impl ReceiveWatermark {
    pub(super) const fn new(buffer_bytes: u64) -> Self {
        Self { buffer_bytes, time: Time::ZERO, behind: None }
    }

    /// Notes a batch of `bytes` payload bytes that was read at `now`, and whether it drained the
    /// socket. Returns the time until which all arrivals were handled.
    pub(super) fn read(&mut self, now: Time, bytes: u64, drained: bool) -> Time {
        self.behind = match (drained, self.behind) {
            (true, _) => {
                self.time = now;
                None
            }
            (false, None) => Some(Behind { since: now, read_bytes: bytes }),
            (false, Some(Behind { since, read_bytes })) => {
                let read_bytes = read_bytes + bytes;
                // As much as the buffer holds was read since, so everything that was in it then was
                // handled.
                Some(if read_bytes >= self.buffer_bytes {
                    self.time = since;
                    Behind { since: now, read_bytes: 0 }
                } else {
                    Behind { since, read_bytes }
                })
            }
        };
        self.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(milliseconds: u64) -> Time {
        Time::from_nanos(milliseconds * 1_000_000)
    }

    #[test]
    fn what_waits_in_a_full_socket_is_not_handled() {
        let mut handled = ReceiveWatermark::new(1000);
        assert_eq!(handled.read(at(5), 100, true), at(5));
        for now in 500..509 {
            assert_eq!(handled.read(at(now), 100, false), at(5), "after a pause, at {now} ms");
        }
        assert_eq!(handled.read(at(509), 100, false), at(500));
        assert_eq!(handled.read(at(510), 100, true), at(510));
    }

    /// A flood of the socket delays the time by no more than it takes to read a buffer.
    #[test]
    fn a_socket_that_is_never_drained_is_handled_late() {
        let mut handled = ReceiveWatermark::new(1000);
        for now in 0..1000 {
            let time = handled.read(at(now), 100, false);
            assert!(at(now) - time <= core::time::Duration::from_millis(20), "{now}: {time:?}");
        }
    }
}
