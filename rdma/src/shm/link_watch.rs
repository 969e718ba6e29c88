//! The links of a group, in which it looks for news of their peers.
//!
//! A word in the memory of each link says whether there is news. It costs a cache miss where the
//! peer was last to use it, and often where nobody used it for long, so that a group with thousands
//! of links looks at those without recent news in turn.
#![expect(unsafe_code, reason = "reads a word in shared memory")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of links in a block.
const BLOCK: usize = 64;
/// Number of rounds without news of its links after which a block is quiet.
const ROUNDS_UNTIL_QUIET: u64 = 1024;
/// Interval in rounds at which one more block is looked at.
const ROUNDS_FOR_QUIET: u64 = 8;

/// The links of a group, in blocks. Each round looks at those blocks that had news lately. The
/// others have their turn once in a while.
pub(super) struct LinkWatch {
    links: Vec<WatchedLink>,
    /// Latest round with news of each block.
    news_rounds: Vec<u64>,
    round: u64,
}

/// The news count of a link's peer, and its last value seen.
struct WatchedLink {
    slot: u32,
    seen: u64,
    news: NonNull<AtomicU64>,
}

// SAFETY: the word may be read from any thread.
unsafe impl Send for WatchedLink {}

impl WatchedLink {
    /// Whether the peer has published anything since the last call.
    fn has_news(&mut self) -> bool {
        // SAFETY: as promised when it was added.
        let news = unsafe { self.news.as_ref() }.load(Ordering::Acquire);
        core::mem::replace(&mut self.seen, news) != news
    }
}

impl LinkWatch {
    pub(super) fn with_capacity(links: usize) -> Self {
        let news_rounds = Vec::with_capacity(links.div_ceil(BLOCK));
        Self { links: Vec::with_capacity(links), news_rounds, round: 0 }
    }

    /// Adds a link with the news count of its peer.
    ///
    /// # Safety
    /// The word stays mapped until [`LinkWatch::remove`] or the end of the list.
    pub(super) unsafe fn add(&mut self, slot: u32, news: &AtomicU64) {
        let block = self.links.len() / BLOCK;
        self.links.push(WatchedLink { slot, seen: 0, news: NonNull::from(news) });
        self.news_rounds.truncate(block);
        self.news_rounds.push(self.round);
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(index) = self.links.iter().position(|link| link.slot == slot) {
            self.links.swap_remove(index);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// The slots of all links.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> {
        self.links.iter().map(|link| link.slot)
    }

    /// Appends the slots of links whose peers have news. Those of a quiet block may be seen later,
    /// by [`ROUNDS_FOR_QUIET`] rounds for each block.
    pub(super) fn look(&mut self, slots: &mut Vec<u32>) {
        self.round += 1;
        let blocks = self.links.len().div_ceil(BLOCK).max(1) as u64;
        let has_turn = self.round.is_multiple_of(ROUNDS_FOR_QUIET);
        let turn = has_turn.then_some(self.round / ROUNDS_FOR_QUIET % blocks);
        let blocks = self.links.chunks_mut(BLOCK).zip(&mut self.news_rounds);
        for ((links, news_round), block) in blocks.zip(0..) {
            if self.round - *news_round > ROUNDS_UNTIL_QUIET && Some(block) != turn {
                continue;
            }
            for link in links {
                if link.has_news() {
                    slots.push(link.slot);
                    *news_round = self.round;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Publish(usize),
        Remove(usize),
        Rounds(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => any::<usize>().prop_map(Step::Publish),
            1 => any::<usize>().prop_map(Step::Remove),
            3 => (1..4_usize).prop_map(Step::Rounds),
            1 => Just(Step::Rounds(ROUNDS_UNTIL_QUIET as usize + 1)),
        ]
    }

    /// Creates a watch of the links of these words, whose slots are their indexes.
    fn watch_of(words: &[AtomicU64]) -> LinkWatch {
        let mut watch = LinkWatch::with_capacity(words.len());
        for (slot, word) in words.iter().enumerate() {
            // SAFETY: the words outlive the watch in each test.
            unsafe { watch.add(slot as u32, word) };
        }
        watch
    }

    fn look(watch: &mut LinkWatch) -> Vec<u32> {
        let mut slots = Vec::new();
        watch.look(&mut slots);
        slots
    }

    #[test]
    fn each_round_looks_at_few_of_many_quiet_links() {
        let words: Vec<_> = (0..1000).map(|_| AtomicU64::new(0)).collect();
        let mut watch = watch_of(&words);
        for _ in 0..=ROUNDS_UNTIL_QUIET {
            assert_eq!(look(&mut watch), []);
        }
        words.iter().for_each(|word| word.store(1, Ordering::Relaxed));
        let seen: usize = (0..ROUNDS_FOR_QUIET).map(|_| look(&mut watch).len()).sum();
        assert_eq!(seen, BLOCK);
    }

    proptest! {
        #[test]
        fn all_news_are_seen_once_and_soon(
            links in 1..400_usize,
            steps in prop::collection::vec(step(), 1..80),
        ) {
            let words: Vec<_> = (0..links).map(|_| AtomicU64::new(0)).collect();
            let mut watch = watch_of(&words);
            let longest = 2 * ROUNDS_FOR_QUIET as usize * links.div_ceil(BLOCK);
            // Links in the list, and the rounds since the earliest news that were not seen.
            let mut present: BTreeMap<u32, Option<usize>> =
                (0..links as u32).map(|slot| (slot, None)).collect();
            for step in steps {
                match step {
                    Step::Publish(index) => {
                        words[index % links].fetch_add(1, Ordering::Relaxed);
                        if let Some(age) = present.get_mut(&((index % links) as u32)) {
                            age.get_or_insert(0);
                        }
                    }
                    Step::Remove(index) => {
                        let slot = (index % links) as u32;
                        watch.remove(slot);
                        present.remove(&slot);
                    }
                    Step::Rounds(count) => {
                        for _ in 0..count {
                            for slot in look(&mut watch) {
                                let age = present.get_mut(&slot).expect("a link in the list");
                                prop_assert!(age.take().is_some(), "{slot} had no news");
                            }
                            for age in present.values_mut().flatten() {
                                *age += 1;
                                prop_assert!(*age <= longest);
                            }
                        }
                    }
                }
            }
            let mut slots: Vec<_> = watch.slots().collect();
            slots.sort_unstable();
            prop_assert!(slots.into_iter().eq(present.into_keys()));
        }
    }
}
