//! How callers want connections and ranges to be treated.

use std::time::Duration;

use crate::types::error::{Error, ErrorKind};

/// No silence is taken for the end of a connection earlier, unless it is asked for: a target that
/// shares its processor with many others may be kept from it for so long.
const SHORTEST_SILENCE: Duration = Duration::from_millis(250);

/// The shortest longest pause between attempts to reconnect: shorter ones keep a processor busy.
const SHORTEST_RECONNECT_DELAY: Duration = Duration::from_millis(1);

/// How to connect to a subsystem and how long to wait for what.
///
/// A value out of the range that its setter names is [`ErrorKind::Invalid`] of
/// [`HostBuilder::build`](crate::HostBuilder::build) or
/// [`Host::connect_with`](crate::Host::connect_with), whichever the provider is: nothing is sent.
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
}

impl ControllerOptions {
    /// One I/O queue of 128 entries, and the defaults that the setters name.
    pub fn new() -> Self {
        Self::default()
    }

    /// I/O queues to ask for, at least 1; the controller may grant fewer. A discovery controller
    /// has none. Default: 1.
    #[must_use]
    pub fn io_queues(mut self, queues: u16) -> Self {
        self.io_queues = queues;
        self
    }

    /// Entries of an I/O submission queue, 2 to 1,024; at most one less is in flight. Default: 128.
    #[must_use]
    pub fn queue_entries(mut self, entries: u16) -> Self {
        self.queue_entries = entries;
        self
    }

    /// Keep alive timeout in milliseconds, 0 for none. A Keep Alive is sent twice in this time. A
    /// target that cannot be reached knows that a connection has ended when this time has passed
    /// twice. Default: 5,000.
    #[must_use]
    pub fn keep_alive_ms(mut self, timeout_ms: u32) -> Self {
        self.keep_alive_ms = timeout_ms;
        self
    }

    /// How long one attempt to connect may take, more than zero, until the controller is usable. A
    /// first attempt that is refused with Connect Controller Busy, because the target has yet to
    /// end an earlier controller of this host, is repeated within this time, with pauses of up to
    /// 200 ms; then the refusal is the error. Default: 10 s.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The longest pause between attempts to reconnect, at least 1 ms. The first attempt follows
    /// immediately, if the connection had lasted that long; the pauses after it begin with 50 ms
    /// and double, each shortened at random by up to a quarter. Default: 2 s.
    #[must_use]
    pub fn reconnect_delay(mut self, delay: Duration) -> Self {
        self.reconnect_delay = delay;
        self
    }

    /// Time without a connection after which everything that waits for the target fails, and what
    /// is asked of it fails immediately, until it is back: connecting continues. A plan that is
    /// submitted then has it tried immediately, and fails when that attempt does or after 1 s.
    /// Zero: immediately. Default: 60 s.
    #[must_use]
    pub fn loss_timeout(mut self, timeout: Duration) -> Self {
        self.loss_timeout = timeout;
        self
    }

    /// How long a range may be without progress before it fails, more than zero: since its first
    /// command was sent, or since the last of its commands ended, reconnects included. Time that it
    /// waits in the host's own queue for others that make progress does not count; without a
    /// connection it does. For a bound that includes it see
    /// [`BatchOptions::deadline`](crate::BatchOptions::deadline). Default: 30 s.
    #[must_use]
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.io_timeout = timeout;
        self
    }

    /// How long an administrative command may take, more than zero. Default: 15 s.
    #[must_use]
    pub fn admin_timeout(mut self, timeout: Duration) -> Self {
        self.admin_timeout = timeout;
        self
    }

    /// How long an aborted command may take to end, more than zero, before the connection is ended
    /// to be sure of it. Default: 2 s.
    #[must_use]
    pub fn abort_timeout(mut self, timeout: Duration) -> Self {
        self.abort_timeout = timeout;
        self
    }

    /// How long a target that owes answers may send none, more than zero, before its connection is
    /// ended. When half of it has passed the target is sent a Keep Alive, so that one that is busy
    /// for longer has something to answer. Counts while commands of ranges are in flight. Default:
    /// the loss timeout, at least 250 ms and at most the keep alive timeout; without keep alive,
    /// none.
    #[must_use]
    pub fn silence_timeout(mut self, timeout: Duration) -> Self {
        self.silence_timeout = Some(timeout);
        self
    }

    /// How long a target that owes answers may send none, if there is a bound.
    pub(crate) fn silence(&self) -> Option<Duration> {
        let keep_alive = Duration::from_millis(self.keep_alive_ms.into());
        let follows = || self.loss_timeout.max(SHORTEST_SILENCE).min(keep_alive);
        self.silence_timeout.or_else(|| (keep_alive > Duration::ZERO).then(follows))
    }

    /// Type of service of the packets; those of the target have the same. `soft` sets the lower two
    /// bits, ECN, itself. Default: what the provider takes.
    #[must_use]
    pub fn type_of_service(mut self, type_of_service: u8) -> Self {
        self.type_of_service = Some(type_of_service);
        self
    }

    /// How long either side waits for an acknowledgement before it sends again: 4.096 us times two
    /// to the power of `exponent`, 1 to 31. Default: what the provider takes.
    #[must_use]
    pub fn ack_timeout_exponent(mut self, exponent: u8) -> Self {
        self.ack_timeout_exponent = Some(exponent);
        self
    }
}

impl ControllerOptions {
    /// Returns the options if all values are in range.
    ///
    /// # Errors
    /// Names the first that is not.
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
        }
    }
}

/// How the ranges of a batch or ring are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchOptions {
    pub(crate) class: Class,
    pub(crate) deadline: Option<Duration>,
}

impl BatchOptions {
    /// Foreground, and without a deadline of the batch's own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the deadline of ranges has passed when they are submitted.
    pub(crate) fn has_no_time(&self) -> bool {
        self.deadline.is_some_and(|limit| limit.is_zero())
    }

    /// Which ranges go first where several wait for the same controller.
    #[must_use]
    pub fn class(mut self, class: Class) -> Self {
        self.class = class;
        self
    }

    /// Ranges without a result after this time fail, though they may have been waiting for others
    /// that make progress. It counts from when they are submitted; when it is zero nothing is sent.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

/// Which ranges go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Class {
    /// Ranges that a caller waits for.
    #[default]
    Foreground,
    /// Ranges that can wait, such as a large prefetch: their commands are sent when none of the
    /// foreground wait, and at most half of a controller's I/O queues and 2 MiB are taken up by
    /// them.
    Background,
}

impl Class {
    pub(crate) const ALL: [Self; 2] = [Self::Foreground, Self::Background];
    pub(crate) const COUNT: usize = Self::ALL.len();
}

#[cfg(test)]
mod tests {
    use super::*;

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
