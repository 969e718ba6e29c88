//! Options of connections and of ranges.

use std::path::Path;
use std::time::Duration;

use feedrail_auth::{KeyFileError, Secret, read_key_file};

use crate::types::error::{Error, ErrorKind};

/// Shortest default of [`ControllerOptions::silence_timeout`]. A target on a processor that it
/// shares with many others may not run for this long.
const SHORTEST_SILENCE: Duration = Duration::from_millis(250);

/// Smallest permitted value of [`ControllerOptions::reauth_period`]: a transaction may take a tenth
/// of it.
const SHORTEST_REAUTH_PERIOD: Duration = Duration::from_secs(1);

/// Smallest permitted value of [`ControllerOptions::reconnect_delay`]: with shorter pauses,
/// attempts to connect would occupy a processor.
const SHORTEST_RECONNECT_DELAY: Duration = Duration::from_millis(1);

/// Options of a connection to a subsystem: its queues and time-outs.
///
/// A value out of the range that its setter gives is reported as [`ErrorKind::Invalid`] by
/// [`HostBuilder::build`](crate::HostBuilder::build) or
/// [`Host::connect_with`](crate::Host::connect_with), with every provider, and nothing is sent.
/// Times may be as long as [`Duration::MAX`].
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    pub(crate) io_queues: u16,
    pub(crate) queue_entries: u16,
    pub(crate) keep_alive_ms: u32,
    pub(crate) connect_timeout: Duration,
    pub(crate) reconnect_delay: Duration,
    pub(crate) loss_timeout: Duration,
    pub(crate) io_timeout: Duration,
    pub(crate) admin_timeout: Duration,
    pub(crate) abort_timeout: Duration,
    pub(crate) silence_timeout: Option<Duration>,
    pub(crate) type_of_service: Option<u8>,
    pub(crate) ack_timeout_exponent: Option<u8>,
    pub(crate) dhchap_secret: Option<Secret>,
    pub(crate) dhchap_ctrl_secret: Option<Secret>,
    pub(crate) reauth_period: Option<Duration>,
}

impl ControllerOptions {
    /// Returns options with the defaults that the setters give.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of I/O queues to request, at least 1; the controller may grant fewer. A discovery
    /// controller has none. Default: 1.
    #[must_use]
    pub fn io_queues(mut self, queues: u16) -> Self {
        self.io_queues = queues;
        self
    }

    /// Entries of an I/O submission queue, 2 to 1,024; one less can be in flight. Default: 128.
    #[must_use]
    pub fn queue_entries(mut self, entries: u16) -> Self {
        self.queue_entries = entries;
        self
    }

    /// Keep Alive Timeout (KATO) in milliseconds, 0 for none. A Keep Alive is sent twice in this
    /// time. A target that cannot be reached ends the connection at the latest when twice this time
    /// has passed. Default: 5,000.
    #[must_use]
    pub fn keep_alive_ms(mut self, timeout_ms: u32) -> Self {
        self.keep_alive_ms = timeout_ms;
        self
    }

    /// Longest duration of one attempt to connect until the controller is ready, more than zero. If
    /// the first attempt is refused with Connect Controller Busy, because the target has not yet
    /// ended an earlier controller of this host, it is repeated within this time, with pauses of up
    /// to 200 ms; then the refusal is the error. Default: 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Longest pause between attempts to reconnect, at least 1 ms. The first attempt follows
    /// immediately if the connection had lasted for this time; the pauses after it begin with 50 ms
    /// and double, each shortened at random by up to a quarter. Default: 2 s.
    #[must_use]
    pub fn reconnect_delay(mut self, delay: Duration) -> Self {
        self.reconnect_delay = delay;
        self
    }

    /// Time without a connection after which all operations that wait for the target fail. Until it
    /// is connected again, new operations fail immediately, while attempts to reconnect continue. A
    /// new plan starts such an attempt immediately, and fails when that does or after 1 s. Zero:
    /// operations fail as soon as the connection is lost. Default: 60 s.
    #[must_use]
    pub fn loss_timeout(mut self, timeout: Duration) -> Self {
        self.loss_timeout = timeout;
        self
    }

    /// Longest time without progress after which a range fails, more than zero. It counts from the
    /// first command of the range, or from the last of its commands that ended, and includes
    /// reconnects. Time in the host's own queue behind ranges that make progress does not count;
    /// time without a connection does. [`BatchOptions::deadline`](crate::BatchOptions::deadline) is
    /// a bound that includes both. Default: 30 s.
    #[must_use]
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.io_timeout = timeout;
        self
    }

    /// Longest duration of an admin command, more than zero. Default: 15 s.
    #[must_use]
    pub fn admin_timeout(mut self, timeout: Duration) -> Self {
        self.admin_timeout = timeout;
        self
    }

    /// Longest time from an Abort command to the end of the aborted command, more than zero. After
    /// it the connection is ended, so that the target can no longer access memory. Default: 2 s.
    #[must_use]
    pub fn abort_timeout(mut self, timeout: Duration) -> Self {
        self.abort_timeout = timeout;
        self
    }

    /// Time without any response, more than zero, after which the connection is ended. It counts
    /// only while commands of ranges are in flight. After half of it a Keep Alive is sent, to which
    /// a target with long-running commands can respond. Default: the loss time-out, but at least
    /// 250 ms and at most the Keep Alive Timeout; no limit without Keep Alive.
    #[must_use]
    pub fn silence_timeout(mut self, timeout: Duration) -> Self {
        self.silence_timeout = Some(timeout);
        self
    }

    /// Returns the time without any response after which the connection is ended; `None`: no limit.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let keep_alive = Duration::from_millis(self.keep_alive_ms.into());
        let follows = || self.loss_timeout.max(SHORTEST_SILENCE).min(keep_alive);
        self.silence_timeout.or_else(|| (keep_alive > Duration::ZERO).then(follows))
    }

    /// Type of service (IPv4) or traffic class (IPv6) of the packets in both directions. `soft`
    /// sets the lower two bits, ECN, itself. Default: that of the provider.
    #[must_use]
    pub fn type_of_service(mut self, type_of_service: u8) -> Self {
        self.type_of_service = Some(type_of_service);
        self
    }

    /// Acknowledgement time-out of both sides, after which packets are retransmitted: 4.096 us *
    /// 2^`exponent`, `exponent` 1 to 31. Default: that of the provider.
    #[must_use]
    pub fn ack_timeout_exponent(mut self, exponent: u8) -> Self {
        self.ack_timeout_exponent = Some(exponent);
        self
    }

    /// Secret with which the host authenticates on each queue of targets that require it
    /// (DH-HMAC-CHAP). Default: none, and such targets are an error.
    #[must_use]
    pub fn dhchap_secret(mut self, secret: Secret) -> Self {
        self.dhchap_secret = Some(secret);
        self
    }

    /// Secret with which the target has to authenticate too; needs
    /// [`ControllerOptions::dhchap_secret`]. The host then authenticates also if the target does
    /// not require it, and refuses a target that does not prove the secret. Default: none.
    #[must_use]
    pub fn dhchap_ctrl_secret(mut self, secret: Secret) -> Self {
        self.dhchap_ctrl_secret = Some(secret);
        self
    }

    /// Takes secrets from files, if the options have none, and a file is named.
    ///
    /// # Errors
    /// [`KeyFileError`], which names the file.
    pub fn or_key_files(
        mut self,
        secret: Option<&Path>,
        ctrl_secret: Option<&Path>,
    ) -> Result<Self, KeyFileError> {
        if self.dhchap_secret.is_none() {
            self.dhchap_secret = secret.map(read_key_file).transpose()?;
            self.dhchap_ctrl_secret = ctrl_secret.map(read_key_file).transpose()?;
        }
        Ok(self)
    }

    /// Time after which an authenticated connection is authenticated again, at least 1 s. Reads
    /// and writes continue during that. Default: never.
    #[must_use]
    pub fn reauth_period(mut self, period: Duration) -> Self {
        self.reauth_period = Some(period);
        self
    }
}

impl ControllerOptions {
    /// Returns the options if all values are in range.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`], which names the first option that is out of range.
    pub(crate) fn checked(self) -> Result<Self, Error> {
        let is_none = |timeout: Duration| timeout.is_zero();
        let out_of_range = [
            (self.io_queues == 0, "io_queues: at least 1"),
            (!(2..=1024).contains(&self.queue_entries), "queue_entries: 2 to 1,024"),
            (is_none(self.connect_timeout), "connect_timeout: more than zero"),
            (self.reconnect_delay < SHORTEST_RECONNECT_DELAY, "reconnect_delay: at least 1 ms"),
            (is_none(self.io_timeout), "io_timeout: more than zero"),
            (is_none(self.admin_timeout), "admin_timeout: more than zero"),
            (is_none(self.abort_timeout), "abort_timeout: more than zero"),
            (self.silence_timeout.is_some_and(is_none), "silence_timeout: more than zero"),
            (
                self.ack_timeout_exponent.is_some_and(|exponent| !(1..=31).contains(&exponent)),
                "ack_timeout_exponent: 1 to 31",
            ),
            (
                self.dhchap_ctrl_secret.is_some() && self.dhchap_secret.is_none(),
                "dhchap_ctrl_secret: give dhchap_secret as well, since a target proves who it is \
                 only to a host that does",
            ),
            (
                self.reauth_period.is_some_and(|period| period < SHORTEST_REAUTH_PERIOD),
                "reauth_period: at least 1 s",
            ),
        ];
        match out_of_range.into_iter().find(|(is_it, _)| *is_it) {
            Some((_, what)) => Err(ErrorKind::Invalid(what).into()),
            None => Ok(self),
        }
    }
}

impl Default for ControllerOptions {
    fn default() -> Self {
        Self {
            io_queues: 1,
            queue_entries: 128,
            keep_alive_ms: 5_000,
            connect_timeout: Duration::from_secs(10),
            reconnect_delay: Duration::from_secs(2),
            loss_timeout: Duration::from_secs(60),
            io_timeout: Duration::from_secs(30),
            admin_timeout: Duration::from_secs(15),
            abort_timeout: Duration::from_secs(2),
            silence_timeout: None,
            type_of_service: None,
            ack_timeout_exponent: None,
            dhchap_secret: None,
            dhchap_ctrl_secret: None,
            reauth_period: None,
        }
    }
}

/// Options for the ranges of a batch or ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchOptions {
    pub(crate) class: Class,
    pub(crate) deadline: Option<Duration>,
}

impl BatchOptions {
    /// Returns options with class [`Class::Foreground`] and no deadline.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the deadline has already passed when the ranges are submitted.
    pub(crate) fn has_no_time(&self) -> bool {
        self.deadline.is_some_and(|limit| limit.is_zero())
    }

    /// Sets the priority of the ranges among those that wait for the same controller.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Sets the time after submission at which ranges without a result fail, even if they only
    /// waited for others that make progress. If it is zero, nothing is sent.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// Priority of ranges that wait for the same controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// Ranges that a caller waits for; their commands are sent before those of background ranges.
    #[default]
    Foreground,
    /// Ranges that can wait, such as a large prefetch. Their commands are sent when no foreground
    /// range waits, and occupy at most half of a controller's I/O queue entries and 2 MiB.
    Background,
}

impl Class {
    pub(crate) const ALL: [Self; 2] = [Self::Foreground, Self::Background];
    pub(crate) const COUNT: usize = Self::ALL.len();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:".parse().unwrap()
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = ControllerOptions::new().dhchap_secret(secret()).dhchap_ctrl_secret(secret());
        let text = format!("{options:?}");
        assert!(text.contains("32 bytes") && !text.contains("AAECAw"), "{text}");
        assert!(!text.contains("0, 1, 2, 3"), "{text}");
    }

    #[test]
    fn values_out_of_range_are_named() {
        let zero = Duration::ZERO;
        let options = ControllerOptions::new;
        let refused = [
            (options().io_queues(0), "io_queues"),
            (options().queue_entries(0), "queue_entries"),
            (options().queue_entries(1), "queue_entries"),
            (options().queue_entries(1025), "queue_entries"),
            (options().connect_timeout(zero), "connect_timeout"),
            (options().reconnect_delay(Duration::from_micros(999)), "reconnect_delay"),
            (options().io_timeout(zero), "io_timeout"),
            (options().admin_timeout(zero), "admin_timeout"),
            (options().abort_timeout(zero), "abort_timeout"),
            (options().silence_timeout(zero), "silence_timeout"),
            (options().ack_timeout_exponent(0), "ack_timeout_exponent"),
            (options().ack_timeout_exponent(32), "ack_timeout_exponent"),
            (options().reauth_period(Duration::from_millis(999)), "reauth_period"),
            (options().dhchap_ctrl_secret(secret()), "dhchap_ctrl_secret"),
        ];
        for (options, name) in refused {
            let error = options.checked().unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Invalid(_)), "{error}");
            assert!(error.to_string().starts_with(name), "{error}");
        }
        let taken = options().queue_entries(2).keep_alive_ms(0).loss_timeout(zero);
        taken.checked().unwrap();
        let taken = options().queue_entries(1024).io_queues(u16::MAX).ack_timeout_exponent(31);
        taken.connect_timeout(Duration::MAX).checked().unwrap();
    }
}
