//! Lines of waiting commands, found by quota, party and direction.

use std::sync::Arc;

use slab::Slab;

use crate::qos::{Quota, TollDirection};

/// Quota, party and direction of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LineName {
    /// Address of the quota.
    quota: usize,
    party: usize,
    direction: TollDirection,
}

impl LineName {
    pub(super) fn new(quota: &Arc<Quota>, party: usize, direction: TollDirection) -> Self {
        Self { quota: Arc::as_ptr(quota).addr(), party, direction }
    }

    /// Number that differs for most names.
    fn mixed(self) -> usize {
        // The factor of Fibonacci hashing. The low bits of an address say little.
        const FACTOR: usize = 0x9E37_79B9_7F4A_7C15;
        let sum = (self.quota >> 4) ^ self.party.wrapping_mul(FACTOR) ^ self.direction as usize;
        sum.wrapping_mul(FACTOR) >> 32
    }
}

/// Line of one or more waiting commands.
#[derive(Debug)]
pub(super) struct Line {
    name: LineName,
    pub(super) quota: Arc<Quota>,
    pub(super) first: Option<usize>,
    pub(super) last: Option<usize>,
    /// Ticket of the first command.
    pub(super) ticket: u64,
    /// `Quota::changes` of the ticket.
    pub(super) changes: u32,
    /// Next line in its chain.
    following: Option<usize>,
}

/// All lines of a core, in a hash table that does not grow between reservations.
#[derive(Debug, Default)]
pub(super) struct Lines {
    lines: Slab<Line>,
    /// First line of each chain; a power of two of them.
    chains: Vec<Option<usize>>,
}

impl Lines {
    /// Reserves memory for this many lines.
    pub(super) fn reserve(&mut self, lines: usize) {
        self.lines.reserve(lines.saturating_sub(self.lines.len()));
        let chains = lines.next_power_of_two();
        if chains > self.chains.len() {
            self.chains.clear();
            self.chains.resize(chains, None);
            for key in 0..self.lines.capacity() {
                if self.lines.contains(key) {
                    self.link(key);
                }
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Number above the keys of all lines.
    pub(super) fn capacity(&self) -> usize {
        self.lines.capacity()
    }

    pub(super) fn try_get(&self, key: usize) -> Option<&Line> {
        self.lines.get(key)
    }

    /// Returns a line, which must exist.
    pub(super) fn get(&self, key: usize) -> &Line {
        &self.lines[key]
    }

    /// Returns a line, which must exist.
    pub(super) fn get_mut(&mut self, key: usize) -> &mut Line {
        &mut self.lines[key]
    }

    pub(super) fn find(&self, name: LineName) -> Option<usize> {
        let mut at = *self.chains.get(self.chain(name))?;
        while let Some(key) = at {
            let line = &self.lines[key];
            if line.name == name {
                return Some(key);
            }
            at = line.following;
        }
        None
    }

    /// Opens a line without commands, which has no turn yet.
    pub(super) fn open(&mut self, name: LineName, quota: Arc<Quota>) -> usize {
        if self.chains.is_empty() {
            self.reserve(1);
        }
        let (first, last, following) = (None, None, None);
        let line = Line { name, quota, first, last, ticket: 0, changes: 0, following };
        let key = self.lines.insert(line);
        self.link(key);
        key
    }

    pub(super) fn close(&mut self, key: usize) {
        let Line { name, following, .. } = self.lines.remove(key);
        let chain = self.chain(name);
        let mut at = self.chains[chain];
        if at == Some(key) {
            self.chains[chain] = following;
            return;
        }
        while let Some(before) = at {
            at = self.lines[before].following;
            if at == Some(key) {
                self.lines[before].following = following;
                return;
            }
        }
    }

    fn link(&mut self, key: usize) {
        let chain = self.chain(self.lines[key].name);
        self.lines[key].following = self.chains[chain];
        self.chains[chain] = Some(key);
    }

    fn chain(&self, name: LineName) -> usize {
        name.mixed() & self.chains.len().wrapping_sub(1)
    }
}
