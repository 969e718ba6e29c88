//! The state that restricts transmission after a loss or an RNR NAK.
//!
//! Each method is one event; the test at the end covers all combinations of state and event.

use crate::{Psn, Time};

/// Whether packets are sent as the limits allow, or only a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Packets are sent as the limits allow.
    Idle,
    /// The requester went back. Only the probe may be sent until it is answered.
    Probing(Probe),
    /// The peer had no receive. No packet is sent before `until`; then the probe is sent first,
    /// unless it was answered before.
    Waiting { until: Time, probe: Option<Probe> },
}

/// The first packet that is retransmitted, alone. If all were retransmitted together, they would
/// reach a receive buffer that is full of their first copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    pub(super) psn: Psn,
    pub(super) cause: Cause,
    /// True if the packet is an RDMA READ request.
    pub(super) reads: bool,
}

/// The reason why packets are retransmitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A timeout: no answer arrived.
    Silence,
    /// A NAK or other answers show that a packet is missing.
    Gap,
    /// An RNR NAK; the peer may have a receive now.
    NotReady,
    /// No acknowledgement had been requested, so none arrived; the probe requests one.
    AckNotRequested,
}

impl Recovery {
    /// The requester went back to `probe`; it is sent without delay, or after the current wait.
    pub(super) fn went_back(&mut self, probe: Probe) {
        match self {
            Self::Waiting { probe: waiting, .. } => *waiting = Some(probe),
            Self::Idle | Self::Probing(_) => *self = Self::Probing(probe),
        }
    }

    /// The peer had no receive for `probe`; it is sent at `until`.
    pub(super) fn not_ready(&mut self, until: Time, probe: Probe) {
        *self = Self::Waiting { until, probe: Some(probe) };
    }

    /// Ends a wait if its time has passed at `now`.
    pub(super) fn time_passed(&mut self, now: Time) {
        if let Self::Waiting { until, probe } = *self
            && until <= now
        {
            *self = probe.map_or(Self::Idle, Self::Probing);
        }
    }

    /// The peer executed further packets, which answers the probe; returns the probe.
    pub(super) fn confirmed(&mut self) -> Option<Probe> {
        match self {
            Self::Idle => None,
            Self::Waiting { probe, .. } => probe.take(),
            Self::Probing(probe) => {
                let probe = *probe;
                *self = Self::Idle;
                Some(probe)
            }
        }
    }

    /// RDMA READ responses arrived in order, which answers the probe if it is an RDMA READ.
    pub(super) fn responses_came(&mut self) -> Option<Probe> {
        if self.probe().is_some_and(|probe| probe.reads) { self.confirmed() } else { None }
    }

    /// The queue pair sends nothing any longer.
    pub(super) fn abandoned(&mut self) {
        *self = Self::Idle;
    }

    /// The only packet that may be sent, now or after the wait.
    pub(super) const fn probe(&self) -> Option<Probe> {
        match *self {
            Self::Idle => None,
            Self::Probing(probe) => Some(probe),
            Self::Waiting { probe, .. } => probe,
        }
    }

    /// The time until which no packet may be sent.
    pub(super) const fn waits_until(&self) -> Option<Time> {
        match *self {
            Self::Waiting { until, .. } => Some(until),
            Self::Idle | Self::Probing(_) => None,
        }
    }

    /// Whether no packet may be sent now. Sequence error and RNR NAKs are ignored then, since they
    /// concern packets that were sent before the wait.
    pub(super) const fn is_waiting(&self) -> bool {
        self.waits_until().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use super::*;

    const EARLY: Time = Time::from_nanos(5);
    const UNTIL: Time = Time::from_nanos(10);

    const fn probe(psn: u32, cause: Cause, reads: bool) -> Probe {
        Probe { psn: Psn::new(psn), cause, reads }
    }

    fn name(probe: &Probe) -> String {
        let reads = if probe.reads { " READ" } else { "" };
        format!("{:?} {}{reads}", probe.cause, probe.psn.value())
    }

    fn describe(state: &Recovery) -> String {
        match state {
            Recovery::Idle => "idle".into(),
            Recovery::Probing(probe) => format!("probing {}", name(probe)),
            Recovery::Waiting { until, probe } => {
                let probe = probe.as_ref().map_or("idle".into(), name);
                format!("until {}: {probe}", until.as_nanos())
            }
        }
    }

    /// The state that follows each state with each event.
    fn table() -> String {
        let send = probe(1, Cause::Silence, false);
        let read = probe(1, Cause::Silence, true);
        let states = [
            Recovery::Idle,
            Recovery::Probing(send),
            Recovery::Probing(read),
            Recovery::Waiting { until: UNTIL, probe: None },
            Recovery::Waiting { until: UNTIL, probe: Some(send) },
            Recovery::Waiting { until: UNTIL, probe: Some(read) },
        ];
        type Event = fn(&mut Recovery) -> Option<Probe>;
        let events: [(&str, Event); 7] = [
            ("went back", |state| {
                state.went_back(probe(2, Cause::AckNotRequested, false));
                None
            }),
            ("not ready", |state| {
                state.not_ready(Time::from_nanos(20), probe(2, Cause::NotReady, false));
                None
            }),
            ("early", |state| {
                state.time_passed(EARLY);
                None
            }),
            ("in time", |state| {
                state.time_passed(UNTIL);
                None
            }),
            ("confirmed", Recovery::confirmed),
            ("responses came", Recovery::responses_came),
            ("abandoned", |state| {
                state.abandoned();
                None
            }),
        ];
        let mut table = String::new();
        for state in states {
            table += &format!("{}\n", describe(&state));
            for (event, happen) in events {
                let mut after = state;
                let answered = happen(&mut after);
                let answered = answered.map_or(String::new(), |_| ", probe answered".into());
                table += &format!("  {event} -> {}{answered}\n", describe(&after));
            }
        }
        table
    }

    #[test]
    fn each_state_with_each_event() {
        let expected = "\
idle
  went back -> probing AckNotRequested 2
  not ready -> until 20: NotReady 2
  early -> idle
  in time -> idle
  confirmed -> idle
  responses came -> idle
  abandoned -> idle
probing Silence 1
  went back -> probing AckNotRequested 2
  not ready -> until 20: NotReady 2
  early -> probing Silence 1
  in time -> probing Silence 1
  confirmed -> idle, probe answered
  responses came -> probing Silence 1
  abandoned -> idle
probing Silence 1 READ
  went back -> probing AckNotRequested 2
  not ready -> until 20: NotReady 2
  early -> probing Silence 1 READ
  in time -> probing Silence 1 READ
  confirmed -> idle, probe answered
  responses came -> idle, probe answered
  abandoned -> idle
until 10: idle
  went back -> until 10: AckNotRequested 2
  not ready -> until 20: NotReady 2
  early -> until 10: idle
  in time -> idle
  confirmed -> until 10: idle
  responses came -> until 10: idle
  abandoned -> idle
until 10: Silence 1
  went back -> until 10: AckNotRequested 2
  not ready -> until 20: NotReady 2
  early -> until 10: Silence 1
  in time -> probing Silence 1
  confirmed -> until 10: idle, probe answered
  responses came -> until 10: Silence 1
  abandoned -> idle
until 10: Silence 1 READ
  went back -> until 10: AckNotRequested 2
  not ready -> until 20: NotReady 2
  early -> until 10: Silence 1 READ
  in time -> probing Silence 1 READ
  confirmed -> until 10: idle, probe answered
  responses came -> until 10: idle, probe answered
  abandoned -> idle
";
        assert_eq!(table(), expected);
    }
}
