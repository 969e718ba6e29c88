//! Costs of a network that loses packets, or that others use as well, in virtual time: goodput,
//! packets that are sent again, and the shares of flows.
//!
//! Each figure is the median of [`seeds`] runs, and is printed. The bounds are what must be kept.

use std::time::Duration;

use feedrail_tests::world::BulkDirection::{Read, Write};
use feedrail_tests::world::{
    BulkDirection, ENDLESS_QUEUE, GIGABIT, LinkFigures, LinkTrial, SHORT_QUEUE, all_worlds,
    expect_few_repeats, plain_link,
};
use rdma::sim::Marking;

fn seeds() -> u64 {
    if all_worlds() { 3 } else { 1 }
}

/// Goodput with 0.01, 0.1 and 1 % of the packets lost, by that without loss; and that without loss,
/// by the rate of the link.
fn kept(direction: BulkDirection, round_trip_us: u64) -> (f64, [f64; 3]) {
    let rate = if round_trip_us < 1_000 { 10 * GIGABIT } else { GIGABIT };
    let short = Duration::from_millis(100) + Duration::from_micros(round_trip_us) * 60;
    let trial = LinkTrial::new(direction, plain_link(rate, ENDLESS_QUEUE), round_trip_us);
    let trial = LinkTrial { path_mtu: 4096, warm_up: short, time: short, ..trial };
    let lossless = trial.measure(seeds()).goodput;
    let mut line = format!("{direction:?}, RTT {round_trip_us:5} us: {:6.1} MB/s", lossless / 1e6);
    let kept = [100, 1_000, 10_000].map(|loss_ppm| {
        let LinkFigures { goodput, repeats, .. } = LinkTrial { loss_ppm, ..trial }.measure(seeds());
        let share = goodput / lossless;
        line += &format!(" | {loss_ppm:5} ppm: {share:.2}, {:.1} % again", repeats * 100.0);
        share
    });
    println!("{line}");
    (lossless / rate as f64, kept)
}

/// A row for each round trip: the part of the link that is used without loss, and what of that is
/// kept with 0.01, 0.1 and 1 % of the packets lost.
fn goodput_is_kept(direction: BulkDirection, rows: [(u64, f64, [f64; 3]); 4]) {
    for (round_trip_us, least_used, least) in rows {
        let (used, kept) = kept(direction, round_trip_us);
        assert!(used >= least_used, "{direction:?}, {round_trip_us} us: {used:.2} of the link");
        for (kept, least) in kept.into_iter().zip(least) {
            assert!(kept >= least, "{direction:?}, {round_trip_us} us: {kept:.2} is kept");
        }
    }
}

#[test]
fn reads_keep_their_goodput_when_packets_are_lost() {
    let rows = [
        (20, 0.95, [0.95, 0.9, 0.6]),
        (200, 0.95, [0.9, 0.45, 0.12]),
        (2_000, 0.93, [0.9, 0.4, 0.12]),
        (20_000, 0.9, [0.2, 0.03, 0.008]),
    ];
    goodput_is_kept(Read, rows);
}

#[test]
fn writes_keep_their_goodput_when_packets_are_lost() {
    let rows = [
        (20, 0.95, [0.95, 0.9, 0.5]),
        (200, 0.95, [0.9, 0.4, 0.04]),
        (2_000, 0.93, [0.85, 0.35, 0.04]),
        (20_000, 0.6, [0.25, 0.03, 0.005]),
    ];
    goodput_is_kept(Write, rows);
}

/// Hosts that know nothing of each other, through a short queue that says nothing of its losses.
fn share(direction: BulkDirection, hosts: usize, round_trip_us: u64) -> LinkFigures {
    let link = plain_link(GIGABIT, SHORT_QUEUE);
    let trial = LinkTrial { hosts, ..LinkTrial::new(direction, link, round_trip_us) };
    // Jain's index of one run is too noisy for the bounds.
    let measured = trial.measure(3);
    println!(
        "{direction:?}, {hosts:2} hosts, RTT {round_trip_us:5} us: {:5.1} MB/s, Jain's index {:.2}, \
         {:4.1} % again, {:4.1} % dropped",
        measured.goodput / 1e6,
        measured.fairness,
        measured.repeats * 100.0,
        measured.drops * 100.0
    );
    measured
}

/// Tests a row for each number of hosts: the least goodput in MB/s, and the most packets that are
/// sent again.
fn hosts_share_fairly(direction: BulkDirection, rows: [(usize, f64, f64); 5]) {
    let tried = |hosts| all_worlds() || hosts == 2 || hosts == 16;
    for (hosts, least, most_repeats) in rows.into_iter().filter(|row| tried(row.0)) {
        let LinkFigures { goodput, fairness, repeats, .. } = share(direction, hosts, 1_000);
        assert!(goodput >= least * 1e6, "{direction:?}, {hosts} hosts: {goodput} bytes/s");
        assert!(fairness >= 0.9, "{direction:?}, {hosts} hosts: Jain's index {fairness:.2}");
        assert!(repeats <= most_repeats, "{direction:?}, {hosts} hosts: {repeats:.3} again");
    }
}

#[test]
fn reads_share_a_short_queue() {
    let rows =
        [(1, 108.0, 0.01), (2, 108.0, 0.02), (4, 108.0, 0.02), (8, 108.0, 0.04), (16, 105.0, 0.07)];
    hosts_share_fairly(Read, rows);
}

#[test]
fn writes_share_a_short_queue() {
    let rows =
        [(1, 108.0, 0.01), (2, 108.0, 0.02), (4, 108.0, 0.02), (8, 105.0, 0.05), (16, 85.0, 0.1)];
    hosts_share_fairly(Write, rows);
}

/// The part of the goodput that a host gets of itself and a flow like TCP's.
fn beside_a_flow(direction: BulkDirection, round_trip_us: u64) -> f64 {
    let mut trial = LinkTrial::new(direction, plain_link(GIGABIT, SHORT_QUEUE), round_trip_us);
    trial.link.flow_round_trip = Some(trial.round_trip);
    trial.time = Duration::from_secs(2);
    let LinkFigures { goodput, other, repeats, .. } = trial.measure(seeds());
    let share = goodput / (goodput + other);
    println!(
        "{direction:?}, RTT {round_trip_us:5} us, beside a flow like TCP's: {:5.1} and {:5.1} MB/s, \
         {:.0} %, {:.1} % again",
        goodput / 1e6,
        other / 1e6,
        share * 100.0,
        repeats * 100.0
    );
    share
}

/// Both get their part: neither is starved.
#[test]
fn a_flow_like_tcps_gets_its_part() {
    for direction in [Read, Write] {
        for round_trip_us in [200, 1_000, 10_000] {
            let share = beside_a_flow(direction, round_trip_us);
            assert!(
                (0.25..=0.75).contains(&share),
                "{direction:?}, {round_trip_us} us: {share:.2}"
            );
        }
    }
}

/// READs are asked for so that the queue, which holds an eighth of what the path does, drops few of
/// their responses.
#[test]
fn writes_share_a_long_path() {
    let LinkFigures { goodput, fairness, drops, .. } = share(Write, 2, 10_000);
    assert!(goodput >= 70e6, "{goodput} bytes/s");
    assert!(fairness >= 0.9, "Jain's index {fairness:.2}");
    assert!(drops <= 0.02, "{drops:.3} dropped");
}

/// A queue that marks from 30 KB on drops nothing.
#[test]
fn a_queue_marks_our_packets() {
    for direction in [Read, Write] {
        let mut trial = LinkTrial::new(direction, plain_link(GIGABIT, SHORT_QUEUE), 200);
        trial.link.marking = Some(Marking { from_bytes: 30_000, to_bytes: 30_000, most_ppm: 0 });
        let LinkFigures { goodput, repeats, drops, marks, .. } = trial.measure(seeds());
        println!(
            "{direction:?}, marked from 30 KB on: {:.1} MB/s, {:.1} % marked, {:.2} % dropped, \
             {:.1} % again",
            goodput / 1e6,
            marks * 100.0,
            drops * 100.0,
            repeats * 100.0
        );
        assert!(marks > 0.0, "{direction:?}");
        assert!(goodput > 0.88 * GIGABIT as f64, "{direction:?}: {goodput} bytes/s");
        assert!(drops < 0.001, "{direction:?}: {drops:.4} dropped");
    }
}

/// The trial by which `cargo xtask sim --bugs` finds windows that do not heed losses.
#[test]
fn few_packets_are_sent_again() {
    (0..seeds()).for_each(expect_few_repeats);
}
