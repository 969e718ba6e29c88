//! Tests that each request gets its buffer within the rounds that the module states.

use proptest::prelude::*;

use super::*;
use crate::core_context::pool::PoolMemory;
use crate::core_context::{OperationOwner, SlotId};

const BLOCK: u32 = 64 << 10;

/// A share with `blocks` blocks besides the progress block.
fn share(blocks: usize) -> Share {
    share_of(blocks, BLOCK)
}

fn share_of(blocks: usize, block_bytes: u32) -> Share {
    let blocks = blocks + 1;
    let memory = PoolMemory::new(blocks * block_bytes as usize, 0).unwrap();
    Share::new(Pool::new(memory, 0, blocks, block_bytes as usize))
}

fn ip(number: u8) -> PeerOrigin {
    PeerOrigin::Address([10, 0, 0, number].into())
}

fn name(number: usize) -> AccountName {
    AccountName::Said(HostNqn(format!("nqn.2026-01.io.feedrail:host{number}").parse().unwrap()))
}

fn request(connection: u32, slot: u32) -> RequestKey {
    let owner = OperationOwner::Slot(SlotId(slot));
    RequestKey { transport: 0, connection, owner }
}

/// Allocates as many buffers as an account gets.
fn take_all(share: &mut Share, key: AccountKey, connection: u32, length: u32) -> Vec<Buffer> {
    let taken: Vec<Buffer> = (0..1000)
        .map_while(|slot| share.allocate(key, request(connection, slot), length))
        .collect();
    share.leave_all(key, request(connection, 0));
    taken
}

#[test]
fn a_lone_host_has_all_but_what_is_kept_for_newcomers() {
    for (blocks, kept) in [(1, 0), (4, 0), (15, 1), (64, 8)] {
        let mut share = share(blocks);
        let alone = share.join(ip(1), name(1), 8);
        assert_eq!(share.join(ip(1), name(1), 8), alone);
        share.join(ip(2), name(2), 8);
        let held = take_all(&mut share, alone, 1, BLOCK);
        assert_eq!(held.len(), blocks - kept, "of {blocks}: one that is idle does not count");
        let newcomer = share.join(ip(3), name(3), 8);
        let first = share.allocate(newcomer, request(3, 0), BLOCK);
        assert_eq!(first.is_some(), kept > 1);
        let first = first.or_else(|| share.grant().map(|(_, buffer)| buffer));
        assert!(first.is_some(), "the progress block, at least");
    }
}

#[test]
fn a_newcomer_halves_what_is_free() {
    let mut share = share(4);
    let (greedy, other) = (share.join(ip(1), name(1), 8), share.join(ip(2), name(2), 8));
    let mut held = take_all(&mut share, greedy, 1, BLOCK);
    assert!(share.allocate(other, request(2, 0), BLOCK).is_none());
    assert!(share.allocate(greedy, request(1, 0), BLOCK).is_none());
    assert_eq!(share.grant().map(|(whose, _)| whose), Some(request(2, 0)));
    share.release(greedy, held.pop().unwrap());
    share.release(greedy, held.pop().unwrap());
    assert!(share.grant().is_none(), "it still holds as much as is free");
    share.release(greedy, held.pop().unwrap());
    assert_eq!(share.grant().map(|(whose, _)| whose), Some(request(1, 0)));
}

/// Small requests do not wait for all large ones before them, and do not starve them.
#[test]
fn small_requests_pass_a_large_one_within_a_bound() {
    const LARGE: u32 = 1 << 20;
    let mut share = share_of(1, 2 * LARGE);
    let key = share.join(ip(1), name(1), 64);
    let first = share.allocate(key, request(0, 0), LARGE).unwrap();
    let second = share.allocate(key, request(0, 1), LARGE).unwrap();
    for slot in 2..32 {
        assert!(share.allocate(key, request(0, slot), LARGE).is_none());
    }
    assert!(share.allocate(key, request(1, 0), 4096).is_none());
    assert!(share.grant().is_none());
    share.release(key, first);
    let (whose, small) = share.grant().unwrap();
    assert_eq!(whose, request(1, 0), "one buffer that comes back suffices");
    share.release(key, small);
    let (whose, first) = share.grant().unwrap();
    assert_eq!(whose, request(0, 2));
    share.release(key, second);
    let passed = (1..)
        .take_while(|&slot| {
            assert!(share.allocate(key, request(1, slot), 4096).is_none());
            let (whose, buffer) = share.grant().unwrap();
            share.release(key, buffer);
            whose == request(1, slot)
        })
        .count();
    assert_eq!(passed, LARGE as usize / 4096 - 1);
    share.release(key, first);
}

#[test]
fn names_share_the_part_of_their_address() {
    let mut share = share(64);
    let names: Vec<_> = (0..60).map(|number| share.join(ip(1), name(number), 8)).collect();
    let mut held = 0;
    for (connection, &key) in (0..).zip(&names) {
        let taken = take_all(&mut share, key, connection, BLOCK / 16);
        held += taken.iter().map(Buffer::bytes).sum::<u64>();
        assert!(connection > 8 || !taken.is_empty(), "one leaves something to the next");
    }
    let total = 64 * u64::from(BLOCK);
    assert!(held <= total / 8 * 7, "{held}");
    let other = share.join(ip(2), name(99), 8);
    let taken = take_all(&mut share, other, 99, BLOCK).len();
    assert!(taken >= 4, "half of what is kept: {taken}");
}

#[test]
fn accounts_differ_by_address_despite_equal_names() {
    let mut share = share(64);
    let (victim, thief) = (share.join(ip(1), name(1), 64), share.join(ip(2), name(1), 64));
    assert_ne!(victim, thief);
    assert_eq!(take_all(&mut share, thief, 2, BLOCK).len(), 56);
    assert_eq!(take_all(&mut share, victim, 1, BLOCK).len(), 4);
}

#[test]
fn idle_addresses_leave_bytes_to_others() {
    let mut share = share(64);
    for number in 0..200 {
        let key = share.join(ip(number), name(1), 8);
        for slot in 0..8 {
            let _held = share.allocate(key, request(number.into(), slot), BLOCK);
        }
        while share.grant().is_some() {}
    }
    let decent = share.join(ip(200), name(1), 8);
    assert!(share.allocate(decent, request(200, 0), BLOCK / 4).is_none(), "others wait");
    assert_eq!(share.grant().map(|(whose, _)| whose), Some(request(200, 0)));
}

#[test]
fn addresses_take_turns_in_order() {
    let mut share = share(5);
    let other = share.join(ip(4), name(1), 8);
    let _held = share.allocate(other, request(4, 0), 4096).unwrap();
    let keys = [1, 2, 3].map(|number| share.join(ip(number), name(1), 8));
    let first = share.allocate(keys[0], request(0, 0), BLOCK).unwrap();
    let second = share.allocate(keys[0], request(0, 1), BLOCK).unwrap();
    assert!(share.allocate(keys[0], request(0, 2), BLOCK).is_none());
    assert!(share.allocate(keys[1], request(1, 0), BLOCK).is_none());
    assert!(share.allocate(keys[2], request(2, 0), BLOCK).is_none());
    let granted: Vec<_> = std::iter::from_fn(|| share.grant()).collect();
    let whose: Vec<_> = granted.iter().map(|(whose, _)| *whose).collect();
    assert_eq!(whose, [request(1, 0), request(2, 0)], "one of them has the progress block");
    share.release(keys[0], first);
    share.release(keys[0], second);
    assert_eq!(share.grant().map(|(whose, _)| whose), Some(request(0, 2)));
}

#[test]
fn an_empty_pool_has_room_for_any_request() {
    let mut share = share(1);
    let key = share.join(ip(1), name(1), 8);
    let only = share.allocate(key, request(0, 0), BLOCK).unwrap();
    assert!(share.allocate(key, request(0, 1), BLOCK).is_none());
    assert!(share.grant().is_none(), "it holds something");
    share.release(key, only);
    assert_eq!(share.grant().map(|(whose, _)| whose), Some(request(0, 1)));
}

#[test]
fn an_account_with_a_small_buffer_gets_a_large_one() {
    let mut share = share(1);
    let key = share.join(ip(1), name(1), 8);
    let idle = share.allocate(key, request(0, 0), 4096).unwrap();
    assert!(share.allocate(key, request(0, 1), BLOCK).is_none());
    let (whose, large) = share.grant().expect("the progress block");
    assert_eq!(whose, request(0, 1));
    share.release(key, large);
    share.release(key, idle);
}

#[test]
fn left_behind_buffers_block_no_successor() {
    let mut share = share(1);
    let key = share.join(ip(1), name(1), 8);
    let stuck = share.allocate(key, request(0, 0), BLOCK).unwrap();
    assert!(share.allocate(key, request(1, 0), BLOCK).is_none());
    assert!(share.grant().is_none(), "its own comes back");
    share.orphan(key, &stuck);
    let (whose, block) = share.grant().expect("the progress block");
    assert_eq!(whose, request(1, 0));
    assert!(share.allocate(key, request(1, 1), 4096).is_none());
    assert!(share.grant().is_none(), "left-behind buffers count for their address");
    share.release_orphan(key, stuck);
    let (_, last) = share.grant().expect("an ordinary one");
    for buffer in [block, last] {
        share.release(key, buffer);
    }
    assert_eq!(share.used_bytes(), 0);
    share.part(key, 8);
}

#[test]
fn leaving_the_line_lets_the_next_pass() {
    let mut share = share(4);
    let (key, other) = (share.join(ip(1), name(1), 8), share.join(ip(2), name(1), 8));
    let _held = share.allocate(other, request(2, 0), 4096).unwrap();
    let held = share.allocate(key, request(0, 0), BLOCK).unwrap();
    assert!(share.allocate(key, request(0, 1), BLOCK).is_none());
    assert!(share.allocate(key, request(0, 2), BLOCK / 2).is_none());
    assert!(share.grant().is_none());
    share.leave(key, request(0, 1));
    assert_eq!(share.grant().map(|(whose, _)| whose), Some(request(0, 2)));
    share.release(key, held);
}

#[test]
fn an_ended_connection_leaves_no_request_waiting() {
    let mut share = share(1);
    let key = share.join(ip(1), name(1), 24);
    let held = share.allocate(key, request(0, 0), BLOCK).unwrap();
    for (connection, slot) in [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)] {
        assert!(share.allocate(key, request(connection, slot), BLOCK).is_none());
    }
    share.leave_all(key, request(1, 0));
    share.release(key, held);
    for slot in [0, 1] {
        let (whose, buffer) = share.grant().unwrap();
        assert_eq!(whose, request(2, slot));
        share.release(key, buffer);
    }
    assert!(!share.is_waited_for());
    let held = share.allocate(key, request(0, 0), BLOCK).unwrap();
    assert!(share.allocate(key, request(1, 0), BLOCK).is_none());
    share.leave_all(key, request(1, 0));
    assert!(!share.is_waited_for(), "no request of its account is left in line");
    share.release(key, held);
    share.part(key, 24);
    assert!(share.accounts.is_empty() && share.parties.is_empty());
}

/// An account that closes and opens again is not before those that stayed.
#[test]
fn a_reopened_account_is_last_in_turn() {
    let mut share = share(1);
    let hog = share.join(ip(1), name(1), 8);
    let held = share.allocate(hog, request(1, 0), BLOCK / 2).unwrap();
    let (first, second) = (share.join(ip(2), name(1), 8), share.join(ip(3), name(1), 8));
    assert!(share.allocate(second, request(3, 0), BLOCK).is_none());
    share.leave(second, request(3, 0));
    share.part(second, 8);
    let second = share.join(ip(3), name(1), 8);
    assert!(share.allocate(second, request(3, 1), BLOCK).is_none());
    assert!(share.allocate(first, request(2, 0), BLOCK).is_none());
    let (whose, block) = share.grant().unwrap();
    assert_eq!(whose, request(2, 0));
    share.release(first, block);
    assert_eq!(share.grant().map(|(whose, _)| whose), Some(request(3, 1)));
    share.release(hog, held);
}

/// Hosts with deep queues leave less free than a large request needs.
#[test]
fn a_large_request_among_many_hosts_is_served() {
    const LARGE: u32 = 1 << 20;
    const SMALL: u32 = 64 << 10;
    for hosts in [4_u8, 24, 40, 64] {
        let mut share = share_of(31, 2 * LARGE);
        let keys: Vec<_> = (0..hosts).map(|number| share.join(ip(number), name(1), 64)).collect();
        let large = share.join(ip(250), name(1), 8);
        let mut held: VecDeque<(u8, Buffer)> = VecDeque::new();
        let mut slot = 0;
        for _ in 0..48 {
            for host in 0..hosts {
                slot += 1;
                let whose = request(host.into(), slot);
                held.extend(
                    share.allocate(keys[usize::from(host)], whose, SMALL).map(|b| (host, b)),
                );
            }
        }
        while let Some((whose, buffer)) = share.grant() {
            held.push_back((whose.connection as u8, buffer));
        }
        if share.allocate(large, request(250, 0), LARGE).is_some() {
            continue;
        }
        let at_most = held.len() * (1 + usize::from(hosts) + 1);
        let served = (0..at_most).any(|_| {
            let (host, buffer) = held.pop_front().expect("a host holds a buffer");
            let key = keys[usize::from(host)];
            share.release(key, buffer);
            slot += 1;
            let whose = request(host.into(), slot);
            held.extend(share.allocate(key, whose, SMALL).map(|buffer| (host, buffer)));
            let mut served = false;
            while let Some((whose, buffer)) = share.grant() {
                served |= whose.connection == 250;
                held.push_back((whose.connection as u8, buffer));
            }
            served
        });
        assert!(served, "{hosts} hosts");
    }
}

/// Record of a waiting request in the property tests.
#[derive(Debug)]
struct Waiting {
    account: usize,
    whose: RequestKey,
    since_round: usize,
    ahead: usize,
}

/// Accounts that allocate and return buffers in any order.
struct ShareModel {
    share: Share,
    keys: Vec<AccountKey>,
    /// Accounts of each address.
    names: usize,
    addresses: usize,
    held: Vec<(usize, usize, Buffer)>,
    waiting: Vec<Waiting>,
    slot: u32,
    round: usize,
}

impl ShareModel {
    fn new(blocks: usize, addresses: usize, names: usize) -> Self {
        let mut share = share(blocks);
        let keys = (0..addresses * names)
            .map(|account| share.join(ip((account / names) as u8), name(account % names), 4096))
            .collect();
        let (held, waiting) = (Vec::new(), Vec::new());
        Self { share, keys, names, addresses, held, waiting, slot: 0, round: 0 }
    }

    fn ask(&mut self, account: usize, length: u32) {
        let account = account % self.keys.len();
        let ahead = self.waiting.iter().filter(|other| other.account == account).count();
        if ahead >= 4 {
            return;
        }
        self.slot += 1;
        let whose = request(account as u32, self.slot);
        match self.share.allocate(self.keys[account], whose, length) {
            Some(buffer) => {
                self.held.push((account, self.round, buffer));
                self.check_share(account);
            }
            None => {
                let since_round = self.round;
                self.waiting.push(Waiting { account, whose, since_round, ahead });
            }
        }
        self.grant();
    }

    fn grant(&mut self) {
        while let Some((whose, buffer)) = self.share.grant() {
            let found = self.waiting.iter().position(|waiting| waiting.whose == whose);
            self.waiting.remove(found.expect("the request waited"));
            self.held.push((whose.connection as usize, self.round, buffer));
            self.check_share(whose.connection as usize);
        }
    }

    /// Checks that a party that is not alone holds at most half.
    fn check_share(&self, account: usize) {
        let is_mine = |other: usize| other / self.names == account / self.names;
        let (mine, others): (Vec<_>, Vec<_>) =
            self.held.iter().partition(|(account, ..)| is_mine(*account));
        let ordinary = mine
            .iter()
            .map(|(.., buffer)| buffer)
            .filter(|buffer| buffer.unit() != self.share.progress.place);
        let bytes: u64 = ordinary.clone().map(Buffer::bytes).sum();
        let newest_is_ordinary =
            self.held.last().is_some_and(|(.., buffer)| buffer.unit() != self.share.progress.place);
        let alone = others.is_empty() && self.waiting.iter().all(|other| is_mine(other.account));
        let most =
            if alone { self.share.ordinary_bytes() } else { self.share.ordinary_bytes() / 2 };
        assert!(bytes <= most || ordinary.count() == 1 || !newest_is_ordinary, "{bytes} of {most}");
    }

    fn give_back(&mut self, index: usize) {
        let (account, _, buffer) = self.held.swap_remove(index);
        self.share.release(self.keys[account], buffer);
        self.grant();
    }

    /// Returns everything that was held at the beginning of the round, in any order; after each, an
    /// account asks for more.
    fn turn(&mut self, asks: &[(usize, u32)], order: &prop::sample::Index) {
        self.round += 1;
        let mut asks = asks.iter().cycle();
        loop {
            let old: Vec<usize> =
                (0..self.held.len()).filter(|&index| self.held[index].1 < self.round).collect();
            if old.is_empty() {
                return;
            }
            self.give_back(old[order.index(old.len())]);
            if let Some(&(account, length)) = asks.next() {
                self.ask(account, length);
            }
        }
    }

    fn check(&self) {
        for waiting in &self.waiting {
            let bound = (waiting.ahead + 1) * (1 + self.addresses * self.names);
            let waited = self.round - waiting.since_round;
            assert!(waited <= bound, "{waiting:?} waits in round {}, {bound} allowed", self.round);
        }
    }
}

proptest! {
    /// Bound stated in the module's documentation, whatever others ask for and in whatever order
    /// buffers are returned.
    #[test]
    fn every_request_is_granted_within_its_rounds(
        blocks in 1_usize..5,
        addresses in 1_usize..5,
        names in 1_usize..4,
        rounds in prop::collection::vec(
            (prop::collection::vec((0_usize..16, 0_usize..4), 1..12), any::<prop::sample::Index>()),
            1..60,
        ),
    ) {
        let mut model = ShareModel::new(blocks, addresses, names);
        for (asks, order) in &rounds {
            let asks: Vec<_> = asks
                .iter()
                .map(|&(account, size)| (account, [4096, 4096, BLOCK / 2, BLOCK][size]))
                .collect();
            asks.iter().for_each(|&(account, length)| model.ask(account, length));
            model.turn(&asks, order);
            model.check();
        }
        while !model.held.is_empty() {
            model.give_back(0);
        }
        prop_assert!(model.waiting.is_empty());
        prop_assert_eq!(model.share.used_bytes(), 0);
        for key in model.keys {
            model.share.part(key, 4096);
        }
        prop_assert!(model.share.parties.is_empty());
    }
}

#[test]
fn processes_of_one_user_share_the_part_of_a_party() {
    let (units, length) = (64, 4096);
    let mut share = share(4);
    let mut join = |uid, pid| share.join(PeerOrigin::Process { uid, pid }, name(1), 64);
    let (greedy, brother, other) = (join(1000, 1), join(1000, 2), join(1001, 3));
    assert_ne!(greedy, brother);
    let keys = [(0, greedy), (1, brother), (2, other)];
    let held = keys.map(|(connection, key)| take_all(&mut share, key, connection, length));
    let [greedy, brother, other] = held.map(|buffers| buffers.len());
    assert!(brother > 0 && other > 0, "{greedy}, {brother}, {other}");
    assert!(greedy <= units / 2, "{greedy}, {brother}, {other}");
}
