//! The buffers of one core, and who waits for one.
//!
//! A host may hold only its share of them: one that takes no data keeps its buffers for long, and must not keep
//! all. What is beyond its share waits in the host's own line. What only lacks a buffer waits for its host's turn.

use std::collections::VecDeque;
use std::net::IpAddr;

use nvme_proto::HostNqn;
use slab::Slab;

use crate::limits::POOL_SHARE;
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
    /// What one owner may hold. A single request always gets its buffer.
    share_bytes: u64,
    accounts: Slab<Account>,
    /// Accounts whose first request is within the share. Each is in it at most once, and nobody overtakes: a large
    /// request would otherwise never find its room.
    turns: VecDeque<usize>,
    /// Requests that wait, of all owners.
    waiting: usize,
    waits: u64,
}

/// What one owner has.
struct Account {
    owner: Owner,
    connections: usize,
    requests: usize,
    held_bytes: u64,
    /// In order of arrival.
    waiting: VecDeque<(RequestKey, u32)>,
    has_turn: bool,
}

impl Account {
    fn may_hold(&self, more_bytes: u64, share_bytes: u64) -> bool {
        self.held_bytes == 0 || self.held_bytes + more_bytes <= share_bytes
    }
}

impl Buffers {
    pub(crate) fn new(pool: Pool) -> Self {
        let share_bytes = pool.total_bytes() / POOL_SHARE;
        let (accounts, turns) = (Slab::new(), VecDeque::new());
        Self { pool, share_bytes, accounts, turns, waiting: 0, waits: 0 }
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
                has_turn: false,
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
            if self.accounts.contains(key.0) {
                self.line_up(key.0);
            }
        }
        to
    }

    /// A buffer for a request, or a place in the line.
    pub(crate) fn allocate(
        &mut self,
        key: AccountKey,
        whose: RequestKey,
        length: u32,
    ) -> Option<Buffer> {
        let account = &mut self.accounts[key.0];
        let bytes = Pool::bytes_for(length);
        let nobody_waits = self.waiting == 0 || self.turns.is_empty() && account.waiting.is_empty();
        if nobody_waits
            && account.may_hold(bytes, self.share_bytes)
            && let Some(buffer) = self.pool.allocate(length)
        {
            account.held_bytes += bytes;
            return Some(buffer);
        }
        self.waits += 1;
        self.waiting += 1;
        account.waiting.push_back((whose, length));
        self.line_up(key.0);
        None
    }

    /// The first in line and its buffer, if there is enough room now.
    pub(crate) fn grant(&mut self) -> Option<(RequestKey, Buffer)> {
        while let Some(&key) = self.turns.front() {
            let account = &mut self.accounts[key];
            let first = account.waiting.front().copied();
            let due = first
                .filter(|(_, length)| account.may_hold(Pool::bytes_for(*length), self.share_bytes));
            let granted = match due {
                Some((whose, length)) => Some((whose, self.pool.allocate(length)?)),
                // The request for which it lined up has left.
                None => None,
            };
            self.turns.pop_front();
            account.has_turn = false;
            if let Some((whose, buffer)) = granted {
                account.waiting.pop_front();
                self.waiting -= 1;
                account.held_bytes += buffer.bytes();
                self.line_up(key);
                return Some((whose, buffer));
            }
        }
        None
    }

    /// Whether a request waits.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// Takes a request out of the line.
    pub(crate) fn leave(&mut self, key: AccountKey, whose: RequestKey) {
        let waiting = &mut self.accounts[key.0].waiting;
        if let Some(at) = waiting.iter().position(|(other, _)| *other == whose) {
            waiting.remove(at);
            self.waiting -= 1;
            self.line_up(key.0);
        }
    }

    /// Takes a buffer back.
    pub(crate) fn release(&mut self, key: AccountKey, buffer: Buffer) {
        self.accounts[key.0].held_bytes -= buffer.bytes();
        self.pool.release(buffer);
        if self.waiting > 0 {
            self.line_up(key.0);
        }
    }

    /// Gives an account a turn, if it has none and its first request is within the share.
    fn line_up(&mut self, key: usize) {
        let account = &mut self.accounts[key];
        let Some(&(_, length)) = account.waiting.front() else { return };
        let may_hold = account.may_hold(Pool::bytes_for(length), self.share_bytes);
        if may_hold && !account.has_turn {
            account.has_turn = true;
            self.turns.push_back(key);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::PoolMemory;

    const BLOCK: u32 = 64 << 10;

    /// With a share of half of its blocks.
    fn buffers(blocks: usize) -> Buffers {
        let memory = PoolMemory::new(blocks * BLOCK as usize).unwrap();
        Buffers::new(Pool::new(memory, 0, 1, BLOCK as usize))
    }

    fn owner(number: u8) -> Owner {
        Owner::Address(IpAddr::from([10, 0, 0, number]))
    }

    fn request(connection: u32, slot: u32) -> RequestKey {
        RequestKey { transport: 0, connection, slot }
    }

    #[test]
    fn a_host_holds_its_share_over_all_its_connections_and_leaves_the_rest() {
        let mut buffers = buffers(4);
        let greedy = buffers.join(owner(1), 8);
        assert_eq!(buffers.join(owner(1), 8), greedy);
        let other = buffers.join(owner(2), 8);
        let first = buffers.allocate(greedy, request(0, 0), BLOCK).unwrap();
        let second = buffers.allocate(greedy, request(1, 0), BLOCK).unwrap();
        assert!(buffers.allocate(greedy, request(1, 1), BLOCK).is_none());
        assert!(buffers.grant().is_none(), "its share is used up");
        let third = buffers.allocate(other, request(2, 0), BLOCK).unwrap();
        buffers.release(greedy, first);
        let (whose, fourth) = buffers.grant().unwrap();
        assert_eq!(whose, request(1, 1));
        for (key, buffer) in [(greedy, second), (other, third), (greedy, fourth)] {
            buffers.release(key, buffer);
        }
        assert_eq!((buffers.pool().free_bytes(), buffers.waits()), (4 * u64::from(BLOCK), 1));
    }

    #[test]
    fn hosts_take_turns_and_nobody_overtakes() {
        let mut buffers = buffers(2);
        let keys = [1, 2, 3].map(|number| buffers.join(owner(number), 8));
        let first = buffers.allocate(keys[0], request(0, 0), BLOCK).unwrap();
        let second = buffers.allocate(keys[1], request(1, 0), BLOCK).unwrap();
        assert!(buffers.allocate(keys[2], request(2, 0), BLOCK).is_none());
        assert!(buffers.allocate(keys[2], request(2, 1), 4096).is_none());
        assert!(buffers.allocate(keys[0], request(0, 1), 4096).is_none(), "its share is used up");
        assert!(buffers.grant().is_none(), "there is no room");
        buffers.release(keys[0], first);
        assert_eq!(buffers.grant().map(|(whose, _)| whose), Some(request(2, 0)));
        buffers.release(keys[1], second);
        assert_eq!(buffers.grant().map(|(whose, _)| whose), Some(request(0, 1)));
        assert!(buffers.grant().is_none(), "the third has its share");
    }

    #[test]
    fn a_request_beyond_the_share_gets_its_buffer_when_its_host_has_no_other() {
        let mut buffers = buffers(1);
        let key = buffers.join(owner(1), 8);
        let only = buffers.allocate(key, request(0, 0), BLOCK).unwrap();
        assert!(buffers.allocate(key, request(0, 1), BLOCK).is_none());
        buffers.release(key, only);
        assert_eq!(buffers.grant().map(|(whose, _)| whose), Some(request(0, 1)));
    }

    #[test]
    fn who_leaves_the_line_lets_the_next_pass() {
        let mut buffers = buffers(4);
        let key = buffers.join(owner(1), 8);
        let held = buffers.allocate(key, request(0, 0), BLOCK).unwrap();
        assert!(buffers.allocate(key, request(0, 1), 2 * BLOCK).is_none());
        assert!(buffers.allocate(key, request(0, 2), BLOCK).is_none());
        assert!(buffers.grant().is_none());
        buffers.leave(key, request(0, 1));
        assert_eq!(buffers.grant().map(|(whose, _)| whose), Some(request(0, 2)));
        buffers.release(key, held);
    }

    #[test]
    fn what_a_connection_holds_and_waits_for_goes_with_it() {
        let mut buffers = buffers(4);
        let (stranger, named) = (buffers.join(owner(1), 8), buffers.join(owner(2), 8));
        assert_eq!(buffers.join(owner(1), 8), stranger);
        let held = buffers.allocate(stranger, request(0, 0), BLOCK).unwrap();
        let stays = buffers.allocate(stranger, request(1, 0), BLOCK).unwrap();
        assert!(buffers.allocate(stranger, request(0, 1), BLOCK).is_none());
        assert!(buffers.allocate(stranger, request(1, 1), BLOCK).is_none());
        let to = buffers.transfer(stranger, owner(2), request(0, 0), 8, BLOCK.into());
        assert_eq!(to, named);
        let granted = [buffers.grant(), buffers.grant()].map(|granted| granted.unwrap().0);
        assert_eq!(granted, [request(1, 1), request(0, 1)]);
        buffers.release(named, held);
        buffers.release(stranger, stays);
        assert!(buffers.grant().is_none());
    }
}
