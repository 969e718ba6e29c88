//! Ends whose processes wait for a processor, on a network that loses nothing.

use core::time::Duration;

use super::pair::*;
use crate::PathMtu;
use crate::rc::WorkStatus;

/// The receive buffer of a stock Linux socket, as the kernel counts it.
const STOCK_BUFFER: u64 = 425_984;

fn starved() -> Options {
    let mut options = Options { mtu: PathMtu::Bytes4096, ..Options::default() };
    options.network.buffer = STOCK_BUFFER;
    options.read_budget = Some(STOCK_BUFFER);
    options
}

fn assert_all_succeeded(pair: &Pair, end: usize, count: usize) {
    let completions = pair.completions(end);
    assert_eq!(completions.len(), count);
    assert!(completions.iter().all(|c| c.status == WorkStatus::Success), "{completions:?}");
}

/// How many READs [`reading`] asks for.
const READS: usize = 16;

/// A pair whose first end asks for 8 MiB.
fn reading(options: &Options) -> Pair {
    let mut pair = Pair::new(options);
    for id in 0..READS as u64 {
        pair.send(0, id, read_from(0), &[sge(200_000, 512 << 10)]);
    }
    pair
}

/// All READs succeeded, and no packet was lost or sent twice.
fn assert_nothing_was_repeated(pair: &Pair) {
    assert_all_succeeded(pair, 0, READS);
    let counters = pair.ends[0].qps[0].counters();
    assert_eq!((pair.overruns, counters.packets_retransmitted, counters.ack_timeouts), (0, 0, 0));
}

/// Responses fill the socket in one burst, and are taken out of it for longer than any of them
/// would be waited for on the network. Those that were not read yet are not missing.
#[test]
fn a_slow_reader_does_not_overrun_its_own_buffer() {
    let mut options = starved();
    options.network.service = Duration::from_millis(1);
    let mut pair = reading(&options);
    pair.run();
    assert_nothing_was_repeated(&pair);
}

/// A reader that does not run for a while finds its responses in the socket.
#[test]
fn a_reader_that_paused_asks_for_nothing_again() {
    let mut options = starved();
    options.network.service = Duration::from_micros(100);
    let mut pair = reading(&options);
    for _ in 0..8 {
        pair.run_for(Duration::from_millis(20));
        pair.ends[0].asleep_until = pair.now + Duration::from_millis(900);
    }
    pair.run();
    assert_nothing_was_repeated(&pair);
}

/// A peer that was silent for long before is not given up for a silence that is longer than eight
/// of its ACK timeouts of 67 ms.
#[test]
fn a_peer_that_waits_for_a_processor_is_not_given_up() {
    let mut pair = Pair::new(&starved());
    let mut id = 0;
    for pause_ms in [200, 450, 900, 1500, 3000] {
        for _ in 0..8 {
            pair.send(0, id, write_to(0), &[sge(200_000, 64 << 10)]);
            pair.send(0, id + 1, read_from(0), &[sge(400_000, 64 << 10)]);
            id += 2;
        }
        pair.ends[1].asleep_until = pair.now + Duration::from_millis(pause_ms);
        pair.run();
    }
    assert_all_succeeded(&pair, 0, id as usize);
}
