//! Fault injection: faults of received and sent packets, for users who test failures.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;

use roce_proto::wire::Ecn;
use splitmix64::SplitMix64;

use crate::Time;
use crate::roce::wire::{Datagram, IpId};

/// The environment variable with the faults of every soft device of a process.
pub const FAULTS_VARIABLE: &str = "FEEDRAIL_SOFT_FAULTS";

/// Maximum number of packets held back at a time; further ones are not delayed.
const MAX_HELD: usize = 65_536;
/// Delay of held-back packets if the text gives none.
const DEFAULT_DELAY: Duration = Duration::from_millis(1);

/// Injected faults. Fields in `_ppm` are probabilities per million packets.
///
/// Text form: `loss=1%,corrupt=0.1%,duplicate=0.1%,delay=2%:5ms,seed=7`, in any order, each key at
/// most once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Received packets that are dropped.
    pub loss_ppm: u32,
    /// Received packets in which one bit is flipped.
    pub corruption_ppm: u32,
    /// Sent packets that get a wrong ICRC.
    pub sent_corruption_ppm: u32,
    /// Sending system calls that fail as with a full socket buffer; if not zero, a call also sends
    /// at most one message.
    pub busy_ppm: u32,
    /// Received packets that are delivered twice.
    pub duplication_ppm: u32,
    /// Received packets that are held back, so that others overtake them.
    pub delay_ppm: u32,
    /// How long such packets are held back.
    pub delay: Duration,
    /// Received ECN-capable packets that are marked CE.
    pub mark_ppm: u32,
    /// Seed of the random decisions.
    pub seed: u64,
}

/// Error of parsing a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: write faults as in \"loss=1%,corrupt=0.1%,duplicate=0.1%,delay=2%:5ms,seed=7\"")]
pub struct UnknownFault(String);

impl FromStr for Faults {
    type Err = UnknownFault;

    fn from_str(text: &str) -> Result<Self, UnknownFault> {
        let mut faults = Self { delay: DEFAULT_DELAY, ..Self::default() };
        let mut seen = Vec::new();
        for item in text.split(',').map(str::trim) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            let understood = !seen.contains(&key) && faults.set(key, value).is_some();
            if !understood {
                return Err(UnknownFault(item.to_owned()));
            }
            seen.push(key);
        }
        Ok(faults)
    }
}

impl Faults {
    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "loss" => self.loss_ppm = per_million(value)?,
            "corrupt" => self.corruption_ppm = per_million(value)?,
            "corrupt-sent" => self.sent_corruption_ppm = per_million(value)?,
            "busy" => self.busy_ppm = per_million(value)?,
            "duplicate" => self.duplication_ppm = per_million(value)?,
            "mark" => self.mark_ppm = per_million(value)?,
            "seed" => self.seed = value.parse().ok()?,
            "delay" => {
                let (rate, delay) = value.split_once(':').unwrap_or((value, ""));
                self.delay_ppm = per_million(rate)?;
                if !delay.is_empty() {
                    self.delay = duration(delay)?;
                }
            }
            _ => return None,
        }
        Some(())
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |ppm: u32| f64::from(ppm) / 10_000.0;
        write!(
            f,
            "loss={}%,corrupt={}%,corrupt-sent={}%,busy={}%,duplicate={}%,mark={}%,delay={}%:{}us,\
             seed={}",
            percent(self.loss_ppm),
            percent(self.corruption_ppm),
            percent(self.sent_corruption_ppm),
            percent(self.busy_ppm),
            percent(self.duplication_ppm),
            percent(self.mark_ppm),
            percent(self.delay_ppm),
            self.delay.as_micros(),
            self.seed
        )
    }
}

/// Parses a percentage such as `"0.1%"` to parts per million.
fn per_million(text: &str) -> Option<u32> {
    let percent: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    // Between 0 and a million by the check.
    (0.0..=100.0).contains(&percent).then_some((percent * 10_000.0).round() as u32)
}

/// Parses a duration such as `"5ms"` or `"300us"`, at most ten seconds.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit_micros) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 1_000),
        None => (text.strip_suffix("us")?, 1),
    };
    let micros = digits.parse::<u64>().ok()?.checked_mul(unit_micros)?;
    (micros <= 10_000_000).then_some(Duration::from_micros(micros))
}

/// Injects faults between a socket and the engine.
pub(super) struct Filter {
    faults: Faults,
    random: SplitMix64,
    held: BinaryHeap<Reverse<DelayedPacket>>,
    sequence: u64,
    damaged: Vec<u8>,
}

/// A packet that is held back until `due`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DelayedPacket {
    due: Time,
    sequence: u64,
    from: SocketAddr,
    to: SocketAddr,
    ecn: Ecn,
    bytes: Vec<u8>,
}

impl Filter {
    pub(super) fn new(faults: Faults, seed: u64) -> Self {
        let random = SplitMix64::new(faults.seed ^ seed);
        Self { faults, random, held: BinaryHeap::new(), sequence: 0, damaged: Vec::new() }
    }

    /// Passes a packet to `handle`, unless it is dropped or held back at random.
    pub(super) fn pass(
        &mut self,
        now: Time,
        mut datagram: Datagram<'_>,
        handle: &mut impl FnMut(Datagram<'_>),
    ) {
        let capable = matches!(datagram.ecn, Ecn::Ect0 | Ecn::Ect1);
        if capable && self.random.chance(self.faults.mark_ppm) {
            datagram.ecn = Ecn::Ce;
        }
        if self.random.chance(self.faults.loss_ppm) {
            return;
        }
        let copies = 1 + u8::from(self.random.chance(self.faults.duplication_ppm));
        for _ in 0..copies {
            if self.random.chance(self.faults.corruption_ppm) {
                self.damage(datagram.bytes);
                handle(Datagram { bytes: &self.damaged, ..datagram });
            } else if self.held.len() < MAX_HELD && self.random.chance(self.faults.delay_ppm) {
                self.hold(now, &datagram);
            } else {
                handle(datagram);
            }
        }
    }

    /// Passes on the packets whose delay has passed.
    pub(super) fn release(&mut self, now: Time, handle: &mut impl FnMut(Datagram<'_>)) {
        while self.deadline().is_some_and(|due| due <= now)
            && let Some(Reverse(packet)) = self.held.pop()
        {
            let DelayedPacket { from, to, ecn, ref bytes, .. } = packet;
            handle(Datagram { ecn, ..Datagram::new(from, to, IpId::UNKNOWN, bytes) });
        }
    }

    /// Whether the next packet that is sent gets a wrong ICRC.
    pub(super) fn damages_sent(&mut self) -> bool {
        self.random.chance(self.faults.sent_corruption_ppm)
    }

    /// Whether the next sending system call fails as with a full socket buffer.
    pub(super) fn is_busy(&mut self) -> bool {
        self.random.chance(self.faults.busy_ppm)
    }

    /// Number of messages out of `count` that the next sending system call accepts.
    pub(super) fn taken_at_once(&self, count: usize) -> usize {
        if self.faults.busy_ppm == 0 { count } else { count.min(1) }
    }

    /// Time at which the next held-back packet is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.held.peek().map(|Reverse(packet)| packet.due)
    }

    fn damage(&mut self, bytes: &[u8]) {
        self.damaged.clear();
        self.damaged.extend_from_slice(bytes);
        if !bytes.is_empty() {
            let bit = self.random.below(bytes.len() as u64 * 8);
            let byte = usize::try_from(bit / 8).expect("within the packet");
            self.damaged[byte] ^= 1 << (bit % 8);
        }
    }

    fn hold(&mut self, now: Time, datagram: &Datagram<'_>) {
        self.sequence += 1;
        let &Datagram { from, to, ecn, bytes, .. } = datagram;
        let (due, sequence) = (now + self.faults.delay, self.sequence);
        let bytes = bytes.into();
        self.held.push(Reverse(DelayedPacket { due, sequence, from, to, ecn, bytes }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        let faults: Faults =
            "loss=1%, delay=2.5%:5ms,corrupt=0.1%,corrupt-sent=2%,busy=3%,duplicate=100%,mark=4%,\
             seed=7"
                .parse()
                .unwrap();
        let expected = Faults {
            loss_ppm: 10_000,
            corruption_ppm: 1_000,
            sent_corruption_ppm: 20_000,
            busy_ppm: 30_000,
            duplication_ppm: 1_000_000,
            mark_ppm: 40_000,
            delay_ppm: 25_000,
            delay: Duration::from_millis(5),
            seed: 7,
        };
        assert_eq!(faults, expected);
        assert_eq!(faults.to_string().parse(), Ok(faults));
        assert_eq!("delay=1%".parse::<Faults>().unwrap().delay, DEFAULT_DELAY);
    }

    #[test]
    fn nonsense_is_named() {
        let nonsense = [
            "",
            "loss",
            "loss=1",
            "loss=101%",
            "loss=-1%",
            "loss=NaN%",
            "speed=1%",
            "delay=1%:5",
            "delay=1%:11000ms",
            "loss=1%,loss=2%",
            "seed=x",
            "loss=1%,",
        ];
        for text in nonsense {
            let error = text.parse::<Faults>().expect_err(text).to_string();
            assert!(error.contains("write faults as in"), "{error}");
        }
    }

    fn outcomes(faults: Faults) -> (u32, u32, u32, u32) {
        let address: SocketAddr = "127.0.0.1:4791".parse().unwrap();
        let bytes = [0x55; 100];
        let mut filter = Filter::new(faults, 3);
        let (mut whole, mut damaged) = (0, 0);
        let mut count = |datagram: Datagram<'_>| {
            let flipped: u32 =
                datagram.bytes.iter().zip(bytes).map(|(a, b)| (a ^ b).count_ones()).sum();
            whole += u32::from(flipped == 0);
            damaged += u32::from(flipped == 1);
        };
        for _ in 0..1000 {
            let datagram = Datagram::new(address, address, IpId::UNKNOWN, &bytes);
            filter.pass(Time::ZERO, datagram, &mut count);
        }
        filter.release(Time::ZERO, &mut count);
        let held = u32::try_from(filter.held.len()).unwrap();
        filter.release(Time::ZERO + faults.delay, &mut count);
        (whole, damaged, held, u32::try_from(filter.held.len()).unwrap())
    }

    #[test]
    fn only_capable_packets_are_marked() {
        let address: SocketAddr = "127.0.0.1:4791".parse().unwrap();
        let mut filter = Filter::new(Faults { mark_ppm: 1_000_000, ..Faults::default() }, 3);
        for (sent, came) in [
            (Ecn::NotEct, Ecn::NotEct),
            (Ecn::Ect0, Ecn::Ce),
            (Ecn::Ect1, Ecn::Ce),
            (Ecn::Ce, Ecn::Ce),
        ] {
            let datagram = Datagram::new(address, address, IpId::UNKNOWN, &[0; 100]);
            let datagram = Datagram { ecn: sent, ..datagram };
            let mut seen = None;
            filter.pass(Time::ZERO, datagram, &mut |datagram| seen = Some(datagram.ecn));
            assert_eq!(seen, Some(came));
        }
    }

    #[test]
    fn each_fault_has_its_effect() {
        let none = Faults { delay: DEFAULT_DELAY, ..Faults::default() };
        assert_eq!(outcomes(none), (1000, 0, 0, 0));
        assert_eq!(outcomes(Faults { loss_ppm: 1_000_000, ..none }), (0, 0, 0, 0));
        assert_eq!(outcomes(Faults { duplication_ppm: 1_000_000, ..none }), (2000, 0, 0, 0));
        assert_eq!(outcomes(Faults { corruption_ppm: 1_000_000, ..none }), (0, 1000, 0, 0));
        assert_eq!(outcomes(Faults { delay_ppm: 1_000_000, ..none }), (1000, 0, 1000, 0));
        let (whole, damaged, ..) = outcomes(Faults { corruption_ppm: 500_000, ..none });
        assert_eq!(whole + damaged, 1000);
        assert!((400..600).contains(&damaged), "{damaged} of 1,000 at one in two");
    }
}
