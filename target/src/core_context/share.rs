//! Shares of a buffer pool: the accounts that use it, and the requests that wait for a buffer.
//!
//! A party is an IP address, or a user of this machine whose processes share memory with the
//! target. It may hold at most as many bytes as are then left free, so that ten parties that hold
//! their maximum leave a part for an eleventh. A party may hold everything if no other party holds
//! or waits for anything, except what is kept for newcomers: the progress block (see below), and
//! every eighth of the other blocks. Host NQNs, and processes of a user, divide their party's part
//! by the same rule, so inventing names gains nothing. A request beyond that waits in its account's
//! line, where small requests pass large ones (see `RequestLine`).
//!
//! One block, the progress block, is set aside for requests that would otherwise wait for ever: a
//! large request beside many small ones finds no room, and other accounts may hold so much that an
//! account gets no first buffer. It is lent to one request at a time, strictly in turn: first to
//! accounts that hold nothing, then to those that hold less than their first request needs; of
//! these first by party, then by name. So a request is granted after at most `(ahead + 1) * (1 +
//! parties * names)` rounds. A round begins when no waiting request can get a buffer, and lasts
//! until every buffer held at that time was returned; `ahead` counts the requests before it in its
//! account's line, `parties` those that have accounts, and `names` the accounts of its own. An
//! account that opens later is later in turn. While the account holds nothing, the block is lent to
//! others at most `parties * names - 1` times.
//!
//! A buffer that storage still uses after its connection has ended is returned when storage has
//! finished, which may be never. It counts for the party, but no request of the account waits for
//! it.

use std::collections::VecDeque;

use nvme_proto::HostNqn;
use slab::Slab;

use super::events::{BufferEvent, BufferEvents};
use crate::core_context::pool::{Buffer, Pool};
use crate::core_context::request_key::RequestKey;
use crate::deliberate_bugs::{self, Bug};
use crate::limits::peer::{Party, PeerOrigin};
use crate::metrics::snapshot::PoolStats;

mod request_line;

use request_line::{RequestLine, Waiting};

/// One of this many blocks, the progress block not counted, is kept for parties that hold nothing
/// yet. A lone host gets 88 of 100 blocks.
const BLOCKS_FOR_ONE_KEPT: u64 = 8;

/// Name of the host that an account belongs to.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each host, and it is seldom looked at"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccountName {
    /// No host has sent its NQN: Connect has not succeeded.
    Unsaid,
    /// NQN that a host sent, which may be another host's.
    Said(HostNqn),
}

/// Index of an account in a [`Share`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AccountKey(usize);

/// A pool, the accounts that use it, and their waiting requests.
pub(super) struct Share {
    pool: Pool,
    progress: ProgressBlock,
    parties: Slab<PartyAccounts>,
    accounts: Slab<NameAccount>,
    /// Accounts with waiting requests, each once, the longest unserved first.
    turns: VecDeque<usize>,
    /// Latest turn number. Each loan of the progress block and each new account gets the next one.
    last_turn: u64,
    waits: u64,
    /// Highest value of [`Share::used_bytes`] so far.
    peak_bytes: u64,
    events: BufferEvents,
}

/// Block set aside for requests that would otherwise wait for ever, lent in turn.
struct ProgressBlock {
    /// The block while it is not lent.
    idle: Option<Buffer>,
    /// First unit of the block, to recognise it when it is returned.
    place: u32,
}

/// Sums over the accounts of one party (an IP address, or a user of this machine).
struct PartyAccounts {
    party: Party,
    accounts: usize,
    held_bytes: u64,
    /// Number of the turn in which it last got the progress block, or in which it was added.
    last_turn: u64,
}

/// Account of one host NQN at one IP address or process, for the buffers of its connections.
struct NameAccount {
    /// Index of its party in [`Share::parties`].
    of: usize,
    origin: PeerOrigin,
    name: AccountName,
    connections: usize,
    requests: usize,
    /// Bytes of buffers that it holds, those of ended connections not included.
    held_bytes: u64,
    waiting: RequestLine,
    /// Whether it is in `turns`.
    in_line: bool,
    /// Number of the turn in which it last got the progress block, or in which it was added.
    last_turn: u64,
}

impl Share {
    /// Creates a share of a pool without allocated buffers.
    pub(super) fn new(mut pool: Pool) -> Self {
        let block = pool.allocate(pool.block_bytes() as u32).expect("a pool has a block");
        let progress = ProgressBlock { place: block.unit(), idle: Some(block) };
        let (parties, accounts, turns) = (Slab::new(), Slab::new(), VecDeque::new());
        let events = BufferEvents::default();
        let (last_turn, waits, peak_bytes) = (0, 0, 0);
        Self { pool, progress, parties, accounts, turns, last_turn, waits, peak_bytes, events }
    }

    /// Adds a connection with at most `requests` concurrent requests to its account, which is
    /// opened if needed.
    pub(super) fn join(
        &mut self,
        origin: PeerOrigin,
        name: AccountName,
        requests: usize,
    ) -> AccountKey {
        let is_it = |account: &NameAccount| account.name == name && account.origin == origin;
        let found = self.accounts.iter().find(|(_, account)| is_it(account));
        let key = found.map(|(key, _)| key).unwrap_or_else(|| self.open(origin, name));
        let account = &mut self.accounts[key];
        account.connections += 1;
        account.requests += requests;
        account.waiting.reserve(account.requests);
        AccountKey(key)
    }

    /// Opens an account. Its turn for the progress block comes after that of every existing
    /// account.
    fn open(&mut self, origin: PeerOrigin, name: AccountName) -> usize {
        self.last_turn += 1;
        let last_turn = self.last_turn;
        let party = origin.party();
        let found = self.parties.iter().find(|(_, accounts)| accounts.party == party);
        let of = found.map(|(key, _)| key).unwrap_or_else(|| {
            self.parties.insert(PartyAccounts { party, accounts: 0, held_bytes: 0, last_turn })
        });
        self.parties[of].accounts += 1;
        self.turns.reserve((self.accounts.len() + 1).saturating_sub(self.turns.len()));
        let account = self.accounts.insert(NameAccount {
            of,
            origin,
            name,
            connections: 0,
            requests: 0,
            held_bytes: 0,
            waiting: RequestLine::new(self.pool.block_bytes()),
            in_line: false,
            last_turn,
        });
        self.events.push(|| BufferEvent::Opened { account, party });
        account
    }

    /// Removes a connection that has neither buffers nor waiting requests.
    pub(super) fn part(&mut self, key: AccountKey, requests: usize) {
        let account = &mut self.accounts[key.0];
        account.connections -= 1;
        account.requests -= requests;
        if account.connections > 0 {
            return;
        }
        let account = self.accounts.remove(key.0);
        self.events.push(|| BufferEvent::Closed { account: key.0 });
        debug_assert!(account.waiting.is_empty() && account.held_bytes == 0);
        if account.in_line {
            self.turns.retain(|turn| *turn != key.0);
        }
        self.parties[account.of].accounts -= 1;
        if self.parties[account.of].accounts == 0 {
            self.parties.remove(account.of);
        }
    }

    /// Allocates a buffer for a request. `None`: the request waits for [`Share::grant`], as every
    /// request does while another waits.
    pub(super) fn allocate(
        &mut self,
        key: AccountKey,
        whose: RequestKey,
        length: u32,
    ) -> Option<Buffer> {
        let overtakes = deliberate_bugs::has(Bug::BypassLine);
        if (self.turns.is_empty() || overtakes)
            && self.may_hold(key.0, length, self.is_alone(self.accounts[key.0].of))
            && let Some(buffer) = self.pool.allocate(length)
        {
            self.charge(key.0, whose, &buffer);
            return Some(buffer);
        }
        self.waits += 1;
        let bytes = Pool::bytes_for(length);
        self.events.push(|| BufferEvent::LinedUp { account: key.0, whose, bytes });
        self.accounts[key.0].waiting.push(whose, length);
        self.line_up(key.0);
        None
    }

    /// Allocates a buffer for the next waiting request; `None` if none can get one now.
    pub(super) fn grant(&mut self) -> Option<(RequestKey, Buffer)> {
        let first = self.turns.front().map(|&key| self.accounts[key].of);
        let alone = first.is_some_and(|of| self.is_alone(of));
        for at in 0..self.turns.len() {
            let key = self.turns[at];
            if let Some((next, buffer)) = self.fitting(key, alone) {
                self.turns.remove(at);
                return Some(self.hand_out(key, next, buffer));
            }
        }
        let lent = self.lend_progress_block();
        if lent.is_none() {
            self.events.push(|| BufferEvent::NoGrant);
        }
        lent
    }

    /// Allocates a buffer for a waiting request of an account; `None` if none can get one now.
    fn fitting(&mut self, key: usize, alone: bool) -> Option<(Waiting, Buffer)> {
        let waiting = &self.accounts[key].waiting;
        [waiting.passing(), waiting.first()].into_iter().flatten().find_map(|next| {
            let may = self.may_hold(key, next.length, alone);
            let buffer = if may { self.pool.allocate(next.length) } else { None };
            buffer.map(|buffer| (next, buffer))
        })
    }

    /// Lends the progress block to the account that is next in turn.
    fn lend_progress_block(&mut self) -> Option<(RequestKey, Buffer)> {
        if self.turns.is_empty() || deliberate_bugs::has(Bug::KeepProgressBlock) {
            return None;
        }
        let block = self.progress.idle.take()?;
        // An account that holds as much as its first request needs waits until some of that is
        // returned. An account that holds less may hold it for long, such as a small buffer of an
        // idle connection. Requests that passed its first one do not count.
        let lacks = |key: &usize| {
            let account = &self.accounts[*key];
            let wanted = account.waiting.first().map_or(0, |first| first.bytes());
            let skipped = deliberate_bugs::has(Bug::SkipEmptyAccounts) && account.held_bytes == 0;
            account.held_before_passing() < wanted && !skipped
        };
        let next = self.turns.iter().copied().filter(lacks).min_by_key(|&key| {
            let account = &self.accounts[key];
            let has_some = account.held_before_passing() > 0;
            (has_some, self.parties[account.of].last_turn, account.last_turn)
        });
        let Some(key) = next else {
            self.progress.idle = Some(block);
            return None;
        };
        let account = &mut self.accounts[key];
        if !deliberate_bugs::has(Bug::LendOutOfTurn) {
            self.last_turn += 1;
            account.last_turn = self.last_turn;
            self.parties[account.of].last_turn = self.last_turn;
        }
        let first = account.waiting.first().expect("it is in line");
        self.turns.retain(|turn| *turn != key);
        Some(self.hand_out(key, first, block.of_length(first.length)))
    }

    /// Removes a request from its account's line, and charges the buffer that it gets.
    fn hand_out(&mut self, key: usize, next: Waiting, buffer: Buffer) -> (RequestKey, Buffer) {
        let account = &mut self.accounts[key];
        account.in_line = false;
        account.waiting.take(&next);
        self.charge(key, next.whose, &buffer);
        self.line_up(key);
        (next.whose, buffer)
    }

    /// Whether no party but `of` holds a buffer or waits for one.
    fn is_alone(&self, of: usize) -> bool {
        self.used_bytes() == self.parties[of].held_bytes
            && self.turns.iter().all(|&key| self.accounts[key].of == of)
    }

    /// Whether an account may hold a buffer of `length` more bytes: its party stays within its
    /// part, and the account leaves as much of that part as it holds. Allowed in any case while no
    /// buffer is in use.
    fn may_hold(&self, key: usize, length: u32, alone: bool) -> bool {
        let (account, free_bytes) = (&self.accounts[key], self.pool.free_bytes());
        let party = &self.parties[account.of];
        let more_bytes = Pool::bytes_for(length);
        let room_bytes = match alone {
            true => free_bytes.saturating_sub(self.kept_bytes()),
            false => free_bytes.saturating_sub(party.held_bytes) / 2,
        };
        let account_may = party.accounts == 1 || account.held_bytes + 2 * more_bytes <= room_bytes;
        (more_bytes <= room_bytes && account_may) || free_bytes == self.ordinary_bytes()
    }

    /// Bytes kept for parties that hold nothing yet, in addition to the progress block.
    fn kept_bytes(&self) -> u64 {
        let block_bytes = self.pool.block_bytes() as u64;
        self.ordinary_bytes() / block_bytes / BLOCKS_FOR_ONE_KEPT * block_bytes
    }

    /// Bytes of all blocks except the progress block.
    fn ordinary_bytes(&self) -> u64 {
        self.pool.total_bytes() - self.pool.block_bytes() as u64
    }

    fn charge(&mut self, key: usize, whose: RequestKey, buffer: &Buffer) {
        let account = &mut self.accounts[key];
        account.held_bytes += buffer.bytes();
        self.parties[account.of].held_bytes += buffer.bytes();
        self.peak_bytes = self.peak_bytes.max(self.used_bytes());
        self.events.push(|| BufferEvent::Granted {
            account: key,
            whose,
            address: self.pool.address(buffer).addr(),
            bytes: buffer.bytes(),
            progress: buffer.unit() == self.progress.place,
        });
    }

    /// Marks a buffer that storage still uses after its connection has ended. From now on it counts
    /// for the party only, and the account's turn does not wait for its return.
    pub(super) fn orphan(&mut self, key: AccountKey, buffer: &Buffer) {
        self.accounts[key.0].held_bytes -= buffer.bytes();
        let address = self.pool.address(buffer).addr();
        self.events.push(|| BufferEvent::Orphaned { address });
    }

    pub(super) fn release(&mut self, key: AccountKey, buffer: Buffer) {
        self.accounts[key.0].held_bytes -= buffer.bytes();
        self.release_orphan(key, buffer);
    }

    /// Returns a buffer marked with [`Share::orphan`] to the pool.
    pub(super) fn release_orphan(&mut self, key: AccountKey, buffer: Buffer) {
        let address = self.pool.address(&buffer).addr();
        self.events.push(|| BufferEvent::Returned { address });
        self.parties[self.accounts[key.0].of].held_bytes -= buffer.bytes();
        if buffer.unit() == self.progress.place {
            self.progress.idle = Some(buffer);
        } else {
            self.pool.release(buffer);
        }
    }

    /// Whether a request waits for a buffer.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Ends the wait of a request for a buffer. No effect if it does not wait.
    pub(super) fn leave(&mut self, key: AccountKey, whose: RequestKey) {
        if self.accounts[key.0].waiting.leave(whose) {
            self.events.push(|| BufferEvent::Left { account: key.0, whose });
            self.line_up(key.0);
        }
    }

    /// Removes all waiting requests of a connection, in one pass.
    pub(super) fn leave_all(&mut self, key: AccountKey, connection: RequestKey) {
        let waiting = &mut self.accounts[key.0].waiting;
        let events = &mut self.events;
        waiting.leave_all(connection, |whose| {
            events.push(|| BufferEvent::Left { account: key.0, whose });
        });
        self.line_up(key.0);
    }

    /// Adds an account to `turns` if it has waiting requests, and removes it if it has none.
    fn line_up(&mut self, key: usize) {
        let account = &mut self.accounts[key];
        let waits = !account.waiting.is_empty();
        if std::mem::replace(&mut account.in_line, waits) == waits {
            return;
        }
        match waits {
            true => self.turns.push_back(key),
            false => self.turns.retain(|turn| *turn != key),
        }
    }

    /// Pool that the accounts share.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Bytes of buffers in use, the whole progress block included.
    pub(super) fn used_bytes(&self) -> u64 {
        let block = self.progress.idle.as_ref().map_or(0, Buffer::bytes);
        self.pool.total_bytes() - self.pool.free_bytes() - block
    }

    /// Size and use of the pool.
    pub(super) fn stats(&self) -> PoolStats {
        PoolStats {
            bytes: self.pool.total_bytes(),
            used_bytes: self.used_bytes(),
            peak_bytes: self.peak_bytes,
            waiting: self.accounts.iter().map(|(_, account)| account.waiting.len() as u64).sum(),
            waits: self.waits,
        }
    }

    /// Events since the last call; see [`BufferEvents::take`].
    pub(super) fn take_events(&mut self) -> Vec<BufferEvent> {
        self.events.take()
    }

    /// Records [`BufferEvent::Rested`], for the simulator.
    pub(super) fn note_rest(&mut self) {
        self.events.push(|| BufferEvent::Rested);
    }
}

impl NameAccount {
    /// Bytes that it holds, except those of requests that passed the first waiting one.
    fn held_before_passing(&self) -> u64 {
        self.held_bytes.saturating_sub(self.waiting.passed_bytes())
    }
}

#[cfg(test)]
mod tests;
