//! Commands of one core that wait for their quotas.
//!
//! Commands that take of the same quota wait in lines, one for each party and direction: parties of
//! a host's quota are its queues, those of a namespace's quota are its hosts. The first command of
//! a line has a ticket: it has taken its tokens, and passes when they are there. Only then does the
//! next command of the line take tokens, so that lines take turns whatever their lengths, on all
//! cores. A command waits for at most `(ahead + 1) * lines` commands, where `ahead` counts those
//! before it in its line, and `lines` those of the quota on all cores.
//!
//! Memory is reserved when connections begin, and nothing is allocated for a command.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rdma::Time;
use slab::Slab;

use super::request_key::RequestKey;
use crate::inventory::index::NamespaceIndex;
use crate::qos::{Quota, Toll, TollDirection};

/// Identity of a waiting command in its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitKey {
    at: usize,
    /// Number of the wait, since places are used again.
    number: u64,
}

/// Reason that a command waits no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitEnd {
    /// The tokens of the command are there.
    Due,
    /// [`Throttle::release`] has ended the wait, for other quotas as well.
    Released,
}

/// Command that has to pass a quota.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeteredCommand {
    pub(crate) whose: RequestKey,
    pub(crate) namespace: NamespaceIndex,
    pub(crate) toll: Toll,
}

/// Quota, party and direction of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LineName {
    /// Address of the quota.
    quota: usize,
    party: usize,
    direction: TollDirection,
}

/// Line of one or more waiting commands.
#[derive(Debug)]
struct Line {
    name: LineName,
    quota: Arc<Quota>,
    first: Option<usize>,
    last: Option<usize>,
    /// Ticket of the first command.
    ticket: u64,
    /// `Quota::changes` of the ticket.
    changes: u32,
}

/// Waiting command, in the list of its line.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    command: MeteredCommand,
    /// Number of the wait, which no other has.
    number: u64,
    since: Time,
    line: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Whether a command has used the tokens that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tokens {
    Used,
    Unused,
}

/// Tokens that the first command of a line has taken.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    /// Time from which they may be used.
    at: Time,
    /// `Quota::changes` before they were taken.
    changes: u32,
}

impl Ticket {
    fn take(quota: &Quota, now: Time, toll: Toll) -> Self {
        // Limits that are set after this make the ticket outdated.
        let changes = quota.changes();
        Self { at: quota.take(now, toll), changes }
    }
}

/// Turn of a line in [`Throttle::turns`]. It is outdated unless the line has the same ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Turn {
    at: Time,
    /// Number of the ticket, which orders tickets of one time.
    ticket: u64,
    line: usize,
}

/// Waiting commands of one core.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Whether the target has quotas, or had some.
    is_on: bool,
    waiting: Slab<Waiting>,
    lines: Slab<Line>,
    /// Places of the lines, in the order of their names. Nothing is walked in this order, since it
    /// depends on addresses.
    by_name: Vec<usize>,
    /// Turns of the lines, the earliest first, and outdated ones.
    turns: BinaryHeap<Reverse<Turn>>,
    last_ticket: u64,
    /// Number of commands that had to wait so far.
    waits: u64,
    /// Commands that wait no longer, without regard to their quotas.
    released: VecDeque<RequestKey>,
}

impl Throttle {
    /// Whether commands have to pass quotas.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// Begins to meter at most `requests` concurrent commands.
    pub(crate) fn turn_on(&mut self, requests: usize) {
        self.is_on = true;
        self.reserve(requests);
    }

    /// Reserves memory for at most `requests` concurrent commands, if commands are metered.
    pub(crate) fn reserve(&mut self, requests: usize) {
        if self.is_on {
            self.waiting.reserve(requests.saturating_sub(self.waiting.len()));
            self.lines.reserve(requests.saturating_sub(self.lines.len()));
            self.by_name.reserve(requests.saturating_sub(self.by_name.len()));
            self.turns.reserve(most_turns(requests).saturating_sub(self.turns.len()));
            self.released.reserve(requests.saturating_sub(self.released.len()));
        }
    }

    /// Takes the toll of a command; `party` is the number of the party among those of the quota.
    ///
    /// # Errors
    /// The key of the command, which has to wait for [`Throttle::next_due`].
    pub(crate) fn pass(
        &mut self,
        now: Time,
        quota: &Arc<Quota>,
        party: usize,
        command: MeteredCommand,
    ) -> Result<(), WaitKey> {
        if !quota.is_limited() {
            return Ok(());
        }
        let direction = command.toll.direction;
        let name = LineName { quota: Arc::as_ptr(quota).addr(), party, direction };
        let line = match self.find(name) {
            Ok(at) => self.by_name[at],
            Err(at) => {
                let ticket = Ticket::take(quota, now, command.toll);
                if ticket.at <= now {
                    return Ok(());
                }
                let (quota, first, last) = (Arc::clone(quota), None, None);
                let line = Line { name, quota, first, last, ticket: 0, changes: 0 };
                let line = self.lines.insert(line);
                self.by_name.insert(at, line);
                self.set_turn(line, ticket);
                line
            }
        };
        let previous = self.lines[line].last;
        self.waits += 1;
        let number = self.waits;
        let waiting = Waiting { command, number, since: now, line, previous, next: None };
        let key = self.waiting.insert(waiting);
        match previous {
            Some(previous) => self.waiting[previous].next = Some(key),
            None => self.lines[line].first = Some(key),
        }
        self.lines[line].last = Some(key);
        Err(WaitKey { at: key, number })
    }

    /// Position in `by_name` of a line, or where a new line belongs.
    fn find(&self, name: LineName) -> Result<usize, usize> {
        self.by_name.binary_search_by_key(&name, |line| self.lines[*line].name)
    }

    /// Takes out the next command that may pass now, if there is one.
    pub(crate) fn next_due(&mut self, now: Time) -> Option<(RequestKey, WaitEnd)> {
        if let Some(released) = self.released.pop_front() {
            return Some((released, WaitEnd::Released));
        }
        loop {
            let Reverse(turn) = self.turns.peek()?;
            let Turn { at, line, .. } = *turn;
            let is_valid = self.is_valid(turn);
            if at > now && is_valid {
                return None;
            }
            self.turns.pop();
            if is_valid && let Some(first) = self.lines[line].first {
                let whose = self.waiting[first].command.whose;
                self.remove(now, first, Tokens::Used);
                return Some((whose, WaitEnd::Due));
            }
        }
    }

    /// Time at which [`Throttle::next_due`] may return a command; `None` if none waits.
    pub(crate) fn deadline(&mut self) -> Option<Time> {
        if !self.released.is_empty() {
            return Some(Time::ZERO);
        }
        while let Some(Reverse(turn)) = self.turns.peek() {
            if self.is_valid(turn) {
                return Some(turn.at);
            }
            self.turns.pop();
        }
        None
    }

    /// Whether no command waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.released.is_empty()
    }

    /// Ends the wait of a command that is given up. The next one of its line has its tokens.
    pub(crate) fn leave(&mut self, now: Time, whose: RequestKey, key: WaitKey) {
        match self.is_waiting(key) {
            true => self.remove(now, key.at, Tokens::Unused),
            false => self.released.retain(|other| *other != whose),
        }
    }

    fn is_waiting(&self, key: WaitKey) -> bool {
        self.waiting.get(key.at).is_some_and(|waiting| waiting.number == key.number)
    }

    /// Ends the wait of commands for which `which` is true. They take their tokens, so that later
    /// commands wait longer.
    pub(crate) fn release(&mut self, now: Time, which: impl Fn(&MeteredCommand) -> bool) {
        let mut left = self.waiting.len();
        for at in 0..self.waiting.capacity() {
            if left == 0 {
                break;
            }
            let Some(waiting) = self.waiting.get(at) else { continue };
            left -= 1;
            if which(&waiting.command) {
                self.release_at(now, at);
            }
        }
    }

    /// Ends the wait of a command as [`Throttle::release`] does.
    pub(crate) fn release_one(&mut self, now: Time, key: WaitKey) {
        if self.is_waiting(key) {
            self.release_at(now, key.at);
        }
    }

    fn release_at(&mut self, now: Time, at: usize) {
        let Waiting { command: MeteredCommand { whose, toll, .. }, line, previous, .. } =
            self.waiting[at];
        if previous.is_some() {
            self.lines[line].quota.take(now, toll);
        }
        self.remove(now, at, Tokens::Used);
        self.released.push_back(whose);
    }

    /// Gives the lines of quotas whose limits have changed new tickets.
    pub(crate) fn follow_changes(&mut self, now: Time) {
        let mut left = self.lines.len();
        for line in 0..self.lines.capacity() {
            if left == 0 {
                break;
            }
            let Some(Line { quota, first, changes, .. }) = self.lines.get(line) else { continue };
            left -= 1;
            if let Some(first) = first
                && quota.changes() != *changes
            {
                let ticket = Ticket::take(quota, now, self.waiting[*first].command.toll);
                self.set_turn(line, ticket);
            }
        }
    }

    /// Removes a waiting command. If it was the first of its line, the next one takes tokens, or
    /// those that a command has not used; or the line ends.
    fn remove(&mut self, now: Time, key: usize, tokens: Tokens) {
        let Waiting { command, line, previous, next, since, .. } = self.waiting.remove(key);
        let Line { name, quota, first, last, .. } = &mut self.lines[line];
        quota.count_wait(now.as_nanos().saturating_sub(since.as_nanos()));
        match previous {
            Some(previous) => self.waiting[previous].next = next,
            None => *first = next,
        }
        match next {
            Some(next) => self.waiting[next].previous = previous,
            None => *last = previous,
        }
        match (previous, next) {
            (None, None) => {
                let name = *name;
                if let Ok(at) = self.find(name) {
                    self.by_name.remove(at);
                }
                self.lines.remove(line);
            }
            (None, Some(next)) => {
                let toll = self.waiting[next].command.toll;
                match tokens {
                    Tokens::Used => {
                        let ticket = Ticket::take(quota, now, toll);
                        self.set_turn(line, ticket);
                    }
                    Tokens::Unused => quota.take_more(now, command.toll, toll),
                }
            }
            (Some(_), _) => {}
        }
    }

    /// Gives a line its next turn, in place of an earlier one.
    fn set_turn(&mut self, line: usize, Ticket { at, changes }: Ticket) {
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let of = &mut self.lines[line];
        (of.ticket, of.changes) = (ticket, changes);
        if self.turns.len() >= most_turns(self.lines.len()) {
            let lines = &self.lines;
            self.turns.retain(|Reverse(turn)| is_valid_in(lines, turn));
        }
        self.turns.push(Reverse(Turn { at, ticket, line }));
    }

    fn is_valid(&self, turn: &Turn) -> bool {
        is_valid_in(&self.lines, turn)
    }
}

fn is_valid_in(lines: &Slab<Line>, turn: &Turn) -> bool {
    lines.get(turn.line).is_some_and(|line| line.ticket == turn.ticket)
}

/// Most turns that are kept for this many lines, outdated ones included.
fn most_turns(lines: usize) -> usize {
    2 * lines + 16
}
