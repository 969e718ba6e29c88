//! The cost of a hostile target for a witness, a second controller of the same host, beside
//! the cost of a well-behaved target to which that host connects as often, and the errors that the
//! caller gets. It takes minutes: `cargo xtask hostile`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Host, SubsystemAddress};
use feedrail_tests::hostile::{Figures, HostileTarget, Manner, Score, Side, Witness};
use feedrail_tests::process::{
    Daemon, DaemonOptions, Vitals, loopback_address, write_configuration,
};

/// Concurrent attempts to connect in each step.
const ATTEMPTS: usize = 4;
/// The most that an attempt may take.
const SOON: Duration = Duration::from_millis(500);
/// Time from one step to the next, when all attempts fail immediately.
const PACE: Duration = Duration::from_millis(50);

/// State of the contest with one manner of target.
struct Arena<'a> {
    host: Host,
    witness: Witness,
    hostile: HostileTarget,
    decent: Daemon,
    /// Time from one hostile step to the next, so that as many well-behaved steps are made.
    pace: Duration,
    errors: BTreeSet<String>,
    /// Lines of this process, and how many of them were beside the hostile target.
    lines: &'a AtomicUsize,
    hostile_lines: usize,
}

impl Arena<'_> {
    fn turn(&mut self, side: Side) -> Score {
        match side {
            Side::Hostile => self.hostile_turn(),
            Side::Decent => self.decent_turn(),
        }
    }

    fn hostile_turn(&mut self) -> Score {
        let (host, target, errors) = (&self.host, self.hostile.target(), &mut self.errors);
        let lines = self.lines.load(Ordering::Relaxed);
        let score = Score::of_turn(&mut self.witness, PACE, || {
            for result in attempts(host, &target) {
                let error = result.expect_err("it was believed");
                errors.insert(error.replace(&target.address.to_string(), "<target>"));
            }
        });
        self.hostile_lines += self.lines.load(Ordering::Relaxed) - lines;
        self.pace = score.time / u32::try_from(score.steps).expect("few");
        score
    }

    fn decent_turn(&mut self) -> Score {
        let (host, target) = (&self.host, self.decent.target());
        Score::of_turn(&mut self.witness, self.pace, || {
            attempts(host, &target).into_iter().for_each(|result| result.expect("it is decent"));
        })
    }
}

/// Makes several concurrent connections, and leaves again where that succeeds.
fn attempts(host: &Host, target: &SubsystemAddress) -> Vec<Result<(), String>> {
    let options = ControllerOptions::new()
        .connect_timeout(SOON)
        .admin_timeout(SOON)
        .io_timeout(SOON)
        .loss_timeout(SOON);
    let attempt = |_| host.connect_with(*target, options.clone());
    let pending: Vec<_> = (0..ATTEMPTS).map(attempt).collect();
    let end = |result: Result<_, feedrail_initiator::Error>| match result {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    };
    pending.into_iter().map(|pending| end(pending.wait())).collect()
}

/// Holds the contest with a target of this manner and prints its row; returns the witness's
/// ratio.
fn hold(manner: Manner, lines: &AtomicUsize) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let path = write_configuration(folder.path(), &configuration());
    let daemon = DaemonOptions::default().arg("--config").arg(path).start();
    let other = folder.path().join("other.bin");
    std::fs::write(&other, [7; 4096]).unwrap();
    let host = Witness::host();
    let mut arena = Arena {
        witness: Witness::of(&host, &daemon),
        host,
        hostile: HostileTarget::start(manner),
        decent: Daemon::serving([other]),
        pace: SOON,
        errors: BTreeSet::new(),
        lines,
        hostile_lines: 0,
    };
    // Memory that is allocated once is there after the first turns.
    arena.turn(Side::Hostile);
    arena.turn(Side::Decent);
    let before = Vitals::of(std::process::id());
    arena.hostile_lines = 0;
    let figures = Figures::take(|side| arena.turn(side));
    let after = Vitals::of(std::process::id());
    arena.witness.finish();
    println!(
        "| {} | {} | {} | {:.1} MiB | {} |",
        manner.words(),
        arena.errors.into_iter().collect::<Vec<_>>().join("; "),
        figures.columns(),
        after.resident_bytes.saturating_sub(before.resident_bytes) as f64 / f64::from(1 << 20),
        arena.hostile_lines,
    );
    figures.ratio
}

#[test]
#[ignore = "measures for minutes"]
fn hostile_targets_beside_a_witness() {
    let lines = count_log_lines();
    println!(
        "| The target | the caller gets | witness, beside it / beside a decent one | ratio | steps | host grew | log lines |"
    );
    println!("|---|---|---|---|---|---|---|");
    let wanted = Manner::ALL.into_iter().filter(|manner| Figures::are_wanted_of(manner.words()));
    let results: Vec<_> = wanted.map(|manner| (manner, hold(manner, &lines))).collect();
    Figures::assert_enough_was_left(&results);
}

/// Counts the lines that hosts in this process log from now on, without keeping them.
fn count_log_lines() -> Arc<AtomicUsize> {
    let lines = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&lines);
    tracing_subscriber::fmt()
        .with_writer(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            std::io::sink()
        })
        .init();
    lines
}

fn configuration() -> String {
    format!(
        r#"
        [[port]]
        address = "{}:4420"
        [[subsystem]]
        nqn = "nqn.2026-01.org.example:figures"
        allow_any_host = true
        [[subsystem.namespace]]
        kind = "memory"
        size_bytes = "16MiB"
        "#,
        loopback_address()
    )
}
