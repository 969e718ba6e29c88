//! Messages of any length between pieces of memory of any length are reassembled from their
//! packets.

use std::vec::Vec;

use proptest::prelude::*;

use super::pair::*;
use crate::rc::{LocalSge, SendOp, WorkStatus};
use crate::{PathMtu, Psn};

/// Where a message comes from, and where it goes.
const SOURCE: usize = 1003;
const SINK: usize = 60_001;
const LONGEST: usize = 20_000;

fn path_mtu() -> impl Strategy<Value = PathMtu> {
    prop::sample::select(PathMtu::ALL.as_slice())
}

/// Four elements of `length` bytes in all from `at` on, cut at any places.
fn elements(at: usize, length: usize, cuts: [prop::sample::Index; 3]) -> Vec<LocalSge> {
    let mut ends = cuts.map(|cut| cut.index(length + 1)).to_vec();
    ends.push(length);
    ends.sort_unstable();
    let starts = core::iter::once(0).chain(ends.iter().copied());
    starts.zip(&ends).map(|(start, end)| sge(at + start, end - start)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn messages_are_reassembled_from_their_packets(
        mtu in path_mtu(),
        length in 0..LONGEST,
        start in 0u32..1 << 24,
        kind in 0..3,
        local: [prop::sample::Index; 3],
        remote: [prop::sample::Index; 3],
    ) {
        let mut pair = Pair::new(&Options { mtu, send_psn: [start; 2], ..Options::default() });
        let data = pair.rng.bytes(length);
        // A READ brings the peer's bytes, the others take ours there; an empty message follows.
        let (from, to) = if kind == 2 { (1, 0) } else { (0, 1) };
        pair.ends[from].memory.bytes[SOURCE..SOURCE + length].copy_from_slice(&data);
        let op = match kind {
            0 => {
                pair.recv(1, 1, &elements(SINK, length, remote));
                SendOp::Send
            }
            1 => write_to(SINK),
            _ => read_from(SOURCE),
        };
        let here = if kind == 2 { SINK } else { SOURCE };
        pair.send(0, 1, op, &elements(here, length, local));
        pair.send(0, 2, write_to(0), &[]);
        pair.run();

        let completions = pair.completions(0);
        prop_assert!(completions.iter().all(|completion| completion.status == WorkStatus::Success));
        prop_assert_eq!(completions.len(), 2);
        let sink = &pair.ends[to].memory.bytes;
        prop_assert!(sink[SINK..SINK + length] == data[..]);
        prop_assert!(sink[SINK - 1] == 0 && sink[SINK + length] == 0, "nothing else is touched");

        // A message takes as many numbers as it has packets, and at least one.
        let packets = (length as u32).div_ceil(mtu.bytes() as u32).max(1);
        let carriers = pair.log.iter().filter(|(end, ..)| *end == from).map(|(.., psn)| *psn);
        let carriers: Vec<Psn> = carriers.take(packets as usize).collect();
        let numbers: Vec<Psn> = (0..packets).map(|at| Psn::new(start).plus(at)).collect();
        prop_assert_eq!(carriers, numbers);
        let last = pair.log.iter().rfind(|(end, ..)| *end == 0).map(|(.., psn)| *psn);
        prop_assert_eq!(last, Some(Psn::new(start).plus(packets)));
    }
}
