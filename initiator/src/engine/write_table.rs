//! Writes of a host by namespace, over all of its controllers: those in progress, and those of
//! ended associations that may still be executed.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use nvme_proto::{Nqn, Nsid};

use crate::engine::arena::{Arena, WrittenNamespace};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteKey {
    namespace: WrittenNamespace,
    number: u64,
}

/// Key of the fence of an ended association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FenceKey(u64);

/// Change that a command may still make that was in flight when its association ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnansweredChange {
    /// Only these blocks of a namespace.
    Blocks(Nsid, Range<u64>),
    /// Any block of a namespace.
    Namespace(Nsid),
    /// Any block of any namespace of the subsystem.
    Subsystem,
}

/// Writes of all engines of a host.
#[derive(Debug, Default)]
pub(crate) struct WriteTable {
    namespaces: Arena<WrittenNamespace, NamespaceWrites>,
    numbers: BTreeMap<(Nqn, Nsid), WrittenNamespace>,
    unanswered: Vec<FencedCommand>,
    /// Last number that was used for a write or a fence.
    given: u64,
    waits_for_fence: bool,
    /// Whether waiting operations can be tried again.
    released: bool,
}

#[derive(Debug)]
struct NamespaceWrites {
    nqn: Nqn,
    nsid: Nsid,
    /// Number of controllers that have opened it.
    holders: usize,
    active: Vec<ActiveWrite>,
    /// Whether another write waits for one of those.
    is_awaited: bool,
}

/// Blocks of a write in progress.
#[derive(Debug)]
struct ActiveWrite {
    number: u64,
    blocks: Range<u64>,
    aligned: bool,
}

#[derive(Debug)]
struct FencedCommand {
    fence: FenceKey,
    nqn: Nqn,
    change: UnansweredChange,
}

impl WriteTable {
    /// Returns the key of a namespace, which each controller that opens it must close.
    pub(crate) fn open(&mut self, nqn: Nqn, nsid: Nsid) -> WrittenNamespace {
        let namespaces = &mut self.namespaces;
        let known = *self.numbers.entry((nqn, nsid)).or_insert_with(|| {
            let (active, is_awaited) = (Vec::new(), false);
            let new = NamespaceWrites { nqn, nsid, holders: 0, active, is_awaited };
            namespaces.insert(new)
        });
        namespaces[known].holders += 1;
        known
    }

    pub(crate) fn close(&mut self, namespace: WrittenNamespace) {
        let writes = &mut self.namespaces[namespace];
        writes.holders -= 1;
        if writes.holders == 0 {
            let NamespaceWrites { nqn, nsid, .. } = self.namespaces.remove(namespace);
            self.numbers.remove(&(nqn, nsid));
        }
    }

    /// Starts a write. `None` if it must wait for a write in progress that shares a block with it;
    /// two writes of whole blocks need not wait for each other.
    pub(crate) fn begin(
        &mut self,
        namespace: WrittenNamespace,
        blocks: Range<u64>,
        aligned: bool,
    ) -> Option<WriteKey> {
        let writes = &mut self.namespaces[namespace];
        let is_apart =
            |other: &ActiveWrite| !overlap(&other.blocks, &blocks) || (aligned && other.aligned);
        if !writes.active.iter().all(is_apart) {
            writes.is_awaited = true;
            return None;
        }
        self.given += 1;
        writes.active.push(ActiveWrite { number: self.given, blocks, aligned });
        Some(WriteKey { namespace, number: self.given })
    }

    /// Ends a write, for which others may wait.
    pub(crate) fn end(&mut self, WriteKey { namespace, number }: WriteKey) {
        let Some(writes) = self.namespaces.get_mut(namespace) else { return };
        writes.active.retain(|write| write.number != number);
        self.released |= mem::take(&mut writes.is_awaited);
    }

    /// Adds a fence for an association that ended with these commands in flight.
    pub(crate) fn put_up(&mut self, nqn: Nqn, changes: Vec<UnansweredChange>) -> FenceKey {
        self.given += 1;
        let fence = FenceKey(self.given);
        self.unanswered.extend(changes.into_iter().map(|change| FencedCommand {
            fence,
            nqn,
            change,
        }));
        fence
    }

    /// Removes a fence, since its commands will not be executed.
    pub(crate) fn take_down(&mut self, fence: FenceKey) {
        self.unanswered.retain(|unanswered| unanswered.fence != fence);
        self.released |= mem::take(&mut self.waits_for_fence);
    }

    /// Returns whether a command behind a fence may still change one of these blocks. The caller
    /// must wait then.
    pub(crate) fn is_fenced(&mut self, namespace: WrittenNamespace, blocks: &Range<u64>) -> bool {
        if self.unanswered.is_empty() {
            return false;
        }
        let NamespaceWrites { nqn, nsid, .. } = self.namespaces[namespace];
        let reaches = |unanswered: &FencedCommand| {
            let is_within = match &unanswered.change {
                UnansweredChange::Blocks(of, old) => *of == nsid && overlap(old, blocks),
                UnansweredChange::Namespace(of) => *of == nsid,
                UnansweredChange::Subsystem => true,
            };
            is_within && unanswered.nqn == nqn
        };
        let is_fenced = self.unanswered.iter().any(reaches);
        self.waits_for_fence |= is_fenced;
        is_fenced
    }

    /// Returns whether waiting operations can be tried again, since the last call.
    pub(crate) fn take_released(&mut self) -> bool {
        mem::take(&mut self.released)
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        name.parse().unwrap()
    }

    fn one() -> (WriteTable, WrittenNamespace) {
        let mut table = WriteTable::default();
        let namespace = table.open(nqn("nqn.2014-08.org.example:one"), Nsid(1));
        (table, namespace)
    }

    #[test]
    fn writes_of_parts_of_one_block_follow_each_other() {
        let (mut table, namespace) = one();
        let first = table.begin(namespace, 3..5, false).unwrap();
        let apart = table.begin(namespace, 5..6, false).unwrap();
        assert!(table.begin(namespace, 4..6, true).is_none());
        assert!(!table.take_released());
        table.end(apart);
        assert!(table.take_released() && !table.take_released());
        assert!(table.begin(namespace, 4..6, true).is_none());
        table.end(first);
        assert!(table.take_released());
        let whole = table.begin(namespace, 4..6, true).unwrap();
        let other = table.begin(namespace, 5..9, true).unwrap();
        table.end(whole);
        table.end(other);
        assert!(!table.take_released(), "nothing waits");
    }

    #[test]
    fn the_controllers_of_a_subsystem_share_its_namespaces() {
        let (mut table, namespace) = one();
        let again = table.open(nqn("nqn.2014-08.org.example:one"), Nsid(1));
        assert_eq!(again, namespace);
        assert_ne!(table.open(nqn("nqn.2014-08.org.example:one"), Nsid(2)), namespace);
        assert_ne!(table.open(nqn("nqn.2014-08.org.example:two"), Nsid(1)), namespace);
        table.close(again);
        assert!(table.begin(namespace, 0..1, true).is_some());
        table.close(namespace);
        assert_eq!((table.namespaces.len(), table.numbers.len()), (2, 2));
    }

    #[test]
    fn fences_hold_what_an_unanswered_command_may_change() {
        let (mut table, namespace) = one();
        let (own, other) = (nqn("nqn.2014-08.org.example:one"), nqn("nqn.2014-08.org.example:two"));
        let elsewhere = [table.open(own, Nsid(2)), table.open(other, Nsid(1))];
        let fence = table.put_up(own, vec![UnansweredChange::Blocks(Nsid(1), 4..8)]);
        let held = [0..4, 3..5, 7..8, 8..9].map(|blocks| table.is_fenced(namespace, &blocks));
        assert_eq!(held, [false, true, true, false]);
        assert_eq!(elsewhere.map(|it| table.is_fenced(it, &(4..8))), [false, false]);
        let changes = [UnansweredChange::Namespace(Nsid(2)), UnansweredChange::Subsystem];
        let wide = changes.map(|change| table.put_up(own, vec![change]));
        assert_eq!(elsewhere.map(|it| table.is_fenced(it, &(99..100))), [true, false]);
        table.take_down(fence);
        assert!(table.take_released(), "something waits");
        assert!(table.is_fenced(namespace, &(0..1)));
        table.take_down(wide[1]);
        assert!(!table.is_fenced(namespace, &(0..u64::MAX)));
        assert!(table.is_fenced(elsewhere[0], &(0..1)));
        table.take_down(wide[0]);
        assert_eq!(elsewhere.map(|it| table.is_fenced(it, &(0..1))), [false, false]);
    }
}
