//! The writes of a host by namespace, over whichever of its controllers they go: those in progress,
//! and those of ended associations that may still be carried out.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;

use nvme_proto::{Nqn, Nsid};
use slab::Slab;

/// Names a namespace of a [`WriteTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrittenNamespace(usize);

/// Names a write in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteKey {
    namespace: WrittenNamespace,
    number: u64,
}

/// Names the fence behind an ended association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FenceKey(u64);

/// The change that a command may still make that was not answered when its association ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnansweredChange {
    /// Blocks of a namespace.
    Blocks(Nsid, Range<u64>),
    /// Anything in a namespace.
    Namespace(Nsid),
    /// Anything in the subsystem.
    Subsystem,
}

/// The writes of all engines of a host.
#[derive(Debug, Default)]
pub(crate) struct WriteTable {
    namespaces: Slab<NamespaceWrites>,
    numbers: BTreeMap<(Nqn, Nsid), WrittenNamespace>,
    unanswered: Vec<FencedCommand>,
    /// Numbers of writes and fences that were given out.
    given: u64,
    /// Something waits for what is unanswered.
    waits_for_fence: bool,
    /// True once what waits may be tried again.
    released: bool,
}

#[derive(Debug)]
struct NamespaceWrites {
    nqn: Nqn,
    nsid: Nsid,
    /// How many controllers know it.
    holders: usize,
    active: Vec<ActiveWrite>,
    /// Another write waits for one of those.
    is_awaited: bool,
}

/// The blocks of a write in progress.
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
    /// A namespace that a controller of the subsystem has; to be closed as often as it is opened.
    pub(crate) fn open(&mut self, nqn: Nqn, nsid: Nsid) -> WrittenNamespace {
        let namespaces = &mut self.namespaces;
        let known = *self.numbers.entry((nqn, nsid)).or_insert_with(|| {
            let (active, is_awaited) = (Vec::new(), false);
            let new = NamespaceWrites { nqn, nsid, holders: 0, active, is_awaited };
            WrittenNamespace(namespaces.insert(new))
        });
        namespaces[known.0].holders += 1;
        known
    }

    /// A controller less has it.
    pub(crate) fn close(&mut self, namespace: WrittenNamespace) {
        let writes = &mut self.namespaces[namespace.0];
        writes.holders -= 1;
        if writes.holders == 0 {
            let NamespaceWrites { nqn, nsid, .. } = self.namespaces.remove(namespace.0);
            self.numbers.remove(&(nqn, nsid));
        }
    }

    /// Begins a write. `None` if it has to wait, since another write in progress shares a block
    /// with it, unless both consist of whole blocks only.
    pub(crate) fn begin(
        &mut self,
        namespace: WrittenNamespace,
        blocks: Range<u64>,
        aligned: bool,
    ) -> Option<WriteKey> {
        let writes = &mut self.namespaces[namespace.0];
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

    /// A write has ended.
    pub(crate) fn end(&mut self, WriteKey { namespace, number }: WriteKey) {
        let Some(writes) = self.namespaces.get_mut(namespace.0) else { return };
        writes.active.retain(|write| write.number != number);
        self.released |= mem::take(&mut writes.is_awaited);
    }

    /// Puts up a fence behind an association that left these commands unanswered.
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

    /// Takes a fence down: none of its commands will be carried out.
    pub(crate) fn take_down(&mut self, fence: FenceKey) {
        self.unanswered.retain(|unanswered| unanswered.fence != fence);
        self.released |= mem::take(&mut self.waits_for_fence);
    }

    /// Whether an unanswered command may still change one of these blocks. Who asks waits then.
    pub(crate) fn is_fenced(&mut self, namespace: WrittenNamespace, blocks: &Range<u64>) -> bool {
        if self.unanswered.is_empty() {
            return false;
        }
        let NamespaceWrites { nqn, nsid, .. } = self.namespaces[namespace.0];
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

    /// Whether what waits may be tried again, since it was asked last.
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
