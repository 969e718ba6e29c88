//! Whether every request gets its buffer as soon as the target says.
//!
//! The target promises the first request of each account a buffer within `1 + addresses * names`
//! rounds. Each round lasts until all buffers are back that were held when it began; `addresses`
//! are all that are connected, and `names` the accounts of its own. All requests of an account have
//! their buffers in order. While the account holds nothing, the progress block is lent to others at
//! most `addresses * names - 1` times. Connections that come later are last in turn, so those count
//! that are there when a request becomes the first of its account.
//!
//! A read that storage never ends keeps its buffer. So hung buffers are no part of a round, and two
//! kinds of requests are waited for without limit:
//! * those of an account with a live connection that has a hung buffer: one that holds as much as
//!   it asks for is to wait for that, and one that holds less comes behind those that hold nothing;
//! * all of a core whose progress block hangs, since the bound depends on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use feedrail_target::testing::RequestKey;
use feedrail_target::testing::{BufferEvent, Party};

/// One pool of a core, hosts' or anonymous connections', and the line before it.
#[derive(Debug, Default)]
pub(super) struct Line {
    accounts: BTreeMap<usize, Account>,
    /// Granted buffers by the number of their grant.
    held: BTreeMap<u64, Held>,
    /// Number of grants until now.
    grants: u64,
    /// True if the target has checked, since the last change, which requests can be given a buffer.
    settled: bool,
    stats: LineStats,
}

/// Counts of requests that waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineStats {
    /// Requests that stood in line.
    pub(super) waits: u64,
    /// Requests that waited for more than a round as the first of their account.
    pub(super) long_waits: u64,
    /// Requests that saw the progress block lent to others before them.
    pub(super) overtaken: u64,
    /// Requests that did not count when they should have been given a buffer, since one hung.
    pub(super) excused: u64,
}

#[derive(Debug)]
struct Account {
    party: Party,
    /// Requests and the bytes that they ask for.
    waiting: VecDeque<(RequestKey, u64)>,
    /// Bytes of those that passed the first.
    passed_bytes: u64,
    /// Wait of the first request.
    wait: Wait,
}

/// The wait of the first request of an account.
#[derive(Clone, Copy, Debug, Default)]
struct Wait {
    /// Rounds that have passed since it began.
    rounds: usize,
    /// Loans of the progress block to others, while the account held nothing.
    lendings: usize,
    /// The most lendings that may come before, its own included.
    turns: usize,
    /// Grants before this round. It begins when the target has granted all that it can.
    round_began: Option<u64>,
}

#[derive(Debug)]
struct Held {
    account: usize,
    address: usize,
    bytes: u64,
    progress: bool,
    /// True once the connection has ended.
    orphaned: bool,
}

impl Held {
    fn hangs(&self, hung: &[usize]) -> bool {
        hung.iter().any(|at| (self.address..self.address + self.bytes as usize).contains(at))
    }
}

impl std::ops::AddAssign for LineStats {
    fn add_assign(&mut self, other: Self) {
        let Self { waits, long_waits, overtaken, excused } = other;
        self.waits += waits;
        self.long_waits += long_waits;
        self.overtaken += overtaken;
        self.excused += excused;
    }
}

impl Line {
    pub(super) fn stats(&self) -> LineStats {
        self.stats
    }

    /// Something happened. Reads into memory at the addresses of `hung` never end.
    ///
    /// # Panics
    /// When a request starves, or is overtaken.
    pub(super) fn follow(&mut self, event: BufferEvent, hung: &[usize]) {
        let looked = matches!(event, BufferEvent::NoGrant | BufferEvent::Granted { .. });
        self.settled = looked || (self.settled && event == BufferEvent::Rested);
        match event {
            BufferEvent::Opened { account, party } => {
                let new = Account {
                    party,
                    waiting: VecDeque::new(),
                    passed_bytes: 0,
                    wait: Wait::default(),
                };
                assert!(self.accounts.insert(account, new).is_none(), "a number is used twice");
            }
            BufferEvent::Closed { account } => {
                let closed = self.accounts.remove(&account).expect("it was opened");
                assert!(closed.waiting.is_empty(), "a closed account waits");
                let mut held = self.held.values();
                assert!(held.all(|held| held.account != account), "a closed account holds buffers");
            }
            BufferEvent::LinedUp { account, whose, bytes } => {
                self.stats.waits += 1;
                let waiting = &mut self.account(account).waiting;
                waiting.push_back((whose, bytes));
                if waiting.len() == 1 {
                    self.begin_wait(account);
                }
            }
            BufferEvent::Granted { account, whose, address, bytes, progress } => {
                let was_first = self.granted(account, whose);
                if progress {
                    self.lent(account);
                }
                let held = Held { account, address, bytes, progress, orphaned: false };
                self.held.insert(self.grants, held);
                self.grants += 1;
                if was_first {
                    self.begin_wait(account);
                }
            }
            BufferEvent::Left { account, whose } => {
                let waiting = &mut self.account(account).waiting;
                let at = waiting.iter().position(|(other, _)| *other == whose);
                let at = at.expect("a request that leaves a line was in it");
                waiting.remove(at);
                if at == 0 {
                    self.begin_wait(account);
                }
            }
            BufferEvent::Orphaned { address } => {
                let mut held = self.held.values_mut();
                let held = held.find(|held| held.address == address);
                held.expect("a orphaned buffer was held").orphaned = true;
            }
            BufferEvent::Returned { address } => self.returned(address, hung),
            BufferEvent::NoGrant => {
                self.check(hung);
                let grants = self.grants;
                let waits = self.accounts.values_mut().map(|account| &mut account.wait);
                waits.for_each(|wait| _ = wait.round_began.get_or_insert(grants));
            }
            BufferEvent::Rested => {
                let waiting = self.accounts.values().any(|account| !account.waiting.is_empty());
                assert!(self.settled || !waiting, "a core rests with {self:#?}");
            }
        }
    }

    fn account(&mut self, number: usize) -> &mut Account {
        self.accounts.get_mut(&number).expect("it was opened")
    }

    /// Another request became the first of an account, if there is one.
    fn begin_wait(&mut self, number: usize) {
        let party = self.accounts[&number].party;
        let all = self.accounts.values().map(|account| account.party);
        let names = all.clone().filter(|other| *other == party).count();
        let addresses = all.collect::<BTreeSet<_>>().len();
        let turns = addresses * names;
        let account = self.account(number);
        (account.passed_bytes, account.wait) = (0, Wait { turns, ..Wait::default() });
    }

    /// The progress block was lent to an account.
    fn lent(&mut self, to: usize) {
        for (number, account) in &mut self.accounts {
            let mut held = self.held.values();
            let holds_nothing = held.all(|held| held.account != *number || held.orphaned);
            if *number != to && holds_nothing && !account.waiting.is_empty() {
                account.wait.lendings += 1;
                let Wait { lendings, turns, .. } = account.wait;
                let whose = account.waiting.front();
                assert!(lendings < turns, "{whose:?} has no turn: {lendings} others had theirs");
            }
        }
    }

    /// A request got a buffer; returns whether it was the first of its account.
    fn granted(&mut self, number: usize, whose: RequestKey) -> bool {
        let anybody_waits = self.accounts.values().any(|account| !account.waiting.is_empty());
        let account = self.account(number);
        let Some(&(first, first_bytes)) = account.waiting.front() else {
            assert!(!anybody_waits, "{whose:?} overtakes {self:#?}");
            return true;
        };
        let at = account.waiting.iter().position(|(other, _)| *other == whose);
        let (_, bytes) = at.and_then(|at| account.waiting.remove(at)).unwrap_or((whose, u64::MAX));
        if whose != first {
            account.passed_bytes = account.passed_bytes.saturating_add(bytes);
            assert!(account.passed_bytes < first_bytes, "{whose:?} overtakes {self:#?}");
            return false;
        }
        let Wait { rounds, lendings, .. } = account.wait;
        self.stats.long_waits += u64::from(rounds > 1);
        self.stats.overtaken += u64::from(lendings > 0);
        true
    }

    fn returned(&mut self, address: usize, hung: &[usize]) {
        let mut held = self.held.iter();
        let found = held.find(|(_, held)| held.address == address);
        let (&grant, _) = found.expect("a returned buffer was held");
        self.held.remove(&grant);
        let mut held = self.held.iter().filter(|(_, held)| !held.hangs(hung));
        let oldest = held.next().map_or(self.grants, |(&grant, _)| grant);
        for wait in self.accounts.values_mut().map(|account| &mut account.wait) {
            if wait.round_began.is_some_and(|began| oldest >= began) {
                wait.rounds += 1;
                wait.round_began = None;
            }
        }
    }

    /// The target says that no request can be given a buffer: each one that waits must be allowed
    /// to wait, for a buffer that comes back.
    fn check(&mut self, hung: &[usize]) {
        if self.accounts.values().all(|account| account.waiting.is_empty()) {
            return;
        }
        let hanging = || self.held.values().filter(|held| held.hangs(hung));
        let progress_hangs = hanging().any(|held| held.progress);
        let something_comes_back = hanging().count() < self.held.len();
        let mut excused = 0;
        for (number, account) in &self.accounts {
            let Some((whose, _)) = account.waiting.front() else { continue };
            let Wait { rounds, turns, .. } = account.wait;
            if rounds < 1 + turns && something_comes_back {
                continue;
            }
            let mut own = hanging().filter(|held| held.account == *number);
            if progress_hangs || own.any(|held| !held.orphaned) {
                excused += 1;
                continue;
            }
            panic!("{whose:?} starves: it waited {rounds} rounds, {turns} have turns: {self:#?}");
        }
        self.stats.excused += excused;
    }
}

#[cfg(test)]
mod tests {
    use feedrail_target::testing::{OperationOwner, SlotId};

    use super::*;

    const BYTES: u64 = 4096;

    /// A line before a pool of buffers that lie at their numbers, with an account for each address.
    fn line(accounts: u8) -> Line {
        let mut line = Line::default();
        for number in 0..accounts {
            let party = Party::Address([10, 0, 0, number].into());
            line.follow(BufferEvent::Opened { account: number.into(), party }, &[]);
        }
        line
    }

    fn request(slot: u32) -> RequestKey {
        let owner = OperationOwner::Slot(SlotId(slot));
        RequestKey { transport: 0, connection: 0, owner }
    }

    fn granted(account: usize, slot: u32, address: usize) -> BufferEvent {
        let (whose, address) = (request(slot), address * BYTES as usize);
        BufferEvent::Granted { account, whose, address, bytes: BYTES, progress: address == 0 }
    }

    fn returned(address: usize) -> BufferEvent {
        BufferEvent::Returned { address: address * BYTES as usize }
    }

    fn lined_up(account: usize, slot: u32) -> BufferEvent {
        BufferEvent::LinedUp { account, whose: request(slot), bytes: BYTES }
    }

    fn follow(line: &mut Line, events: &[BufferEvent], hung: &[usize]) {
        events.iter().for_each(|event| line.follow(*event, hung));
    }

    /// One waits, while another gets its buffers again and again, `rounds` times.
    fn one_waits(line: &mut Line, rounds: u32, hung: &[usize]) {
        follow(line, &[granted(0, 0, 1), lined_up(1, 0), BufferEvent::NoGrant], hung);
        for slot in 1..=rounds {
            let others = [lined_up(0, slot), returned(1), granted(0, slot, 1)];
            follow(line, &others, hung);
            line.follow(BufferEvent::NoGrant, hung);
        }
    }

    #[test]
    fn two_accounts_wait_for_three_rounds_at_most() {
        let mut line = line(2);
        one_waits(&mut line, 2, &[]);
        follow(&mut line, &[returned(1), granted(1, 0, 1), BufferEvent::NoGrant], &[]);
        assert_eq!(line.stats(), LineStats { waits: 3, long_waits: 1, ..LineStats::default() });
    }

    #[test]
    #[should_panic(expected = "starves: it waited 3 rounds, 2 have turns")]
    fn waiting_beyond_the_bound_is_starvation() {
        one_waits(&mut line(2), 3, &[]);
    }

    #[test]
    #[should_panic(expected = "starves: it waited 0 rounds")]
    fn waiting_without_held_buffers_is_starvation() {
        follow(&mut line(1), &[lined_up(0, 0), BufferEvent::NoGrant], &[]);
    }

    #[test]
    #[should_panic(expected = "overtakes")]
    fn requests_of_an_account_are_served_in_order() {
        follow(&mut line(1), &[lined_up(0, 0), lined_up(0, 1), granted(0, 1, 1)], &[]);
    }

    /// A large request waits; `count` small ones pass it.
    fn small_requests_pass(count: u32) {
        let mut line = line(1);
        let large = BufferEvent::LinedUp { account: 0, whose: request(0), bytes: 4 * BYTES };
        follow(&mut line, &[large], &[]);
        for slot in 1..=count {
            follow(&mut line, &[lined_up(0, slot), granted(0, slot, slot as usize)], &[]);
        }
    }

    #[test]
    fn small_requests_may_pass_a_large_one() {
        small_requests_pass(3);
    }

    #[test]
    #[should_panic(expected = "overtakes")]
    fn as_many_bytes_as_are_asked_for_may_not_pass() {
        small_requests_pass(4);
    }

    #[test]
    #[should_panic(expected = "overtakes")]
    fn later_requests_are_behind_waiting_ones() {
        follow(&mut line(2), &[lined_up(0, 0), granted(1, 1, 1)], &[]);
    }

    #[test]
    #[should_panic(expected = "has no turn")]
    fn the_progress_block_is_lent_in_turn() {
        let mut line = line(2);
        follow(&mut line, &[lined_up(1, 0), lined_up(0, 1), granted(0, 1, 0)], &[]);
        follow(&mut line, &[returned(0), lined_up(0, 2), granted(0, 2, 0)], &[]);
    }

    #[test]
    #[should_panic(expected = "rests")]
    fn a_core_rests_only_after_settling() {
        let mut line = line(2);
        one_waits(&mut line, 0, &[]);
        follow(&mut line, &[BufferEvent::Rested, returned(1), BufferEvent::Rested], &[]);
    }

    /// Account 1 has a buffer at address 8 that hangs.
    fn one_hangs(orphaned: bool, hung: &[usize]) -> Line {
        let mut line = line(2);
        line.follow(granted(1, 99, 8), hung);
        if orphaned {
            line.follow(BufferEvent::Orphaned { address: 8 * BYTES as usize }, hung);
        }
        one_waits(&mut line, 8, hung);
        line
    }

    #[test]
    fn a_hung_buffer_excuses_its_account() {
        assert_eq!(one_hangs(false, &[8 * BYTES as usize]).stats().excused, 6);
    }

    #[test]
    fn a_slow_buffer_prolongs_the_round() {
        assert_eq!(one_hangs(false, &[]).stats().excused, 0);
    }

    #[test]
    #[should_panic(expected = "starves")]
    fn left_behind_buffers_excuse_no_account() {
        one_hangs(true, &[8 * BYTES as usize]);
    }

    #[test]
    fn a_progress_block_that_hangs_excuses_all() {
        let mut line = line(2);
        line.follow(granted(0, 99, 0), &[0]);
        one_waits(&mut line, 8, &[0]);
        assert_eq!(line.stats().excused, 6);
    }
}
