//! Failures of reads, and which of them may pass.

use std::time::Duration;

use feedrail_initiator::{Error, ErrorKind, MonotonicTime};
use rustix::io::Errno;

/// How long a read is tried again though the target was given up: it may be about to come back, and
/// other lanes have it already.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a read cannot be answered with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFault {
    /// The reader is told.
    Final(Errno),
    /// There is no connection to the target.
    Away,
    /// There has been none for longer than the host waits.
    Lost,
}

impl ReadFault {
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Changed(_) => Self::Final(Errno::STALE),
            _ if error.is_no_namespace() => Self::Final(Errno::STALE),
            ErrorKind::Cancelled => Self::Final(Errno::INTR),
            ErrorKind::Lost { .. } => Self::Lost,
            ErrorKind::ConnectionLost(_)
            | ErrorKind::Unreachable(_)
            | ErrorKind::Rejected(_)
            | ErrorKind::ConnectRefused { .. } => Self::Away,
            _ => Self::Final(Errno::IO),
        }
    }

    /// Returns the fault of an error, and logs the error: as a warning only if it is final, since
    /// an absence has an error for each reader and each attempt.
    pub(crate) fn logged(error: &Error, action: &str) -> Self {
        let fault = Self::of(error);
        match fault {
            Self::Final(_) => tracing::warn!(%error, "{action}"),
            Self::Away | Self::Lost => tracing::debug!(%error, "{action}"),
        }
        fault
    }
}

/// The time since which a lane's target is away, and how long its reads wait for it.
#[derive(Debug)]
pub(crate) struct Absence {
    lane: usize,
    timeout: Duration,
    since: Option<MonotonicTime>,
    logged: LoggedAbsence,
}

/// Latest stage of an absence that was logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LoggedAbsence {
    Nothing,
    ReadsWait,
    ReadsFail,
}

impl Absence {
    pub(crate) fn new(lane: usize, timeout: Duration) -> Self {
        Self { lane, timeout, since: None, logged: LoggedAbsence::Nothing }
    }

    /// A read has ended well.
    pub(crate) fn end(&mut self) {
        self.since = None;
        if self.logged != LoggedAbsence::Nothing {
            self.logged = LoggedAbsence::Nothing;
            tracing::info!(lane = self.lane, "reads are answered again");
        }
    }

    /// The error for the reader of a read that was begun at `begun` and has failed `now`; `None` if
    /// it is tried again.
    pub(crate) fn verdict(
        &mut self,
        fault: ReadFault,
        begun: MonotonicTime,
        now: MonotonicTime,
    ) -> Option<Errno> {
        let is_within = |limit, from| now.saturating_duration_since(from) < limit;
        let waits = match fault {
            ReadFault::Final(errno) => return Some(errno),
            ReadFault::Lost => false,
            ReadFault::Away => is_within(self.timeout, *self.since.get_or_insert(now)),
        };
        let fails = !waits && !is_within(PATIENCE, begun);
        self.log(if fails { LoggedAbsence::ReadsFail } else { LoggedAbsence::ReadsWait });
        fails.then_some(Errno::IO)
    }

    /// Logs what readers see of an absence, once.
    fn log(&mut self, now: LoggedAbsence) {
        if now <= self.logged {
            return;
        }
        self.logged = now;
        let lane = self.lane;
        match now {
            LoggedAbsence::Nothing => {}
            LoggedAbsence::ReadsWait => tracing::warn!(lane, "reads wait for a target"),
            LoggedAbsence::ReadsFail => tracing::error!(lane, "reads fail: a target stays away"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn reads_wait_for_a_target_for_a_bounded_time() {
        let mut absence = Absence::new(0, Duration::from_secs(10));
        assert_eq!(absence.verdict(ReadFault::Away, at(100), at(100)), None);
        assert_eq!(absence.verdict(ReadFault::Away, at(100), at(109)), None);
        assert_eq!(absence.verdict(ReadFault::Away, at(100), at(110)), Some(Errno::IO));
        // Those that come later do not wait as long.
        assert_eq!(absence.verdict(ReadFault::Away, at(110), at(112)), None);
        assert_eq!(absence.verdict(ReadFault::Lost, at(110), at(112)), None);
        assert_eq!(absence.verdict(ReadFault::Lost, at(110), at(113)), Some(Errno::IO));
        absence.end();
        assert_eq!(absence.verdict(ReadFault::Away, at(110), at(120)), None);
        let stale = ReadFault::Final(Errno::STALE);
        assert_eq!(absence.verdict(stale, at(120), at(120)), Some(Errno::STALE));
    }
}
