//! When a command reached its stages, for the log of slow ones.

use std::time::Duration;

use rdma::Time;

/// The times of the turns in which a command reached its stages. Those of stages that it has not
/// reached, or does not have, are before its arrival.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandTimes {
    /// Its capsule was there.
    pub(crate) arrived: Time,
    /// It had its buffer.
    pub(crate) buffered: Time,
    /// Its data was there, and storage began.
    pub(crate) executing: Time,
}

/// How long a command was in each stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandStages {
    /// It waited for a buffer.
    pub(crate) buffer: Duration,
    /// Its data was fetched from the host.
    pub(crate) fetch: Duration,
    /// Storage worked for it.
    pub(crate) storage: Duration,
}

impl CommandTimes {
    /// The stages of a command that ends now.
    pub(crate) fn stages(&self, now: Time) -> CommandStages {
        let Self { arrived, buffered, executing } = *self;
        let was_executed = executing >= arrived;
        let had_buffer = match buffered >= arrived {
            true => buffered,
            // It needed none.
            false if was_executed => arrived,
            // It waited for one to the end.
            false => now,
        };
        let began = if was_executed { executing } else { now };
        CommandStages {
            buffer: had_buffer - arrived,
            fetch: began - had_buffer,
            storage: now - began,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(buffered: u64, executing: u64) -> [u64; 3] {
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let times =
            CommandTimes { arrived: at(100), buffered: at(buffered), executing: at(executing) };
        let CommandStages { buffer, fetch, storage } = times.stages(at(200));
        [buffer, fetch, storage].map(|stage| stage.as_millis() as u64)
    }

    #[test]
    fn a_command_is_in_one_stage_at_a_time() {
        assert_eq!(stages(110, 140), [10, 30, 60]);
        assert_eq!(stages(100, 100), [0, 0, 100]);
        // Times of the slot's last command.
        assert_eq!(stages(50, 160), [0, 60, 40], "its data came in the capsule");
        assert_eq!(stages(130, 50), [30, 70, 0], "the host did not give its data");
        assert_eq!(stages(50, 50), [100, 0, 0], "no buffer was free");
    }
}
