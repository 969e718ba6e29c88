//! The buffers of one core, and who waits for one.
//!
//! A host may hold no more than what is free beside it: one that takes no data keeps its buffers for long, and must not
//! keep all. A single host may have half of the pool, and ten of them that take nothing leave an eleventh of it to
//! others. What is beyond that waits in the host's own line. What only lacks a buffer waits for its host's turn.
//!
//! A large request may find room enough, but in pieces. Others wait then, so that it finds its room when theirs comes back;
//! but whoever holds a small piece of each large one could hold them all up for ever, so they wait half of the time only.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use nvme_proto::HostNqn;
use rdma::Time;
use slab::Slab;

use crate::pool::{Buffer, Pool};
use crate::transport::RequestKey;

/// Whose share of the buffers a connection uses.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each host, and it is seldom looked at"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A host that has not said its name yet.
    Address(IpAddr),
    /// A host, whatever its addresses are.
    Host(HostNqn),
}

/// Names an account of a [`Buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountKey(usize);

/// The buffers of one core, and the requests that stand in line for one.
pub struct Buffers {
    pool: Pool,
    accounts: Slab<Account>,
    /// Accounts with requests that wait, each once; those that were served longest ago come first. Who may not hold
    /// more holds nobody up. Who may gets the next buffer, since a large request would otherwise never find its room.
    turns: VecDeque<usize>,
    /// Since when somebody who may get a buffer lacks one piece that is large enough.
    in_pieces_since: Option<Time>,
    waits: u64,
}

/// For so long everybody waits for room in one piece, and for so long nobody does, in turn. Buffers of hosts that take their
/// data come back within that time.
const HOLDS_UP_FOR: Duration = Duration::from_millis(20);

/// What one owner has.
struct Account {
    owner: Owner,
    connections: usize,
    requests: usize,
    held_bytes: u64,
    /// In order of arrival.
    waiting: VecDeque<(RequestKey, u32)>,
}

impl Account {
    /// Whether as much as the owner holds with so much more is free besides. In an empty pool there is room for
    /// anything.
    fn may_hold(&self, more_bytes: u64, pool: &Pool) -> bool {
        let free_bytes = pool.free_bytes();
        self.held_bytes + 2 * more_bytes <= free_bytes || free_bytes == pool.total_bytes()
    }
}

impl Buffers {
    pub(crate) fn new(pool: Pool) -> Self {
        let (accounts, turns) = (Slab::new(), VecDeque::new());
        Self { pool, accounts, turns, in_pieces_since: None, waits: 0 }
    }

    /// One more connection of an owner, with so many requests at once.
    pub(crate) fn join(&mut self, owner: Owner, requests: usize) -> AccountKey {
        let found = self.accounts.iter().find(|(_, account)| account.owner == owner);
        let key = found.map(|(key, _)| key).unwrap_or_else(|| {
            self.turns.reserve((self.accounts.len() + 1).saturating_sub(self.turns.len()));
            self.accounts.insert(Account {
                owner,
                connections: 0,
                requests: 0,
                held_bytes: 0,
                waiting: VecDeque::new(),
            })
        });
        let account = &mut self.accounts[key];
        account.connections += 1;
        account.requests += requests;
        account.waiting.reserve(account.requests.saturating_sub(account.waiting.len()));
        AccountKey(key)
    }

    /// A connection is gone, and has neither buffers nor requests that wait.
    pub(crate) fn part(&mut self, key: AccountKey, requests: usize) {
        let account = &mut self.accounts[key.0];
        account.connections -= 1;
        account.requests -= requests;
        if account.connections == 0 {
            self.accounts.remove(key.0);
            self.turns.retain(|turn| *turn != key.0);
        }
    }

    /// A connection turned out to be another owner's: what it holds, and its requests that wait, go along.
    pub(crate) fn transfer(
        &mut self,
        from: AccountKey,
        owner: Owner,
        connection: RequestKey,
        requests: usize,
        held_bytes: u64,
    ) -> AccountKey {
        let to = self.join(owner, requests);
        if to != from {
            let old = &mut self.accounts[from.0];
            old.held_bytes -= held_bytes;
            let (moving, staying): (VecDeque<_>, VecDeque<_>) =
                (old.waiting.drain(..)).partition(|(whose, _)| whose.is_of_connection(connection));
            old.waiting.extend(staying);
            let new = &mut self.accounts[to.0];
            new.held_bytes += held_bytes;
            new.waiting.extend(moving);
        }
        self.part(from, requests);
        for key in [from, to] {
            self.line_up(key.0);
        }
        to
    }

    /// A buffer for a request, or a place in the line.
    pub(crate) fn allocate(
        &mut self,
        now: Time,
        key: AccountKey,
        whose: RequestKey,
        length: u32,
    ) -> Option<Buffer> {
        let nobody_is_due = !self.turns.iter().any(|&other| self.is_due(other));
        let passes = nobody_is_due || self.in_pieces_since.is_some() && !self.is_held_up(now);
        let account = &mut self.accounts[key.0];
        let bytes = Pool::bytes_for(length);
        if passes
            && account.waiting.is_empty()
            && account.may_hold(bytes, &self.pool)
            && let Some(buffer) = self.pool.allocate(length)
        {
            account.held_bytes += bytes;
            return Some(buffer);
        }
        self.waits += 1;
        account.waiting.push_back((whose, length));
        self.line_up(key.0);
        None
    }

    /// The first in line and its buffer, if there is enough room now.
    pub(crate) fn grant(&mut self, now: Time) -> Option<(RequestKey, Buffer)> {
        let since = self.in_pieces_since.take().unwrap_or(now);
        for at in 0..self.turns.len() {
            let key = self.turns[at];
            if !self.is_due(key) {
                continue;
            }
            if let Some(granted) = self.grant_to(key) {
                self.turns.remove(at);
                self.line_up(key);
                return Some(granted);
            }
            self.in_pieces_since = Some(since);
            if self.is_held_up(now) {
                return None;
            }
        }
        None
    }

    /// The first request of an account and its buffer, if there is a piece that is large enough.
    fn grant_to(&mut self, key: usize) -> Option<(RequestKey, Buffer)> {
        let account = &mut self.accounts[key];
        let &(whose, length) = account.waiting.front()?;
        let buffer = self.pool.allocate(length)?;
        account.waiting.pop_front();
        account.held_bytes += buffer.bytes();
        Some((whose, buffer))
    }

    /// Whether everybody waits for room in one piece.
    fn is_held_up(&self, now: Time) -> bool {
        self.in_pieces_since.is_some_and(|since| periods(now - since).is_multiple_of(2))
    }

    /// When somebody who waits may go on though nothing comes back.
    pub(crate) fn deadline(&self, now: Time) -> Option<Time> {
        let since = self.in_pieces_since.filter(|_| self.is_held_up(now))?;
        Some(since + HOLDS_UP_FOR * (periods(now - since) + 1))
    }

    /// Whether the first request of an account may have its buffer.
    fn is_due(&self, key: usize) -> bool {
        let account = &self.accounts[key];
        let first = account.waiting.front();
        first.is_some_and(|(_, length)| account.may_hold(Pool::bytes_for(*length), &self.pool))
    }

    /// Whether a request waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Takes a request out of the line.
    pub(crate) fn leave(&mut self, key: AccountKey, whose: RequestKey) {
        let waiting = &mut self.accounts[key.0].waiting;
        if let Some(at) = waiting.iter().position(|(other, _)| *other == whose) {
            waiting.remove(at);
            self.line_up(key.0);
        }
    }

    /// Takes all requests of a connection out of the line, in one pass.
    pub(crate) fn leave_all(&mut self, key: AccountKey, connection: RequestKey) {
        let waiting = &mut self.accounts[key.0].waiting;
        waiting.retain(|(whose, _)| !whose.is_of_connection(connection));
        self.line_up(key.0);
    }

    /// Takes a buffer back.
    pub(crate) fn release(&mut self, key: AccountKey, buffer: Buffer) {
        self.accounts[key.0].held_bytes -= buffer.bytes();
        self.pool.release(buffer);
    }

    /// Puts an account in line if it has requests that wait, and takes it out if it has none.
    fn line_up(&mut self, key: usize) {
        let waits = self.accounts.get(key).is_some_and(|account| !account.waiting.is_empty());
        match self.turns.iter().position(|&other| other == key) {
            Some(at) if !waits => {
                self.turns.remove(at);
            }
            None if waits => self.turns.push_back(key),
            _ => {}
        }
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How often a request had to stand in line.
    pub(crate) fn waits(&self) -> u64 {
        self.waits
    }
}

fn periods(elapsed: Duration) -> u32 {
    u32::try_from(elapsed.as_nanos() / HOLDS_UP_FOR.as_nanos()).unwrap_or(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pool::PoolMemory;

    const BLOCK: u32 = 64 << 10;
    const NOW: Time = Time::from_nanos(1_000_000_000);

    fn buffers(blocks: usize) -> Buffers {
        let memory = PoolMemory::new(blocks * BLOCK as usize, 0).unwrap();
        Buffers::new(Pool::new(memory, 0, 1, BLOCK as usize))
    }

    fn owner(number: u8) -> Owner {
        Owner::Address(IpAddr::from([10, 0, 0, number]))
    }

    fn request(connection: u32, slot: u32) -> RequestKey {
        RequestKey { transport: 0, connection, slot }
    }

    #[test]
    fn a_host_holds_half_over_all_its_connections_and_leaves_the_rest() {
        let mut buffers = buffers(4);
        let greedy = buffers.join(owner(1), 8);
        assert_eq!(buffers.join(owner(1), 8), greedy);
        let other = buffers.join(owner(2), 8);
        let first = buffers.allocate(NOW, greedy, request(0, 0), BLOCK).unwrap();
        let second = buffers.allocate(NOW, greedy, request(1, 0), BLOCK).unwrap();
        assert!(buffers.allocate(NOW, greedy, request(1, 1), BLOCK).is_none());
        assert!(buffers.grant(NOW).is_none(), "it has as much as is free");
        let third = buffers.allocate(NOW, other, request(2, 0), BLOCK).unwrap();
        buffers.release(greedy, first);
        assert!(buffers.grant(NOW).is_none(), "the other one counts");
        buffers.release(other, third);
        let (whose, fourth) = buffers.grant(NOW).unwrap();
        assert_eq!(whose, request(1, 1));
        for buffer in [second, fourth] {
            buffers.release(greedy, buffer);
        }
        assert_eq!((buffers.pool().free_bytes(), buffers.waits()), (4 * u64::from(BLOCK), 1));
    }

    #[test]
    fn many_that_take_nothing_leave_something_to_others() {
        let mut buffers = buffers(64);
        let mut held = Vec::new();
        for number in 0..200 {
            let key = buffers.join(owner(number), 8);
            for slot in 0..8 {
                let buffer = buffers.allocate(NOW, key, request(number.into(), slot), BLOCK);
                held.extend(buffer.map(|buffer| (key, buffer)));
            }
        }
        let decent = buffers.join(owner(200), 8);
        let small = buffers.allocate(NOW, decent, request(200, 0), BLOCK / 4);
        held.push((decent, small.expect("there is room")));
        held.into_iter().for_each(|(key, buffer)| buffers.release(key, buffer));
    }

    #[test]
    fn hosts_take_turns_and_nobody_overtakes() {
        let mut buffers = buffers(4);
        let keys = [1, 2, 3].map(|number| buffers.join(owner(number), 8));
        let first = buffers.allocate(NOW, keys[0], request(0, 0), BLOCK).unwrap();
        let second = buffers.allocate(NOW, keys[0], request(0, 1), BLOCK).unwrap();
        let third = buffers.allocate(NOW, keys[1], request(1, 0), BLOCK).unwrap();
        assert!(buffers.allocate(NOW, keys[2], request(2, 0), BLOCK).is_none());
        assert!(buffers.allocate(NOW, keys[1], request(1, 1), BLOCK / 2).is_none());
        buffers.release(keys[0], first);
        assert_eq!(buffers.grant(NOW).map(|(whose, _)| whose), Some(request(2, 0)));
        assert!(buffers.grant(NOW).is_none(), "the other one has as much as is free");
        buffers.release(keys[0], second);
        assert_eq!(buffers.grant(NOW).map(|(whose, _)| whose), Some(request(1, 1)));
        buffers.release(keys[1], third);
    }

    #[test]
    fn in_an_empty_pool_there_is_room_for_anything() {
        let mut buffers = buffers(1);
        let key = buffers.join(owner(1), 8);
        let only = buffers.allocate(NOW, key, request(0, 0), BLOCK).unwrap();
        assert!(buffers.allocate(NOW, key, request(0, 1), BLOCK).is_none());
        buffers.release(key, only);
        assert_eq!(buffers.grant(NOW).map(|(whose, _)| whose), Some(request(0, 1)));
    }

    #[test]
    fn who_leaves_the_line_lets_the_next_pass() {
        let mut buffers = buffers(4);
        let key = buffers.join(owner(1), 8);
        let held = buffers.allocate(NOW, key, request(0, 0), BLOCK).unwrap();
        assert!(buffers.allocate(NOW, key, request(0, 1), 2 * BLOCK).is_none());
        assert!(buffers.allocate(NOW, key, request(0, 2), BLOCK).is_none());
        assert!(buffers.grant(NOW).is_none());
        buffers.leave(key, request(0, 1));
        assert_eq!(buffers.grant(NOW).map(|(whose, _)| whose), Some(request(0, 2)));
        buffers.release(key, held);
    }

    #[test]
    fn a_connection_leaves_the_line_with_all_its_requests() {
        let mut buffers = buffers(1);
        let key = buffers.join(owner(1), 24);
        let held = buffers.allocate(NOW, key, request(0, 0), BLOCK).unwrap();
        for (connection, slot) in [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)] {
            assert!(buffers.allocate(NOW, key, request(connection, slot), BLOCK).is_none());
        }
        buffers.leave_all(key, request(1, 0));
        buffers.release(key, held);
        for slot in [0, 1] {
            let (whose, buffer) = buffers.grant(NOW).unwrap();
            assert_eq!(whose, request(2, slot));
            buffers.release(key, buffer);
        }
        assert!(!buffers.is_waited_for());
        let held = buffers.allocate(NOW, key, request(0, 0), BLOCK).unwrap();
        assert!(buffers.allocate(NOW, key, request(1, 0), BLOCK).is_none());
        buffers.leave_all(key, request(1, 0));
        assert!(!buffers.is_waited_for(), "nobody of its account is left in line");
        buffers.release(key, held);
    }

    #[test]
    fn what_a_connection_holds_and_waits_for_goes_with_it() {
        let mut buffers = buffers(8);
        let (stranger, named) = (buffers.join(owner(1), 8), buffers.join(owner(2), 8));
        assert_eq!(buffers.join(owner(1), 8), stranger);
        let moves = buffers.allocate(NOW, stranger, request(0, 0), BLOCK).unwrap();
        let stays =
            [1, 2, 3].map(|slot| buffers.allocate(NOW, stranger, request(1, slot), BLOCK).unwrap());
        assert!(buffers.allocate(NOW, stranger, request(0, 1), BLOCK).is_none());
        assert!(buffers.allocate(NOW, stranger, request(1, 4), BLOCK).is_none());
        let to = buffers.transfer(stranger, owner(2), request(0, 0), 8, BLOCK.into());
        assert_eq!(to, named);
        assert_eq!(buffers.grant(NOW).map(|(whose, _)| whose), Some(request(0, 1)));
        assert!(buffers.grant(NOW).is_none(), "the stranger has as much as is free");
        buffers.release(named, moves);
        stays.into_iter().for_each(|buffer| buffers.release(stranger, buffer));
        assert_eq!(buffers.grant(NOW).map(|(whose, _)| whose), Some(request(1, 4)));
    }

    /// Hosts that take nothing hold a small piece of each large one.
    #[test]
    fn who_lacks_room_in_one_piece_holds_others_up_for_a_while_only() {
        let mut buffers = buffers(8);
        let every = std::iter::from_fn(|| buffers.pool.allocate(4096));
        let pages: Vec<Buffer> = every.collect();
        let in_each_block =
            |page: &Buffer| (buffers.pool.address(page) as usize).is_multiple_of(BLOCK as usize);
        let (held, free): (Vec<Buffer>, Vec<Buffer>) = pages.into_iter().partition(in_each_block);
        assert_eq!(held.len(), 8);
        free.into_iter().for_each(|page| buffers.pool.release(page));
        let (large, small) = (buffers.join(owner(2), 8), buffers.join(owner(3), 8));
        assert!(buffers.allocate(NOW, large, request(2, 0), BLOCK).is_none());
        assert!(buffers.grant(NOW).is_none());
        assert!(buffers.allocate(NOW, small, request(3, 0), 4096).is_none(), "it waits as well");
        assert!(buffers.grant(NOW).is_none());
        let later = buffers.deadline(NOW).expect("not for ever");
        let (whose, page) = buffers.grant(later).expect("others go on");
        assert_eq!(whose, request(3, 0));
        let next = buffers.allocate(later, small, request(3, 1), 4096).expect("at once");
        [page, next].into_iter().for_each(|page| buffers.release(small, page));
        assert_eq!(buffers.deadline(later), None);
        assert!(buffers.allocate(later + HOLDS_UP_FOR, small, request(3, 2), 4096).is_none());
        // It has not lost its turn.
        held.into_iter().for_each(|page| buffers.pool.release(page));
        let (whose, block) = buffers.grant(later).expect("there is room in one piece");
        assert_eq!(whose, request(2, 0));
        let (whose, page) = buffers.grant(later).expect("nobody is held up");
        assert_eq!((whose, buffers.in_pieces_since), (request(3, 2), None));
        buffers.release(large, block);
        buffers.release(small, page);
    }

    proptest! {
        /// Whatever is asked for and given back: nobody waits for ever, and nobody holds more than is free beside it
        /// when it is given something.
        #[test]
        fn all_are_served_in_the_end(
            steps in prop::collection::vec((0u8..4, 0usize..3, any::<bool>(), any::<prop::sample::Index>()), 1..200)
        ) {
            let mut buffers = buffers(4);
            let total = buffers.pool().total_bytes();
            let keys = [0, 1, 2, 3].map(|number| buffers.join(owner(number), 200));
            let mut held: Vec<(usize, Buffer)> = Vec::new();
            let mut waiting = 0;
            for (slot, (who, size, gives_back, index)) in (0..).zip(steps) {
                let who = usize::from(who);
                if gives_back && !held.is_empty() {
                    let (who, buffer) = held.swap_remove(index.index(held.len()));
                    buffers.release(keys[who], buffer);
                } else {
                    let length = [4096, BLOCK / 2, BLOCK][size];
                    match buffers.allocate(NOW, keys[who], request(who as u32, slot), length) {
                        Some(buffer) => held.push((who, buffer)),
                        None => waiting += 1,
                    }
                }
                while let Some((whose, buffer)) = buffers.grant(NOW) {
                    waiting -= 1;
                    held.push((whose.connection as usize, buffer));
                }
                for key in 0..4 {
                    let mine = held.iter().filter(|(who, _)| *who == key);
                    let mine: u64 = mine.map(|(_, buffer)| buffer.bytes()).sum();
                    prop_assert!(mine <= total / 2 || held.len() == 1);
                }
            }
            while !held.is_empty() {
                for (who, buffer) in std::mem::take(&mut held) {
                    buffers.release(keys[who], buffer);
                }
                while let Some((whose, buffer)) = buffers.grant(NOW) {
                    waiting -= 1;
                    held.push((whose.connection as usize, buffer));
                }
            }
            prop_assert_eq!(waiting, 0);
            prop_assert_eq!(buffers.pool().free_bytes(), total);
        }
    }
}
