//! Times at which a command reached its stages, for the log of slow commands.

use std::time::Duration;

use rdma::Time;

/// Times of the poll group turns in which a command reached its stages. The time of a stage that it
/// has not reached, or does not have, is earlier than `arrived` (left by the slot's previous
/// command).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandTimes {
    /// Time at which the command's capsule arrived.
    pub(crate) arrived: Time,
    /// Time at which the command got a data buffer.
    pub(crate) buffered: Time,
    /// Start of the storage operation, after the data was fetched from the host.
    pub(crate) executing: Time,
}

/// Durations of the stages of a command, which add up to the time from its arrival to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandStages {
    /// Wait for a data buffer.
    pub(crate) buffer: Duration,
    /// Wait for the data that is fetched from the host.
    pub(crate) fetch: Duration,
    /// Time from the start of the storage operation to the end of the command.
    pub(crate) storage: Duration,
}

impl CommandTimes {
    /// Returns the durations of the stages of a command that ends at `now`.
    pub(crate) fn stages(&self, now: Time) -> CommandStages {
        let Self { arrived, buffered, executing } = *self;
        let was_executed = executing >= arrived;
        let had_buffer = match buffered >= arrived {
            true => buffered,
            // The command needed no buffer.
            false if was_executed => arrived,
            // The command waited for a buffer until it ended.
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
        // Times of the slot's previous command.
        assert_eq!(stages(50, 160), [0, 60, 40], "its data came in the capsule");
        assert_eq!(stages(130, 50), [30, 70, 0], "the host did not give its data");
        assert_eq!(stages(50, 50), [100, 0, 0], "no buffer was free");
    }
}
