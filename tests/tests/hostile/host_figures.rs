//! The cost of a hostile host for a witness, beside the cost of a well-behaved host that does the
//! same amount of I/O, and the answers that the hostile one gets. It takes minutes: `cargo xtask
//! hostile`.

use std::collections::BTreeSet;
use std::time::Duration;

use feedrail_tests::hostile::{
    Association, Figures, HostileHost, QueueKey, Score, Side, Witness, read, write,
};
use feedrail_tests::process::{Daemon, DaemonOptions, loopback_address, write_configuration};
use nvme_proto::{Cid, IntoBytes, Sgl, Sqe};
use rdma::soft::Faults;
use serde_json::Value;

const ENTRIES: u16 = 32;
/// Time from one step of the peer to the next, where none takes longer.
const PACE: Duration = Duration::from_millis(10);
/// A visit takes longer than other steps. The resources of a visitor that vanishes are held for
/// seconds: at this pace it is about half of all buffers.
const PACE_OF_VISITS: Duration = Duration::from_millis(200);

/// Connections in each step of a peer that does nothing but connect.
const CONNECTION_REQUESTS: usize = 4;

const ENDED: &str = "the connection ends";

/// One kind of hostility: a step of it, and the same amount of well-behaved I/O.
struct Comparison {
    what: &'static str,
    faults: Option<Faults>,
    hostile: fn(&mut Peer),
    decent: fn(&mut Peer),
    pace: Duration,
    /// The hostile host is disconnected in the end.
    ends: bool,
}

/// The peer beside the witness.
struct Peer<'a> {
    daemon: &'a Daemon,
    host: HostileHost,
    association: Association,
    /// A queue beyond those of the association.
    more: Option<QueueKey>,
    /// The statuses of its commands, and the end of its connection.
    got: BTreeSet<String>,
}

impl<'a> Peer<'a> {
    fn new(daemon: &'a Daemon, faults: Option<Faults>) -> Self {
        let mut host = HostileHost::new(faults);
        let association = host.associate(daemon, ENTRIES);
        Self { daemon, host, association, more: None, got: BTreeSet::new() }
    }

    fn io(&self) -> QueueKey {
        self.association.io
    }

    fn post(&mut self, count: usize, length: usize, command: impl Fn(usize) -> Sqe) -> Vec<Cid> {
        let io = self.io();
        let post = |slot| {
            let sgl = self.host.keyed(slot % 16 * length, length);
            self.host.post(io, &command(slot).with_data(sgl), &[])
        };
        (0..count).map(post).collect()
    }

    fn collect(&mut self, cids: impl IntoIterator<Item = Cid>) {
        for cid in cids {
            let response = self.host.response(self.io(), cid);
            let got = response.map(|response| response.status().without_flags().to_string());
            self.got.insert(got.unwrap_or_else(|| ENDED.to_owned()));
        }
    }

    /// A new host, which knows the answers that the one before got.
    fn replace(&mut self) {
        let got = std::mem::take(&mut self.got);
        *self = Self { got, ..Self::new(self.daemon, None) };
    }
}

fn nothing(peer: &mut Peer<'_>) {
    peer.host.turn();
}

fn sit_on_a_connection(peer: &mut Peer<'_>) {
    if peer.more.is_none() {
        peer.more = Some(peer.host.link(peer.daemon.address(), 0, 32, 0));
    }
    peer.host.turn();
}

/// Sixteen reads of 64 KiB, once; their responses are not taken.
fn take_no_response(peer: &mut Peer<'_>) {
    if peer.more.is_none() {
        let cntlid = peer.association.cntlid;
        let queue = peer.host.add_queue(peer.daemon, cntlid, 2, ENTRIES, 0);
        peer.more = Some(queue);
        for slot in 0..16 {
            let sgl = peer.host.keyed(slot * 65_536, 65_536);
            peer.host.post(queue, &read(1, 0, 65_536).with_data(sgl), &[]);
        }
    }
    peer.host.turn();
}

fn take_responses(peer: &mut Peer<'_>) {
    if peer.more.is_none() {
        peer.more = Some(peer.association.io);
        let cids = peer.post(16, 65_536, |_| read(1, 0, 65_536));
        peer.collect(cids);
    }
    peer.host.turn();
}

fn four_times_the_queue(peer: &mut Peer<'_>) {
    let cids = peer.post(4 * usize::from(ENTRIES), 4096, |_| read(1, 0, 4096));
    peer.collect(cids);
}

fn the_queue_four_times(peer: &mut Peer<'_>) {
    for _ in 0..4 {
        let cids = peer.post(usize::from(ENTRIES) - 1, 4096, |_| read(1, 0, 4096));
        peer.collect(cids);
    }
}

fn lie_about_lengths(peer: &mut Peer<'_>) {
    let io = peer.io();
    let keyed = |peer: &Peer<'_>, length| peer.host.keyed(0, length);
    let lies = [
        write(1, 0, 512).with_data(keyed(peer, 511)),
        read(1, 0, 512).with_data(keyed(peer, 0)),
        write(1, 0, 512).with_data(Sgl::InCapsule { offset: 1 << 40, length: 512 }),
        read(1, u64::MAX, 512).with_data(keyed(peer, 512)),
        read(1, 0, 1 << 22).with_data(keyed(peer, 1 << 22)),
    ];
    for sqe in lies {
        let cid = peer.host.post(io, &sqe, &[]);
        peer.collect([cid]);
    }
}

fn five_reads(peer: &mut Peer<'_>) {
    for _ in 0..5 {
        let cids = peer.post(1, 512, |_| read(1, 0, 512));
        peer.collect(cids);
    }
}

fn reuse_ids(peer: &mut Peer<'_>) {
    let io = peer.io();
    let sqe = read(1, 0, 4096).with_data(peer.host.keyed(0, 4096)).with_cid(Cid(0x7777));
    for _ in 0..8 {
        peer.host.send(io, sqe.as_bytes());
    }
    peer.collect([Cid(0x7777); 8]);
}

fn eight_reads(peer: &mut Peer<'_>) {
    let cids = peer.post(8, 4096, |_| read(1, 0, 4096));
    peer.collect(cids);
}

fn eight_writes(peer: &mut Peer<'_>) {
    let first = Witness::AREA_BYTES / 512;
    let cids = peer.post(8, 65_536, |_| write(1, first, 65_536));
    peer.collect(cids);
}

fn change_memory_in_use(peer: &mut Peer<'_>) {
    let first = Witness::AREA_BYTES / 512;
    let cids = peer.post(8, 65_536, |_| write(1, first, 65_536));
    for cid in cids {
        peer.host.fill(0, 8 * 65_536, cid.0 as u8);
        peer.collect([cid]);
    }
}

fn request_connections(peer: &mut Peer<'_>) {
    peer.more = peer.host.request_and_abandon(peer.daemon.address(), CONNECTION_REQUESTS).pop();
}

/// Makes as many connections, and ends them in order.
fn come_in_and_leave(peer: &mut Peer<'_>) {
    let queues = peer.host.request_and_abandon(peer.daemon.address(), CONNECTION_REQUESTS);
    for queue in queues {
        peer.host.settle(queue);
        peer.host.leave(queue);
    }
}

fn vanish(peer: &mut Peer<'_>) {
    peer.post(16, 65_536, |_| read(1, 0, 65_536));
    peer.replace();
}

fn leave(peer: &mut Peer<'_>) {
    let cids = peer.post(16, 65_536, |_| read(1, 0, 65_536));
    peer.collect(cids);
    peer.host.disconnect_all();
    peer.replace();
}

/// 1 in 1,000 packets.
fn damage() -> Faults {
    Faults { sent_corruption_ppm: 1000, seed: 1, ..Faults::default() }
}

fn contests() -> [Comparison; 10] {
    let contest = |what, hostile, decent| Comparison {
        what,
        faults: None,
        hostile,
        decent,
        pace: PACE,
        ends: false,
    };
    [
        Comparison {
            ends: true,
            ..contest("connects and says nothing", sit_on_a_connection, nothing)
        },
        Comparison { ends: true, ..contest("takes no response", take_no_response, take_responses) },
        contest("sends beyond the queue", four_times_the_queue, the_queue_four_times),
        contest("lies about lengths", lie_about_lengths, five_reads),
        contest("reuses command ids", reuse_ids, eight_reads),
        Comparison {
            faults: Some(damage()),
            ..contest("damages 1 packet in 1,000", eight_writes, eight_writes)
        },
        Comparison {
            ends: true,
            ..contest("leaves connections half open", request_connections, come_in_and_leave)
        },
        Comparison { pace: PACE_OF_VISITS, ..contest("vanishes in the middle", vanish, leave) },
        contest("scribbles on memory in use", change_memory_in_use, eight_writes),
        contest("(none: decent beside decent)", eight_writes, eight_writes),
    ]
}

/// State of a contest.
struct Arena<'a> {
    contest: &'a Comparison,
    daemon: &'a Daemon,
    witness: Witness,
    got: BTreeSet<String>,
}

impl Arena<'_> {
    fn turn(&mut self, side: Side) -> Score {
        let contest = self.contest;
        let (faults, step) = match side {
            Side::Hostile => (contest.faults, contest.hostile),
            Side::Decent => (None, contest.decent),
        };
        let mut peer = Peer::new(self.daemon, faults);
        let score = Score::of_turn(&mut self.witness, contest.pace, || step(&mut peer));
        if side == Side::Hostile {
            self.got.append(&mut peer.got);
        }
        peer.host.disconnect_all();
        score
    }

    /// The hostile host continues until it is disconnected.
    fn see_the_end(&mut self) {
        let mut peer = Peer::new(self.daemon, self.contest.faults);
        (self.contest.hostile)(&mut peer);
        peer.host.wait_down(peer.more.expect("the step connected it"));
        self.got.insert(ENDED.to_owned());
    }
}

/// Holds a contest and prints its row; returns the witness's ratio.
fn hold(contest: &Comparison) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let daemon = serve(folder.path());
    let witness = Witness::start(&daemon);
    let before = daemon.vitals();
    let mut arena = Arena { contest, daemon: &daemon, witness, got: BTreeSet::new() };
    let figures = Figures::take(|side| arena.turn(side));
    if contest.ends {
        arena.see_the_end();
    }
    arena.witness.finish();
    arena.got.extend(noticed(&daemon.stats()));
    let grown = daemon.vitals().resident_bytes.saturating_sub(before.resident_bytes);
    println!(
        "| {} | {} | {} | {:.1} MiB | {} |",
        contest.what,
        arena.got.into_iter().collect::<Vec<_>>().join(", "),
        figures.columns(),
        grown as f64 / f64::from(1 << 20),
        daemon.log().lines().count(),
    );
    figures.ratio
}

/// The target's counters of the hostile host below NVMe.
fn noticed(stats: &Value) -> impl Iterator<Item = String> {
    let network = &stats["network"];
    let counts = [
        (&network["rnr_naks_sent"], "told to wait (RNR NAK)"),
        (&network["icrc_failures"], "packets dropped (ICRC)"),
        (&stats["connections_rejected"], "connection requests rejected"),
    ];
    let counts = counts.map(|(count, what)| (count.as_u64().expect("a counter"), what));
    counts
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
}

#[test]
#[ignore = "measures for minutes"]
fn hostile_hosts_beside_a_witness() {
    println!(
        "| The peer | gets | witness, beside it / beside a decent one | ratio | steps | daemon grew | log lines |"
    );
    println!("|---|---|---|---|---|---|---|");
    let wanted = contests().into_iter().filter(|contest| Figures::are_wanted_of(contest.what));
    let results: Vec<_> = wanted.map(|contest| (contest.what, hold(&contest))).collect();
    Figures::assert_enough_was_left(&results);
}

fn serve(folder: &std::path::Path) -> Daemon {
    let configuration = format!(
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
    );
    let path = write_configuration(folder, &configuration);
    DaemonOptions::default().arg("--config").arg(path).start()
}
