//! The throughput of a witness beside a hostile peer, as a ratio to the one beside a well-behaved
//! peer.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use super::Witness;
use crate::process::pause;

/// Hostile and well-behaved turns alternate, so that other load of the machine hits both.
const PAIRS: usize = 7;
const TURN: Duration = Duration::from_millis(1500);

/// Whose turn it is to be beside the witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The peer that breaks the rules.
    Hostile,
    /// The peer that keeps them.
    Decent,
}

/// The figures of one turn, or of several.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    /// Rounds of the witness.
    pub rounds: u64,
    /// Steps of the peer.
    pub steps: u64,
    /// How long it was.
    pub time: Duration,
}

impl Score {
    /// One turn: the peer begins a step each `pace`, or later where the one before takes longer.
    ///
    /// # Panics
    /// If the witness has given up.
    pub fn of_turn(witness: &mut Witness, pace: Duration, mut step: impl FnMut()) -> Self {
        let (before, began) = (witness.rounds(), clock());
        let mut steps = 0;
        while clock() - began < TURN {
            let start = clock();
            step();
            steps += 1;
            pause(pace.saturating_sub(clock() - start));
        }
        Self { rounds: witness.rounds() - before, steps, time: clock() - began }
    }

    /// Throughput of the witness, reads and writes.
    pub fn bytes_per_second(&self) -> f64 {
        self.rounds_per_second() * (2 * Witness::ROUND_BYTES) as f64
    }

    fn rounds_per_second(&self) -> f64 {
        self.rounds as f64 / self.time.as_secs_f64()
    }

    fn add(&mut self, turn: &Self) {
        self.rounds += turn.rounds;
        self.steps += turn.steps;
        self.time += turn.time;
    }
}

/// The result of all turns.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Score of the turns beside the hostile peer.
    pub hostile: Score,
    /// Score of the turns beside the well-behaved peer.
    pub decent: Score,
    /// The median of the pairs' ratios.
    pub ratio: f64,
    /// The smallest and the largest.
    pub range: [f64; 2],
}

impl Figures {
    /// The least ratio of its throughput that a witness must keep.
    const LEAST_RATIO: f64 = 0.9;

    /// Whether a peer is to be measured: all are, or those whose description has the words in
    /// `FEEDRAIL_HOSTILE_ONLY`.
    pub fn are_wanted_of(peer: &str) -> bool {
        std::env::var("FEEDRAIL_HOSTILE_ONLY").map_or(true, |only| peer.contains(&only))
    }

    /// Asserts that each peer left the witness enough; `results` are peers and the ratios beside
    /// them.
    ///
    /// # Panics
    /// If less than enough was left beside one.
    pub fn assert_enough_was_left(results: &[(impl Debug, f64)]) {
        let least = Self::LEAST_RATIO;
        let costly: Vec<_> = results.iter().filter(|(_, ratio)| *ratio < least).collect();
        assert!(costly.is_empty(), "less than {least} was left beside these: {costly:?}");
    }

    /// Takes turns, each side being the first of every other pair.
    pub fn take(mut turn: impl FnMut(Side) -> Score) -> Self {
        let (mut hostile, mut decent) = (Score::default(), Score::default());
        let mut ratios = [0.0; PAIRS];
        for (pair, ratio) in ratios.iter_mut().enumerate() {
            let sides = [Side::Hostile, Side::Decent];
            let first = turn(sides[pair % 2]);
            let second = turn(sides[1 - pair % 2]);
            let (bad, good) = if pair % 2 == 0 { (first, second) } else { (second, first) };
            *ratio = bad.rounds_per_second() / good.rounds_per_second();
            hostile.add(&bad);
            decent.add(&good);
        }
        ratios.sort_by(f64::total_cmp);
        let range = [ratios[0], ratios[PAIRS - 1]];
        Self { hostile, decent, ratio: ratios[PAIRS / 2], range }
    }

    /// Columns of a table: throughput beside the one and the other, ratio, steps.
    pub fn columns(&self) -> String {
        format!(
            "{:.0} / {:.0} MB/s | {:.2} ({:.2} to {:.2}) | {} / {}",
            self.hostile.bytes_per_second() / 1e6,
            self.decent.bytes_per_second() / 1e6,
            self.ratio,
            self.range[0],
            self.range[1],
            self.hostile.steps,
            self.decent.steps,
        )
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement")]
fn clock() -> Instant {
    Instant::now()
}
