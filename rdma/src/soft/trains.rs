//! Assignment of packets to trains: UDP GSO messages, which the kernel segments into datagrams of
//! equal length.
//!
//! Packets of several queue pairs may share a train if each queue pair's packets keep their order
//! and one group of the peer receives them all. Where a train is not segmented (loopback) or is
//! joined again by GRO, the socket that its first packet is steered to gets all of it. Peers that
//! are not Feedrail have no such groups and get single datagrams.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use roce_proto::Qpn;

use crate::roce::owner_of;
use crate::roce::wire::Outgoing;

/// Maximum number of packets in one system call.
pub(super) const MAX_PACKETS: usize = 256;
/// Bytes after which no new train is added to a system call. The ICRCs of the data have just been
/// computed, so that up to this size the kernel copies it from the processor's cache.
const ENOUGH_BYTES: usize = 256 << 10;
/// Maximum number of trains, that is messages, in one system call.
pub(super) const MAX_TRAINS: usize = 64;
/// Number of segments that every kernel with `UDP_SEGMENT` supports.
const MAX_SEGMENTS: usize = 64;
/// Maximum UDP payload of a train in bytes; leaves room for IPv6 extension headers.
const MAX_TRAIN_BYTES: usize = 65_000;
/// Number of trains that are examined for one that can take a packet: enough for the kinds of
/// packets that alternate (data, responses or commands, acknowledgements) and for other peers.
const LOOK_BACK: usize = 8;
/// Size of the hash table of queue pairs: twice their maximum number in one system call.
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = (2 * MAX_PACKETS).ilog2();

/// Maximum number of peers recorded as without GSO; beyond it the oldest is tried again.
const MAX_UNCUT: usize = 64;

/// The peers for which the kernel supports GSO. A route that does not support it affects only its
/// peer.
pub(super) struct GsoSupport {
    at_all: bool,
    unsupported_peers: VecDeque<SocketAddr>,
}

impl GsoSupport {
    pub(super) fn new(at_all: bool) -> Self {
        Self { at_all, unsupported_peers: VecDeque::with_capacity(MAX_UNCUT) }
    }

    pub(super) fn are_for(&self, peer: &SocketAddr) -> bool {
        self.at_all && !self.unsupported_peers.contains(peer)
    }

    /// Records that GSO failed for this peer.
    pub(super) fn refused(&mut self, peer: SocketAddr) {
        if !self.unsupported_peers.contains(&peer) {
            self.unsupported_peers.truncate(MAX_UNCUT - 1);
            self.unsupported_peers.push_front(peer);
        }
    }
}

/// The trains of the next system call.
pub(super) struct TrainBuilder {
    trains: Box<[Train]>,
    used: usize,
    /// The trains in sending order, as indexes.
    order: Box<[u8]>,
    /// The next packet of its train, by packet index.
    behind: Box<[usize]>,
    packets: usize,
    bytes: usize,
    /// Hash table with open addressing: the queue pairs that have packets in trains. Queue pairs of
    /// two peers may have equal numbers; then the packets of both keep their order.
    latest: Box<[Option<Latest>]>,
    /// The used places of the table.
    taken: Vec<usize>,
}

/// The latest train with a packet of a queue pair.
#[derive(Clone, Copy)]
struct Latest {
    queue_pair: u32,
    train: u8,
}

/// A message of packets of equal length; the last one may be shorter.
#[derive(Clone, Copy)]
pub(super) struct Train {
    pub(super) peer: SocketAddr,
    /// Index of the peer's group that receives it.
    group: u8,
    pub(super) traffic_class: u8,
    /// Position in the sending order.
    rank: usize,
    pub(super) segment: usize,
    /// Number of packets; 0 if they were moved to the preceding train.
    pub(super) segments: usize,
    bytes: usize,
    /// Whether further packets may be added: no shorter packet was added, and GSO is supported.
    open: bool,
    first: usize,
    last: usize,
}

impl Train {
    const EMPTY: Self = Self {
        peer: SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        group: 0,
        traffic_class: 0,
        rank: 0,
        segment: 0,
        segments: 0,
        bytes: 0,
        open: false,
        first: 0,
        last: 0,
    };

    /// Whether a packet of `length` bytes for this peer and key can be added.
    fn has_room_for(
        &self,
        peer: &SocketAddr,
        (group, traffic_class): TrainKey,
        length: usize,
    ) -> bool {
        self.open
            && self.group == group
            && self.traffic_class == traffic_class
            && self.segments < MAX_SEGMENTS
            && self.bytes + length <= MAX_TRAIN_BYTES
            && self.peer == *peer
    }

    /// Removes the first packet; `next` is the packet after it.
    const fn drop_front(&mut self, next: usize) {
        self.segments -= 1;
        self.bytes -= self.segment;
        self.first = next;
        if self.segments == 1 {
            self.segment = self.bytes;
        }
    }

    /// Adds a packet at the end; a shorter one closes the train.
    const fn append(&mut self, index: usize, length: usize) {
        self.segments += 1;
        self.bytes += length;
        self.open &= length == self.segment;
        self.last = index;
    }
}

impl TrainBuilder {
    pub(super) fn new() -> Self {
        Self {
            trains: vec![Train::EMPTY; MAX_TRAINS].into(),
            used: 0,
            order: vec![0; MAX_TRAINS].into(),
            behind: vec![0; MAX_PACKETS].into(),
            packets: 0,
            bytes: 0,
            latest: vec![None; PLACES].into(),
            taken: Vec::with_capacity(MAX_PACKETS),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets == 0
    }

    /// Whether another packet of `length` bytes fits. Beyond `ENOUGH_BYTES` only packets fit that
    /// need no new train: otherwise the train that takes it would be split over two calls.
    pub(super) fn has_room_for(&self, packet: &Outgoing<'_>, length: usize) -> bool {
        let needs_none = || {
            let way = way_of(packet);
            let earliest = self.earliest(self.place_of(packet));
            let ends_with = |train: &Train| {
                length <= train.segment && train.has_room_for(packet.to, way, length)
            };
            self.in_order(0).next_back().is_some_and(|at| ends_with(&self.trains[at]))
                || self.train_for(packet, way, length, earliest).is_some()
        };
        self.packets < MAX_PACKETS
            && self.used < MAX_TRAINS
            && (self.bytes < ENOUGH_BYTES || needs_none())
    }

    /// Adds a packet of `length` bytes to an existing or a new train; returns its index. `cuts`
    /// says whether GSO is supported for the peer.
    pub(super) fn add(&mut self, packet: &Outgoing<'_>, length: usize, cuts: bool) -> usize {
        let index = self.packets;
        self.packets += 1;
        self.bytes += length;
        let way = way_of(packet);
        let place = self.place_of(packet);
        let earliest = self.earliest(place);
        let at = match self.train_for(packet, way, length, earliest) {
            Some(at) => {
                self.couple(at, index, length);
                at
            }
            None => {
                let behind_latest = earliest + usize::from(self.latest[place].is_some());
                let rank = self.begin_at(behind_latest, length);
                let at = usize::from(self.order[rank]);
                self.trains[at] = Train {
                    peer: *packet.to,
                    group: way.0,
                    traffic_class: way.1,
                    rank,
                    segment: length,
                    segments: 1,
                    bytes: length,
                    open: cuts,
                    first: index,
                    last: index,
                };
                at
            }
        };
        let latest = Latest { queue_pair: packet.destination_qpn, train: at as u8 };
        if self.latest[place].replace(latest).is_none() {
            self.taken.push(place);
        }
        index
    }

    /// The place of a packet's queue pair in the hash table. The hash is multiplicative, which
    /// distributes consecutive numbers as well as random ones.
    fn place_of(&self, packet: &Outgoing<'_>) -> usize {
        const GOLDEN_RATIO: u32 = 0x9E37_79B1;
        let number = packet.destination_qpn;
        let mut place = (number.wrapping_mul(GOLDEN_RATIO) >> (u32::BITS - PLACE_BITS)) as usize;
        while self.latest[place].is_some_and(|latest| latest.queue_pair != number) {
            place = (place + 1) % PLACES;
        }
        place
    }

    /// The lowest rank of a train that may take the next packet of this queue pair.
    fn earliest(&self, place: usize) -> usize {
        self.latest[place].map_or(0, |latest| self.trains[usize::from(latest.train)].rank)
    }

    /// The trains from a rank on, in sending order.
    fn in_order(&self, from: usize) -> impl DoubleEndedIterator<Item = usize> {
        self.order[from..self.used].iter().map(|&at| usize::from(at))
    }

    /// The train of rank `earliest` or later that takes a packet, if any. The last packet of a
    /// message, often a little shorter than the first, may follow the message's train.
    fn train_for(
        &self,
        packet: &Outgoing<'_>,
        way: TrainKey,
        length: usize,
        earliest: usize,
    ) -> Option<usize> {
        let takes = |at: usize| self.trains[at].has_room_for(packet.to, way, length);
        let equal = (self.in_order(earliest).rev())
            .take(LOOK_BACK)
            .find(|&at| self.trains[at].segment == length && takes(at));
        let before = self.in_order(earliest).next().filter(|_| packet.continues);
        equal.or(before.filter(|&at| length < self.trains[at].segment && takes(at)))
    }

    /// Begins a train of packets of `length` bytes, at rank `earliest` or later; returns its rank.
    /// Open trains at the end with shorter packets are moved after it, so that responses to the
    /// data of the new train can join them.
    fn begin_at(&mut self, earliest: usize, length: usize) -> usize {
        let waits = |&at: &usize| self.trains[at].open && self.trains[at].segment < length;
        let waiting = self.in_order(earliest).rev().take_while(waits).count();
        let rank = self.used - waiting;
        self.order.copy_within(rank..self.used, rank + 1);
        self.order[rank] = self.used as u8;
        self.used += 1;
        for later in rank + 1..self.used {
            self.trains[usize::from(self.order[later])].rank = later;
        }
        rank
    }

    fn couple(&mut self, at: usize, index: usize, length: usize) {
        let train = &mut self.trains[at];
        self.behind[train.last] = index;
        train.append(index, length);
    }

    /// Moves the first packet of each train to the end of the preceding train if that can take it.
    /// This saves a message for single packets; otherwise the first response arrives with its data,
    /// so that the peer can start on it sooner.
    pub(super) fn append_first_packet_to_previous_train(&mut self) {
        let Some(mut before) = self.in_order(0).next() else { return };
        for rank in 1..self.used {
            let at = usize::from(self.order[rank]);
            let Train { ref peer, segment: length, first, segments, .. } = self.trains[at];
            let way = (self.trains[at].group, self.trains[at].traffic_class);
            let longer = &self.trains[before];
            if (length < longer.segment || segments == 1 && length == longer.segment)
                && longer.has_room_for(peer, way, length)
            {
                self.trains[at].drop_front(self.behind[first]);
                self.couple(before, first, length);
            }
            if self.trains[at].segments > 0 {
                before = at;
            }
        }
    }

    /// The trains that have packets, in sending order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Train> {
        self.in_order(0).map(|at| &self.trains[at]).filter(|train| train.segments > 0)
    }

    /// The indexes of a train's packets, in order.
    pub(super) fn packets_of(&self, train: &Train) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(train.first), |&index| Some(self.behind[index]))
            .take(train.segments)
    }

    pub(super) fn clear(&mut self) {
        self.used = 0;
        self.packets = 0;
        self.bytes = 0;
        for place in self.taken.drain(..) {
            self.latest[place] = None;
        }
    }
}

/// Properties that all packets of a train share besides the peer: its group, and the traffic class.
type TrainKey = (u8, u8);

fn way_of(packet: &Outgoing<'_>) -> TrainKey {
    (owner_of(Qpn::new(packet.destination_qpn)), packet.traffic_class)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::roce::wire::SenderIndex;

    const DATA: usize = 4096;
    const RESPONSE: usize = 16;

    /// A packet to queue pair `upper` of a group of one of two peers.
    #[derive(Clone, Copy, Debug)]
    struct Sketch {
        peer: u16,
        qpn: u32,
        payload: usize,
        class: u8,
        continues: bool,
    }

    impl Sketch {
        const fn new(upper: u32, payload: usize) -> Self {
            Self { peer: 1, qpn: upper << 8 | 1, payload, class: 0, continues: false }
        }

        fn length(self) -> usize {
            12 + self.payload + 4
        }

        fn add(self, trains: &mut TrainBuilder, cuts: bool) {
            self.with_packet(|packet| _ = trains.add(packet, self.length(), cuts));
        }

        fn fits(self, trains: &TrainBuilder) -> bool {
            self.with_packet(|packet| trains.has_room_for(packet, self.length()))
        }

        fn with_packet<T>(self, with: impl FnOnce(&Outgoing<'_>) -> T) -> T {
            let payload = [0; DATA];
            with(&Outgoing {
                to: &(Ipv4Addr::LOCALHOST, self.peer).into(),
                sender: SenderIndex::FIRST,
                destination_qpn: self.qpn,
                headers: &[0; 12],
                pieces: &[&payload[..self.payload]],
                pad_bytes: 0,
                traffic_class: self.class,
                continues: self.continues,
            })
        }
    }

    /// The packets of each message.
    fn arrange(sketches: &[Sketch], cuts: bool) -> Vec<Vec<usize>> {
        let [call] = &calls(sketches, cuts)[..] else { panic!("more than one call") };
        call.clone()
    }

    /// Trains of each of the calls that the packets take.
    fn calls(sketches: &[Sketch], cuts: bool) -> Vec<Vec<Vec<usize>>> {
        let mut trains = TrainBuilder::new();
        let mut calls = Vec::new();
        let mut leave = |trains: &mut TrainBuilder| {
            trains.append_first_packet_to_previous_train();
            calls.push(trains.iter().map(|train| trains.packets_of(train).collect()).collect());
            trains.clear();
        };
        for sketch in sketches {
            if !sketch.fits(&trains) {
                leave(&mut trains);
            }
            sketch.add(&mut trains, cuts);
        }
        leave(&mut trains);
        calls
    }

    #[test]
    fn queue_pairs_with_one_command_each_share_trains() {
        let both = |upper| [Sketch::new(upper, DATA), Sketch::new(upper, RESPONSE)];
        let sketches: Vec<Sketch> = (1..31).flat_map(both).collect();
        let lengths: Vec<usize> = arrange(&sketches, true).iter().map(Vec::len).collect();
        assert_eq!(lengths, [15, 16, 29]);
    }

    #[test]
    fn a_peer_without_trains_does_not_affect_others() {
        let peer = |number: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, number));
        let mut cuts = GsoSupport::new(true);
        cuts.refused(peer(1));
        cuts.refused(peer(1));
        assert!(!cuts.are_for(&peer(1)) && cuts.are_for(&peer(2)));
        (2..1000).for_each(|number| cuts.refused(peer(number)));
        assert_eq!(cuts.unsupported_peers.len(), MAX_UNCUT);
        assert!(!cuts.are_for(&peer(999)) && cuts.are_for(&peer(1000)));
        assert!(!GsoSupport::new(false).are_for(&peer(1)));
    }

    #[test]
    fn a_call_ends_where_a_train_does() {
        // 75 packets of 4,112 bytes are five trains; 64 of them were enough for a call.
        let lengths = |payloads: &[usize]| -> Vec<Vec<usize>> {
            let sketches: Vec<_> = payloads.iter().map(|&bytes| Sketch::new(1, bytes)).collect();
            let calls = calls(&sketches, true);
            calls.iter().map(|call| call.iter().map(Vec::len).collect()).collect()
        };
        assert_eq!(lengths(&[DATA; 80]), [[15; 5].as_slice(), &[5]]);
        // Responses go with their data.
        let answered = [[DATA; 75].as_slice(), &[RESPONSE, RESPONSE, DATA]].concat();
        assert_eq!(lengths(&answered), [[15, 15, 15, 15, 16, 1].as_slice(), &[1]]);
    }

    #[test]
    fn a_response_leaves_with_its_data() {
        let sketches = [Sketch::new(1, DATA), Sketch::new(1, RESPONSE)];
        assert_eq!(arrange(&sketches, true), [[0, 1]]);
        assert_eq!(arrange(&sketches, false), [[0], [1]]);
    }

    #[test]
    fn groups_and_peers_have_trains_of_their_own() {
        let here = Sketch::new(1, RESPONSE);
        let other_group = Sketch { qpn: here.qpn + 1, ..here };
        let other_peer = Sketch { peer: 2, ..here };
        let sketches = [here, other_group, other_peer];
        let twice =
            [sketches, sketches.map(|sketch| Sketch { qpn: sketch.qpn ^ 0x7700, ..sketch })];
        assert_eq!(arrange(&twice.concat(), true), [[0, 3], [1, 4], [2, 5]]);
    }

    #[test]
    fn a_train_has_one_traffic_class() {
        let plain = Sketch::new(1, DATA);
        let marked = Sketch { class: 0xB8, ..Sketch::new(2, DATA) };
        assert_eq!(arrange(&[plain, marked, plain, marked], true), [[0, 2], [1, 3]]);
        let response = Sketch { payload: RESPONSE, ..marked };
        assert_eq!(arrange(&[plain, response], true), [[0], [1]], "nor is it coupled");
    }

    #[test]
    fn each_peer_gets_one_data_and_response_train() {
        let to = |peer, upper, payload| Sketch { peer, ..Sketch::new(upper, payload) };
        let both = |peer, upper| [to(peer, upper, DATA), to(peer, upper, RESPONSE)];
        let sketches: Vec<Sketch> =
            (1..4).flat_map(|upper| [both(1, upper), both(2, 10 + upper)].concat()).collect();
        assert_eq!(
            arrange(&sketches, true),
            [[0, 4, 8], [2, 6, 10], [1, 5, 9], [3, 7, 11]],
            "responses wait behind the other peer's data as well"
        );
    }

    #[test]
    fn a_delayed_response_leaves_with_its_own_data() {
        let there = |payload| Sketch { peer: 2, ..Sketch::new(11, payload) };
        let sketches = [
            Sketch::new(1, RESPONSE),
            there(DATA),
            there(RESPONSE),
            Sketch::new(2, DATA),
            Sketch::new(2, RESPONSE),
        ];
        assert_eq!(arrange(&sketches, true), [vec![1], vec![3, 0], vec![4], vec![2]]);
    }

    #[test]
    fn the_packet_after_a_longer_first_joins_it() {
        let first = Sketch::new(1, DATA);
        let middle = Sketch { payload: DATA - 16, continues: true, ..first };
        let sketches = [first, middle, middle, middle];
        assert_eq!(arrange(&sketches, true), [[0, 1], [2, 3]]);
    }

    fn sketch() -> impl Strategy<Value = Sketch> {
        let payload = prop::sample::select(vec![0, RESPONSE, 64, DATA - 16, DATA]);
        (1u16..3, 1u32..7, 1u32..3, payload, any::<bool>()).prop_map(
            |(peer, upper, group, payload, continues)| Sketch {
                peer,
                qpn: upper << 8 | group,
                payload,
                class: 0,
                continues,
            },
        )
    }

    proptest! {
        #[test]
        fn trains_keep_each_packet_once_and_in_order(
            sketches in prop::collection::vec(sketch(), 1..MAX_TRAINS),
        ) {
            let messages = arrange(&sketches, true);
            for message in &messages {
                let lengths: Vec<usize> = message.iter().map(|&at| sketches[at].length()).collect();
                let (last, others) = lengths.split_last().expect("no message is empty");
                prop_assert!(others.iter().all(|length| *length == lengths[0]) && *last <= lengths[0]);
                prop_assert!(lengths.len() <= MAX_SEGMENTS);
                prop_assert!(lengths.iter().sum::<usize>() <= MAX_TRAIN_BYTES);
                let first = sketches[message[0]];
                for sketch in message.iter().map(|&at| sketches[at]) {
                    prop_assert_eq!((sketch.peer, sketch.qpn & 0xFF), (first.peer, first.qpn & 0xFF));
                }
            }
            let order = messages.concat();
            for (upper, peer) in (1..7).flat_map(|upper| [(upper, 1), (upper, 2)]) {
                for group in 1..3 {
                    let own = |at: &usize| {
                        sketches[*at].qpn == upper << 8 | group && sketches[*at].peer == peer
                    };
                    let left: Vec<usize> = order.iter().copied().filter(own).collect();
                    prop_assert_eq!(left, (0..sketches.len()).filter(own).collect::<Vec<_>>());
                }
            }
            prop_assert_eq!(order.len(), sketches.len());
        }
    }
}
